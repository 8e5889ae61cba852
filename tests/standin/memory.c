/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - device memory, pinned host memory, pools
 *
 * A device address A is reserved PROT_NONE in this process: a host thread that dereferences it dies, as
 * it would with a GPU. The same pages are mapped at A + ALIAS_DELTA, where kernels and copies go.
 * Kernels reach pinned host memory by the address that the host uses; the translator asks
 * memory_host_ok() whether it is pinned, and faults where it is not.
 * Every allocation has pages of its own, followed by an unmapped page. Fresh memory holds NaNs
 * (0xff), memory given back to a pool 0xdb; freed memory is gone.
 */
#include "graph.h"
#include "impl.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <fcntl.h>
#include <stdio.h>

enum { PAGE = 4096, FRESH = 0xff, STALE = 0xdb };
#define POISON_MAX (256ull << 20)

/* Sorted by address; device and host together, as addresses are unified. */
static struct alloc **allocs;
static size_t n_allocs, cap_allocs;
static unsigned long long n_made;

struct pool {
    struct object object;
    int device;
    uint64_t threshold;
    uint64_t used, used_high;
    uint64_t n_live;
    bool destroyed;
};

/* The pinned ranges once more, for kernels, which must not wait for driver.lock. */
static struct host_range {
    uint64_t first, end;
} * host_ranges;
static size_t n_host_ranges, cap_host_ranges;
static atomic_ulong host_generation = 1;
static pthread_rwlock_t host_lock = PTHREAD_RWLOCK_INITIALIZER;

static bool host_range_add(uint64_t first, uint64_t end)
{
    size_t i;

    pthread_rwlock_wrlock(&host_lock);
    if (n_host_ranges == cap_host_ranges) {
        size_t cap = cap_host_ranges ? 2 * cap_host_ranges : 64;
        struct host_range *grown = realloc(host_ranges, cap * sizeof(*grown));

        if (!grown) {
            pthread_rwlock_unlock(&host_lock);
            return false;
        }
        host_ranges = grown;
        cap_host_ranges = cap;
    }
    for (i = n_host_ranges; i > 0 && host_ranges[i - 1].first > first; i--)
        host_ranges[i] = host_ranges[i - 1];
    host_ranges[i] = (struct host_range){ first, end };
    n_host_ranges++;
    atomic_fetch_add(&host_generation, 1);
    pthread_rwlock_unlock(&host_lock);
    return true;
}

static void host_range_remove(uint64_t first)
{
    size_t i = 0;

    pthread_rwlock_wrlock(&host_lock);
    while (i < n_host_ranges && host_ranges[i].first != first)
        i++;
    if (i < n_host_ranges) {
        memmove(host_ranges + i, host_ranges + i + 1,
                (n_host_ranges - i - 1) * sizeof(*host_ranges));
        n_host_ranges--;
    }
    atomic_fetch_add(&host_generation, 1);
    pthread_rwlock_unlock(&host_lock);
}

bool memory_host_ok(uint64_t address, size_t n)
{
    static _Thread_local struct host_range last;
    static _Thread_local unsigned long last_generation;
    bool ok = false;
    size_t lo = 0, hi;

    if (last_generation == atomic_load_explicit(&host_generation, memory_order_acquire) &&
        address >= last.first && address + n <= last.end)
        return true;
    pthread_rwlock_rdlock(&host_lock);
    hi = n_host_ranges;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;

        if (host_ranges[mid].end <= address)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo < n_host_ranges && host_ranges[lo].first <= address &&
        address + n <= host_ranges[lo].end) {
        last = host_ranges[lo];
        last_generation = atomic_load(&host_generation);
        ok = true;
    }
    pthread_rwlock_unlock(&host_lock);
    return ok;
}

static size_t round_page(size_t n)
{
    return (n + PAGE - 1) & ~(size_t)(PAGE - 1);
}

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
        if (driver.devices[i].memfd < 0 || ftruncate(driver.devices[i].memfd, DEVICE_SPAN) != 0)
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

static struct alloc *table_add(uint64_t address, size_t size, size_t mapped, enum alloc_kind kind)
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
    alloc->id = ++n_made;
    i = lower_bound(address);
    memmove(allocs + i + 1, allocs + i, (n_allocs - i) * sizeof(struct alloc *));
    allocs[i] = alloc;
    n_allocs++;
    return alloc;
}

