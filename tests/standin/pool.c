/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c - pools: stream-ordered allocation
 */
#include "graph.h"
#include "impl.h"
#include "memory.h"

struct pool {
    struct object object;
    int device;
    uint64_t threshold;
    uint64_t used, used_high;
    uint64_t n_live;
    bool destroyed;
};

void pool_forget(struct alloc *alloc)
{
    if (--alloc->pool->n_live == 0 && alloc->pool->destroyed)
        object_free(alloc->pool);
}

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
        *dptr = work->alloc.address;
        return capture_add(stream, work);
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

void pool_release(uint64_t address)
{
    struct alloc *alloc;
    DRIVER_LOCKED;

    alloc = memory_find(address);
    if (!alloc)
        return;
    if (alloc->pool)
        alloc->pool->used -= alloc->mapped;
    memory_poison(address, alloc->mapped, STALE);
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
