/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/forward.h"

#include "core/atomic.h"
#include "preload/process.h"

void forward_check(struct arena *a)
{
    const struct spec *spec = process.spec;
    if (!a->forward.begun)
        return;
    for (uint32_t i = 0; i < spec->n_sites; i++) {
        const struct spec_site *s = &spec->sites[i];
        uint32_t seen = a->sites[i].occurrence;
        /* a pattern that never matched at all is told as such, at the end */
        if (s->about.expect < 0 || (s->kind >= 0 && s->kind != a->forward.kind) ||
            seen == s->about.expect)
            continue;
        process_problem(i, PROBLEM_COUNT, "matched %u launches in forward %llu, %lld are declared",
                        seen, (unsigned long long)a->forward.sequence, (long long)s->about.expect);
    }
}

static void begin(struct arena *a, int kind)
{
    forward_check(a);
    for (uint32_t i = 0; i < process.spec->n_sites; i++)
        a->sites[i].occurrence = 0;
    a->forward.begun = true;
    a->forward.kind = kind;
    a->forward.sequence = atomic_add_relaxed(&process.next_forward, 1);
    atomic_add_relaxed(&process.counters->forwards, 1);
}

/* The kind that dmi_step_begin() begins, -1: none */
static int step_kind(const struct spec *spec)
{
    for (uint32_t i = 0; i < spec->n_kinds; i++)
        if (!spec->kinds[i].kernel)
            return (int)i;
    return -1;
}

void forward_advance(struct arena *a, int kind)
{
    uint64_t steps = atomic_load_acquire(&process.step_forward); /* of dmi_step_begin() */
    if (a->forward.step_forward != steps) {
        a->forward.step_forward = steps;
        int by_step = step_kind(process.spec);
        if (by_step >= 0)
            begin(a, by_step);
    }
    if (kind >= 0)
        begin(a, kind);
    else if (!a->forward.begun && !process.spec->n_kinds)
        begin(a, -1); /* a spec without boundaries: the whole run is one forward */
}

bool forward_occurrence(struct arena *a, uint32_t site, uint32_t *occurrence)
{
    const struct spec_site *s = &process.spec->sites[site];
    if (!a->forward.begun || (s->kind >= 0 && s->kind != a->forward.kind))
        return false;
    *occurrence = a->sites[site].occurrence++;
    return true;
}

void forward_take_back(struct arena *a, uint32_t site)
{
    if (a->sites[site].occurrence)
        a->sites[site].occurrence--;
}
