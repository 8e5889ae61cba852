/* SPDX-License-Identifier: Apache-2.0 */
/*
 * green.c - green contexts: a part of a device's multiprocessors, with a CUcontext of its own
 *
 * That context has its own handle, streams, events and modules. Memory and the modules of libraries are the
 * primary context's, of which cuda.h says that a converted context is one. What is allocated while it is
 * current therefore outlives it. Whether a driver runs a function of a module that was loaded in the
 * primary context on a green stream nobody here has seen: not so unless DMI_STANDIN_GREEN_FUNCTIONS=any.
 * Multiprocessors are counted, not modelled.
 * Source: "Green Contexts" in the driver API reference
 */
#include "driver.h"
#include "impl.h"

#include <string.h>

struct green {
    struct object object;
    struct context *ctx;
    CUdevResource resource;
    unsigned long long id;
};

/* A CUdevResourceDesc. No call destroys one. */
struct resource_desc {
    struct object object;
    CUdevResource resource;
};

/** struct origin - what a resource keeps where cuda.h has its padding */
struct origin {
    int device;
    unsigned split; /* number of the call that made it; 0: it is a device's or context's */
};
static_assert(sizeof(struct origin) <= sizeof(((CUdevResource *)NULL)->_internal_padding), "");

static unsigned n_splits;
static unsigned long long n_greens;

static struct origin origin_of(const CUdevResource *resource)
{
    struct origin origin;

    memcpy(&origin, resource->_internal_padding, sizeof(origin));
    return origin;
}

static CUdevResource resource_of(unsigned n, int device, unsigned split)
{
    bool new = driver.config.sm >= 90, old = driver.config.sm < 80;
    CUdevResource resource = {
        .type = n ? CU_DEV_RESOURCE_TYPE_SM : CU_DEV_RESOURCE_TYPE_INVALID,
        .sm = { .smCount = n,
                .minSmPartitionSize = new   ? 8
                                      : old ? 2
                                            : 4,
                .smCoscheduledAlignment = new ? 8 : 2 },
    };
    struct origin origin = { device, split };

    memcpy(resource._internal_padding, &origin, sizeof(origin));
    return resource;
}

/* ---- contexts ---- */

struct context *context_base(struct context *ctx)
{
    return ctx->green ? driver.devices[ctx->device].primary : ctx;
}

static struct green *green_of(CUgreenCtx handle)
{
    return object_is(handle, OBJECT_GREEN) ? (struct green *)handle : NULL;
}

static struct context *primary_retain(int device)
{
    struct device *dev = &driver.devices[device];

    if (dev->primary)
        dev->primary->n_refs++;
    else
        dev->primary = context_new(device, dev->primary_flags, true);
    return dev->primary;
}

