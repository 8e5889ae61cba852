/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/events.h"

#include "core/any.h"
#include "core/atomic.h"
#include "core/locked.h"
#include "preload/base/current.h"
#include "preload/base/driver.h"
#include "preload/trace/threads.h"

#include <pthread.h>
#include <stddef.h>

/* Most that are in use at a time: a step has a begin and, nearly always, one end; one a context is kept for the gap. */
#define MOST_FREE (2 * STEPRING_STEPS + 64)

struct events_of {
    CUcontext context; /* NULL: not in use */
    CUstream stream;   /* in which its last step began; NULL: none with a handle */
    uint32_t device;
    uint32_t n_free;
    CUevent free[MOST_FREE];
    CUevent last_end; /* of the step that was settled last; NULL: none */
};

static struct {
    pthread_mutex_t lock; /* all below */
    pthread_cond_t unused;
    struct events_of of[EVENTS_CONTEXTS];
    uint32_t top;    /* places that were ever in use */
    uint64_t epoch;  /* rises when events are forgotten */
    uint32_t ending; /* calls that may end a context */
    bool in_use;     /* the collector asks the driver */
} events = { .lock = PTHREAD_MUTEX_INITIALIZER, .unused = PTHREAD_COND_INITIALIZER };

/* ------------------------------------------------------------------------- taking and giving */

static struct events_of *find(CUcontext context)
{
    return FIRST(i, events.top, events.of[i].context == context, &events.of[i], NULL);
}

/* A place that is not in use. Return: NULL: there are too many contexts. */
static struct events_of *find_unused(void)
{
    struct events_of *of = find(NULL);
    return of || events.top == EVENTS_CONTEXTS ? of : &events.of[events.top++];
}

/* Such a stream is of one context as long as it lives. Others are of the current one, and may be the calling thread's. */
static bool has_handle(struct stream stream)
{
    return (uintptr_t)stream.handle > (uintptr_t)CU_STREAM_PER_THREAD;
}

/* The context that a launch in @stream runs in. The driver is asked once, as long as steps begin in the same stream. */
static CUcontext context_of(struct stream stream, CUcontext current)
{
    CUcontext context = NULL;
    if (!has_handle(stream))
        return current;
    pthread_mutex_lock(&events.lock);
    for (uint32_t i = 0; i < events.top; i++)
        if (events.of[i].stream == stream.handle)
            context = events.of[i].context;
    pthread_mutex_unlock(&events.lock);
    context = context ? context : stream_context(stream);
    return context ? context : current;
}

/* An event of the context that is free, NULL: there is none. Under the lock. */
static CUevent take(struct events_of *of)
{
    return of->n_free ? of->free[--of->n_free] : NULL;
}

/* The step begins in @stream. Under the lock. Return: false: @of is NULL. */
static bool use_events(struct trace_step *step, struct events_of *of, struct stream stream)
{
    if (!of)
        return false;
    step->events = of;
    step->epoch = events.epoch;
    step->begin = take(of);
    of->stream = has_handle(stream) ? stream.handle : NULL;
    return true;
}

/* The same of a context that has no events yet, and is current. Return: false: there are too many contexts. */
static bool add_context(struct trace_step *step, CUcontext context, struct stream stream)
{
    CUdevice device = 0;
    driver_table.cuCtxGetDevice(&device);
    pthread_mutex_lock(&events.lock);
    struct events_of *of = find(context);
    if (!of && (of = find_unused())) {
        of->context = context;
        of->device = (uint32_t)device;
    }
    bool found = use_events(step, of, stream);
    pthread_mutex_unlock(&events.lock);
    return found;
}

