/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c - pools: stream-ordered allocation
 *
 * A block keeps its addresses and its memory when it is freed, for an allocation that takes the same
 * number of pages: at once on the same stream, elsewhere once the free is over or ordered before. What
 * nobody uses goes back to the device at a synchronisation, beyond the pool's threshold. From the free's
 * place in its stream on a use of the memory faults, where a GPU might forgive it; from the call on the
 * driver does not know the pointer.
 */
#include "pool.h"
#include "graph.h"
#include "impl.h"

#include <string.h>
#include <unistd.h>

static struct pool *pools;

struct pool *pool_new(const CUmemPoolProps *props, int fd)
{
    struct pool *pool = object_new(OBJECT_POOL, sizeof(*pool));

    if (!pool)
        return NULL;
    pool->props = *props;
    pool->on_host = props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED ||
                    props->location.type != CU_MEM_LOCATION_TYPE_DEVICE;
    pool->device = props->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? props->location.id : 0;
    for (size_t i = 0; i < ARRAY_SIZE(pool->reuse); i++)
        pool->reuse[i] = 1;
    pool->fd = fd;
    pool->next = pools;
    pools = pool;
    return pool;
}

bool pool_exportable(const struct pool *pool)
{
    return pool->fd >= 0;
}

static void pool_end(struct pool *pool)
{
    struct pool **link = &pools;

    if (!pool->destroyed || pool->blocks)
        return;
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    if (pool->fd >= 0)
        close(pool->fd);
    object_free(pool);
}

/* ---- blocks ---- */

static void use(struct pool *pool, size_t n)
{
    pool->used += n;
    if (pool->used_high < pool->used)
        pool->used_high = pool->used;
}

void pool_add(struct pool *pool, struct alloc *alloc)
{
    alloc->pool = pool;
    alloc->next_block = pool->blocks;
    pool->blocks = alloc;
    use(pool, alloc->mapped);
    pool->reserved += alloc->mapped;
    if (pool->reserved_high < pool->reserved)
        pool->reserved_high = pool->reserved;
}

/* Its memory goes back to the device. */
static void block_end(struct alloc *alloc)
{
    struct pool *pool = alloc->pool;
    struct alloc **link = &pool->blocks;

    while (*link != alloc)
        link = &(*link)->next_block;
    *link = alloc->next_block;
    pool->reserved -= alloc->mapped;
    if (alloc->imported) {
        memory_unmap(alloc->address, alloc->mapped);
        alloc->backed = false;
    }
    memory_drop(alloc);
    pool_end(pool);
}

/* The free is over: kernels cannot reach the memory from here on. */
static void block_close(struct alloc *alloc)
{
    struct pool *pool = alloc->pool;

    pool->used -= alloc->mapped;
    alloc->closed = true;
    if (pool->destroyed || pool->on_host || alloc->imported)
        block_end(alloc);
    else
        memory_protect(alloc->address, alloc->mapped, PROT_NONE);
}

void pool_release(uint64_t address, unsigned long long id)
{
    struct alloc *alloc;
    DRIVER_LOCKED;

    alloc = memory_find(address);
    if (!alloc)
        return;
    if (alloc->kind == ALLOC_GRAPH) {
        graph_memory_stop(alloc);
        return;
    }
    if (!alloc->imported)
        memory_poison(address, alloc->mapped, STALE);
    if (alloc->id != id) /* allocated again already, on the same stream */
        return;
    if (alloc->pool)
        block_close(alloc);
    else
        memory_free(address);
}

static void pool_trim(struct pool *pool, uint64_t keep)
{
    struct alloc *next;

    for (struct alloc *alloc = pool->blocks; alloc && pool->reserved > keep; alloc = next) {
        next = alloc->next_block;
        if (alloc->freed && alloc->closed)
            block_end(alloc);
    }
}

void pool_free(struct alloc *alloc)
{
    struct pool *pool = alloc->pool;
    bool last = pool->destroyed;

    alloc->freed = true;
    if (!alloc->imported)
        memory_poison(alloc->address, alloc->mapped, STALE);
    block_close(alloc);
    if (!last)
        pool_trim(pool, pool->threshold);
}

void pool_synchronized(int device)
{
    struct pool *next;

    for (struct pool *pool = pools; pool; pool = next) {
        next = pool->next;
        if (pool->device == device && pool->reserved > pool->threshold)
            pool_trim(pool, pool->threshold);
    }
}

bool pool_trim_all(int device)
{
    uint64_t before = driver.devices[device].used_bytes;
    struct pool *next;

    for (struct pool *pool = pools; pool; pool = next) {
        next = pool->next;
        if (pool->device == device)
            pool_trim(pool, 0);
    }
    return driver.devices[device].used_bytes < before;
}

/* ---- allocation ---- */

static bool may_reuse(const struct pool *pool, const struct alloc *alloc,
                      const struct stream *stream)
{
    if (alloc->last_stream == stream->id)
        return true;
    if (alloc->closed)
        return pool->reuse[CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC - 1];
    return pool->reuse[CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES - 1] &&
           op_precedes(alloc->last, stream->tail);
}