CUresult impl_cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc handle, CUdevice dev,
                               unsigned int flags)
{
    struct resource_desc *desc = (struct resource_desc *)handle;
    struct green *green;
    DRIVER_LOCKED;

    if (!phCtx || flags != CU_GREEN_CTX_DEFAULT_STREAM || !object_is(desc, OBJECT_RESOURCE_DESC))
        return CUDA_ERROR_INVALID_VALUE;
    if (dev < 0 || dev >= driver.config.n_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    if (origin_of(&desc->resource).device != dev)
        return CUDA_ERROR_INVALID_VALUE;
    if (!primary_retain(dev))
        return CUDA_ERROR_OUT_OF_MEMORY;
    green = object_new(OBJECT_GREEN, sizeof(*green));
    if (green)
        green->ctx = context_new(dev, driver.devices[dev].primary_flags, false);
    if (!green || !green->ctx) {
        object_free(green);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    green->ctx->green = green;
    green->resource = resource_of(desc->resource.sm.smCount, dev, 0);
    green->id = ++n_greens;
    *phCtx = (CUgreenCtx)green;
    log_detail("\"green\":%llu,\"ctx\":%llu", green->id, green->ctx->id);
    return CUDA_SUCCESS;
}

/* Streams that the user has not destroyed say so from here on, and are never freed. */
static void orphan_streams(struct context *ctx)
{
    struct stream **link = &ctx->streams;

    while (*link) {
        struct stream *stream = *link;

        if (stream->destroyed || stream == ctx->legacy || stream->thread) {
            link = &stream->next;
            continue;
        }
        capture_forget(stream);
        op_unref(stream->tail);
        stream->tail = NULL;
        *link = stream->next;
        stream->ctx = NULL;
    }
}

CUresult impl_cuGreenCtxDestroy(CUgreenCtx hCtx)
{
    struct green *green;
    struct device *dev;
    DRIVER_LOCKED;

    green = green_of(hCtx);
    if (!green)
        return CUDA_ERROR_INVALID_CONTEXT;
    dev = &driver.devices[green->ctx->device];
    context_drain(green->ctx);
    orphan_streams(green->ctx);
    context_destroy(green->ctx);
    object_free(green);
    if (dev->primary && --dev->primary->n_refs == 0) {
        context_destroy(dev->primary);
        dev->primary = NULL;
    }
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxFromGreenCtx(CUcontext *pContext, CUgreenCtx hCtx)
{
    struct green *green;
    DRIVER_LOCKED;

    green = green_of(hCtx);
    if (!green)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!pContext)
        return CUDA_ERROR_INVALID_VALUE;
    *pContext = (CUcontext)green->ctx;
    return CUDA_SUCCESS;
}

/* NULL: the current one, if it is green */
CUresult impl_cuGreenCtxGetId(CUgreenCtx greenCtx, unsigned long long *greenCtxId)
{
    struct green *green = NULL;
    struct context *ctx;
    CUresult res;
    DRIVER_LOCKED;

    if (greenCtx) {
        green = green_of(greenCtx);
    } else {
        res = context_current(&ctx);
        if (res != CUDA_SUCCESS)
            return res;
        green = ctx->green;
    }
    if (!green)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!greenCtxId)
        return CUDA_ERROR_INVALID_VALUE;
    *greenCtxId = green->id;
    return CUDA_SUCCESS;
}

/* ---- streams ---- */

CUresult impl_cuGreenCtxStreamCreate(CUstream *phStream, CUgreenCtx greenCtx, unsigned int flags,
                                     int priority)
{
    struct stream *stream;
    struct green *green;
    DRIVER_LOCKED;

    green = green_of(greenCtx);
    if (!green)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!phStream || flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    stream = stream_create(green->ctx, flags, priority);
    if (!stream)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *phStream = (CUstream)stream;
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamGetGreenCtx(CUstream hStream, CUgreenCtx *phCtx)
{
    struct stream *stream;
    CUresult res;
    DRIVER_LOCKED;

    res = stream_resolve(hStream, &stream);
    if (res != CUDA_SUCCESS)
        return res;
    if (!phCtx)
        return CUDA_ERROR_INVALID_VALUE;
    *phCtx = (CUgreenCtx)stream->ctx->green;
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamGetCtx_v2(CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx)
{
    struct stream *stream;
    CUresult res;
    DRIVER_LOCKED;

    res = stream_resolve(hStream, &stream);
    if (res != CUDA_SUCCESS)
        return res;
    if (stream->ctx->green && stream->thread)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!pCtx)
        return CUDA_ERROR_INVALID_VALUE;
    *pCtx = (CUcontext)context_base(stream->ctx);
    if (pGreenCtx)
        *pGreenCtx = (CUgreenCtx)stream->ctx->green;
    return CUDA_SUCCESS;
}

/* ---- events of a context ---- */

static CUresult events_forbidden(struct context *ctx)
{
    CUresult res = CUDA_SUCCESS;

    for (struct stream *s = ctx->streams; s; s = s->next) {
        if (s->capture) {
            capture_invalidate(s);
            res = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return res;
}

static CUresult record(struct context *ctx, CUevent handle)
{
    struct event *event = (struct event *)handle;
    CUresult res;
    struct op *op;

    if (!object_is(event, OBJECT_EVENT) || context_base(event->ctx) != context_base(ctx))
        return CUDA_ERROR_INVALID_HANDLE;
    res = events_forbidden(ctx);
    op = res == CUDA_SUCCESS ? op_new(ctx, NULL) : NULL;
    if (!op)
        return res != CUDA_SUCCESS ? res : CUDA_ERROR_OUT_OF_MEMORY;
    context_depend(op, ctx);
    event_set_marker(event, op);
    op_commit(op);
    return CUDA_SUCCESS;
}

/* What is queued from here on, on any stream, waits for the event: through an operation that all come after. */
static CUresult wait(struct context *ctx, CUevent handle)
{
    struct event *event = (struct event *)handle;
    CUresult res;
    struct op *op;

    if (!object_is(event, OBJECT_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    res = events_forbidden(ctx);
    if (res == CUDA_SUCCESS && event->capture)
        res = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    op = res == CUDA_SUCCESS ? op_new(ctx, NULL) : NULL;
    if (!op)
        return res != CUDA_SUCCESS ? res : CUDA_ERROR_OUT_OF_MEMORY;
    op_depend(op, ctx->barrier);
    op_depend(op, event->marker);
    op_unref(ctx->barrier);
    ctx->barrier = op_ref(op);
    op_commit(op);
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxRecordEvent(CUcontext hCtx, CUevent hEvent)
{
    struct context *ctx;
    CUresult res;
    DRIVER_LOCKED;

    res = context_resolve(hCtx, &ctx);
    return res != CUDA_SUCCESS ? res : record(ctx, hEvent);
}

CUresult impl_cuCtxWaitEvent(CUcontext hCtx, CUevent hEvent)
{
    struct context *ctx;
    CUresult res;
    DRIVER_LOCKED;

    res = context_resolve(hCtx, &ctx);
    if (res == CUDA_SUCCESS)
        res = wait(ctx, hEvent);
    for (struct context *c = driver.contexts; c && res == CUDA_SUCCESS; c = c->next) {
        if (c != ctx && context_base(c) == ctx)
            res = wait(c, hEvent);
    }
    return res;
}

CUresult impl_cuGreenCtxRecordEvent(CUgreenCtx hCtx, CUevent hEvent)
{
    struct green *green;
    DRIVER_LOCKED;

    green = green_of(hCtx);
    return green ? record(green->ctx, hEvent) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult impl_cuGreenCtxWaitEvent(CUgreenCtx hCtx, CUevent hEvent)
{
    struct green *green;
    DRIVER_LOCKED;

    green = green_of(hCtx);
    return green ? wait(green->ctx, hEvent) : CUDA_ERROR_INVALID_CONTEXT;
}

/* ---- resources ---- */

static CUresult device_resource(CUdevResource *resource, CUdevResourceType type, int device)
{
    int n;

    if (!resource)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    impl_cuDeviceGetAttribute(&n, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    *resource = resource_of((unsigned)n, device, 0);
    return CUDA_SUCCESS;
}

CUresult impl_cuDeviceGetDevResource(CUdevice device, CUdevResource *resource,
                                     CUdevResourceType type)
{
    if (device < 0 || device >= driver.config.n_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    return device_resource(resource, type, device);
}

static CUresult green_resource(const struct green *green, CUdevResource *resource,
                               CUdevResourceType type)
{
    if (!resource)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    *resource = green->resource;
    return CUDA_SUCCESS;
}

CUresult impl_cuGreenCtxGetDevResource(CUgreenCtx hCtx, CUdevResource *resource,
                                       CUdevResourceType type)
{
    struct green *green;
    DRIVER_LOCKED;

    green = green_of(hCtx);
    return green ? green_resource(green, resource, type) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult impl_cuCtxGetDevResource(CUcontext hCtx, CUdevResource *resource, CUdevResourceType type)
{
    struct context *ctx;
    CUresult res;
    DRIVER_LOCKED;

    res = context_resolve(hCtx, &ctx);
    if (res != CUDA_SUCCESS)
        return res;
    return ctx->green ? green_resource(ctx->green, resource, type)
                      : device_resource(resource, type, ctx->device);
}

/* How many multiprocessors a group of at least @min has. */
static unsigned group_size(const CUdevResource *input, unsigned flags, unsigned min)
{
    bool fine = flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING;
    unsigned least = fine ? 2 : input->sm.minSmPartitionSize;
    unsigned align = fine ? 2 : input->sm.smCoscheduledAlignment;

    if (min < least)
        min = least;
    return (min + align - 1) / align * align;
}

CUresult impl_cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *nbGroups,
                                          const CUdevResource *input, CUdevResource *remaining,
                                          unsigned int useFlags, unsigned int minCount)
{
    unsigned size, n, device, split;
    DRIVER_LOCKED;

    if (!nbGroups || !input || useFlags > 3)
        return CUDA_ERROR_INVALID_VALUE;
    if (input->type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    if (minCount > input->sm.smCount)
        return CUDA_ERROR_INVALID_VALUE;
    if (origin_of(input).split)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    size = group_size(input, useFlags, minCount);
    n = input->sm.smCount / size;
    if (!n)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    if (result && n > *nbGroups)
        n = *nbGroups;
    device = (unsigned)origin_of(input).device;
    split = ++n_splits;
    for (unsigned i = 0; result && i < n; i++)
        result[i] = resource_of(size, (int)device, split);
    if (remaining)
        *remaining = resource_of(input->sm.smCount - n * size, (int)device, split);
    *nbGroups = n;
    return CUDA_SUCCESS;
}

CUresult impl_cuDevResourceGenerateDesc(CUdevResourceDesc *phDesc, CUdevResource *resources,
                                        unsigned int nbResources)
{
    struct resource_desc *desc;
    unsigned n = 0;
    DRIVER_LOCKED;

    if (!phDesc || !resources || !nbResources)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < nbResources; i++) {
        struct origin a = origin_of(&resources[0]), b = origin_of(&resources[i]);

        if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM)
            return CUDA_ERROR_INVALID_RESOURCE_TYPE;
        if (a.device != b.device || a.split != b.split || (i && !b.split))
            return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
        n += resources[i].sm.smCount;
    }
    desc = object_new(OBJECT_RESOURCE_DESC, sizeof(*desc));
    if (!desc)
        return CUDA_ERROR_OUT_OF_MEMORY;
    desc->resource = resource_of(n, origin_of(&resources[0]).device, 0);
    *phDesc = (CUdevResourceDesc)desc;
    return CUDA_SUCCESS;
}
