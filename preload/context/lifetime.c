/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/lifetime.h"

#include "core/atomic.h"
#include "core/clock.h"
#include "core/log.h"
#include "preload/base/current.h"
#include "preload/base/driver.h"
#include "preload/base/stream.h"
#include "preload/context/drain.h"
#include "preload/context/gauge.h"
#include "preload/context/side.h"
#include "preload/context/staging.h"
#include "preload/context/workers.h"
#include "preload/session/session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define START_WAIT_NS 5000000000ull

/* ------------------------------------------------------------------------- creating one */

/* A thread that is reserving may have seen the state as it was: this waits until it has left. */
static void let_reserving_end(struct context *c)
{
    pthread_mutex_lock(&c->lock);
    pthread_mutex_unlock(&c->lock);
}

/* Our threads are to look at it no longer, and do not go on. */
static void stop_threads(struct context *c, uint64_t timeout_ns, enum dmi_drop reason)
{
    let_reserving_end(c);
    bool ended = workers_stop(c, timeout_ns, reason);
    if (context_stopped(c, ended) && ended)
        drain_give_up(c, DMI_DROP_CONTEXT_GONE);
}

/* From RESUMING; its state before was @before. */
static void go_on(struct context *c, enum context_state before)
{
    bool started = (before == CONTEXT_STOPPED || workers_ended(c)) &&
                   !atomic_load_acquire(&c->closed) && !workers_start(c);
    if (context_resumed(c, started ? CONTEXT_READY : before))
        return;
    if (started)
        stop_threads(c, 0, DMI_DROP_CONTEXT_GONE);
    else if (before == CONTEXT_STOPPED)
        drain_give_up(c, DMI_DROP_CONTEXT_GONE);
}

/* Goes on where no call is under way that may end it: its threads could not be started before. */
static void resume(struct context *c)
{
    enum context_state before = context_resumes(c);
    if (before == CONTEXT_FREE)
        return;
    go_on(c, before);
    context_unuse(c);
}

/* Its entry in the file `live` is zeroed: another context may have had it. */
static int start_workers(struct context *c)
{
    c->live = session.live ? &session.live->rings[context_index(c)] : NULL;
    if (c->live)
        memset(c->live, 0, sizeof *c->live);
    int r = workers_start(c);
    if (!r)
        gauge_start(c);
    return r;
}

static int start(struct err *err, struct context *c)
{
    c->side = context_is_host(c) ? &side_host : &side_device;
    int r = c->side->init(err, c);
    if (!r)
        r = start_workers(c) ? err_set(err, -EAGAIN, "the threads of the drain cannot be started")
                             : 0;
    if (r) {
        workers_free(c);
        c->side->give_back(c);
        c->side->forget(c);
    }
    return r;
}

/* The driver's number of the current context; it is given to no other, as handles are. */
static void identify(struct context *c)
{
    if (context_is_host(c) || !driver_table.cuCtxGetId ||
        driver_table.cuCtxGetId(context_handle(c), &c->id) != CUDA_SUCCESS)
        c->id = 0;
}

/* The thread may be capturing a stream in a mode that forbids these calls to it. */
static void start_relaxed(struct context *c)
{
    struct err err = { 0 };
    struct stream_relaxed relaxed = stream_relax();
    identify(c);
    int r = start(&err, c);
    stream_unrelax(&relaxed);
    if (r)
        log_line("no ring in this context, its sites are not captured: %s", err.msg);
    if (!context_built(c, !r) && !r)
        stop_threads(c, 0, DMI_DROP_CONTEXT_GONE);
    context_unuse(c);
}

static void nap(void)
{
    struct timespec pause = { .tv_nsec = 100000 };
    nanosleep(&pause, NULL);
}

/* Another thread starts it, and waits for nothing that we might hold but the driver. */
static void wait_for_start(const struct context *c)
{
    uint64_t end = clock_mono_ns() + START_WAIT_NS;
    while (context_state(c) == CONTEXT_STARTING && clock_mono_ns() < end)
        nap();
}

struct context *context_current(void)
{
    CUcontext handle = current_context();
    return handle && session_run() ? context_claim(handle) : NULL;
}

/* With its ring and threads. Return: @c. */
static struct context *prepare(struct context *c)
{
    if (!c || context_state(c) == CONTEXT_READY)
        return c;
    if (context_builds(c))
        start_relaxed(c);
    else if (context_state(c) == CONTEXT_STARTING)
        wait_for_start(c);
    else
        resume(c);
    return c;
}

struct context *context_prepare(void)
{
    return prepare(context_current());
}

