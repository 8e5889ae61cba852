/* SPDX-License-Identifier: Apache-2.0 */
/* The part of steps.h that is about steps that the engine says. */
#include "preload/trace/steps_private.h"

#include "core/clock.h"
#include "preload/trace/batch.h"

#include <dmi/format.h>

#include <stddef.h>

/* The engine's is @step, NULL: it is in none. Under the lock. */
static void put_engine(struct trace_step *step)
{
    steps_next_gate();
    if (step)
        step->gate = steps_plain_gate();
    steps.engine = step;
}

/* The engine's step of that sequence that pauses; NULL: it was lost. Under the lock. */
static struct trace_step *find_paused(uint64_t sequence)
{
    struct trace_step *step = steps.paused;
    while (step && (step->at.source != DMI_STEP_ENGINE || step->at.step != sequence))
        step = step->paused;
    return step;
}

/* What comes after the step that was under way. */
enum next { NEXT_BEGINS, NEXT_RESUMES, NEXT_NONE };

/* What was under way gives way to @step, to the one of @sequence that pauses, or to none. */
static void change(struct trace_thread *own, enum next next, struct trace_step *step,
                   uint64_t sequence, uint64_t now)
{
    struct step_ending e = { 0 };
    pthread_mutex_lock(&steps.lock);
    if (own)
        steps_collect_own(&e, own, false);
    else
        steps_collect(&e, false);
    if (e.step && next == NEXT_NONE)
        steps_take(&e, now, 0);
    else
        steps_put_aside(&e, now);
    if (next == NEXT_RESUMES)
        step = find_paused(sequence);
    *(own ? &own->lost : &steps.lost) = !step && next != NEXT_NONE;
    if (step)
        steps_unpause(step);
    if (!own)
        put_engine(step);
    if (step)
        steps_draw_deal(step);
    if (own)
        steps_put_own(own, step, false);
    pthread_mutex_unlock(&steps.lock);
    steps_finish(&e);
}

void steps_engine_begins(const struct dmi_step *said, uint64_t sequence)
{
    if (!atomic_load_relaxed(&trace_gate))
        return;
    uint64_t now = clock_mono_ns();
    if (atomic_load_relaxed(&steps.source) != DMI_STEP_ENGINE) {
        atomic_store_relaxed(&steps.source, DMI_STEP_ENGINE);
        steps_end_own(false);
    }
    bool is_own = said->flags & DMI_STEP_OF_THREAD;
    struct trace_thread *own = is_own ? steps_self() : NULL;
    if (is_own && !own)
        return; /* more threads than are looked at */
    struct trace_step *step = steps_new(DMI_STEP_ENGINE, sequence, now);
    if (step) {
        batch_describe(&step->at, said);
        step->at.engine_step = said->step;
        step->of = own;
        step->pauses = said->flags & DMI_STEP_PAUSES;
    }
    change(own, NEXT_BEGINS, step, sequence, now);
    steps_end_forgotten();
}

void steps_engine_resumes(uint64_t sequence, bool is_own)
{
    if (!atomic_load_relaxed(&trace_gate))
        return;
    struct trace_thread *own = is_own ? steps_self() : NULL;
    if (is_own && !own)
        return;
    change(own, NEXT_RESUMES, NULL, sequence, clock_mono_ns());
}

void steps_engine_ends(bool is_own)
{
    if (!atomic_load_relaxed(&trace_gate))
        return;
    struct trace_thread *own = is_own ? steps_self() : NULL;
    if (is_own && !own)
        return;
    change(own, NEXT_NONE, NULL, DMI_NO_STEP, clock_mono_ns());
    steps_end_forgotten();
}
