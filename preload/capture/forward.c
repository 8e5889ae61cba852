/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/capture/forward.h"

#include "core/any.h"
#include "core/atomic.h"
#include "preload/session/session.h"

#include <dmi/format.h>

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- strands */

static void check(const struct context_strand *at)
{
    const struct spec *spec = session.spec;
    if (!at->begun)
        return;
    for (uint32_t i = 0; i < spec->n_sites; i++) {
        const struct spec_site *s = &spec->sites[i];
        uint32_t seen = at->sites[i].occurrence;
        /* a pattern that never matched at all is reported as such, at the end */
        if (s->about.expect < 0 || at->sites[i].doubt || (s->kind >= 0 && s->kind != at->kind) ||
            seen == s->about.expect)
            continue;
        session_problem(i, PROBLEM_COUNT, "matched %u launches in forward %llu, %lld are declared",
                        seen, (unsigned long long)at->sequence, (long long)s->about.expect);
    }
}

void forward_check(struct context *c)
{
    for (const struct context_strand *s = c->strands; s; s = s->next)
        check(s);
}

/* Strands of threads and steps that are over go. */
static void sweep(struct context *c)
{
    for (struct context_strand **at = &c->strands, *s; (s = *at);) {
        if (said_strand_lives(s->strand)) {
            at = &s->next;
            continue;
        }
        check(s);
        *at = s->next;
        free(s);
    }
}

static struct context_strand *find(const struct context *c, uint64_t strand)
{
    struct context_strand *s = c->strands;
    while (s && s->strand != strand)
        s = s->next;
    return s;
}

void forward_follow(struct context *c, const struct said *said)
{
    struct context_strand *s = c->forward;
    if (s->strand != said->strand)
        s = find(c, said->strand);
    if (!s && (s = context_strand_new(session.spec->n_sites))) {
        sweep(c);
        s->strand = said->strand;
        s->next = c->strands;
        c->strands = s;
    }
    bool lacks = !s; /* without memory its launches are counted with others' */
    c->forward = s = s ? s : find(c, 0);
    s->in_step = said->sequence != DMI_NO_STEP;
    s->overlaps = said->overlaps || lacks;
    if (!lacks && said->begins > s->steps)
        s->steps = said->begins;
}

/* ------------------------------------------------------------------------- forwards */

static __thread __attribute__((tls_model("initial-exec"))) bool begun_here;

bool forward_take_begun(void)
{
    bool begun = begun_here;
    begun_here = false;
    return begun;
}

static void begin(struct context_strand *at, int kind)
{
    begun_here = true;
    check(at);
    for (uint32_t i = 0; i < session.spec->n_sites; i++) {
        struct context_counts *counts = &at->sites[i];
        counts->occurrence = 0;
        counts->doubt = at->overlaps ? CONTEXT_OVERLAPS : CONTEXT_NO_DOUBT;
        memset(counts->passes, 0, counts->n_layers);
        counts->n_layers = 0;
    }
    at->begun = true;
    at->kind = kind;
    at->sequence = atomic_add_relaxed(&session.next_forward, 1);
    atomic_add_relaxed(&session.counters->forwards, 1);
}

/* The kind that dmi_step_begin() begins, -1: none */
static int step_kind(const struct spec *spec)
{
    return FIRST(i, spec->n_kinds, spec_kind_is_step(&spec->kinds[i]), (int)i, -1);
}

/* Has a step begun, which begins a forward where the spec says so, or nothing else? */
static bool begins_by_step(const struct context_strand *at, int *kind)
{
    *kind = step_kind(session.spec);
    return at->step_forward != at->steps && (*kind >= 0 || !session.spec->n_kinds);
}

/* No boundaries, and no step yet: until one comes, all is one forward. */
static bool is_one(const struct context_strand *at)
{
    return !at->begun && !session.spec->n_kinds;
}

bool forward_begins(const struct context *c, int kind, int *of)
{
    const struct context_strand *at = c->forward;
    bool by_step = begins_by_step(at, of);
    bool begins = kind >= 0 || by_step || is_one(at);
    if (kind >= 0 || (!by_step && begins))
        *of = kind;
    else if (!begins)
        *of = at->kind;
    return begins;
}

void forward_advance(struct context *c, int kind)
{
    struct context_strand *at = c->forward;
    int by_step;
    bool stepped = begins_by_step(at, &by_step);
    at->step_forward = at->steps;
    if (stepped)
        begin(at, by_step);
    if (kind >= 0)
        begin(at, kind);
    else if (is_one(at)) {
        begin(at, -1);
        begun_here = false;
    }
}

/* Are passes of the layer counted? */
static bool is_counted(int32_t layer)
{
    return layer >= -1 && layer <= SPEC_MAX_PLACE_LAYER;
}

void forward_tap(struct context *c, uint32_t site, int32_t layer)
{
    struct context_strand *at = c->forward;
    forward_advance(c, -1);
    if (session.spec->n_kinds || session.spec->has_kernels || at->in_step)
        return;
    if (is_counted(layer) && at->sites[site].passes[layer + 1])
        begin(at, -1);
}

uint32_t forward_pass(struct context *c, uint32_t site, int32_t layer)
{
    struct context_strand *at = c->forward;
    struct context_counts *counts = &at->sites[site];
    if (!is_counted(layer))
        return FORWARD_NO_PASS;
    uint8_t *n = &counts->passes[layer + 1];
    uint32_t pass = *n;
    *n += *n < UINT8_MAX;
    if (counts->n_layers < (uint32_t)layer + 2)
        counts->n_layers = (uint32_t)layer + 2;
    bool known = (at->in_step || session.spec->n_kinds) && !counts->doubt;
    return known ? pass : FORWARD_NO_PASS;
}

void forward_take_back_pass(struct context *c, uint32_t site, int32_t layer)
{
    uint8_t *n = is_counted(layer) ? &c->forward->sites[site].passes[layer + 1] : NULL;
    if (n && *n)
        --*n;
}

bool forward_occurrence(struct context *c, uint32_t site, uint32_t *occurrence)
{
    const struct spec_site *s = &session.spec->sites[site];
    struct context_strand *at = c->forward;
    if (!at->begun || (s->kind >= 0 && s->kind != at->kind))
        return false;
    if (at->overlaps)
        at->sites[site].doubt = CONTEXT_OVERLAPS;
    *occurrence = at->sites[site].occurrence++;
    return true;
}

void forward_doubt(struct context *c, const struct said *said, const struct spec_match *match)
{
    pthread_mutex_lock(&c->lock);
    forward_follow(c, said);
    struct context_counts *sites = c->forward->sites;
    for (uint32_t i = 0; i < match->n_sites; i++)
        sites[match->sites[i]].doubt = CONTEXT_UNCOUNTED;
    for (uint32_t i = 0; match->kind >= 0 && i < session.spec->n_sites; i++)
        sites[i].doubt = CONTEXT_UNCOUNTED;
    pthread_mutex_unlock(&c->lock);
}

void forward_take_back(struct context *c, const struct said *said, uint32_t site)
{
    forward_follow(c, said);
    if (c->forward->sites[site].occurrence)
        c->forward->sites[site].occurrence--;
}