/* An event of the current context. Return: NULL: the driver refuses. */
static CUevent take_or_create(struct events_of *of)
{
    CUevent event = LOCKED(&events.lock, take(of));
    if (event || !driver_table.cuEventCreate)
        return event;
    struct stream_relaxed relaxed = stream_relax();
    if (driver_table.cuEventCreate(&event, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
        event = NULL;
    stream_unrelax(&relaxed);
    return event;
}

/* Under the lock. Events beyond the room stay with the driver until their context ends. */
static void give(struct events_of *of, CUevent event)
{
    if (event && of->n_free < MOST_FREE)
        of->free[of->n_free++] = event;
}

/* ------------------------------------------------------------------------- recording */

/* Why no device time is known. Several threads may say it. */
static void say(struct trace_step *step, uint32_t flag)
{
    __atomic_fetch_or(&step->at.flags, flag, __ATOMIC_RELAXED);
}

/* Nothing is recorded in such a stream. */
static bool is_capturing(struct trace_step *step, struct stream stream)
{
    bool is = stream_is_capturing(stream);
    if (is)
        say(step, DMI_STEP_CAPTURING);
    return is;
}

/* In a stream that is not captured. The context is current. */
static void record(struct trace_step *step, struct stream stream, CUevent *event)
{
    if (!*event)
        *event = take_or_create(step->events);
    if (!*event || !stream_record(stream, event))
        say(step, DMI_STEP_REFUSED);
}

void events_begin(struct trace_step *step, struct stream stream)
{
    CUcontext current = current_context(), context = context_of(stream, current);
    bool pushed = context != current && current_push(context);
    bool found = LOCKED(&events.lock, context && use_events(step, find(context), stream));
    if (found || (context && add_context(step, context, stream))) {
        step->at.device = (uint16_t)step->events->device;
        if (!is_capturing(step, stream))
            record(step, stream, &step->begin);
    } else {
        say(step, DMI_STEP_ELSEWHERE);
    }
    if (pushed)
        current_pop();
}

/*
 * Is the device done with the stream, which is not captured, or may it be? Its context is current. While another one is captured the driver must not be asked: of the
 * default stream that would end the capture.
 */
static bool may_be_done(struct stream stream)
{
    __typeof__(cuStreamQuery) *ask =
        stream.per_thread ? driver_table.cuStreamQuery_ptsz : driver_table.cuStreamQuery;
    if (!ask || atomic_load_relaxed(&trace_gate) & TRACE_GATE_CAPTURES)
        return true;
    struct stream_relaxed relaxed = stream_relax(); /* a capture may begin meanwhile */
    CUresult r = ask(stream.handle);
    stream_unrelax(&relaxed);
    return r != CUDA_ERROR_NOT_READY;
}

static void record_end(struct trace_step *step, uint32_t i, struct stream stream)
{
    bool late = may_be_done(stream);
    __atomic_fetch_and(&step->late, ~(1u << i), __ATOMIC_RELAXED); /* of an event before */
    __atomic_fetch_or(&step->late, (uint32_t)late << i, __ATOMIC_RELAXED);
    record(step, stream, &step->ends[i]);
}

/* A thread's own stream, which no other one can name. */
static bool is_of_thread(struct stream stream)
{
    return stream.handle == CU_STREAM_PER_THREAD || (!stream.handle && stream.per_thread);
}

void events_end(struct trace_step *step, uint32_t i, struct stream stream, bool own,
                CUcontext there)
{
    CUcontext current = current_context();
    CUcontext context = own || has_handle(stream) ? context_of(stream, current)
                        : is_of_thread(stream)    ? NULL
                                                  : there;
    if (!events_pending(step))
        return;
    if (!context || context != step->events->context) {
        say(step, DMI_STEP_ELSEWHERE);
        return;
    }
    bool pushed = context != current && current_push(context);
    if (!is_capturing(step, stream))
        record_end(step, i, stream);
    if (pushed)
        current_pop();
}

/* ------------------------------------------------------------------------- what they say */

bool events_pending(const struct trace_step *step)
{
    return step->events && step->begin && atomic_load_relaxed(&step->at.flags) < DMI_STEP_NO_LAUNCH;
}

static void give_all(struct trace_step *step)
{
    give(step->events, step->begin);
    for (uint32_t i = 0; i < step->n_ends; i++)
        give(step->events, step->ends[i]);
}

void events_drop(struct trace_step *step)
{
    bool launched = !(step->at.flags & DMI_STEP_NO_LAUNCH);
    pthread_mutex_lock(&events.lock);
    if (step->events && step->epoch == events.epoch)
        give_all(step);
    for (uint32_t i = 0; launched && i < events.top; i++) {
        give(&events.of[i], events.of[i].last_end);
        events.of[i].last_end = NULL;
    }
    pthread_mutex_unlock(&events.lock);
}

/* Return: 1, the context stays while the collector asks; 0, one may be ending; -1, that of the step has ended. */
static int use(const struct trace_step *step)
{
    pthread_mutex_lock(&events.lock);
    int can = step->epoch != events.epoch ? -1 : !events.ending;
    events.in_use = can > 0;
    pthread_mutex_unlock(&events.lock);
    return can;
}

/* Nanoseconds between two events that are over. */
static CUresult elapsed(CUevent from, CUevent to, int64_t *ns)
{
    float ms = 0;
    CUresult r = driver_table.cuEventElapsedTime ? driver_table.cuEventElapsedTime(&ms, from, to)
                                                 : CUDA_ERROR_NOT_SUPPORTED;
    double exact = (double)ms * 1e6;
    *ns = r == CUDA_SUCCESS ? (int64_t)(exact < 0 ? exact - 0.5 : exact + 0.5) : 0;
    return r;
}

/* Return: CUDA_ERROR_NOT_READY; else whether all of them are over. */
static CUresult query(const struct trace_step *step)
{
    CUresult r = CUDA_SUCCESS;
    for (uint32_t i = 0; i < step->n_ends && r == CUDA_SUCCESS; i++)
        r = driver_table.cuEventQuery(step->ends[i]);
    return r;
}

/* The end that came last, and what lies between it and the begin. */
static CUresult measure(struct trace_step *step, uint32_t *last)
{
    int64_t most = 0, ns;
    CUresult r = step->n_ends ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
    for (uint32_t i = 0; i < step->n_ends && r == CUDA_SUCCESS; i++) {
        r = elapsed(step->begin, step->ends[i], &ns);
        *last = ns > most ? i : *last;
        most = ns > most ? ns : most;
    }
    if (r == CUDA_SUCCESS) {
        step->at.device_ns = (uint64_t)most;
        step->at.flags |= DMI_STEP_HAS_DEVICE;
        step->at.flags |= step->late >> *last & 1 ? DMI_STEP_HOST_LATE : 0;
    }
    CUevent before = step->events->last_end;
    if (r == CUDA_SUCCESS && before && elapsed(before, step->begin, &ns) == CUDA_SUCCESS) {
        step->at.gap_ns = ns;
        step->at.flags |= DMI_STEP_HAS_GAP;
    }
    return r;
}

/* The last end stays, for the next step's gap. Where nothing was measured the next step has none: what lay between is not known. */
static void settled(struct trace_step *step, uint32_t last, bool measured)
{
    pthread_mutex_lock(&events.lock);
    struct events_of *of = step->events;
    CUevent keep = measured ? step->ends[last] : NULL;
    if (measured)
        step->ends[last] = of->last_end;
    else
        give(of, of->last_end);
    of->last_end = keep;
    give_all(step);
    events.in_use = false;
    pthread_cond_broadcast(&events.unused);
    pthread_mutex_unlock(&events.lock);
}

static void unuse(void)
{
    pthread_mutex_lock(&events.lock);
    events.in_use = false;
    pthread_cond_broadcast(&events.unused);
    pthread_mutex_unlock(&events.lock);
}

bool events_settle(struct trace_step *step)
{
    uint32_t last = 0;
    int can = use(step);
    if (can < 0)
        step->at.flags |= DMI_STEP_CONTEXT_GONE;
    if (can <= 0)
        return can < 0;
    struct stream_relaxed relaxed = stream_relax();
    bool pushed = current_push(step->events->context);
    CUresult r = query(step);
    bool over = r != CUDA_ERROR_NOT_READY;
    if (r == CUDA_SUCCESS)
        r = measure(step, &last);
    if (over && r != CUDA_SUCCESS)
        step->at.flags |= DMI_STEP_REFUSED;
    if (pushed)
        current_pop();
    stream_unrelax(&relaxed);
    if (over)
        settled(step, last, r == CUDA_SUCCESS);
    else
        unuse();
    return over;
}

/* ------------------------------------------------------------------------- ends */

void events_context_ends(void)
{
    pthread_mutex_lock(&events.lock);
    events.ending++;
    while (events.in_use)
        pthread_cond_wait(&events.unused, &events.lock);
    events.epoch++;
    for (uint32_t i = 0; i < events.top; i++) {
        events.of[i].context = NULL;
        events.of[i].stream = NULL;
        events.of[i].n_free = 0;
        events.of[i].last_end = NULL;
    }
    pthread_mutex_unlock(&events.lock);
}

void events_stream_ends(CUstream stream)
{
    pthread_mutex_lock(&events.lock);
    for (uint32_t i = 0; i < events.top; i++)
        if (events.of[i].stream == stream)
            events.of[i].stream = NULL;
    pthread_mutex_unlock(&events.lock);
}

void events_context_ended(void)
{
    UNDER(&events.lock, events.ending--);
}

void events_reset(void)
{
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t nobody = PTHREAD_COND_INITIALIZER;
    events.lock = unlocked;
    events.unused = nobody;
    events.ending = 0;
    events.in_use = false;
    events_context_ends();
    events_context_ended();
}
