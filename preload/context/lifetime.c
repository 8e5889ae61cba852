/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/lifetime.h"

#include "core/atomic.h"
#include "core/clock.h"
#include "core/log.h"
#include "preload/base/driver.h"
#include "preload/base/session.h"
#include "preload/base/stream.h"
#include "preload/context/device.h"
#include "preload/context/gauge.h"
#include "preload/context/workers.h"
#include "preload/context/staging.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define START_WAIT_NS 5000000000ull

/* ------------------------------------------------------------------------- creating one */

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
    int r = device_init(err, c);
    if (!r)
        r = start_workers(c) ? err_set(err, -EAGAIN, "the threads of the drain cannot be started")
                             : 0;
    if (r) {
        workers_free(c);
        device_deinit(c);
    }
    return r;
}

/* The thread may be capturing a stream in a mode that forbids these calls to it. */
static void start_relaxed(struct context *c)
{
    struct err err = { 0 };
    struct stream_relaxed relaxed = stream_relax();
    int r = start(&err, c);
    stream_unrelax(&relaxed);
    if (r)
        log_line("no ring in this context, its sites are not captured: %s", err.msg);
    /* to context_find() */
    atomic_store_release(&c->state, r ? CONTEXT_FAILED : CONTEXT_READY);
}

/* Another thread starts it, and waits for nothing that we might hold but the driver. */
static void wait_for_start(const struct context *c)
{
    uint64_t end = clock_mono_ns() + START_WAIT_NS;
    while (atomic_load_acquire(&c->state) == CONTEXT_STARTING && clock_mono_ns() < end) {
        struct timespec pause = { .tv_nsec = 100000 };
        nanosleep(&pause, NULL);
    }
}

struct context *context_current(void)
{
    CUcontext handle = NULL;
    if (driver_table.cuCtxGetCurrent(&handle) != CUDA_SUCCESS || !handle || !session_run())
        return NULL;
    return context_claim(handle);
}

struct context *context_prepare(void)
{
    int counting = CONTEXT_COUNTING;
    struct context *c = context_current();
    if (!c || atomic_load_acquire(&c->state) == CONTEXT_READY)
        return c;
    if (atomic_cas_acq_rel(&c->state, &counting, CONTEXT_STARTING))
        start_relaxed(c);
    else
        wait_for_start(c);
    return c;
}

/* ------------------------------------------------------------------------- its end */

bool context_stop(struct context *c, uint64_t timeout_ns, enum dmi_drop reason)
{
    int ready = CONTEXT_READY;
    if (!atomic_cas_acq_rel(&c->state, &ready, CONTEXT_STOPPED))
        return ready != CONTEXT_STARTING; /* nothing of ours runs there */
    /* whoever is reserving has seen READY: let that end */
    pthread_mutex_lock(&c->lock);
    pthread_mutex_unlock(&c->lock);
    return workers_stop(c, timeout_ns, reason);
}

void context_release(struct context *c)
{
    CUcontext popped;
    if (atomic_load_acquire(&c->state) != CONTEXT_STOPPED || workers_run(c) ||
        !driver_table.cuCtxPushCurrent_v2 ||
        driver_table.cuCtxPushCurrent_v2(c->handle) != CUDA_SUCCESS)
        return;
    staging_unpin(c->staging);
    workers_free(c);
    device_deinit(c);
    driver_table.cuCtxPopCurrent_v2(&popped);
    atomic_store_release(&c->state, CONTEXT_FAILED); /* to context_find() */
}

void context_detach(struct context *c)
{
    atomic_store_relaxed(&c->handle, (CUcontext)NULL);
}

void context_attach(struct context *c, CUcontext handle)
{
    atomic_store_relaxed(&c->handle, handle);
}

void context_resume(struct context *c)
{
    if (atomic_load_acquire(&c->state) == CONTEXT_STOPPED && !workers_run(c) && !workers_start(c))
        atomic_store_release(&c->state, CONTEXT_READY); /* to context_find() */
}

void context_forget(struct context *c)
{
    int state = atomic_load_acquire(&c->state);
    context_detach(c);
    if (state == CONTEXT_STOPPED && !workers_run(c)) {
        workers_free(c);
        device_forget(c);
        state = CONTEXT_FAILED;
    }
    /* one whose threads did not end stays as it is: they still look at it */
    if (state == CONTEXT_FAILED || state == CONTEXT_COUNTING) {
        free(c->sites);
        c->sites = NULL;
        atomic_store_release(&c->state, CONTEXT_FREE); /* to context_claim() */
    }
}
