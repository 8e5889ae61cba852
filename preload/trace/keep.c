/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/keep.h"

#include "core/clock.h"
#include "core/locked.h"
#include "preload/trace/stepring.h"

#include <pthread.h>

#define PATIENCE_NS 4000000000u /* dmi-ctl waits longer */

static struct {
    pthread_mutex_t lock; /* all below */
    bool expected, on, asked, answered;
    bool waits;                /* a thread does, for the answer */
    struct keep_window window; /* that is asked for */
    struct keep_answer answer;
} keep = { .lock = PTHREAD_MUTEX_INITIALIZER };

void keep_expect(void)
{
    UNDER(&keep.lock, keep.expected = true);
}

void keep_use(bool use)
{
    pthread_mutex_lock(&keep.lock);
    keep.expected = false;
    keep.on = use;
    pthread_mutex_unlock(&keep.lock);
}

/* Under the lock, which is free while others are served. Return: what is said where it was not answered. */
static enum keep_state wait(keep_meanwhile *meanwhile)
{
    uint64_t until_ns = clock_mono_ns() + PATIENCE_NS;
    bool goes_on = true;
    keep.waits = true;
    while (goes_on && keep.on && !keep.answered && clock_mono_ns() < until_ns) {
        pthread_mutex_unlock(&keep.lock);
        goes_on = meanwhile();
        pthread_mutex_lock(&keep.lock);
    }
    keep.waits = false;
    return !keep.on ? KEEP_OFF : goes_on ? KEEP_LATE : KEEP_ENDS;
}

/* Under the lock. */
static struct keep_answer ask(uint64_t n_steps, keep_meanwhile *meanwhile)
{
    uint64_t end = stepring_numbered();
    if (keep.expected)
        return (struct keep_answer){ .window = { end, end } };
    if (!keep.on || keep.asked || keep.waits)
        return (struct keep_answer){ .state = keep.on ? KEEP_BUSY : KEEP_OFF };
    keep.window = (struct keep_window){ n_steps && n_steps < end ? end - n_steps : 0, end };
    keep.asked = true;
    keep.answered = false;
    enum keep_state state = wait(meanwhile);
    return keep.answered ? keep.answer : (struct keep_answer){ .state = state };
}

struct keep_answer keep_ask(uint64_t n_steps, keep_meanwhile *meanwhile)
{
    return LOCKED(&keep.lock, ask(n_steps, meanwhile));
}

bool keep_asked(struct keep_window *asked)
{
    pthread_mutex_lock(&keep.lock);
    bool is = keep.asked && !keep.answered;
    *asked = keep.window;
    pthread_mutex_unlock(&keep.lock);
    return is;
}

void keep_done(const struct keep_answer *answer)
{
    pthread_mutex_lock(&keep.lock);
    keep.answer = *answer;
    keep.answered = true;
    keep.asked = false;
    pthread_mutex_unlock(&keep.lock);
}

void keep_reset(void)
{
    keep.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    keep.expected = keep.on = keep.asked = keep.answered = keep.waits = false;
}
