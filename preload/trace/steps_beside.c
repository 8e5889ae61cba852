/* SPDX-License-Identifier: Apache-2.0 */
/* The part of steps.h that is about what happens beside launches: streams that are captured or end, stalls, waits. */
#include "preload/trace/steps_private.h"

#include "preload/trace/events.h"

#include <errno.h>
#include <stddef.h>

void steps_capture_begins(void)
{
    pthread_mutex_lock(&steps.lock);
    steps.captures++;
    steps_set_captures();
    pthread_mutex_unlock(&steps.lock);
}

void steps_capture_ends(void)
{
    pthread_mutex_lock(&steps.lock);
    steps.captures -= steps.captures != 0;
    steps_set_captures();
    pthread_mutex_unlock(&steps.lock);
}

void steps_stream_ends(CUstream stream)
{
    for (uint32_t i = 0; i < atomic_load_relaxed(&steps.top); i++)
        if (!stream || atomic_load_relaxed(&steps.threads[i].last) == stream)
            atomic_store_relaxed(&steps.threads[i].last_gone, true);
    lanes_stream_ends(stream);
    events_stream_ends(stream);
}

/* The calling thread's place, with the base of the step under way. Return: NULL: it has none. */
static struct trace_thread *based_self(void)
{
    struct trace_thread *t = steps_self();
    if (!t)
        return NULL;
    pthread_mutex_lock(&steps.lock);
    if (t->gate != steps_plain_gate())
        steps_follow(t);
    pthread_mutex_unlock(&steps.lock);
    return t;
}

void steps_stalled(bool loads, uint64_t ns)
{
    struct trace_thread *t = based_self();
    if (!t)
        return;
    uint64_t *calls = loads ? &t->now.loads : &t->now.allocations;
    atomic_store_relaxed(calls, *calls + 1);
    atomic_store_relaxed(&t->now.stall_ns, t->now.stall_ns + ns);
}

/* The step that the thread launches for; NULL: none. Under the lock. */
static struct trace_step *step_of(const struct trace_thread *t)
{
    bool of_engine = steps.engine && t->base_gate == steps.engine->gate;
    return t->step ? t->step : of_engine ? steps.engine : NULL;
}

void steps_look(void)
{
    struct trace_thread *t = trace_self;
    struct step_ending e = { 0 };
    if (!t || (t->end && t->recorded == steps_made(t)))
        return;
    int saved = errno;
    pthread_mutex_lock(&steps.lock);
    e.step = step_of(t);
    if (e.step && e.step->timed && !atomic_load_relaxed(&t->last_gone))
        steps_add_end(&e, t, false);
    if (e.n)
        e.step->recording++;
    pthread_mutex_unlock(&steps.lock);
    if (e.n) {
        steps_record(&e);
        steps_recorded(e.step);
    }
    errno = saved;
}

void steps_waited(uint64_t ns, uint64_t now_ns)
{
    struct trace_thread *t = based_self();
    if (!t)
        return;
    atomic_store_relaxed(&t->now.waits, t->now.waits + 1);
    atomic_store_relaxed(&t->now.wait_ns, t->now.wait_ns + ns);
    atomic_store_relaxed(&t->waited_ns, now_ns);
}

void steps_own(uint32_t n)
{
    struct trace_thread *t = n ? trace_self : NULL;
    if (t)
        atomic_store_relaxed(&t->now.own, t->now.own + n);
}
