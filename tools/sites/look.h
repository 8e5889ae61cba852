/* SPDX-License-Identifier: Apache-2.0 */
/* What launches wrote, looked through for patterns. One thread. */
#pragma once

#include "tools/sites/index.h"
#include "tools/sites/probe.h"

#define LOOK_MOST                                                                                  \
    4096u /* hits of one pattern in one run of bytes: what lies everywhere says nothing */

struct look {
    const struct probe *probe;
    uint32_t types; /* VIEW_TYPE() of each that memory is read as */
    float
        error; /* at which a pattern is still there, without its type's rounding: norm over norm */
    uint32_t most; /* hits of one pattern in one run of bytes as one type */
    struct index index;
    struct hits hits;          /* by launch, then address; their row is the pattern's number */
    uint64_t n_places;         /* elements at which a pattern could have been */
    struct look_count *counts; /* of each pattern's hits */
};

/* Adds a pattern; its values are borrowed until look_at(). Return: 0 or -ENOMEM. */
int look_for(struct look *look, const float *values, uint32_t n, uint32_t tensor, uint32_t number);

/* Looks in what launches [first, end) wrote for all patterns, in the probe's scale, adds to the hits, and forgets the patterns.
 * Return: 0 or -ENOMEM. */
int look_at(struct look *look, uint32_t first, uint32_t end);

/* Looks everywhere for the beginnings of the rows that @probe says, and adds to @out. Return: 0 or -ENOMEM. */
int look_for_beginnings(const struct probe *probe, struct hits *out);

/* Accepts a zeroed struct. */
void look_deinit(struct look *look);