static void table_remove(struct alloc *alloc)
{
    size_t i = lower_bound(alloc->address);

    memmove(allocs + i, allocs + i + 1, (n_allocs - i - 1) * sizeof(struct alloc *));
    n_allocs--;
    free(alloc);
}

/* Addresses freed last, which come back at once where handles do. */
static uint64_t freed[256];
static unsigned n_freed;

static void address_freed(uint64_t at)
{
    freed[n_freed++ % ARRAY_SIZE(freed)] = at;
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

        if (at - base < DEVICE_SPAN - mapped - PAGE && is_gap(at, mapped))
            return at;
    }
    return 0;
}

/* Lowest gap that fits and leaves a page free after it, so freed addresses come back soon. */
static uint64_t find_gap(int device, size_t mapped)
{
    uint64_t again = driver.config.handles == HANDLES_REUSE ? address_again(device, mapped) : 0;
    uint64_t base = DEVICE_BASE + (uint64_t)device * DEVICE_SPAN;
    uint64_t at = base + 2 * 1024 * 1024;

    if (again)
        return again;
    for (size_t i = lower_bound(base); i < n_allocs && memory_is_device(allocs[i]->address); i++) {
        if (allocs[i]->address >= base + DEVICE_SPAN)
            break;
        if (allocs[i]->address >= at + mapped + PAGE)
            break;
        at = allocs[i]->address + allocs[i]->mapped + PAGE;
    }
    return at + mapped + PAGE <= base + DEVICE_SPAN ? at : 0;
}

/* A large allocation is poisoned at both ends only, so that it does not become resident. */
static void poison(uint64_t address, size_t n, int byte)
{
    char *at = memory_host(address);

    if (n <= POISON_MAX) {
        memset(at, byte, n);
    } else {
        memset(at, byte, POISON_MAX / 2);
        memset(at + n - POISON_MAX / 2, byte, POISON_MAX / 2);
    }
}

