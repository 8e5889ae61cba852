/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of steps.h that is about steps that begin in a thread, at a forward of the HookSpec or at what the user named, and about launches,
 * which may begin one.
 */
#include "preload/trace/steps_private.h"

#include "core/clock.h"
#include "preload/trace/named.h"

#include <dmi/format.h>

#include <errno.h>
#include <stddef.h>

/* Is @source the best that came? */
static bool is_in_force(enum dmi_step_source source)
{
    uint32_t best = atomic_load_relaxed(&steps.source);
    while (best < source && !atomic_cas_acq_rel(&steps.source, &best, source))
        ;
    return best <= source;
}

/* @begun: a launch follows at once. */
static struct trace_step *begin_own(struct trace_thread *t, enum dmi_step_source source, bool begun)
{
    uint64_t now = clock_mono_ns();
    struct step_ending e = { 0 };
    struct trace_step *step = steps_new(source, DMI_NO_STEP, now);
    pthread_mutex_lock(&steps.lock);
    steps_collect_own(&e, t, false);
    steps_put_aside(&e, now);
    t->lost = !step;
    if (step) {
        step->of = t;
        step->pauses = source == DMI_STEP_NAMED_RANGE;
        step->begun = begun;
        step->recording = begun;
        steps_draw_deal(step);
    }
    steps_put_own(t, step, begun);
    pthread_mutex_unlock(&steps.lock);
    steps_finish(&e);
    return step;
}

void steps_begins(enum dmi_step_source source, struct stream stream)
{
    struct trace_thread *t = trace_self;
    struct trace_step *step = t && is_in_force(source) ? begin_own(t, source, true) : NULL;
    if (step)
        steps_first_launch(step, stream);
}

uint64_t steps_range_begins(void)
{
    struct trace_thread *t = atomic_load_relaxed(&trace_gate) ? steps_self() : NULL;
    struct trace_step *step =
        t && is_in_force(DMI_STEP_NAMED_RANGE) ? begin_own(t, DMI_STEP_NAMED_RANGE, false) : NULL;
    return step ? step->range : 0;
}

/* Under the lock. The step of the range, current or paused; NULL: it has ended. *@in: the thread in which it is current. */
static struct trace_step *find_range(uint64_t range, struct trace_thread **in)
{
    struct trace_step *step = steps.paused;
    *in = NULL;
    while (step && step->range != range)
        step = step->paused;
    for (uint32_t i = 0; !step && i < steps.top; i++)
        if (steps.threads[i].step && steps.threads[i].step->range == range) {
            *in = &steps.threads[i];
            return (*in)->step;
        }
    return step;
}

/* The range around the one that ended in @t: its step goes on. Under the lock. */
static void resume_range(struct trace_thread *t)
{
    struct trace_step *around = steps.paused;
    while (around && (around->of != t || !around->range))
        around = around->paused;
    if (around) {
        steps_unpause(around);
        steps_draw_deal(around);
    }
    t->lost = false;
    if (t == trace_self) {
        steps_put_own(t, around, false);
        return;
    }
    t->step = around; /* another thread ended it: what that one does is seen at its next launch */
    t->base = steps_counts(t);
    t->base_gate = 0;
    t->end = 0;
    steps_next_gate();
}

void steps_range_ends(uint64_t range)
{
    struct step_ending e = { 0 };
    struct trace_thread *t;
    if (!range || !atomic_load_relaxed(&trace_gate))
        return;
    pthread_mutex_lock(&steps.lock);
    struct trace_step *step = find_range(range, &t);
    if (t) {
        steps_collect_own(&e, t, false);
        steps_take(&e, clock_mono_ns(), 0);
        resume_range(t);
    } else if (step) {
        steps_unpause(step);
        e.step = step;
        steps_take(&e, clock_mono_ns(), 0);
    }
    pthread_mutex_unlock(&steps.lock);
    steps_finish(&e);
}

static struct trace_thread *enter(const void *function, struct stream stream)
{
    uint64_t gate = atomic_load_acquire(
        &trace_gate); /* of steps_start(), steps_next_gate() and steps_set_captures() */
    struct trace_thread *t = gate ? steps_self() : NULL;
    if (!t || ((gate & TRACE_GATE_CAPTURES) && stream_is_capturing(stream)))
        return NULL;
    if ((gate & TRACE_GATE_KERNELS) && function && named_kernel(function))
        steps_begins(DMI_STEP_NAMED_KERNEL, stream);
    else if (!function && named_graph())
        steps_begins(DMI_STEP_NAMED_GRAPH, stream);
    gate &= ~TRACE_GATE_BITS;
    struct trace_step *step = t->gate == gate ? NULL : steps_see_gate(t);
    if (step)
        steps_first_launch(step, stream);
    return t;
}

struct trace_thread *steps_enter(const void *function, struct stream stream)
{
    int saved = errno;
    struct trace_thread *t = enter(function, stream);
    errno = saved;
    return t;
}
