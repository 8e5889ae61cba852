/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/workers.h"

#include "core/atomic.h"
#include "core/clock.h"
#include "core/err.h"
#include "preload/base/cpus.h"
#include "preload/base/thread.h"
#include "preload/context/drain.h"
#include "preload/context/encoder.h"
#include "preload/context/side.h"
#include "preload/context/staging.h"
#include "preload/session/session.h"

#include <errno.h>
#include <time.h>

#define POLL_NS      50000u
#define MAX_SPARE    4u /* encoders, unless more are asked for */
#define CPUS_A_SPARE 4u /* the others are the application's */

/* Not more than asked for. */
static uint32_t n_encoders(void)
{
    uint32_t n = session.encoders;
    if (!n) {
        n = cpus_given() / CPUS_A_SPARE;
        n = n > MAX_SPARE ? MAX_SPARE : n ? n : 1;
    }
    return n > STAGING_MAX_ENCODERS ? STAGING_MAX_ENCODERS : n;
}

void workers_free(struct context *c)
{
    staging_free(c->staging);
    c->staging = NULL;
}

/* ------------------------------------------------------------------------- start */

static int start_thread(struct context_thread *thread, void *(*fn)(void *), void *arg)
{
    int r = thread_start(&thread->id, fn, arg);
    thread->runs = !r;
    return r;
}

/* One is enough to go on with. */
static int start_encoders(struct context *c)
{
    int r = 0;
    c->n_encoders = 0;
    while (!r && c->n_encoders < c->staging->n_batches - STAGING_SPARE) {
        r = start_thread(&c->encoders[c->n_encoders], encoder_main, c);
        c->n_encoders += !r;
    }
    return c->n_encoders ? 0 : r;
}

/* Return: true if the thread has ended, or never ran. */
static bool join(struct context_thread *thread, uint64_t end_mono_ns)
{
    struct timespec at = clock_timespec(end_mono_ns);
    if (thread->runs && !pthread_clockjoin_np(thread->id, NULL, CLOCK_MONOTONIC, &at))
        thread->runs = false;
    return !thread->runs;
}

static bool join_encoders(struct context *c, uint64_t end_mono_ns)
{
    bool ended = true;
    for (uint32_t i = 0; i < c->n_encoders; i++)
        ended &= join(&c->encoders[i], end_mono_ns);
    return ended;
}

int workers_start(struct context *c)
{
    if (!c->staging && (c->staging = staging_new(c->ring.n_bytes, n_encoders())))
        c->side->pin(c->staging->map, c->staging->n_map);
    if (!c->staging)
        return -ENOMEM;
    staging_restart(c->staging);
    atomic_store_release(&c->stop_ns, (uint64_t)0); /* to drain_round() */
    TRY(start_encoders(c));
    int r = start_thread(&c->drain, drain_main, c);
    if (r) {
        staging_end(c->staging);
        join_encoders(c, UINT64_MAX / 2);
    }
    return r;
}

/* ------------------------------------------------------------------------- stop */

bool workers_ended(struct context *c)
{
    return join(&c->drain, 0) && join_encoders(c, 0);
}

/* After the deadline the drain only counts what is left: that takes no time worth bounding twice. */
#define GRACE_NS (WORKERS_GRACE_NS / 2)

bool workers_stop(struct context *c, uint64_t timeout_ns, enum dmi_drop reason)
{
    uint64_t end = clock_mono_ns() + timeout_ns;
    atomic_store_relaxed(&c->stop_reason, reason);
    atomic_store_relaxed(&c->stop_slot, atomic_load_acquire(&c->ring.head_slot));
    atomic_store_release(&c->stop_ns, end); /* to drain_round() */
    return join(&c->drain, end + GRACE_NS) && join_encoders(c, end + 2 * GRACE_NS);
}

bool workers_wait(struct context *c, uint64_t slot, uint64_t timeout_ns)
{
    struct timespec pause = { .tv_nsec = POLL_NS };
    uint64_t end = clock_mono_ns() + timeout_ns;
    while (atomic_load_acquire(&c->settled) < slot) { /* of encoder.c append() */
        if (clock_mono_ns() > end)
            return false;
        nanosleep(&pause, NULL);
    }
    return true;
}