CUresult memory_alloc(int device, struct context *ctx, size_t size, enum alloc_kind kind,
                      uint64_t *address)
{
    struct device *dev = &driver.devices[device];
    size_t mapped = round_page(size);
    struct alloc *alloc;
    uint64_t at;
    off_t offset;

    if (size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (mapped < size || mapped > driver.config.memory_bytes - dev->used_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    at = find_gap(device, mapped);
    if (!at)
        return CUDA_ERROR_OUT_OF_MEMORY;
    offset = (off_t)(at - DEVICE_BASE - (uint64_t)device * DEVICE_SPAN);
    if (mmap((void *)(uintptr_t)(at + ALIAS_DELTA), mapped, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED, dev->memfd, offset) == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    madvise((void *)(uintptr_t)(at + ALIAS_DELTA), mapped, MADV_DONTFORK);
    alloc = table_add(at, size, mapped, kind);
    if (!alloc)
        return CUDA_ERROR_OUT_OF_MEMORY;
    alloc->device = device;
    alloc->ctx = ctx;
    dev->used_bytes += mapped;
    poison(at, mapped, FRESH);
    *address = at;
    return CUDA_SUCCESS;
}

static void device_unmap(struct alloc *alloc)
{
    struct device *dev = &driver.devices[alloc->device];
    off_t offset = (off_t)(alloc->address - DEVICE_BASE - (uint64_t)alloc->device * DEVICE_SPAN);

    mmap((void *)(uintptr_t)(alloc->address + ALIAS_DELTA), alloc->mapped, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    fallocate(dev->memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, (off_t)alloc->mapped);
    dev->used_bytes -= alloc->mapped;
    address_freed(alloc->address);
}

static void alloc_drop(struct alloc *alloc)
{
    switch (alloc->kind) {
    case ALLOC_HOST:
    case ALLOC_MANAGED:
        host_range_remove(alloc->address);
        munmap((void *)(uintptr_t)alloc->address, alloc->mapped);
        break;
    case ALLOC_REGISTERED: host_range_remove(alloc->address); break;
    default: device_unmap(alloc); break;
    }
    if (alloc->pool && --alloc->pool->n_live == 0 && alloc->pool->destroyed)
        object_free(alloc->pool);
    table_remove(alloc);
}

CUresult memory_free(uint64_t address)
{
    struct alloc *alloc = memory_find(address);

    if (!alloc || alloc->address != address)
        return CUDA_ERROR_INVALID_VALUE;
    alloc_drop(alloc);
    return CUDA_SUCCESS;
}

/* Registered host memory outlives a context only for the process: its context's end unregisters it. */
void memory_free_context(struct context *ctx)
{
    for (size_t i = n_allocs; i-- > 0;) {
        if (i < n_allocs && allocs[i]->ctx == ctx)
            alloc_drop(allocs[i]);
    }
}

CUresult memory_check(uint64_t address, size_t n, bool *pinned)
{
    struct alloc *alloc = memory_find(address);

    *pinned = false;
    if (address + n < address)
        return CUDA_ERROR_INVALID_VALUE;
    if (alloc && address + n <= alloc->address + alloc->size && !alloc->freed) {
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
        (alloc->kind != ALLOC_DEVICE && alloc->kind != ALLOC_POOL && alloc->kind != ALLOC_MANAGED))
        return CUDA_ERROR_INVALID_VALUE;
    log_detail("\"ptr\":%llu,\"bytes\":%zu", (unsigned long long)dptr, alloc->size);
    for (ctx = driver.contexts; ctx; ctx = ctx->next) {
        if (ctx->device == alloc->device)
            context_drain(ctx);
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
    if (!alloc || alloc->freed || alloc->kind == ALLOC_RESERVED)
        return CUDA_ERROR_NOT_FOUND;
    if (pbase)
        *pbase = alloc->address;
    if (psize)
        *psize = alloc->size;
    return CUDA_SUCCESS;
}

/* ---- entries: host memory ---- */

static CUresult host_alloc(struct context *ctx, size_t size, enum alloc_kind kind, unsigned flags,
                           uint64_t *out)
{
    size_t mapped = round_page(size);
    struct alloc *alloc;
    void *at;

    if (!size || mapped < size)
        return CUDA_ERROR_INVALID_VALUE;
    at = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    alloc = table_add((uintptr_t)at, size, mapped, kind);
    if (!alloc || !host_range_add((uintptr_t)at, (uintptr_t)at + size)) {
        if (alloc)
            table_remove(alloc);
        munmap(at, mapped);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    madvise(at, mapped, MADV_DONTFORK);
    alloc->ctx = ctx;
    alloc->device = ctx->device;
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
        res = host_alloc(ctx, size, kind, flags, &at);
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
    alloc = table_add((uintptr_t)p, bytesize, mapped, ALLOC_REGISTERED);
    if (!alloc)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!host_range_add((uintptr_t)p, (uintptr_t)p + bytesize)) {
        table_remove(alloc);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    alloc->ctx = ctx;
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

/* ---- entries: pointers ---- */

static CUresult pointer_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct alloc *alloc = memory_find(ptr);
    bool device = alloc && memory_is_device(ptr);

    if (!alloc || alloc->freed)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        if (alloc->kind == ALLOC_POOL)
            *(CUcontext *)data = NULL;
        else
            *(CUcontext *)data = (CUcontext)alloc->ctx;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data =
            device || alloc->kind == ALLOC_MANAGED ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)data = ptr; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (device)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)(uintptr_t)ptr;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(unsigned *)data = 0; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)data = alloc->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)data = alloc->kind == ALLOC_MANAGED;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = alloc->device; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = alloc->address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = alloc->size; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned *)data = 1; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = alloc->kind == ALLOC_POOL ? (CUmemoryPool)alloc->pool : NULL;
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult impl_cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct context *ctx;
    CUresult res;
    DRIVER_LOCKED;

    if (!data)
        return CUDA_ERROR_INVALID_VALUE;
    res = context_current(&ctx);
    return res != CUDA_SUCCESS ? res : pointer_attribute(data, attribute, ptr);
}

/* Bytes that an attribute's value takes, for the answers about unknown pointers. */
static size_t attribute_size(CUpointer_attribute attribute)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED: return 4;
    default: return 8;
    }
}

