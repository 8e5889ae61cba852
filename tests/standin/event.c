/* SPDX-License-Identifier: Apache-2.0 */
/*
 * event.c - an event is a reference to the operation that it was last recorded as
 */
#include "driver.h"
#include "impl.h"

#include <stdlib.h>
#include <string.h>

void event_set_marker(struct event *event, struct op *op)
{
    op_ref(op);
    op_unref(event->marker);
    event->marker = op;
    if (event->shared)
        event_shared_record(event->shared, op);
    capture_deps_free(event->deps);
    event->deps = NULL;
    event->capture = NULL;
}

static CUresult event_check(CUevent handle, struct event **event)
{
    *event = (struct event *)handle;
    if (!object_is(*event, OBJECT_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    return (*event)->ctx->sticky;
}

struct event *event_new(struct context *ctx, unsigned flags, struct event_shared *shared)
{
    struct event *event = object_new(OBJECT_EVENT, sizeof(*event));

    if (!event) {
        event_shared_unref(shared);
        return NULL;
    }
    event->ctx = ctx;
    event->flags = flags;
    event->shared = shared;
    event->next = ctx->events;
    ctx->events = event;
    return event;
}

CUresult impl_cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
    struct event_shared *shared = NULL;
    struct context *ctx;
    struct event *event;
    CUresult res;
    DRIVER_LOCKED;

    if (!phEvent || (Flags & ~7u) ||
        ((Flags & CU_EVENT_INTERPROCESS) && !(Flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    res = context_current(&ctx);
    if (res != CUDA_SUCCESS)
        return res;
    if (Flags & CU_EVENT_INTERPROCESS) {
        shared = event_shared_new();
        if (!shared)
            return CUDA_ERROR_OPERATING_SYSTEM;
    }
    event = event_new(ctx, Flags, shared);
    if (!event)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *phEvent = (CUevent)event;
    return CUDA_SUCCESS;
}

void event_destroy(struct event *event)
{
    struct event **link = &event->ctx->events;

    while (*link && *link != event)
        link = &(*link)->next;
    if (*link)
        *link = event->next;
    op_unref(event->marker);
    capture_deps_free(event->deps);
    event_shared_unref(event->shared);
    object_free(event);
}

CUresult impl_cuEventDestroy_v2(CUevent hEvent)
{
    struct event *event = (struct event *)hEvent;
    DRIVER_LOCKED;

    if (!object_is(event, OBJECT_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    event_destroy(event);
    return CUDA_SUCCESS;
}

CUresult impl_cuEventDestroy(CUevent hEvent)
{
    return impl_cuEventDestroy_v2(hEvent);
}

CUresult impl_cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags)
{
    struct stream *stream;
    struct event *event;
    struct op *op;
    CUresult res;
    DRIVER_LOCKED;

    if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    res = event_check(hEvent, &event);
    if (res == CUDA_SUCCESS)
        res = stream_resolve(hStream, &stream);
    if (res != CUDA_SUCCESS)
        return res;
    if (context_base(event->ctx) != context_base(stream->ctx))
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture)
        return capture_event_record(stream, event, flags);
    if (flags & CU_EVENT_RECORD_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    res = stream_mark(stream, &op);
    if (res == CUDA_SUCCESS)
        event_set_marker(event, op);
    return res;
}

CUresult impl_cuEventRecord(CUevent hEvent, CUstream hStream)
{
    return impl_cuEventRecordWithFlags(hEvent, hStream, 0);
}

static bool is_done(const struct event *event)
{
    uint64_t number;

    if (event->shared)
        return event_shared_done(event->shared, &number);
    return !event->marker || event->marker->done;
}

/* Lock held, dropped while waiting. */
static void wait_shared(struct event_shared *shared)
{
    uint64_t number;

    if (event_shared_done(shared, &number))
        return;
    event_shared_ref(shared);
    pthread_mutex_unlock(&driver.lock);
    event_shared_wait(shared, number);
    pthread_mutex_lock(&driver.lock);
    event_shared_unref(shared);
}

CUresult impl_cuEventQuery(CUevent hEvent)
{
    struct event *event;
    CUresult res;
    DRIVER_LOCKED;

    res = event_check(hEvent, &event);
    if (res != CUDA_SUCCESS)
        return res;
    if (event->capture)
        return capture_event_asked(event);
    res = capture_unsafe();
    if (res != CUDA_SUCCESS)
        return res;
    return is_done(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult impl_cuEventSynchronize(CUevent hEvent)
{
    struct event *event;
    struct context *ctx;
    CUresult res;
    DRIVER_LOCKED;

    res = event_check(hEvent, &event);
    if (res != CUDA_SUCCESS)
        return res;
    if (event->capture)
        return capture_event_asked(event);
    res = capture_unsafe();
    if (res != CUDA_SUCCESS)
        return res;
    ctx = event->ctx;
    if (event->shared)
        wait_shared(event->shared);
    else if (event->marker)
        queue_wait(event->marker);
    pool_synchronized(ctx->device);
    return ctx->sticky;
}

/* Both ABIs since the first: milliseconds, half a microsecond's resolution. */
CUresult impl_cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    struct event *start, *end;
    CUresult res;
    DRIVER_LOCKED;

    if (!pMilliseconds)
        return CUDA_ERROR_INVALID_VALUE;
    res = event_check(hStart, &start);
    if (res == CUDA_SUCCESS)
        res = event_check(hEnd, &end);
    if (res != CUDA_SUCCESS)
        return res;
    if (start->capture || end->capture)
        return capture_event_asked(start->capture ? start : end);
    if (context_base(start->ctx) != context_base(end->ctx) || !start->marker || !end->marker ||
        ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!start->marker->done || !end->marker->done)
        return CUDA_ERROR_NOT_READY;
    *pMilliseconds =
        (float)((double)((int64_t)(end->marker->end_ns - start->marker->end_ns)) * 1e-6);
    return CUDA_SUCCESS;
}

CUresult impl_cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    return impl_cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd);
}

static CUresult wait_for_others(struct stream *stream, struct event_shared *shared)
{
    struct work *work = work_new(WORK_EVENT_SHARED, stream->ctx);

    if (!work)
        return CUDA_ERROR_OUT_OF_MEMORY;
    work->shared.event = event_shared_ref(shared);
    event_shared_done(shared, &work->shared.number);
    return stream_do(stream, work, NULL);
}

CUresult impl_cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
    struct stream *stream;
    struct event *event;
    struct op *op;
    CUresult res;
    DRIVER_LOCKED;

    if (Flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    res = event_check(hEvent, &event);
    if (res == CUDA_SUCCESS)
        res = stream_resolve(hStream, &stream);
    if (res != CUDA_SUCCESS)
        return res;
    if (event->capture || stream->capture)
        return capture_event_wait(stream, event, Flags);
    if (stream == stream->ctx->legacy) {
        res = capture_implicit(stream->ctx);
        if (res != CUDA_SUCCESS)
            return res;
    }
    if (is_done(event))
        return CUDA_SUCCESS;
    if (event->shared && !event_shared_is_mine(event->shared))
        return wait_for_others(stream, event->shared);
    op = stream_open(stream, NULL);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op_depend(op, event->marker);
    op_commit(op);
    return CUDA_SUCCESS;
}
