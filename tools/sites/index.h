/* SPDX-License-Identifier: Apache-2.0 */
/* Beginnings of reference rows, found by the largest of their values. One thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct index_pattern {
    const float *values; /* borrowed */
    uint32_t tensor, number;
    uint16_t n, anchor, second; /* its two largest */
    float largest, next;        /* these two, scaled; set by index_build() */
};

struct index {
    struct index_pattern *patterns; /* by bucket, once built */
    size_t n, room;
    uint32_t *first; /* of each bucket of sizes */
    float scale;
};

/* Those whose largest value is near to one that was seen: patterns[from] to patterns[to - 1]. */
struct index_span {
    uint32_t from, to;
};

/* Sets the places of the two largest of @pattern's values; one alone is both. */
void index_find_anchors(struct index_pattern *pattern);

/* Values that are all zero are left out. Return: 0 or -ENOMEM. */
int index_add(struct index *index, const struct index_pattern *pattern);

/* After all were added, and before any is looked for. @scale: of what is seen, over the patterns. Return: 0 or -ENOMEM. */
int index_build(struct index *index, float scale);

/* Patterns whose largest value may be @value, given what @dtype rounds off. */
struct index_span index_near(const struct index *index, float value, uint32_t dtype);

/* Accepts a zeroed struct. */
void index_deinit(struct index *index);