/* Unknown pointers are not an error here: their attributes read 0 (device ordinal -2). */
CUresult impl_cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes,
                                     void **data, CUdeviceptr ptr)
{
    struct context *ctx;
    CUresult res;
    DRIVER_LOCKED;

    if (!numAttributes || !attributes || !data)
        return CUDA_ERROR_INVALID_VALUE;
    res = context_current(&ctx);
    if (res != CUDA_SUCCESS)
        return res;
    for (unsigned i = 0; i < numAttributes; i++) {
        if (pointer_attribute(data[i], attributes[i], ptr) == CUDA_SUCCESS)
            continue;
        memset(data[i], 0, attribute_size(attributes[i]));
        if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            *(int *)data[i] = -2;
    }
    return CUDA_SUCCESS;
}

CUresult impl_cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                    CUdeviceptr ptr)
{
    DRIVER_LOCKED;

    if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !memory_find(ptr))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult impl_cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device)
{
    bool pinned;
    DRIVER_LOCKED;

    (void)advice;
    (void)device;
    return memory_check(devPtr, count, &pinned);
}

CUresult impl_cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice,
                                 CUstream hStream)
{
    struct stream *stream;
    CUresult res;
    bool pinned;
    DRIVER_LOCKED;

    (void)dstDevice;
    res = stream_resolve(hStream, &stream);
    return res != CUDA_SUCCESS ? res : memory_check(devPtr, count, &pinned);
}

/* ---- pools: stream-ordered allocation ---- */

/*
 * Memory is mapped when it is asked for and given back when the stream gets to the free; until then
 * its address is not handed out again. A use after the free faults, where a GPU might forgive it.
 */
static struct pool *default_pool(int device)
{
    struct device *dev = &driver.devices[device];

    if (!dev->default_pool) {
        dev->default_pool = object_new(OBJECT_POOL, sizeof(struct pool));
        if (dev->default_pool)
            dev->default_pool->device = device;
        if (!dev->current_pool)
            dev->current_pool = dev->default_pool;
    }
    return dev->default_pool;
}

static CUresult pool_alloc(CUdeviceptr *dptr, size_t bytesize, struct pool *pool, CUstream hStream)
{
    struct stream *stream;
    struct alloc *alloc;
    uint64_t address;
    CUresult res;

    if (!dptr || !bytesize)
        return CUDA_ERROR_INVALID_VALUE;
    res = stream_resolve(hStream, &stream);
    if (res != CUDA_SUCCESS)
        return res;
    if (stream->capture) {
        struct work *work;

        res = node_work_alloc(stream->ctx, pool ? pool->device : stream->ctx->device, bytesize,
                              &work);
        if (res != CUDA_SUCCESS)
            return res;
        address = work->alloc.address;
        res = capture_add(stream, work);
        if (res == CUDA_SUCCESS)
            *dptr = address;
        return res;
    }
    if (!pool) {
        default_pool(stream->ctx->device);
        pool = driver.devices[stream->ctx->device].current_pool;
    }
    if (!object_is(pool, OBJECT_POOL))
        return CUDA_ERROR_INVALID_VALUE;
    res = memory_alloc(pool->device, NULL, bytesize, ALLOC_POOL, &address);
    if (res != CUDA_SUCCESS)
        return res;
    alloc = memory_find(address);
    alloc->pool = pool;
    pool->n_live++;
    pool->used += alloc->mapped;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    *dptr = address;
    log_detail("\"ptr\":%llu,\"bytes\":%zu", (unsigned long long)address, bytesize);
    return CUDA_SUCCESS;
}

CUresult impl_cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    DRIVER_LOCKED;

    return pool_alloc(dptr, bytesize, NULL, hStream);
}

CUresult impl_cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                      CUstream hStream)
{
    DRIVER_LOCKED;

    return pool ? pool_alloc(dptr, bytesize, (struct pool *)pool, hStream)
                : CUDA_ERROR_INVALID_VALUE;
}

void memory_pool_release(uint64_t address)
{
    struct alloc *alloc;
    DRIVER_LOCKED;

    alloc = memory_find(address);
    if (!alloc)
        return;
    if (alloc->pool)
        alloc->pool->used -= alloc->mapped;
    poison(address, alloc->mapped, STALE);
    memory_free(address);
}

