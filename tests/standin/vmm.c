/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm.c - virtual memory management: reserved addresses, physical pieces, mappings with access of their own
 *
 * A reservation is addresses alone. A physical piece is a part of the device's file, or, where it can be
 * exported, a file of its own: the handle that another process gets. A mapping is an allocation of the
 * table, so whoever asks for an address hears of one piece. Access is the process's: what any device may do
 * all may. Host threads may touch none of it.
 */
#include "memory.h"
#include "impl.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GRANULARITY (2ull << 20)

struct reservation {
    struct reservation *next; /* by address */
    uint64_t address;
    size_t size;
};
static struct reservation *reservations;

struct physical {
    struct object object;
    struct physical *next; /* of those in devices' own files, by offset */
    CUmemAllocationProp props;
    size_t size;
    unsigned n_handles, n_maps;
    int fd;
    off_t offset;
    bool imported;
    unsigned long long id;
};
static struct physical *physicals;

/* ---- reservations ---- */

/* Where @size bytes are free from @at on; 0: not before @end. */
static uint64_t reserve_at(uint64_t at, size_t size, size_t align, struct reservation ***link)
{
    *link = &reservations;
    while (**link && (**link)->address + (**link)->size <= at)
        *link = &(**link)->next;
    while (**link && (**link)->address < at + size) {
        at = ((**link)->address + (**link)->size + align - 1) & ~(uint64_t)(align - 1);
        *link = &(**link)->next;
    }
    return at + size <= RESERVED_BASE(0) + DEVICE_SPAN / 2 ? at : 0;
}

CUresult impl_cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                                  unsigned long long flags)
{
    size_t align = alignment > GRANULARITY ? alignment : GRANULARITY;
    struct reservation *made, **link;
    uint64_t at = 0;
    DRIVER_LOCKED;

    if (!ptr || !size || size % PAGE || addr % PAGE || (alignment & (alignment - 1)) || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (size > DEVICE_SPAN / 2 || align > DEVICE_SPAN / 4)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (addr >= RESERVED_BASE(0) && addr < RESERVED_BASE(0) + DEVICE_SPAN / 2 && addr % align == 0)
        at = reserve_at(addr, size, align, &link) == addr ? addr : 0;
    if (!at)
        at =
            reserve_at((RESERVED_BASE(0) + align - 1) & ~(uint64_t)(align - 1), size, align, &link);
    made = at ? malloc(sizeof(*made)) : NULL;
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct reservation){ .next = *link, .address = at, .size = size };
    *link = made;
    *ptr = at;
    log_detail("\"ptr\":%llu,\"bytes\":%zu", (unsigned long long)at, size);
    return CUDA_SUCCESS;
}

static struct reservation *reservation_of(uint64_t at, size_t size)
{
    struct reservation *r = reservations;

    while (r && r->address + r->size <= at)
        r = r->next;
    return r && r->address <= at && size <= r->address + r->size - at ? r : NULL;
}

bool vmm_reserved(uint64_t at, uint64_t *first, size_t *size)
{
    struct reservation *r = reservation_of(at, 1);

    if (!r)
        return false;
    *first = r->address;
    *size = r->size;
    return true;
}

static bool is_mapped(uint64_t at, size_t size)
{
    struct alloc *alloc = memory_after(at);

    return alloc && alloc->address < at + size;
}

