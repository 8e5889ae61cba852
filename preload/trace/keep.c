/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/keep.h"

#include "core/clock.h"
#include "preload/trace/stepring.h"

#include <pthread.h>
#include <time.h>

#define PATIENCE_NS 4000000000u /* dmi-ctl waits longer */

static struct {
    pthread_mutex_t lock; /* all below */
    pthread_cond_t changed;
    bool expected, on, asked, answered;
    struct keep_window window; /* that is asked for */
    struct keep_answer answer;
} keep = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

void keep_expect(void)
{
    pthread_mutex_lock(&keep.lock);
    keep.expected = true;
    pthread_mutex_unlock(&keep.lock);
}

void keep_use(bool use)
{
    pthread_mutex_lock(&keep.lock);
    keep.expected = false;
    keep.on = use;
    pthread_cond_broadcast(&keep.changed);
    pthread_mutex_unlock(&keep.lock);
}

/* Under the lock. Return: false: it was not answered. */
static bool wait(const struct timespec *until)
{
    while (keep.on && !keep.answered)
        if (pthread_cond_clockwait(&keep.changed, &keep.lock, CLOCK_MONOTONIC, until))
            return keep.answered;
    return keep.answered;
}

/* Under the lock. */
static struct keep_answer ask(uint64_t n_steps)
{
    const struct timespec until = clock_timespec(clock_mono_ns() + PATIENCE_NS);
    uint64_t end = stepring_numbered();
    if (keep.expected)
        return (struct keep_answer){ .window = { end, end } };
    if (!keep.on || keep.asked)
        return (struct keep_answer){ .state = keep.on ? KEEP_BUSY : KEEP_OFF };
    keep.window = (struct keep_window){ n_steps && n_steps < end ? end - n_steps : 0, end };
    keep.asked = true;
    keep.answered = false;
    if (!wait(&until)) /* the collector may still come to it */
        return (struct keep_answer){ .state = keep.on ? KEEP_LATE : KEEP_OFF };
    return keep.answer;
}

struct keep_answer keep_ask(uint64_t n_steps)
{
    pthread_mutex_lock(&keep.lock);
    struct keep_answer answer = ask(n_steps);
    pthread_mutex_unlock(&keep.lock);
    return answer;
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
    pthread_cond_broadcast(&keep.changed);
    pthread_mutex_unlock(&keep.lock);
}

void keep_reset(void)
{
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t nobody = PTHREAD_COND_INITIALIZER;
    keep.lock = unlocked;
    keep.changed = nobody;
    keep.expected = keep.on = keep.asked = keep.answered = false;
}