CUresult impl_cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    struct stream *stream;
    struct alloc *alloc;
    struct work *work;
    CUresult res;
    DRIVER_LOCKED;

    res = stream_resolve(hStream, &stream);
    if (res != CUDA_SUCCESS || !dptr)
        return res != CUDA_SUCCESS ? res : CUDA_ERROR_INVALID_VALUE;
    alloc = memory_find(dptr);
    if (!alloc || alloc->address != dptr || alloc->freed ||
        (alloc->kind != ALLOC_POOL && alloc->kind != ALLOC_DEVICE))
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) {
        res = node_work_free(stream->ctx, dptr, &work);
        return res != CUDA_SUCCESS ? res : capture_add(stream, work);
    }
    alloc->freed = true;
    log_detail("\"ptr\":%llu,\"bytes\":%zu", (unsigned long long)dptr, alloc->size);
    work = work_new(WORK_FREE, stream->ctx);
    if (work)
        work->free.address = dptr;
    return stream_do(stream, work, NULL);
}

static CUresult get_pool(CUmemoryPool *pool_out, int device, bool current)
{
    struct pool *pool;

    if (!pool_out)
        return CUDA_ERROR_INVALID_VALUE;
    if (device < 0 || device >= driver.config.n_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    pool = default_pool(device);
    if (current)
        pool = driver.devices[device].current_pool;
    *pool_out = (CUmemoryPool)pool;
    return pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult impl_cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
    DRIVER_LOCKED;

    return get_pool(pool_out, dev, false);
}

CUresult impl_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
    DRIVER_LOCKED;

    return get_pool(pool, dev, true);
}

CUresult impl_cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    DRIVER_LOCKED;

    if (dev < 0 || dev >= driver.config.n_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!object_is(pool, OBJECT_POOL))
        return CUDA_ERROR_INVALID_VALUE;
    driver.devices[dev].current_pool = (struct pool *)pool;
    return CUDA_SUCCESS;
}

CUresult impl_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    struct pool *made;
    DRIVER_LOCKED;

    if (!pool || !poolProps || poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        poolProps->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (poolProps->location.id < 0 || poolProps->location.id >= driver.config.n_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    if (poolProps->handleTypes)
        return CUDA_ERROR_NOT_SUPPORTED;
    made = object_new(OBJECT_POOL, sizeof(*made));
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->device = poolProps->location.id;
    *pool = (CUmemoryPool)made;
    return CUDA_SUCCESS;
}

CUresult impl_cuMemPoolDestroy(CUmemoryPool handle)
{
    struct pool *pool = (struct pool *)handle;
    struct device *dev;
    DRIVER_LOCKED;

    if (!object_is(pool, OBJECT_POOL) || pool == driver.devices[pool->device].default_pool)
        return CUDA_ERROR_INVALID_VALUE;
    dev = &driver.devices[pool->device];
    if (dev->current_pool == pool)
        dev->current_pool = dev->default_pool;
    pool->destroyed = true;
    object_end(pool);
    if (pool->n_live == 0)
        object_free(pool);
    return CUDA_SUCCESS;
}

CUresult impl_cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    (void)minBytesToKeep;
    return object_is(pool, OBJECT_POOL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attr, void *value)
{
    struct pool *pool = (struct pool *)handle;
    DRIVER_LOCKED;

    if (!object_is(pool, OBJECT_POOL) || !value)
        return CUDA_ERROR_INVALID_VALUE;
    if (attr == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        pool->threshold = *(uint64_t *)value;
    else if (attr == CU_MEMPOOL_ATTR_USED_MEM_HIGH || attr == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        pool->used_high = pool->used;
    return CUDA_SUCCESS;
}

CUresult impl_cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attr, void *value)
{
    struct pool *pool = (struct pool *)handle;
    DRIVER_LOCKED;

    if (!object_is(pool, OBJECT_POOL) || !value)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: *(int *)value = 1; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(uint64_t *)value = pool->threshold;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *(uint64_t *)value = pool->used; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *(uint64_t *)value = pool->used_high; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult impl_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    (void)count;
    return object_is(pool, OBJECT_POOL) && map ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool,
                                 CUmemLocation *location)
{
    if (!flags || !location || !object_is(memPool, OBJECT_POOL))
        return CUDA_ERROR_INVALID_VALUE;
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
}
