/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.c - contexts, each thread's stack of them, the primary ones
 */
#include "array.h"
#include "driver.h"
#include "impl.h"

#include <stdlib.h>
#include <string.h>

CUresult context_current(struct context **ctx)
{
    struct context *top = tls.n_stack ? tls.stack[tls.n_stack - 1] : NULL;

    if (!top)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!object_live(top, OBJECT_CONTEXT))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *ctx = top;
    return top->sticky;
}

CUresult context_resolve(CUcontext handle, struct context **ctx)
{
    if (!handle)
        return context_current(ctx);
    if (!object_is(handle, OBJECT_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    *ctx = (struct context *)handle;
    return CUDA_SUCCESS;
}

struct context *context_new(int device, unsigned flags, bool primary)
{
    struct context *ctx = object_new(OBJECT_CONTEXT, sizeof(*ctx));

    if (!ctx)
        return NULL;
    ctx->id = ++driver.n_contexts_made;
    ctx->device = device;
    ctx->flags = flags;
    ctx->api_version = 3020;
    ctx->primary = primary;
    ctx->n_refs = 1;
    ctx->limits[CU_LIMIT_STACK_SIZE] = 1024;
    ctx->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
    ctx->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    ctx->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
    ctx->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
    ctx->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
    ctx->next = driver.contexts;
    driver.contexts = ctx;
    return ctx;
}

void context_fail(struct context *ctx, CUresult res)
{
    ctx->sticky = res;
    for (struct context *c = driver.contexts; c; c = c->next) {
        if (context_base(c) == context_base(ctx))
            c->sticky = res;
    }
}

/* Queued work finishes first; then what the context owns is freed with it. */
void context_destroy(struct context *ctx)
{
    struct context **link = &driver.contexts;
    LOADING(ctx);

    if (!loading_)
        return;
    context_drain(ctx);
    textures_destroy(ctx);
    arrays_destroy(ctx);
    while (ctx->modules)
        module_destroy(ctx->modules);
    while (ctx->events)
        event_destroy(ctx->events);
    while (ctx->streams) {
        struct stream *stream = ctx->streams;

        capture_forget(stream);
        ctx->streams = stream->next;
        op_unref(stream->tail);
        object_free(stream);
    }
    memory_free_context(ctx);
    op_unref(ctx->barrier);
    while (*link && *link != ctx)
        link = &(*link)->next;
    if (*link)
        *link = ctx->next;
    object_free(ctx);
}

static CUresult context_push(struct context *ctx)
{
    if (tls.n_stack == ARRAY_SIZE(tls.stack))
        return CUDA_ERROR_OUT_OF_MEMORY;
    tls.stack[tls.n_stack++] = ctx;
    return CUDA_SUCCESS;
}

static CUresult context_create(CUcontext *pctx, unsigned flags, CUdevice dev, unsigned api_version)
{
    struct context *ctx;
    CUresult res;
    DRIVER_LOCKED;

    if (!pctx || (flags & ~0xffu) || (flags & CU_CTX_SCHED_MASK) > 4)
        return CUDA_ERROR_INVALID_VALUE;
    if (dev < 0 || dev >= driver.config.n_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    ctx = context_new(dev, flags, false);
    if (!ctx)
        return CUDA_ERROR_OUT_OF_MEMORY;
    ctx->api_version = api_version;
    res = context_push(ctx);
    if (res != CUDA_SUCCESS) {
        context_destroy(ctx);
        return res;
    }
    *pctx = (CUcontext)ctx;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    return context_create(pctx, flags, dev, 3010);
}

CUresult impl_cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    return context_create(pctx, flags, dev, 3020);
}

CUresult impl_cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
                             unsigned int flags, CUdevice dev)
{
    if (numParams && paramsArray)
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return context_create(pctx, flags, dev, 3020);
}

CUresult impl_cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams,
                             unsigned int flags, CUdevice dev)
{
    if (ctxCreateParams && (ctxCreateParams->execAffinityParams || ctxCreateParams->cigParams))
        return CUDA_ERROR_NOT_SUPPORTED;
    return context_create(pctx, flags, dev, 3020);
}