static void block_reuse(struct alloc *alloc, size_t size)
{
    alloc->freed = false;
    alloc->size = size;
    alloc->id = memory_id();
    if (!alloc->closed)
        return; /* the memory changes hands in stream order, and stays in use */
    alloc->closed = false;
    memory_protect(alloc->address, alloc->mapped, PROT_READ | PROT_WRITE);
    use(alloc->pool, alloc->mapped);
}

static struct alloc *find_free(struct pool *pool, size_t size, const struct stream *stream)
{
    for (struct alloc *alloc = pool->blocks; alloc; alloc = alloc->next_block) {
        if (alloc->freed && alloc->mapped == round_page(size) && !pool->on_host &&
            (!stream || may_reuse(pool, alloc, stream)))
            return alloc;
    }
    return NULL;
}

/* Another stream's free is not over: this stream waits for it. */
static struct alloc *wait_for_free(struct pool *pool, size_t size, struct stream *stream)
{
    struct alloc *alloc = find_free(pool, size, NULL);
    struct op *op;

    if (!alloc || !pool->reuse[CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES - 1])
        return NULL;
    op = stream_open(stream, NULL);
    if (!op)
        return NULL;
    op_depend(op, alloc->last);
    op_commit(op);
    return alloc;
}

static CUresult block_new(struct pool *pool, size_t size, struct context *ctx, struct alloc **out)
{
    CUresult res;
    uint64_t at;

    if (pool->props.maxSize && pool->used + round_page(size) > pool->props.maxSize)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (pool->on_host) {
        bool managed = pool->props.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;

        res = memory_host_alloc(NULL, ctx->device, size, managed ? ALLOC_MANAGED : ALLOC_HOST,
                                managed ? CU_MEM_ATTACH_GLOBAL : 0, &at);
        *out = res == CUDA_SUCCESS ? memory_find(at) : NULL;
        return res;
    }
    *out = memory_place(pool->device, NULL, size, ALLOC_POOL);
    if (!*out)
        return CUDA_ERROR_OUT_OF_MEMORY;
    res = memory_back(*out, pool->fd, pool->fd_end, PROT_READ | PROT_WRITE);
    if (res != CUDA_SUCCESS) {
        memory_remove(*out);
        return res;
    }
    memory_poison((*out)->address, (*out)->mapped, FRESH);
    if (pool->fd >= 0)
        pool->fd_end += (off_t)(*out)->mapped;
    return CUDA_SUCCESS;
}

static CUresult capture_alloc(CUdeviceptr *dptr, size_t size, const struct pool *pool,
                              struct stream *stream)
{
    struct work *work;
    uint64_t address;
    CUresult res = node_work_alloc(stream->ctx, pool->device, size, &work);

    if (res != CUDA_SUCCESS)
        return res;
    address = work->alloc.address;
    res = capture_add(stream, work);
    if (res == CUDA_SUCCESS)
        *dptr = address;
    return res;
}

/* No bytes are no error, no address and no node: cuda.core's tests expect success, and no more. */
static CUresult pool_alloc(CUdeviceptr *dptr, size_t size, struct pool *pool, struct stream *stream)
{
    struct alloc *alloc;
    CUresult res = CUDA_SUCCESS;

    if (!size) {
        *dptr = 0;
        return CUDA_SUCCESS;
    }
    if (pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return capture_alloc(dptr, size, pool, stream);
    alloc = find_free(pool, size, stream);
    if (alloc) {
        block_reuse(alloc, size);
    } else {
        res = block_new(pool, size, stream->ctx, &alloc);
        if (res == CUDA_SUCCESS) {
            pool_add(pool, alloc);
        } else {
            alloc = res == CUDA_ERROR_OUT_OF_MEMORY ? wait_for_free(pool, size, stream) : NULL;
            if (!alloc)
                return res;
            block_reuse(alloc, size);
        }
    }
    *dptr = alloc->address;
    log_detail("\"ptr\":%llu,\"bytes\":%zu", (unsigned long long)*dptr, size);
    return CUDA_SUCCESS;
}

CUresult impl_cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    struct stream *stream;
    CUmemoryPool pool;
    CUresult res;

    if (!dptr)
        return CUDA_ERROR_INVALID_VALUE;
    DRIVER_LOCKED;
    res = stream_resolve(hStream, &stream);
    if (res == CUDA_SUCCESS)
        res = pool_of_device(&pool, stream->ctx->device);
    return res != CUDA_SUCCESS ? res : pool_alloc(dptr, bytesize, (struct pool *)pool, stream);
}

CUresult impl_cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                      CUstream hStream)
{
    struct stream *stream;
    CUresult res;
    DRIVER_LOCKED;

    if (!dptr || !object_is(pool, OBJECT_POOL))
        return CUDA_ERROR_INVALID_VALUE;
    res = stream_resolve(hStream, &stream);
    return res != CUDA_SUCCESS ? res : pool_alloc(dptr, bytesize, (struct pool *)pool, stream);
}

