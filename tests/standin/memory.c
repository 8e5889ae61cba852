/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - device memory and pinned host memory: the table of allocations, what is mapped where
 *
 * A device address A is reserved PROT_NONE in this process: a host thread that dereferences it dies, as
 * it would with a GPU. The same pages are mapped at A + ALIAS_DELTA, where kernels and copies go.
 * Kernels reach pinned host memory by the address that the host uses; the translator asks
 * memory_host_ok() whether it is pinned, and faults where it is not.
 * Every allocation has pages of its own, followed by an unmapped page. Fresh memory holds NaNs
 * (0xff), memory given back to a pool 0xdb; freed memory is gone.
 */
#include "memory.h"
#include "graph.h"
#include "impl.h"

#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <unistd.h>

#define POISON_MAX (256ull << 20)

/* Sorted by address; device and host together, as addresses are unified. */
static struct alloc **allocs;
static size_t n_allocs, cap_allocs;
static unsigned long long n_made;

CUresult memory_init(void)
{
    for (int i = 0; i < driver.config.n_devices; i++) {
        uint64_t base = DEVICE_BASE + (uint64_t)i * DEVICE_SPAN;
        void *window =
            mmap((void *)(uintptr_t)base, DEVICE_SPAN, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
        void *alias =
            mmap((void *)(uintptr_t)(base + ALIAS_DELTA), DEVICE_SPAN, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

        if (window != (void *)(uintptr_t)base || alias != (void *)(uintptr_t)(base + ALIAS_DELTA))
            return CUDA_ERROR_OPERATING_SYSTEM;
        /* Neither core dumps nor children carry them. */
        madvise(window, DEVICE_SPAN, MADV_DONTDUMP);
        driver.devices[i].memfd = memfd_create("standin-device", MFD_CLOEXEC);
        if (driver.devices[i].memfd < 0 || ftruncate(driver.devices[i].memfd, 2 * DEVICE_SPAN) != 0)
            return CUDA_ERROR_OPERATING_SYSTEM;
    }
    return CUDA_SUCCESS;
}

/* First allocation that ends above @address. */
static size_t lower_bound(uint64_t address)
{
    size_t lo = 0, hi = n_allocs;

    while (lo < hi) {
        size_t mid = (lo + hi) / 2;

        if (allocs[mid]->address + allocs[mid]->size <= address)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

struct alloc *memory_find(uint64_t address)
{
    size_t i = lower_bound(address);

    return i < n_allocs && allocs[i]->address <= address ? allocs[i] : NULL;
}

unsigned long long memory_id(void)
{
    return ++n_made;
}

struct alloc *memory_add(uint64_t address, size_t size, size_t mapped, enum alloc_kind kind)
{
    struct alloc *alloc;
    size_t i;

    if (n_allocs == cap_allocs) {
        size_t cap = cap_allocs ? 2 * cap_allocs : 256;
        struct alloc **grown = realloc(allocs, cap * sizeof(struct alloc *));

        if (!grown)
            return NULL;
        allocs = grown;
        cap_allocs = cap;
    }
    alloc = calloc(1, sizeof(*alloc));
    if (!alloc)
        return NULL;
    alloc->address = address;
    alloc->size = size;
    alloc->mapped = mapped;
    alloc->kind = kind;
    alloc->id = memory_id();
    i = lower_bound(address);
    memmove(allocs + i + 1, allocs + i, (n_allocs - i) * sizeof(struct alloc *));
    allocs[i] = alloc;
    n_allocs++;
    return alloc;
}

/* Addresses freed last, which come back at once where handles do. */
static uint64_t freed[256];
static unsigned n_freed;

static void address_freed(uint64_t at)
{
    freed[n_freed++ % ARRAY_SIZE(freed)] = at;
}

void memory_remove(struct alloc *alloc)
{
    size_t i = lower_bound(alloc->address);

    memmove(allocs + i, allocs + i + 1, (n_allocs - i - 1) * sizeof(struct alloc *));
    n_allocs--;
    address_freed(alloc->address);
    op_unref(alloc->last);
    free(alloc);
}

struct alloc *memory_after(uint64_t address)
{
    size_t i = lower_bound(address);

    return i < n_allocs ? allocs[i] : NULL;
}

static bool is_gap(uint64_t at, size_t mapped)
{
    size_t i = lower_bound(at - PAGE);

    return i == n_allocs || allocs[i]->address >= at + mapped + PAGE;
}

/* The address freed last of those where @mapped bytes fit, or 0. */
static uint64_t address_again(int device, size_t mapped)
{
    uint64_t base = DEVICE_BASE + (uint64_t)device * DEVICE_SPAN;

    for (unsigned i = 0; i < n_freed && i < ARRAY_SIZE(freed); i++) {
        uint64_t at = freed[(n_freed - 1 - i) % ARRAY_SIZE(freed)];

        if (at - base < DEVICE_SPAN / 2 - mapped - PAGE && is_gap(at, mapped))
            return at;
    }
    return 0;
}

/* Lowest gap that fits and leaves a page free after it, so freed addresses come back soon. */
uint64_t memory_gap(int device, size_t mapped)
{
    uint64_t again = driver.config.handles == HANDLES_REUSE ? address_again(device, mapped) : 0;
    uint64_t base = DEVICE_BASE + (uint64_t)device * DEVICE_SPAN;
    uint64_t at = base + 2 * 1024 * 1024;

    if (again)
        return again;
    for (size_t i = lower_bound(base); i < n_allocs && memory_is_device(allocs[i]->address); i++) {
        if (allocs[i]->address >= RESERVED_BASE(device))
            break;
        if (allocs[i]->address >= at + mapped + PAGE)
            break;
        at = allocs[i]->address + allocs[i]->mapped + PAGE;
    }
    return at + mapped + PAGE <= RESERVED_BASE(device) ? at : 0;
}

/* A large allocation is poisoned at both ends only, so that it does not become resident. */
void memory_poison(uint64_t at, size_t n, int byte)
{
    char *host = memory_host(at);

    if (n <= POISON_MAX) {
        memset(host, byte, n);
    } else {
        memset(host, byte, POISON_MAX / 2);
        memset(host + n - POISON_MAX / 2, byte, POISON_MAX / 2);
    }
}

bool memory_take(int device, size_t n)
{
    struct device *dev = &driver.devices[device];

    while (n > driver.config.memory_bytes - dev->used_bytes) {
        if (!pool_trim_all(device))
            return false;
    }
    dev->used_bytes += n;
    return true;
}

void memory_give(int device, size_t n)
{
    driver.devices[device].used_bytes -= n;
}

bool memory_map(uint64_t at, size_t mapped, int fd, off_t offset, int prot)
{
    void *alias = (void *)(uintptr_t)(at + ALIAS_DELTA);

    if (mmap(alias, mapped, prot, MAP_SHARED | MAP_FIXED, fd, offset) == MAP_FAILED)
        return false;
    madvise(alias, mapped, MADV_DONTFORK);
    return true;
}

void memory_protect(uint64_t at, size_t mapped, int prot)
{
    mprotect((void *)(uintptr_t)(at + ALIAS_DELTA), mapped, prot);
}

/* No part of the Driver API: a client that knows the stand-in looks it up, and says what no kernel and no copy may touch. */
__attribute__((visibility("default"))) void standin_forbid(uint64_t at, size_t n, bool forbidden);
void standin_forbid(uint64_t at, size_t n, bool forbidden)
{
    memory_protect(at, n, forbidden ? PROT_NONE : PROT_READ | PROT_WRITE);
}

void memory_unmap(uint64_t at, size_t mapped)
{
    mmap((void *)(uintptr_t)(at + ALIAS_DELTA), mapped, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

struct alloc *memory_place(int device, struct context *ctx, size_t size, enum alloc_kind kind)
{
    size_t mapped = round_page(size);
    uint64_t at = mapped >= size ? memory_gap(device, mapped) : 0;
    struct alloc *alloc = at ? memory_add(at, size, mapped, kind) : NULL;

    if (alloc) {
        alloc->device = device;
        alloc->ctx = ctx ? context_base(ctx) : NULL;
    }
    return alloc;
}

CUresult memory_back(struct alloc *alloc, int fd, off_t offset, int prot)
{
    struct device *dev = &driver.devices[alloc->device];

    if (fd < 0) {
        fd = dev->memfd;
        offset = (off_t)(alloc->address - DEVICE_BASE - (uint64_t)alloc->device * DEVICE_SPAN);
    }
    if (!memory_take(alloc->device, alloc->mapped))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!memory_map(alloc->address, alloc->mapped, fd, offset, prot)) {
        memory_give(alloc->device, alloc->mapped);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    alloc->fd = fd;
    alloc->offset = offset;
    alloc->backed = true;
    return CUDA_SUCCESS;
}

void memory_unback(struct alloc *alloc)
{
    if (!alloc->backed)
        return;
    memory_unmap(alloc->address, alloc->mapped);
    fallocate(alloc->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, alloc->offset,
              (off_t)alloc->mapped);
    memory_give(alloc->device, alloc->mapped);
    alloc->backed = false;
}

CUresult memory_alloc(int device, struct context *ctx, size_t size, enum alloc_kind kind,
                      uint64_t *address)
{
    struct alloc *alloc;
    CUresult res;

    if (size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    alloc = memory_place(device, ctx, size, kind);
    if (!alloc)
        return CUDA_ERROR_OUT_OF_MEMORY;
    res = memory_back(alloc, -1, 0, PROT_READ | PROT_WRITE);
    if (res != CUDA_SUCCESS) {
        memory_remove(alloc);
        return res;
    }
    memory_poison(alloc->address, alloc->mapped, FRESH);
    *address = alloc->address;
    return CUDA_SUCCESS;
}

void memory_drop(struct alloc *alloc)
{
    switch (alloc->kind) {
    case ALLOC_HOST:
    case ALLOC_MANAGED:
        host_range_remove(alloc->address);
        munmap((void *)(uintptr_t)alloc->address, alloc->mapped);
        break;
    case ALLOC_REGISTERED: host_range_remove(alloc->address); break;
    case ALLOC_IPC:
        memory_unmap(alloc->address, alloc->mapped);
        close(alloc->fd);
        break;
    default: memory_unback(alloc); break;
    }
    memory_remove(alloc);
}

CUresult memory_free(uint64_t address)
{
    struct alloc *alloc = memory_find(address);

    if (!alloc || alloc->address != address)
        return CUDA_ERROR_INVALID_VALUE;
    memory_drop(alloc);
    return CUDA_SUCCESS;
}

/* Registered host memory outlives a context only for the process: its context's end unregisters it. */
void memory_free_context(struct context *ctx)
{
    for (size_t i = n_allocs; i-- > 0;) {
        if (i < n_allocs && allocs[i]->ctx == ctx)
            memory_drop(allocs[i]);
    }
}

/* Where the memory that holds @address ends: mapped pieces that follow each other are one range. */
static uint64_t range_end(struct alloc *alloc)
{
    uint64_t end = alloc->address + alloc->size;

    while (alloc->kind == ALLOC_MAPPED) {
        alloc = memory_find(end);
        if (!alloc || alloc->kind != ALLOC_MAPPED)
            break;
        end += alloc->size;
    }
    return end;
}

CUresult memory_check(uint64_t address, size_t n, bool *pinned)
{
    struct alloc *alloc = memory_find(address);

    *pinned = false;
    if (address + n < address)
        return CUDA_ERROR_INVALID_VALUE;
    if (alloc && !alloc->freed && address + n <= range_end(alloc)) {
        *pinned = true;
        return CUDA_SUCCESS;
    }
    if (memory_is_device(address))
        return CUDA_ERROR_INVALID_VALUE;
    /* A range that starts in pinned memory and leaves it is an error too; pageable memory is not the driver's. */
    return alloc ? CUDA_ERROR_INVALID_VALUE : address ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- entries: device memory ---- */

CUresult impl_cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    struct context *ctx;
    uint64_t address;
    CUresult res;
    DRIVER_LOCKED;

    if (!dptr || !bytesize)
        return CUDA_ERROR_INVALID_VALUE;
    res = context_current(&ctx);
    if (res == CUDA_SUCCESS)
        res = capture_unsafe();
    if (res != CUDA_SUCCESS)
        return res;
    LOADING(ctx);
    res = load_result(loading_);
    if (res == CUDA_SUCCESS)
        res = memory_alloc(ctx->device, ctx, bytesize, ALLOC_DEVICE, &address);
    if (res != CUDA_SUCCESS)
        return res;
    *dptr = address;
    log_detail("\"ptr\":%llu,\"bytes\":%zu", (unsigned long long)address, bytesize);
    return CUDA_SUCCESS;
}

CUresult impl_cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes,
                                 size_t Height, unsigned int ElementSizeBytes)
{
    size_t pitch = (WidthInBytes + 511) & ~(size_t)511;
    CUresult res;

    if (!pPitch || !WidthInBytes || !Height ||
        (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16))
        return CUDA_ERROR_INVALID_VALUE;
    res = impl_cuMemAlloc_v2(dptr, pitch * Height);
    if (res == CUDA_SUCCESS)
        *pPitch = pitch;
    return res;
}

/* Waits for the context's work first, as drivers do. */
CUresult impl_cuMemFree_v2(CUdeviceptr dptr)
{
    struct alloc *alloc;
    struct context *ctx;
    CUresult res;
    DRIVER_LOCKED;

    if (!dptr)
        return CUDA_SUCCESS;
    res = context_current(&ctx);
    if (res == CUDA_SUCCESS)
        res = capture_unsafe();
    if (res != CUDA_SUCCESS)
        return res;
    alloc = memory_find(dptr);
    if (!alloc || alloc->address != dptr || alloc->freed ||
        (alloc->kind != ALLOC_DEVICE && alloc->kind != ALLOC_MANAGED &&
         alloc->kind != ALLOC_GRAPH && !alloc->pool) ||
        (alloc->kind == ALLOC_GRAPH && !alloc->live))
        return CUDA_ERROR_INVALID_VALUE;
    log_detail("\"ptr\":%llu,\"bytes\":%zu", (unsigned long long)dptr, alloc->size);
    for (ctx = driver.contexts; ctx; ctx = ctx->next) {
        if (ctx->device == alloc->device)
            context_drain(ctx);
    }
    if (alloc->kind == ALLOC_GRAPH) {
        alloc->live = false;
        graph_memory_stop(alloc);
        return CUDA_SUCCESS;
    }
    if (alloc->pool) {
        pool_free(alloc);
        return CUDA_SUCCESS;
    }
    return memory_free(dptr);
}

CUresult impl_cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    struct context *ctx;
    CUresult res;
    DRIVER_LOCKED;

    if (!free_bytes || !total)
        return CUDA_ERROR_INVALID_VALUE;
    res = context_current(&ctx);
    if (res != CUDA_SUCCESS)
        return res;
    *total = driver.config.memory_bytes;
    *free_bytes = driver.config.memory_bytes - driver.devices[ctx->device].used_bytes;
    return CUDA_SUCCESS;
}

CUresult impl_cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
    struct context *ctx;
    struct alloc *alloc;
    CUresult res;
    DRIVER_LOCKED;

    res = context_current(&ctx);
    if (res != CUDA_SUCCESS)
        return res;
    alloc = memory_find(dptr);
    if (!alloc || alloc->freed || (alloc->kind == ALLOC_GRAPH && !alloc->live))
        return CUDA_ERROR_NOT_FOUND;
    if (pbase)
        *pbase = alloc->address;
    if (psize)
        *psize = alloc->size;
    return CUDA_SUCCESS;
}

/* ---- entries: host memory ---- */

CUresult memory_host_alloc(struct context *ctx, int device, size_t size, enum alloc_kind kind,
                           unsigned flags, uint64_t *out)
{
    size_t mapped = round_page(size);
    struct alloc *alloc;
    void *at;

    if (!size || mapped < size)
        return CUDA_ERROR_INVALID_VALUE;
    at = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    alloc = memory_add((uintptr_t)at, size, mapped, kind);
    if (!alloc || !host_range_add((uintptr_t)at, (uintptr_t)at + size)) {
        if (alloc)
            memory_remove(alloc);
        munmap(at, mapped);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    madvise(at, mapped, MADV_DONTFORK);
    alloc->ctx = ctx ? context_base(ctx) : NULL;
    alloc->device = device;
    alloc->flags = flags;
    *out = (uintptr_t)at;
    return CUDA_SUCCESS;
}

static CUresult host_alloc_entry(void **pp, size_t size, enum alloc_kind kind, unsigned flags)
{
    struct context *ctx;
    uint64_t at;
    CUresult res;
    DRIVER_LOCKED;

    if (!pp)
        return CUDA_ERROR_INVALID_VALUE;
    res = context_current(&ctx);
    if (res == CUDA_SUCCESS)
        res = capture_unsafe();
    if (res != CUDA_SUCCESS)
        return res;
    LOADING(ctx);
    res = load_result(loading_);
    if (res == CUDA_SUCCESS)
        res = memory_host_alloc(ctx, ctx->device, size, kind, flags, &at);
    if (res != CUDA_SUCCESS)
        return res;
    *pp = (void *)(uintptr_t)at;
    log_detail("\"ptr\":%llu,\"bytes\":%zu", (unsigned long long)at, size);
    return CUDA_SUCCESS;
}

CUresult impl_cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
    if (Flags & ~7u)
        return CUDA_ERROR_INVALID_VALUE;
    return host_alloc_entry(pp, bytesize, ALLOC_HOST, Flags | CU_MEMHOSTALLOC_DEVICEMAP);
}

CUresult impl_cuMemAllocHost_v2(void **pp, size_t bytesize)
{
    return host_alloc_entry(pp, bytesize, ALLOC_HOST, CU_MEMHOSTALLOC_DEVICEMAP);
}

CUresult impl_cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    return host_alloc_entry((void **)dptr, bytesize, ALLOC_MANAGED, flags);
}

CUresult impl_cuMemFreeHost(void *p)
{
    struct context *ctx;
    struct alloc *alloc;
    CUresult res;
    DRIVER_LOCKED;

    res = context_current(&ctx);
    if (res == CUDA_SUCCESS)
        res = capture_unsafe();
    if (res != CUDA_SUCCESS)
        return res;
    alloc = memory_find((uintptr_t)p);
    if (!alloc || alloc->address != (uintptr_t)p || alloc->kind != ALLOC_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    context_drain(alloc->ctx);
    return memory_free((uintptr_t)p);
}

/* mincore() knows whether anything is mapped there at all. */
static bool is_mapped(uint64_t at, size_t n)
{
    unsigned char seen;

    for (size_t i = 0; i < n; i += PAGE) {
        if (mincore((void *)(uintptr_t)(at + i), PAGE, &seen) != 0)
            return false;
    }
    return true;
}

CUresult impl_cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
{
    uint64_t first = (uintptr_t)p & ~(uint64_t)(PAGE - 1);
    struct context *ctx;
    struct alloc *alloc;
    size_t mapped, i;
    CUresult res;
    DRIVER_LOCKED;

    if (!p || !bytesize || (Flags & ~15u) || (uintptr_t)p + bytesize < (uintptr_t)p)
        return CUDA_ERROR_INVALID_VALUE;
    if (Flags & CU_MEMHOSTREGISTER_IOMEMORY)
        return CUDA_ERROR_NOT_SUPPORTED;
    res = context_current(&ctx);
    if (res == CUDA_SUCCESS)
        res = capture_unsafe();
    if (res != CUDA_SUCCESS)
        return res;
    LOADING(ctx);
    res = load_result(loading_);
    if (res != CUDA_SUCCESS)
        return res;
    i = lower_bound((uintptr_t)p);
    if (i < n_allocs && allocs[i]->address < (uintptr_t)p + bytesize)
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    mapped = round_page((uintptr_t)p + bytesize - first);
    if (memory_is_device(first) || !is_mapped(first, mapped))
        return CUDA_ERROR_INVALID_VALUE;
    alloc = memory_add((uintptr_t)p, bytesize, mapped, ALLOC_REGISTERED);
    if (!alloc)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!host_range_add((uintptr_t)p, (uintptr_t)p + bytesize)) {
        memory_remove(alloc);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    alloc->ctx = context_base(ctx);
    alloc->device = ctx->device;
    alloc->flags = Flags;
    log_detail("\"ptr\":%llu,\"bytes\":%zu", (unsigned long long)(uintptr_t)p, bytesize);
    return CUDA_SUCCESS;
}

CUresult impl_cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags)
{
    return impl_cuMemHostRegister_v2(p, bytesize, Flags);
}

CUresult impl_cuMemHostUnregister(void *p)
{
    struct context *ctx;
    struct alloc *alloc;
    CUresult res;
    DRIVER_LOCKED;

    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    res = context_current(&ctx);
    if (res == CUDA_SUCCESS)
        res = capture_unsafe();
    if (res != CUDA_SUCCESS)
        return res;
    alloc = memory_find((uintptr_t)p);
    if (!alloc || alloc->address != (uintptr_t)p || alloc->kind != ALLOC_REGISTERED)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    context_drain(alloc->ctx);
    return memory_free((uintptr_t)p);
}

CUresult impl_cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
    struct context *ctx;
    struct alloc *alloc;
    CUresult res;
    DRIVER_LOCKED;

    if (!pdptr || !p || Flags)
        return CUDA_ERROR_INVALID_VALUE;
    res = context_current(&ctx);
    if (res != CUDA_SUCCESS)
        return res;
    alloc = memory_find((uintptr_t)p);
    if (!alloc || memory_is_device((uintptr_t)p))
        return CUDA_ERROR_INVALID_VALUE;
    *pdptr = (uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult impl_cuMemHostGetFlags(unsigned int *pFlags, void *p)
{
    struct alloc *alloc;
    DRIVER_LOCKED;

    if (!pFlags)
        return CUDA_ERROR_INVALID_VALUE;
    alloc = memory_find((uintptr_t)p);
    if (!alloc || alloc->kind != ALLOC_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    *pFlags = alloc->flags;
    return CUDA_SUCCESS;
}
