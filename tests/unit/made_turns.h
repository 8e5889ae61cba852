/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns of a serving engine that does not exist, by a seed: prompts come in chunks between decoding requests, rows are padded to buckets,
 * contexts grow. Their time is the greater of two lines, and a tile for each 128 rows; with noise that is correlated from turn to turn, and a
 * tail of its own. So it is known of each turn what it should have taken.
 */
#pragma once

#include "cupti/judge/judge.h"

#include <stdbool.h>
#include <stdint.h>

#define MADE_MOST 256 /* requests at a time */

enum made_way {
    MADE_RISES,   /* load rises from an eighth to full */
    MADE_WANDERS, /* it wanders about the half */
};

/* Set seed, n, way and noise; zero the rest. */
struct made {
    uint64_t seed;
    uint64_t n; /* turns over which load rises */
    enum made_way way;
    double noise;    /* standard deviation of a turn's time, as a ratio */
    double by;       /* times take so many times as long; 0: once */
    bool has_drafts; /* every eighth request decodes with drafts */

    uint64_t turn;
    double wander, length, noisy[2];
    uint32_t n_requests;
    struct made_request {
        uint32_t context, prompt, left;
        bool drafts;
    } requests[MADE_MOST];
};

/* The next turn; its number counts from 0. Return: the time that it takes without noise, in nanoseconds. */
double made_turn(struct made *made, struct judge_turn *turn);

/* Return: a number from 0 to below 1. */
double made_number(struct made *made);
