/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/capture/forward.h"

#include "core/atomic.h"
#include "preload/session/session.h"

#include <string.h>

void forward_check(struct context *c)
{
    const struct spec *spec = session.spec;
    if (!c->forward.begun)
        return;
    for (uint32_t i = 0; i < spec->n_sites; i++) {
        const struct spec_site *s = &spec->sites[i];
        uint32_t seen = c->sites[i].occurrence;
        /* a pattern that never matched at all is reported as such, at the end */
        if (s->about.expect < 0 || c->sites[i].doubtful ||
            (s->kind >= 0 && s->kind != c->forward.kind) || seen == s->about.expect)
            continue;
        session_problem(i, PROBLEM_COUNT, "matched %u launches in forward %llu, %lld are declared",
                        seen, (unsigned long long)c->forward.sequence, (long long)s->about.expect);
    }
}

static __thread __attribute__((tls_model("initial-exec"))) bool begun_here;

bool forward_take_begun(void)
{
    bool begun = begun_here;
    begun_here = false;
    return begun;
}

static void begin(struct context *c, int kind)
{
    begun_here = true;
    forward_check(c);
    for (uint32_t i = 0; i < session.spec->n_sites; i++) {
        c->sites[i].occurrence = 0;
        c->sites[i].doubtful = false;
        memset(c->sites[i].tapped, 0, sizeof c->sites[i].tapped);
    }
    c->forward.begun = true;
    c->forward.kind = kind;
    c->forward.sequence = atomic_add_relaxed(&session.next_forward, 1);
    atomic_add_relaxed(&session.counters->forwards, 1);
}

/* The kind that dmi_step_begin() begins, -1: none */
static int step_kind(const struct spec *spec)
{
    for (uint32_t i = 0; i < spec->n_kinds; i++)
        if (spec_kind_is_step(&spec->kinds[i]))
            return (int)i;
    return -1;
}

void forward_advance(struct context *c, int kind)
{
    uint64_t steps = atomic_load_acquire(&session.step_forward); /* of dmi_step_begin() */
    if (c->forward.step_forward != steps) {
        c->forward.step_forward = steps;
        int by_step = step_kind(session.spec);
        if (by_step >= 0)
            begin(c, by_step);
    }
    if (kind >= 0)
        begin(c, kind);
    else if (!c->forward.begun && !session.spec->n_kinds) {
        begin(c, -1); /* a spec without boundaries: the whole run is one forward */
        begun_here = false;
    }
}

void forward_tap(struct context *c, uint32_t site, int32_t layer)
{
    uint64_t steps = c->forward.step_forward;
    forward_advance(c, -1);
    if (session.spec->n_kinds || session.spec->has_kernels)
        return;
    uint32_t bit = (uint32_t)(layer + 1) % CONTEXT_TAP_LAYERS;
    uint64_t mask = 1ull << bit % 64;
    if (c->forward.step_forward != steps || (c->sites[site].tapped[bit / 64] & mask))
        begin(c, -1);
    c->sites[site].tapped[bit / 64] |= mask;
}

bool forward_occurrence(struct context *c, uint32_t site, uint32_t *occurrence)
{
    const struct spec_site *s = &session.spec->sites[site];
    if (!c->forward.begun || (s->kind >= 0 && s->kind != c->forward.kind))
        return false;
    *occurrence = c->sites[site].occurrence++;
    return true;
}

void forward_doubt(struct context *c, const struct spec_match *match)
{
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < match->n_sites; i++)
        c->sites[match->sites[i]].doubtful = true;
    for (uint32_t i = 0; match->kind >= 0 && i < session.spec->n_sites; i++)
        c->sites[i].doubtful = true;
    pthread_mutex_unlock(&c->lock);
}

void forward_take_back(struct context *c, uint32_t site)
{
    if (c->sites[site].occurrence)
        c->sites[site].occurrence--;
}
