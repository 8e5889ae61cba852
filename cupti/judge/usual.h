/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The usual time of a turn by phase and rows alone: what can be said of a step that is still open. The judge's thread changes it; a copy may
 * be read by any thread.
 */
#pragma once

#include "cupti/judge/load.h"

#include <stdbool.h>
#include <stdint.h>

#define USUAL_HANGS_NS    UINT64_C(10000000000) /* a step that hangs has been open for so long, */
#define USUAL_HANGS_TIMES 100u                  /* and for so many times its usual time */

/* Accepts being zeroed: nothing is known. */
struct usual {
    uint64_t ns[LOAD_PHASES][LOAD_BUCKETS]; /* 0: not known */
};

/* Follows the time of a turn that was not slow; of one that was, by a small step of a fixed size. */
void usual_learn(struct usual *usual, const struct load *load, uint64_t time_ns, bool slow);

/* Return: nanoseconds; of the nearest number of rows that is known, at most an octave away; 0: not known. */
uint64_t usual_ns(const struct usual *usual, const struct load *load);

/* Return: whether a step that is still open hangs. It never does where its usual time is not known. */
bool usual_hangs(const struct usual *usual, const struct load *load, uint64_t open_ns);