struct context *context_host(void)
{
    return prepare(session_run() ? context_claim(CONTEXT_HOST) : NULL);
}

/* ------------------------------------------------------------------------- its end */

/* Is another thread about to leave the state? */
static bool is_passing(enum context_state state)
{
    return state == CONTEXT_STARTING || state == CONTEXT_STOPPING || state == CONTEXT_RESUMING;
}

bool context_stop(struct context *c, uint64_t timeout_ns, enum dmi_drop reason)
{
    uint64_t now = clock_mono_ns();
    uint64_t end = timeout_ns > UINT64_MAX / 2 - now ? UINT64_MAX / 2 : now + timeout_ns;
    bool stops;
    while (!(stops = context_stops(c)) && is_passing(context_state(c)) &&
           (now = clock_mono_ns()) < end + WORKERS_GRACE_NS)
        nap();
    if (stops)
        stop_threads(c, now < end ? end - now : 0, reason);
    return !is_passing(context_state(c)) && context_state(c) != CONTEXT_STUCK &&
           context_state(c) != CONTEXT_READY;
}

void context_close(struct context *c)
{
    atomic_store_release(&c->closed, true); /* to context_refusal() */
}

void context_release(struct context *c)
{
    context_close(c);
    if (context_state(c) != CONTEXT_STOPPED || !current_push(context_handle(c)))
        return;
    let_reserving_end(c);
    staging_unpin(c->staging);
    c->side->give_back(c);
    current_pop();
    context_fails(c);
}

bool context_is_same(const struct context *c)
{
    unsigned long long id;
    CUdeviceptr base = 0;
    size_t n;
    CUcontext handle = context_handle(c);
    if (handle && c->id)
        return driver_table.cuCtxGetId(handle, &id) == CUDA_SUCCESS && id == c->id;
    if (!handle || !c->payload || !current_push(handle))
        return handle && !c->payload; /* without a ring it only counts */
    bool there = driver_table.cuMemGetAddressRange_v2(&base, &n, c->payload) == CUDA_SUCCESS;
    current_pop();
    return there && base == c->payload && n >= c->ring.n_bytes;
}

bool context_is_over(const struct context *c)
{
    switch (context_state(c)) {
    case CONTEXT_STOPPING:
    case CONTEXT_STOPPED:
    case CONTEXT_STUCK:
    case CONTEXT_RESUMING:
    case CONTEXT_FAILED: return !context_is_same(c);
    case CONTEXT_READY:    /* no call is under way that may end it */
    case CONTEXT_COUNTING: /* nothing of ours lies in it */
    case CONTEXT_STARTING:
    case CONTEXT_FREE:
    case CONTEXT_GONE:
    case CONTEXT_DISMANTLED: break;
    }
    return false;
}

bool context_gone(struct context *c)
{
    enum context_state before = context_ends(c);
    if (before == CONTEXT_GONE)
        return false;
    if (before == CONTEXT_READY) /* it ended without a call that the library saw */
        stop_threads(c, 0, DMI_DROP_CONTEXT_GONE);
    else if (before == CONTEXT_STOPPED)
        drain_give_up(c, DMI_DROP_CONTEXT_GONE);
    return true;
}

/* ------------------------------------------------------------------------- calls that may end it */

static void dismantle(void)
{
    struct context *c;
    while ((c = context_dismantle())) {
        workers_free(c);
        if (c->side)
            c->side->forget(c);
        free(c->sites);
        c->sites = NULL;
        for (struct context_strand *s; (s = c->strands);) {
            c->strands = s->next;
            free(s);
        }
        c->forward = NULL;
        context_freed(c);
    }
}

void context_unuse(struct context *c)
{
    if (atomic_sub_acq_rel(&c->users, 1) == 1 && context_state(c) == CONTEXT_GONE)
        dismantle();
}

void context_call_starts(struct context_call *call, const struct context_reference *reference,
                         uint64_t timeout_ns)
{
    context_call_begins(call, reference);
    if (call->context && reference->last)
        context_stop(call->context, timeout_ns, DMI_DROP_CONTEXT_GONE);
}

void context_call_ends(struct context_call *call, enum context_state before)
{
    struct context *c = call->context;
    if (before != CONTEXT_FREE && context_state(c) == CONTEXT_RESUMING)
        go_on(c, before);
    else if (before == CONTEXT_STOPPED) /* it has been found to be gone */
        drain_give_up(c, DMI_DROP_CONTEXT_GONE);
    context_call_leaves(call);
    if (c)
        context_unuse(c);
    dismantle();
}
