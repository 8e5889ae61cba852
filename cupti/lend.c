/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti/lend.h"

#include "core/atomic.h"
#include "core/clock.h"
#include "cupti/tracer.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MOST_KINDS 256        /* that are noted */
#define TURN_NS    100000000u /* for which a call waits, while CUPTI changes hands */
#define QUIET_NS                                                                                   \
    250000000u /* after the last kind: in which its user asks for what it has not got yet */
#define INJECTION "CUDA_INJECTION64_PATH"

/*
 * The lock is held while CUPTI changes hands, across calls of CUPTI: two changes at a time would leave kinds on that nobody asked for. Other users wait
 * for it no longer than TURN_NS, and the collector not at all.
 */
static struct {
    pthread_mutex_t turn;
    struct tracer_user user; /* that registered last; zeroed: none did */
    struct enabled {         /* what it has enabled */
        void *context;       /* NULL: in all */
        int kind;
    } kinds[MOST_KINDS];
    size_t n_kinds;
    bool for_subscriber;     /* a subscriber needs CUPTI lent */
    other_clock_read *clock; /* that it gave CUPTI; atomic */
    uint64_t due_ns;         /* when CUPTI is to be taken back; 0: not at all; atomic */
    uint64_t n_lent;         /* atomic */
    uint64_t n_seen;         /* of these by the collector */
} lend = { .turn = PTHREAD_MUTEX_INITIALIZER };

/* ------------------------------------------------------------------------- turns */

/* Return: whether end_turn() has to follow. errno stays. */
static bool begin_turn(void)
{
    const struct timespec until = clock_timespec(clock_mono_ns() + TURN_NS);
    return !pthread_mutex_clocklock(&lend.turn, CLOCK_MONOTONIC, &until);
}

static void end_turn(bool began)
{
    if (began)
        pthread_mutex_unlock(&lend.turn);
}

static void note_kind(void *context, int kind, bool on)
{
    size_t i = 0;
    while (i < lend.n_kinds && (lend.kinds[i].context != context || lend.kinds[i].kind != kind))
        i++;
    if (!on && i < lend.n_kinds)
        lend.kinds[i] = lend.kinds[--lend.n_kinds];
    else if (on && i == lend.n_kinds && i < MOST_KINDS)
        lend.kinds[lend.n_kinds++] = (struct enabled){ context, kind };
}

/* CUPTI is another user's from here on, if it is not already. Under the lock; errno stays. */
static void begin_loan(void)
{
    int saved = errno;
    atomic_store_release(&lend.due_ns, (uint64_t)0);
    if (tracer_lend())
        atomic_add_relaxed(&lend.n_lent, 1);
    errno = saved;
}

/* Is the loan over? Under the lock. */
static void look_for_end(void)
{
    if (tracer_lent() && !lend.n_kinds && !lend.for_subscriber)
        atomic_store_release(&lend.due_ns, clock_mono_ns() + QUIET_NS); /* to is_due() */
}

/* ------------------------------------------------------------------------- calls of another user's */

int lend_register(library_register *real, library_request *request, library_complete *complete)
{
    bool turn = begin_turn();
    begin_loan();
    lend.user = (struct tracer_user){ request, complete };
    bool lent = tracer_lent();
    if (lent)
        tracer_route(&lend.user);
    end_turn(turn);
    return lent ? tracer_register(real) : real(request, complete);
}

void lend_enables(void *context, int kind)
{
    bool turn = begin_turn();
    if (lend.user.request) { /* as it registered before */
        begin_loan();
        tracer_route(&lend.user);
    }
    note_kind(context, kind, true);
    end_turn(turn);
}

bool lend_disables(int kind)
{
    return !tracer_runs() || !tracer_has_kind(kind); /* else the other user has not enabled it */
}

void lend_disabled(void *context, int kind)
{
    bool turn = begin_turn();
    note_kind(context, kind, false);
    look_for_end();
    end_turn(turn);
}

int lend_clock(int (*real)(other_clock_read *clock), other_clock_read *clock)
{
    bool turn = begin_turn();
    begin_loan();
    end_turn(turn);
    int r = real(clock);
    turn = begin_turn();
    if (!r)
        atomic_store_release(&lend.clock, clock); /* to lend_other_clock() */
    look_for_end();
    end_turn(turn);
    return r;
}

other_clock_read *lend_other_clock(void)
{
    return atomic_load_acquire(&lend.clock); /* of lend_clock() */
}

int lend_finalize(int (*real)(void))
{
    bool turn = begin_turn();
    begin_loan();
    end_turn(turn);
    int r = real();
    turn = begin_turn();
    tracer_route(&(struct tracer_user){ 0 });
    lend.user = (struct tracer_user){ 0 };
    lend.n_kinds = 0;
    lend.for_subscriber = false;
    atomic_store_release(&lend.clock, (other_clock_read *)NULL); /* to lend_other_clock() */
    look_for_end();
    end_turn(turn);
    return r;
}

bool lend_for_subscriber(void)
{
    bool turn = begin_turn();
    bool lends = tracer_runs();
    if (lends)
        begin_loan();
    lend.for_subscriber |= lends;
    end_turn(turn);
    return lends;
}

void lend_subscriber_ended(void)
{
    bool turn = begin_turn();
    bool needed = lend.for_subscriber;
    lend.for_subscriber = false;
    if (needed)
        look_for_end();
    end_turn(turn);
}

/* ------------------------------------------------------------------------- ours */

bool lend_came_first(struct err *err)
{
    const char *injected = getenv(INJECTION);
    if (injected && *injected) {
        err_set(err, -EBUSY, INJECTION "=%s brings a profiler, and CUPTI has one user", injected);
        return true;
    }
    bool turn = begin_turn();
    bool first = lend.user.request || lend.n_kinds;
    end_turn(turn);
    if (first)
        err_set(err, -EBUSY, "another profiler of this process registered with CUPTI first");
    return first;
}

static bool is_due(void)
{
    uint64_t due_ns = atomic_load_acquire(&lend.due_ns); /* of look_for_end() */
    return due_ns && clock_mono_ns() >= due_ns && tracer_lent();
}

/* Under the lock. */
static enum lend_news take_back(struct err *err)
{
    if (!is_due())
        return LEND_NOTHING;
    /* Or records of ours would come into its buffer. Its callbacks may wait for a call of its own, which waits TURN_NS. */
    tracer_flush_user();
    if (!is_due())
        return LEND_NOTHING;
    atomic_store_relaxed(&lend.due_ns, (uint64_t)0);
    int r = tracer_take_back();
    if (r)
        err_set(err, -EBUSY, "CUPTI was lent, and cannot be had again (error %d)", r);
    return r ? LEND_OVER : LEND_BACK;
}

enum lend_news lend_round(struct err *err)
{
    uint64_t n = atomic_load_relaxed(&lend.n_lent);
    if (n != lend.n_seen) {
        lend.n_seen = n;
        return LEND_LENT;
    }
    if (!is_due() || pthread_mutex_trylock(&lend.turn))
        return LEND_NOTHING;
    enum lend_news news = take_back(err);
    pthread_mutex_unlock(&lend.turn);
    return news;
}

void lend_reset(void)
{
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    memset(&lend, 0, sizeof lend);
    lend.turn = unlocked;
}
