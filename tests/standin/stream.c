/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c - streams: chains of operations, with the legacy stream's rules
 *
 * Work on the legacy stream runs after everything queued so far on the context's blocking streams, and
 * work on those after it; per-thread default streams are blocking streams of one thread.
 */
#include "driver.h"
#include "impl.h"
#include "programmatic.h"

#include <stdlib.h>
#include <string.h>

static atomic_ullong n_streams, n_threads_seen;

static struct stream *stream_new(struct context *ctx, unsigned flags, int priority)
{
    struct stream *stream = object_new(OBJECT_STREAM, sizeof(*stream));

    if (!stream)
        return NULL;
    stream->ctx = ctx;
    stream->flags = flags;
    stream->priority = priority;
    stream->id = atomic_fetch_add(&n_streams, 1) + 1;
    stream->next = ctx->streams;
    ctx->streams = stream;
    return stream;
}

uint64_t thread_id(void)
{
    if (!tls.id)
        tls.id = atomic_fetch_add(&n_threads_seen, 1) + 1;
    return tls.id;
}

/* The tail is dropped once it is done, so that idle streams cost nothing. */
static struct op *stream_tail(struct stream *stream)
{
    if (stream->tail && stream->tail->done) {
        op_unref(stream->tail);
        stream->tail = NULL;
    }
    return stream->tail;
}

static void reap(struct context *ctx)
{
    struct stream **link = &ctx->streams;

    while (*link) {
        struct stream *stream = *link;

        if (stream->destroyed && !stream->capture && !stream_tail(stream)) {
            *link = stream->next;
            object_free(stream);
        } else {
            link = &stream->next;
        }
    }
}

CUresult stream_resolve(CUstream handle, struct stream **out)
{
    struct stream *stream = (struct stream *)handle;
    struct context *ctx;
    CUresult res;

    if (!handle)
        handle = tls.per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    if (handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
        if (!object_is(stream, OBJECT_STREAM))
            return CUDA_ERROR_INVALID_HANDLE;
        if (!stream->ctx)
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        capture_deps_spoil(stream->deps);
        *out = stream;
        return stream->ctx->sticky;
    }
    res = context_current(&ctx);
    if (res != CUDA_SUCCESS)
        return res;
    if (handle == CU_STREAM_LEGACY) {
        if (!ctx->legacy)
            ctx->legacy = stream_new(ctx, CU_STREAM_DEFAULT, 0);
        *out = ctx->legacy;
        return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    thread_id();
    for (stream = ctx->streams; stream; stream = stream->next) {
        if (stream->thread == tls.id)
            break;
    }
    if (!stream) {
        stream = stream_new(ctx, CU_STREAM_DEFAULT, 0);
        if (!stream)
            return CUDA_ERROR_OUT_OF_MEMORY;
        stream->thread = tls.id;
    }
    capture_deps_spoil(stream->deps);
    *out = stream;
    return CUDA_SUCCESS;
}

struct op *stream_open(struct stream *stream, struct work *work)
{
    struct context *ctx = stream->ctx;
    struct op *op = op_new(ctx, work);

    if (!op)
        return NULL;
    op->stream = stream->id;
    if (work && work->kind == WORK_KERNEL && work->kernel.programmatic)
        programmatic_depend(op, stream_tail(stream), &programmatic_edge);
    else
        op_depend(op, stream_tail(stream));
    op_depend(op, ctx->barrier);
    if (stream == ctx->legacy) {
        for (struct stream *s = ctx->streams; s; s = s->next) {
            if (!(s->flags & CU_STREAM_NON_BLOCKING))
                op_depend(op, stream_tail(s));
        }
    } else if (!(stream->flags & CU_STREAM_NON_BLOCKING) && ctx->legacy) {
        op_depend(op, stream_tail(ctx->legacy));
    }
    op_unref(stream->tail);
    stream->tail = op_ref(op);
    return op;
}

/* Not captured. */
static CUresult submit(struct stream *stream, struct work *work, struct op **out)
{
    CUresult res = stream == stream->ctx->legacy ? capture_implicit(stream->ctx) : CUDA_SUCCESS;
    struct op *op = res == CUDA_SUCCESS ? stream_open(stream, work) : NULL;

    if (op)
        op_commit(op); /* the stream's tail keeps it alive */
    else
        work_unref(work);
    if (out)
        *out = op;
    return res == CUDA_SUCCESS && !op ? CUDA_ERROR_OUT_OF_MEMORY : res;
}

CUresult stream_do(struct stream *stream, struct work *work, struct op **out)
{
    if (out)
        *out = NULL;
    if (!work)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return stream->capture ? capture_add(stream, work) : submit(stream, work, out);
}

CUresult stream_mark(struct stream *stream, struct op **out)
{
    return submit(stream, NULL, out);
}

CUresult stream_wait(struct stream *stream)
{
    struct context *ctx = stream->ctx;
    struct op *op = op_new(ctx, NULL);

    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op_depend(op, stream_tail(stream));
    if (stream == ctx->legacy) {
        for (struct stream *s = ctx->streams; s; s = s->next) {
            if (!(s->flags & CU_STREAM_NON_BLOCKING))
                op_depend(op, stream_tail(s));
        }
    }
    op_ref(op);
    op_commit(op);
    queue_wait(op);
    op_unref(op);
    pool_synchronized(ctx->device);
    return ctx->sticky;
}

bool stream_idle(struct stream *stream)
{
    struct context *ctx = stream->ctx;

    if (stream == ctx->legacy) {
        for (struct stream *s = ctx->streams; s; s = s->next) {
            if (!(s->flags & CU_STREAM_NON_BLOCKING) && stream_tail(s))
                return false;
        }
    }
    return !stream_tail(stream);
}

void context_depend(struct op *op, struct context *ctx)
{
    for (struct stream *s = ctx->streams; s; s = s->next)
        op_depend(op, stream_tail(s));
    if (!ctx->primary)
        return;
    for (struct context *c = driver.contexts; c; c = c->next) {
        if (c->green && context_base(c) == ctx)
            context_depend(op, c);
    }
}

/** context_drain() - everything queued so far on any stream, destroyed ones too */
void context_drain(struct context *ctx)
{
    struct op *op = op_new(ctx, NULL);

    if (!op)
        return;
    context_depend(op, ctx);
    op_ref(op);
    op_commit(op);
    queue_wait(op);
    op_unref(op);
    reap(ctx);
}

struct stream *stream_create(struct context *ctx, unsigned flags, int priority)
{
    struct stream *stream;

    reap(ctx);
    if (priority > 0)
        priority = 0;
    if (priority < -5)
        priority = -5;
    stream = stream_new(ctx, flags, priority);
    if (stream)
        log_detail("\"stream\":%llu,\"flags\":%u", stream->id, flags);
    return stream;
}

CUresult impl_cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
    struct context *ctx;
    struct stream *stream;
    CUresult res;
    DRIVER_LOCKED;

    if (!phStream || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING))
        return CUDA_ERROR_INVALID_VALUE;
    res = context_current(&ctx);
    if (res != CUDA_SUCCESS)
        return res;
    stream = stream_create(ctx, flags, priority);
    if (!stream)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *phStream = (CUstream)stream;
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
    return impl_cuStreamCreateWithPriority(phStream, Flags, 0);
}

