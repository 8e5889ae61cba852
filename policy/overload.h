/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a HookSpec says is to happen under pressure: `overload`. Immutable once read; any thread. What follows from it for the
 * requests of a step is policy/shedding.h. Source: docs/pressure.md.
 */
#pragma once

#include "policy/select.h"

#include <stdbool.h>
#include <stdint.h>

#define OVERLOAD_MAX_KEEP    32 /* patterns of requests */
#define OVERLOAD_MAX_BUDGETS 16

/* What happens to a launch whose records find no room in the ring. */
enum overload_mode {
    OVERLOAD_DROP = 0,        /* those that find none are dropped */
    OVERLOAD_BEST_EFFORT = 1, /* requests are shed, ahead of time where that can be foreseen */
    OVERLOAD_COMPLETE = 2,    /* it waits for the drain, up to wait_ns; then @fallback */
};

/* Which requests are shed first. */
enum overload_strategy {
    OVERLOAD_DROP_RECENT = 0, /* those that came last */
    OVERLOAD_KEEP_BY_PATTERN =
        1, /* those that no pattern of @keep takes; among these those that came last */
    OVERLOAD_SAMPLE =
        2, /* by a hash of the id, the same on all ranks; those beyond @share at once */
};

/* Bytes a second of what is kept. */
struct overload_budget {
    char *
        sites; /* pattern of their names, as a shell's; NULL: all of the process. Owned by the spec */
    uint64_t bytes_per_s;
};

struct overload {
    enum overload_mode mode;
    enum overload_mode fallback; /* of OVERLOAD_COMPLETE: OVERLOAD_DROP or OVERLOAD_BEST_EFFORT */
    uint64_t wait_ns;            /* 100 ms if the file does not say */
    enum overload_strategy strategy;
    double share; /* of OVERLOAD_SAMPLE: above 0, at most 1 */
    struct select keep[OVERLOAD_MAX_KEEP];
    uint32_t n_keep;
    struct overload_budget budgets[OVERLOAD_MAX_BUDGETS];
    uint32_t n_budgets;
    uint32_t *of_site; /* by site of the spec: bit i, it counts for budgets[i]; owned */
    uint32_t n_sites;
};

/* The budgets that a site of the spec counts for: bit i, budgets[i]. */
static inline uint32_t overload_budgets_of(const struct overload *o, uint32_t site)
{
    return site < o->n_sites ? o->of_site[site] : 0;
}

/* Does the ring's room decide, before a step, which requests are kept? */
static inline bool overload_foresees(const struct overload *o)
{
    return o->mode == OVERLOAD_BEST_EFFORT;
}

/* Are requests shed where a launch finds no room, after the wait if there is one? */
static inline bool overload_cuts(const struct overload *o)
{
    return o->mode == OVERLOAD_BEST_EFFORT ||
           (o->mode == OVERLOAD_COMPLETE && o->fallback == OVERLOAD_BEST_EFFORT);
}

/* May anything be shed at all? */
static inline bool overload_sheds(const struct overload *o)
{
    return overload_cuts(o) || o->n_budgets || o->strategy == OVERLOAD_SAMPLE;
}

/* As a HookSpec has them: "best-effort", "drop-recent". */
const char *overload_mode_name(enum overload_mode mode);
const char *overload_strategy_name(enum overload_strategy strategy);

/* Does a pattern of @keep take the request? @tags: a JSON object or NULL. */
bool overload_keeps(const struct overload *o, const char *id, const char *tags);

/* Is the request within the share? Of one id the same answer in every process. */
bool overload_samples(const struct overload *o, uint64_t hash);

/* The hash of a request's id that overload_samples() looks at. */
uint64_t overload_hash(const char *id);
