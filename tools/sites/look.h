/* SPDX-License-Identifier: Apache-2.0 */
/* One forward's launches, looked through for patterns. One thread. */
#ifndef TOOLS_SITES_LOOK_H
#define TOOLS_SITES_LOOK_H

#include "tools/sites/forwards.h"
#include "tools/sites/index.h"

#define LOOK_TYPE(dtype) (1u << (dtype))

struct look {
    const struct probe *probe;
    uint32_t types; /* LOOK_TYPE() of each that memory is read as */
    float
        error; /* at which a pattern is still there, without its type's rounding: norm over norm */
    struct index index;
    struct hits hits;          /* by launch, then address; their row is the pattern's number */
    uint64_t n_places;         /* elements at which a pattern could have been */
    struct look_count *counts; /* of each pattern's hits */
};

/* Adds a pattern; its values are borrowed until look_at(). Return: 0 or -ENOMEM. */
int look_for(struct look *look, const float *values, uint32_t n, uint32_t tensor, uint32_t number);

/* Looks for all patterns, adds to the hits, and forgets the patterns. Return: 0 or -ENOMEM. */
int look_at(struct look *look, const struct forward *forward);

/* Accepts a zeroed struct. */
void look_deinit(struct look *look);

#endif