CUresult impl_cuStreamDestroy_v2(CUstream hStream)
{
    struct stream *stream = (struct stream *)hStream;
    DRIVER_LOCKED;

    if (hStream == CU_STREAM_LEGACY || hStream == CU_STREAM_PER_THREAD ||
        !object_is(stream, OBJECT_STREAM))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!stream->ctx)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (stream == stream->ctx->legacy || stream->thread)
        return CUDA_ERROR_INVALID_HANDLE;
    capture_forget_origin(stream);
    stream->destroyed = true;
    object_end(stream);
    reap(stream->ctx);
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamDestroy(CUstream hStream)
{
    return impl_cuStreamDestroy_v2(hStream);
}

CUresult impl_cuStreamSynchronize(CUstream hStream)
{
    struct stream *stream;
    CUresult res;
    DRIVER_LOCKED;

    res = stream_resolve(hStream, &stream);
    if (res != CUDA_SUCCESS)
        return res;
    if (stream->capture) {
        capture_invalidate(stream);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    res = stream == stream->ctx->legacy ? capture_implicit(stream->ctx) : capture_unsafe();
    return res != CUDA_SUCCESS ? res : stream_wait(stream);
}

CUresult impl_cuStreamQuery(CUstream hStream)
{
    struct stream *stream;
    CUresult res;
    DRIVER_LOCKED;

    res = stream_resolve(hStream, &stream);
    if (res != CUDA_SUCCESS)
        return res;
    if (stream->capture) {
        capture_invalidate(stream);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    res = stream == stream->ctx->legacy ? capture_implicit(stream->ctx) : capture_unsafe();
    if (res != CUDA_SUCCESS)
        return res;
    return stream_idle(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

#define STREAM_QUERY(handle, stream)                                                               \
    struct stream *stream;                                                                         \
    CUresult res;                                                                                  \
    DRIVER_LOCKED;                                                                                 \
    res = stream_resolve(handle, &stream);                                                         \
    if (res != CUDA_SUCCESS)                                                                       \
    return res

CUresult impl_cuStreamGetPriority(CUstream hStream, int *priority)
{
    STREAM_QUERY(hStream, stream);
    if (!priority)
        return CUDA_ERROR_INVALID_VALUE;
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamGetFlags(CUstream hStream, unsigned int *flags)
{
    STREAM_QUERY(hStream, stream);
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamGetId(CUstream hStream, unsigned long long *streamId)
{
    STREAM_QUERY(hStream, stream);
    if (!streamId)
        return CUDA_ERROR_INVALID_VALUE;
    *streamId = stream->id;
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
    STREAM_QUERY(hStream, stream);
    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    *pctx = (CUcontext)stream->ctx;
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamGetDevice(CUstream hStream, CUdevice *device)
{
    STREAM_QUERY(hStream, stream);
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    *device = stream->ctx->device;
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamSetAttribute(CUstream hStream, CUstreamAttrID attr,
                                   const CUstreamAttrValue *value)
{
    STREAM_QUERY(hStream, stream);
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    if (attr == CU_LAUNCH_ATTRIBUTE_PRIORITY)
        stream->priority = value->priority;
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamGetAttribute(CUstream hStream, CUstreamAttrID attr,
                                   CUstreamAttrValue *value_out)
{
    STREAM_QUERY(hStream, stream);
    if (!value_out)
        return CUDA_ERROR_INVALID_VALUE;
    memset(value_out, 0, sizeof(*value_out));
    if (attr == CU_LAUNCH_ATTRIBUTE_PRIORITY)
        value_out->priority = stream->priority;
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamCopyAttributes(CUstream dst, CUstream src)
{
    struct stream *from;

    STREAM_QUERY(dst, stream);
    res = stream_resolve(src, &from);
    if (res != CUDA_SUCCESS)
        return res;
    stream->priority = from->priority;
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length,
                                     unsigned int flags)
{
    STREAM_QUERY(hStream, stream);
    (void)length;
    (void)flags;
    if (!memory_find(dptr))
        return CUDA_ERROR_INVALID_VALUE;
    /* "Not currently supported in graphs": CUDA programming guide, "Prohibited and unhandled operations" */
    if (stream->capture) {
        capture_invalidate(stream);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return stream_mark(stream, NULL);
}

CUresult impl_cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
    struct work *work;

    STREAM_QUERY(hStream, stream);
    if (!fn)
        return CUDA_ERROR_INVALID_VALUE;
    work = work_new(WORK_HOST, stream->ctx);
    if (work) {
        work->host.fn = fn;
        work->host.data = userData;
    }
    return stream_do(stream, work, NULL);
}

CUresult impl_cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData,
                                  unsigned int flags)
{
    struct work *work;

    STREAM_QUERY(hStream, stream);
    if (!callback || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) {
        capture_invalidate(stream);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    work = work_new(WORK_CALLBACK, stream->ctx);
    if (work) {
        work->callback.fn = callback;
        work->callback.data = userData;
        work->callback.stream = hStream;
    }
    return stream_do(stream, work, NULL);
}

static CUresult value_op(CUstream handle, enum work_kind kind, CUdeviceptr addr, cuuint64_t value,
                         bool wide, unsigned flags)
{
    struct work *work;
    bool pinned;

    STREAM_QUERY(handle, stream);
    if (addr % (wide ? 8 : 4) || memory_check(addr, wide ? 8 : 4, &pinned) != CUDA_SUCCESS ||
        !pinned)
        return CUDA_ERROR_INVALID_VALUE;
    work = work_new(kind, stream->ctx);
    if (work) {
        work->value.address = addr;
        work->value.value = value;
        work->value.wide = wide;
        work->value.flags = flags;
    }
    return stream_do(stream, work, NULL);
}

CUresult impl_cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                      unsigned int flags)
{
    return value_op(stream, WORK_WRITE_VALUE, addr, value, false, flags);
}

CUresult impl_cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                      unsigned int flags)
{
    return value_op(stream, WORK_WRITE_VALUE, addr, value, true, flags);
}

CUresult impl_cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                     unsigned int flags)
{
    return value_op(stream, WORK_WAIT_VALUE, addr, value, false, flags);
}

CUresult impl_cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                     unsigned int flags)
{
    return value_op(stream, WORK_WAIT_VALUE, addr, value, true, flags);
}