CUresult impl_cuCtxDestroy_v2(CUcontext handle)
{
    struct context *ctx = (struct context *)handle;
    DRIVER_LOCKED;

    if (!object_is(ctx, OBJECT_CONTEXT) || ctx->primary || ctx->green)
        return CUDA_ERROR_INVALID_CONTEXT;
    context_destroy(ctx);
    if (tls.n_stack && tls.stack[tls.n_stack - 1] == ctx)
        tls.n_stack--;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxDestroy(CUcontext ctx)
{
    return impl_cuCtxDestroy_v2(ctx);
}

CUresult impl_cuCtxAttach(CUcontext *pctx, unsigned int flags)
{
    struct context *ctx;
    CUresult res;
    DRIVER_LOCKED;

    if (!pctx || flags)
        return CUDA_ERROR_INVALID_VALUE;
    res = context_current(&ctx);
    if (res != CUDA_SUCCESS)
        return res;
    ctx->n_refs++;
    *pctx = (CUcontext)ctx;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxDetach(CUcontext handle)
{
    struct context *ctx = (struct context *)handle;
    DRIVER_LOCKED;

    if (!object_is(ctx, OBJECT_CONTEXT) || ctx->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--ctx->n_refs > 0)
        return CUDA_SUCCESS;
    context_destroy(ctx);
    if (tls.n_stack && tls.stack[tls.n_stack - 1] == ctx)
        tls.n_stack--;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxPushCurrent_v2(CUcontext ctx)
{
    DRIVER_LOCKED;

    if (!object_is(ctx, OBJECT_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    return context_push((struct context *)ctx);
}

CUresult impl_cuCtxPushCurrent(CUcontext ctx)
{
    return impl_cuCtxPushCurrent_v2(ctx);
}

CUresult impl_cuCtxPopCurrent_v2(CUcontext *pctx)
{
    if (!tls.n_stack)
        return CUDA_ERROR_INVALID_CONTEXT;
    tls.n_stack--;
    if (pctx)
        *pctx = (CUcontext)tls.stack[tls.n_stack];
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxPopCurrent(CUcontext *pctx)
{
    return impl_cuCtxPopCurrent_v2(pctx);
}

CUresult impl_cuCtxSetCurrent(CUcontext ctx)
{
    if (!ctx) {
        if (tls.n_stack)
            tls.n_stack--;
        return CUDA_SUCCESS;
    }
    if (!object_is(ctx, OBJECT_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!tls.n_stack)
        tls.n_stack = 1;
    tls.stack[tls.n_stack - 1] = (struct context *)ctx;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxGetCurrent(CUcontext *pctx)
{
    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    *pctx = tls.n_stack ? (CUcontext)tls.stack[tls.n_stack - 1] : NULL;
    return CUDA_SUCCESS;
}

static CUresult context_device(CUdevice *device, CUcontext handle)
{
    struct context *ctx;
    CUresult res;
    DRIVER_LOCKED;

    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    res = context_resolve(handle, &ctx);
    if (res == CUDA_ERROR_INVALID_CONTEXT || res == CUDA_ERROR_CONTEXT_IS_DESTROYED)
        return res;
    *device = ctx->device;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxGetDevice(CUdevice *device)
{
    return context_device(device, NULL);
}

CUresult impl_cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
    return context_device(device, ctx);
}

static CUresult context_synchronize(CUcontext handle)
{
    struct context *ctx;
    CUresult res;
    DRIVER_LOCKED;

    res = context_resolve(handle, &ctx);
    if (res != CUDA_SUCCESS)
        return res;
    for (struct stream *s = ctx->streams; s; s = s->next) {
        if (s->capture) {
            capture_invalidate(s);
            res = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    if (res == CUDA_SUCCESS)
        res = capture_unsafe();
    if (res != CUDA_SUCCESS)
        return res;
    context_drain(ctx);
    pool_synchronized(ctx->device);
    return ctx->sticky;
}

CUresult impl_cuCtxSynchronize(void)
{
    return context_synchronize(NULL);
}

CUresult impl_cuCtxSynchronize_v2(CUcontext ctx)
{
    return context_synchronize(ctx);
}

#define CONTEXT_QUERY(handle, ctx)                                                                 \
    struct context *ctx;                                                                           \
    CUresult res;                                                                                  \
    DRIVER_LOCKED;                                                                                 \
    res = context_resolve(handle, &ctx);                                                           \
    if (res != CUDA_SUCCESS)                                                                       \
    return res

CUresult impl_cuCtxGetFlags(unsigned int *flags)
{
    CONTEXT_QUERY(NULL, ctx);
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = ctx->flags;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxSetFlags(unsigned int flags)
{
    CONTEXT_QUERY(NULL, ctx);
    ctx->flags = flags;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxGetId(CUcontext handle, unsigned long long *ctxId)
{
    CONTEXT_QUERY(handle, ctx);
    if (!ctxId)
        return CUDA_ERROR_INVALID_VALUE;
    *ctxId = ctx->id;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxGetApiVersion(CUcontext handle, unsigned int *version)
{
    CONTEXT_QUERY(handle, ctx);
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = ctx->api_version;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxGetLimit(size_t *pvalue, CUlimit limit)
{
    CONTEXT_QUERY(NULL, ctx);
    if (!pvalue)
        return CUDA_ERROR_INVALID_VALUE;
    if ((unsigned)limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *pvalue = ctx->limits[limit];
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxSetLimit(CUlimit limit, size_t value)
{
    CONTEXT_QUERY(NULL, ctx);
    if ((unsigned)limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    ctx->limits[limit] = value;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxGetCacheConfig(CUfunc_cache *pconfig)
{
    CONTEXT_QUERY(NULL, ctx);
    if (!pconfig)
        return CUDA_ERROR_INVALID_VALUE;
    *pconfig = ctx->cache_config;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxSetCacheConfig(CUfunc_cache config)
{
    CONTEXT_QUERY(NULL, ctx);
    ctx->cache_config = config;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxGetSharedMemConfig(CUsharedconfig *pConfig)
{
    CONTEXT_QUERY(NULL, ctx);
    if (!pConfig)
        return CUDA_ERROR_INVALID_VALUE;
    *pConfig = ctx->shared_config ? ctx->shared_config : CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxSetSharedMemConfig(CUsharedconfig config)
{
    CONTEXT_QUERY(NULL, ctx);
    ctx->shared_config = config;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    CONTEXT_QUERY(NULL, ctx);
    if (leastPriority)
        *leastPriority = 0;
    if (greatestPriority)
        *greatestPriority = -5;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxResetPersistingL2Cache(void)
{
    CONTEXT_QUERY(NULL, ctx);
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags)
{
    struct context *peer;

    CONTEXT_QUERY(NULL, ctx);
    if (Flags)
        return CUDA_ERROR_INVALID_VALUE;
    res = context_resolve(peerContext, &peer);
    if (res != CUDA_SUCCESS)
        return res;
    if (peer->device == ctx->device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (ctx->peers >> peer->device & 1)
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    ctx->peers |= 1ull << peer->device;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxDisablePeerAccess(CUcontext peerContext)
{
    struct context *peer;

    CONTEXT_QUERY(NULL, ctx);
    res = context_resolve(peerContext, &peer);
    if (res != CUDA_SUCCESS)
        return res;
    if (!(ctx->peers >> peer->device & 1))
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    ctx->peers &= ~(1ull << peer->device);
    return CUDA_SUCCESS;
}

/* ---- primary contexts: one a device, alive while somebody retains it ---- */

#define DEVICE_CHECK(dev)                                                                          \
    do {                                                                                           \
        if ((dev) < 0 || (dev) >= driver.config.n_devices)                                         \
            return CUDA_ERROR_INVALID_DEVICE;                                                      \
    } while (0)

CUresult impl_cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    struct device *device;
    DRIVER_LOCKED;

    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    DEVICE_CHECK(dev);
    device = &driver.devices[dev];
    if (device->primary) {
        device->primary->n_refs++;
    } else {
        device->primary = context_new(dev, device->primary_flags, true);
        if (!device->primary)
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pctx = (CUcontext)device->primary;
    return CUDA_SUCCESS;
}

CUresult impl_cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    struct device *device;
    struct context *ctx;
    DRIVER_LOCKED;

    DEVICE_CHECK(dev);
    device = &driver.devices[dev];
    if (!device->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (device->resetting) {
        device->n_released++;
        return CUDA_SUCCESS;
    }
    ctx = device->primary;
    if (--ctx->n_refs > 0)
        return CUDA_SUCCESS;
    device->primary =
        NULL; /* its queued work is waited for: a thread that retains meanwhile gets another */
    context_destroy(ctx);
    return CUDA_SUCCESS;
}

CUresult impl_cuDevicePrimaryCtxRelease(CUdevice dev)
{
    return impl_cuDevicePrimaryCtxRelease_v2(dev);
}

/* Frees everything in it, whoever still retains it; retained handles stay retained and start with an empty context. */
CUresult impl_cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    struct device *device;
    DRIVER_LOCKED;

    DEVICE_CHECK(dev);
    device = &driver.devices[dev];
    if (device->primary) {
        int n_refs = device->primary->n_refs;

        device->resetting = true;
        device->n_released = 0;
        context_destroy(device->primary); /* waits for its queued work without the lock */
        device->resetting = false;
        n_refs -= device->n_released;
        device->primary = n_refs > 0 ? context_new(dev, device->primary_flags, true) : NULL;
        if (n_refs > 0 && !device->primary)
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (device->primary)
            device->primary->n_refs = n_refs;
    }
    return CUDA_SUCCESS;
}

CUresult impl_cuDevicePrimaryCtxReset(CUdevice dev)
{
    return impl_cuDevicePrimaryCtxReset_v2(dev);
}

CUresult impl_cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
    DRIVER_LOCKED;

    DEVICE_CHECK(dev);
    if (flags & ~0xffu)
        return CUDA_ERROR_INVALID_VALUE;
    driver.devices[dev].primary_flags = flags;
    if (driver.devices[dev].primary)
        driver.devices[dev].primary->flags = flags;
    return CUDA_SUCCESS;
}

CUresult impl_cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
    return impl_cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

CUresult impl_cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    DRIVER_LOCKED;

    DEVICE_CHECK(dev);
    if (!flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = driver.devices[dev].primary_flags;
    *active = driver.devices[dev].primary != NULL;
    return CUDA_SUCCESS;
}