CUresult impl_cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    struct reservation **link = &reservations, *r;
    DRIVER_LOCKED;

    while (*link && (*link)->address != ptr)
        link = &(*link)->next;
    r = *link;
    if (!r || r->size != size || is_mapped(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    *link = r->next;
    free(r);
    return CUDA_SUCCESS;
}

/* ---- physical pieces ---- */

static CUresult props_check(const CUmemAllocationProp *prop)
{
    if (!prop || prop->win32HandleMetaData)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->location.type == CU_MEM_LOCATION_TYPE_HOST ||
        prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->location.id < 0 || prop->location.id >= driver.config.n_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    if (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

CUresult impl_cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                            CUmemAllocationGranularity_flags option)
{
    CUresult res;

    if (!granularity || (unsigned)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    res = props_check(prop);
    if (res == CUDA_SUCCESS)
        *granularity = GRANULARITY;
    return res;
}

/* The part of the device's file after the one that stands for its addresses. */
static void place(struct physical *physical, int device)
{
    struct physical **link = &physicals;

    physical->fd = driver.devices[device].memfd;
    physical->offset = (off_t)DEVICE_SPAN;
    for (; *link; link = &(*link)->next) {
        if ((*link)->fd != physical->fd)
            continue;
        if ((*link)->offset >= physical->offset + (off_t)physical->size)
            break;
        physical->offset = (*link)->offset + (off_t)(*link)->size;
    }
    physical->next = *link;
    *link = physical;
}

static CUresult own_file(struct physical *physical)
{
    char name[64];

    snprintf(name, sizeof(name), "standin-memory:%d", physical->props.location.id);
    physical->fd = memfd_create(name, MFD_CLOEXEC);
    if (physical->fd >= 0 && ftruncate(physical->fd, (off_t)physical->size) == 0)
        return CUDA_SUCCESS;
    if (physical->fd >= 0)
        close(physical->fd);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Fresh memory, as all of it: through a mapping that is gone afterwards. */
static void fill(const struct physical *physical)
{
    void *at = mmap(NULL, physical->size, PROT_READ | PROT_WRITE, MAP_SHARED, physical->fd,
                    physical->offset);

    if (at == MAP_FAILED)
        return;
    if (physical->size <= 256u << 20)
        memset(at, FRESH, physical->size);
    munmap(at, physical->size);
}

static struct physical *physical_new(const CUmemAllocationProp *prop, size_t size)
{
    struct physical *physical = object_new(OBJECT_PHYSICAL, sizeof(*physical));

    if (physical) {
        physical->props = *prop;
        physical->size = size;
        physical->n_handles = 1;
        physical->id = memory_id();
    }
    return physical;
}

CUresult impl_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                          const CUmemAllocationProp *prop, unsigned long long flags)
{
    struct physical *physical;
    CUresult res;
    DRIVER_LOCKED;

    if (!handle || !size || size % GRANULARITY || flags)
        return CUDA_ERROR_INVALID_VALUE;
    res = props_check(prop);
    if (res != CUDA_SUCCESS)
        return res;
    if (!memory_take(prop->location.id, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical = physical_new(prop, size);
    if (!physical)
        res = CUDA_ERROR_OUT_OF_MEMORY;
    else if (prop->requestedHandleTypes)
        res = own_file(physical);
    else
        place(physical, prop->location.id);
    if (res != CUDA_SUCCESS) {
        memory_give(prop->location.id, size);
        object_free(physical);
        return res;
    }
    fill(physical);
    *handle = (uintptr_t)physical;
    log_detail("\"bytes\":%zu", size);
    return CUDA_SUCCESS;
}

static struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
    struct physical *physical = (struct physical *)(uintptr_t)handle;

    return object_is(physical, OBJECT_PHYSICAL) && physical->n_handles ? physical : NULL;
}

/* Gone once nobody has a handle and it is mapped nowhere. */
static void physical_end(struct physical *physical)
{
    struct physical **link = &physicals;

    if (physical->n_handles || physical->n_maps)
        return;
    while (*link && *link != physical)
        link = &(*link)->next;
    if (*link) {
        *link = physical->next;
        fallocate(physical->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, physical->offset,
                  (off_t)physical->size);
    } else {
        close(physical->fd);
    }
    if (!physical->imported)
        memory_give(physical->props.location.id, physical->size);
    object_free(physical);
}

CUresult impl_cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct physical *physical;
    DRIVER_LOCKED;

    physical = physical_of(handle);
    if (!physical)
        return CUDA_ERROR_INVALID_VALUE;
    physical->n_handles--;
    physical_end(physical);
    return CUDA_SUCCESS;
}

CUresult impl_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                     CUmemGenericAllocationHandle handle)
{
    struct physical *physical;
    DRIVER_LOCKED;

    physical = physical_of(handle);
    if (!prop || !physical)
        return CUDA_ERROR_INVALID_VALUE;
    *prop = physical->props;
    return CUDA_SUCCESS;
}

static struct alloc *piece_of(uint64_t at)
{
    struct alloc *alloc = memory_find(at);

    return alloc && alloc->kind == ALLOC_MAPPED ? alloc : NULL;
}

CUresult impl_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    struct alloc *piece;
    DRIVER_LOCKED;

    piece = piece_of((uintptr_t)addr);
    if (!handle || !piece)
        return CUDA_ERROR_INVALID_VALUE;
    piece->physical->n_handles++;
    *handle = (uintptr_t)piece->physical;
    return CUDA_SUCCESS;
}

/* ---- between processes ---- */

CUresult impl_cuMemExportToShareableHandle(void *shareableHandle,
                                           CUmemGenericAllocationHandle handle,
                                           CUmemAllocationHandleType handleType,
                                           unsigned long long flags)
{
    struct physical *physical;
    int fd;
    DRIVER_LOCKED;

    physical = physical_of(handle);
    if (!shareableHandle || !physical || flags ||
        handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        !(physical->props.requestedHandleTypes & handleType))
        return CUDA_ERROR_INVALID_VALUE;
    fd = fcntl(physical->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)shareableHandle = fd;
    return CUDA_SUCCESS;
}

/* A file says by its name what it is: "/memfd:standin-memory:0 (deleted)". */
bool vmm_file_is(int fd, const char *what, int *device)
{
    char path[64], name[128], format[64];
    ssize_t n;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    n = readlink(path, name, sizeof(name) - 1);
    if (n < 0)
        return false;
    name[n] = 0;
    snprintf(format, sizeof(format), "/memfd:standin-%s:%%d", what);
    return sscanf(name, format, device) == 1 && *device >= 0 && *device < driver.config.n_devices;
}

CUresult impl_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                             CUmemAllocationHandleType shHandleType)
{
    CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                 .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
    int fd = (int)(intptr_t)osHandle;
    struct physical *physical;
    struct stat st;
    DRIVER_LOCKED;

    if (!handle || shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    if (!vmm_file_is(fd, "memory", &prop.location.id) || fstat(fd, &st) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    physical = physical_new(&prop, (size_t)st.st_size);
    if (!physical)
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    physical->imported = true;
    if (physical->fd < 0) {
        object_free(physical);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *handle = (uintptr_t)physical;
    return CUDA_SUCCESS;
}

/* ---- mappings ---- */

CUresult impl_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                       CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct physical *physical;
    struct alloc *piece;
    DRIVER_LOCKED;

    physical = physical_of(handle);
    if (!physical || !size || ptr % GRANULARITY || size % GRANULARITY || offset || flags ||
        size > physical->size || !reservation_of(ptr, size) || is_mapped(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    piece = memory_add(ptr, size, size, ALLOC_MAPPED);
    if (!piece)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!memory_map(ptr, size, physical->fd, physical->offset, PROT_NONE)) {
        memory_remove(piece);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    piece->device = physical->props.location.id;
    piece->physical = physical;
    physical->n_maps++;
    log_detail("\"ptr\":%llu,\"bytes\":%zu", (unsigned long long)ptr, size);
    return CUDA_SUCCESS;
}

/* Does [@at, @at + @size) consist of complete pieces */
static bool is_pieces(uint64_t at, size_t size)
{
    uint64_t end = at + size;

    while (at < end) {
        struct alloc *piece = piece_of(at);

        if (!piece || piece->address != at || piece->size > end - at)
            return false;
        at += piece->size;
    }
    return size != 0;
}

/* Work that is queued is not waited for: it faults. */
CUresult impl_cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    uint64_t end = ptr + size;
    DRIVER_LOCKED;

    if (!is_pieces(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    memory_unmap(ptr, size);
    while (ptr < end) {
        struct alloc *piece = piece_of(ptr);
        struct physical *physical = piece->physical;

        ptr += piece->size;
        memory_remove(piece);
        physical->n_maps--;
        physical_end(physical);
    }
    return CUDA_SUCCESS;
}

static CUresult access_check(const CUmemAccessDesc *desc, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
            return CUDA_ERROR_INVALID_VALUE;
        if (desc[i].location.id < 0 || desc[i].location.id >= driver.config.n_devices)
            return CUDA_ERROR_INVALID_DEVICE;
        if (desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
            desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
            desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static void set_access(struct alloc *piece, const CUmemAccessDesc *desc, size_t count)
{
    unsigned any = 0;
    int prot = PROT_NONE;

    for (size_t i = 0; i < count; i++)
        piece->access[desc[i].location.id] = (unsigned char)desc[i].flags;
    for (size_t i = 0; i < MAX_DEVICES; i++)
        any |= piece->access[i];
    if (any & CU_MEM_ACCESS_FLAGS_PROT_READ)
        prot = PROT_READ;
    if ((any & CU_MEM_ACCESS_FLAGS_PROT_READWRITE) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        prot = PROT_READ | PROT_WRITE;
    memory_protect(piece->address, piece->size, prot);
}

CUresult impl_cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc,
                             size_t count)
{
    CUresult res;
    DRIVER_LOCKED;

    if (!desc || !count || !is_pieces(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    res = access_check(desc, count);
    if (res != CUDA_SUCCESS)
        return res;
    for (uint64_t at = ptr; at < ptr + size; at += piece_of(at)->size)
        set_access(piece_of(at), desc, count);
    return CUDA_SUCCESS;
}

CUresult impl_cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                             CUdeviceptr ptr)
{
    struct alloc *piece;
    DRIVER_LOCKED;

    piece = piece_of(ptr);
    if (!flags || !location || !piece || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (location->id < 0 || location->id >= driver.config.n_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    *flags = piece->access[location->id];
    return CUDA_SUCCESS;
}

bool vmm_exportable(const struct alloc *alloc)
{
    return alloc->physical && alloc->physical->props.requestedHandleTypes;
}

unsigned long long vmm_block_id(const struct alloc *alloc)
{
    return alloc->physical ? alloc->physical->id : alloc->id;
}