static bool can_be_freed(const struct alloc *alloc, CUdeviceptr dptr)
{
    if (!alloc || alloc->address != dptr || alloc->freed)
        return false;
    return alloc->pool || alloc->kind == ALLOC_DEVICE ||
           (alloc->kind == ALLOC_GRAPH && alloc->live);
}

static CUresult capture_free(CUdeviceptr dptr, struct stream *stream)
{
    struct work *work;
    CUresult res = node_work_free(stream->ctx, dptr, &work);

    return res != CUDA_SUCCESS ? res : capture_add(stream, work);
}

CUresult impl_cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    struct stream *stream;
    struct alloc *alloc;
    struct work *work;
    struct op *op;
    CUresult res;
    DRIVER_LOCKED;

    res = stream_resolve(hStream, &stream);
    if (res != CUDA_SUCCESS || !dptr)
        return res;
    if (stream->capture)
        return capture_free(dptr, stream);
    alloc = memory_find(dptr);
    if (!can_be_freed(alloc, dptr))
        return CUDA_ERROR_INVALID_VALUE;
    work = work_new(WORK_FREE, stream->ctx);
    if (!work)
        return CUDA_ERROR_OUT_OF_MEMORY;
    work->free.address = dptr;
    work->free.id = alloc->id;
    log_detail("\"ptr\":%llu,\"bytes\":%zu", (unsigned long long)dptr, alloc->size);
    res = stream_do(stream, work, &op);
    if (res != CUDA_SUCCESS)
        return res;
    alloc->freed = alloc->kind != ALLOC_GRAPH;
    alloc->live = false;
    alloc->last_stream = stream->id;
    op_unref(alloc->last);
    alloc->last = op_ref(op);
    return CUDA_SUCCESS;
}

/* ---- entries: a pool's life and attributes ---- */

CUresult impl_cuMemPoolDestroy(CUmemoryPool handle)
{
    struct pool *pool = (struct pool *)handle;
    DRIVER_LOCKED;

    if (!object_is(pool, OBJECT_POOL) || pool->is_default || pool->destroyed)
        return CUDA_ERROR_INVALID_VALUE;
    pool_no_longer_current(pool);
    pool->destroyed = true;
    object_end(pool);
    if (pool->blocks)
        pool_trim(pool, 0);
    else
        pool_end(pool);
    return CUDA_SUCCESS;
}

static struct pool *pool_of(CUmemoryPool handle)
{
    struct pool *pool = (struct pool *)handle;

    return object_is(pool, OBJECT_POOL) && !pool->destroyed ? pool : NULL;
}

CUresult impl_cuMemPoolTrimTo(CUmemoryPool handle, size_t minBytesToKeep)
{
    struct pool *pool;
    DRIVER_LOCKED;

    pool = pool_of(handle);
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    pool_trim(pool, minBytesToKeep);
    return CUDA_SUCCESS;
}

CUresult impl_cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attr, void *value)
{
    struct pool *pool;
    DRIVER_LOCKED;

    pool = pool_of(handle);
    if (!pool || !value)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->reuse[attr - 1] = *(int *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->threshold = *(uint64_t *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*(uint64_t *)value)
            return CUDA_ERROR_INVALID_VALUE;
        if (attr == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
            pool->used_high = pool->used;
        else
            pool->reserved_high = pool->reserved;
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult impl_cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attr, void *value)
{
    struct pool *pool;
    DRIVER_LOCKED;

    pool = pool_of(handle);
    if (!pool || !value)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = pool->reuse[attr - 1];
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *(uint64_t *)value = pool->threshold; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *(uint64_t *)value = pool->reserved; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *(uint64_t *)value = pool->reserved_high; break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *(uint64_t *)value = pool->used; break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *(uint64_t *)value = pool->used_high; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* The memory's own device always has access; what others have is kept for the question only. */
CUresult impl_cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *map, size_t count)
{
    struct pool *pool;
    DRIVER_LOCKED;

    pool = pool_of(handle);
    if (!pool || (count && !map))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
            return CUDA_ERROR_INVALID_VALUE;
        if (map[i].location.id < 0 || map[i].location.id >= driver.config.n_devices)
            return CUDA_ERROR_INVALID_DEVICE;
        if (map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
            (map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE ||
             (!pool->on_host && map[i].location.id == pool->device)))
            return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t bit = 1ull << map[i].location.id;

        pool->peers =
            map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? pool->peers & ~bit : pool->peers | bit;
    }
    return CUDA_SUCCESS;
}

CUresult impl_cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle,
                                 CUmemLocation *location)
{
    struct pool *pool;
    bool yes;
    DRIVER_LOCKED;

    pool = pool_of(handle);
    if (!flags || !location || !pool)
        return CUDA_ERROR_INVALID_VALUE;
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        yes = pool->on_host;
    else if (location->id < 0 || location->id >= driver.config.n_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    else
        yes = (!pool->on_host && location->id == pool->device) || (pool->peers >> location->id & 1);
    *flags = yes ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}
