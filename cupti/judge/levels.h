/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of each kind of load: how its times compare with what the fit predicts. A bounded table: a kind that comes anew takes the
 * place of the one that was not seen for longest. Pure: one thread.
 */
#pragma once

#include "cupti/judge/fit.h"
#include "cupti/judge/load.h"

#include <stdbool.h>
#include <stdint.h>

#define LEVELS_SETS   512 /* a kind has its place in one of them */
#define LEVELS_WAYS   4
#define LEVELS_SERIES 2

struct level {
    uint32_t key;                 /* 0: there is none */
    uint32_t seen;                /* levels.now when it was asked for last */
    struct fit_load last;         /* its last load: there the level holds */
    float level[LEVELS_SERIES];   /* the usual time over the prediction */
    uint8_t n[LEVELS_SERIES];     /* turns by which it is known; at most LEVELS_FOLLOWS */
    bool is_alone[LEVELS_SERIES]; /* no neighbour was known when it came */
};

#define LEVELS_FOLLOWS 62 /* a turn then moves its level by 1/64 */

/* Accepts being zeroed. */
struct levels {
    struct level all[LEVELS_SETS][LEVELS_WAYS];
    uint32_t now;       /* how often one was asked for */
    uint64_t forgotten; /* kinds whose place others took */
};

/* Return: NULL: no load of that kind is known. */
const struct level *levels_find(const struct levels *levels, struct load_kind kind);

/* Return: the level of the kind of the load, which is now its last one. A new kind begins with the level of its neighbours. */
struct level *levels_take(struct levels *levels, const struct load *load);

/* What neighbours of a kind say of it. */
struct levels_near {
    float level;   /* the mean of theirs; 1 where there are none */
    bool is_known; /* they saw enough turns to be believed */
};

/* What the neighbours of a kind say of it in a series. */
struct levels_near levels_near(const struct levels *levels, struct load_kind kind, int series);

/* The fit of a series changed: each level changes so that at the kind's last load its usual time stays what it was. */
void levels_rebase(struct levels *levels, int series, const struct fit *before,
                   const struct fit *now);
