/* SPDX-License-Identifier: Apache-2.0 */
/* The order of a tensor's rows. Pure but for memory: any thread. Source: docs/format.md 8. */
#pragma once

#include "read/range.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum stretch_flags {
    STRETCH_REJECTED = 1 << 0,   /* drafts that were rejected */
    STRETCH_SUPERSEDED = 1 << 1, /* a later record computed their positions again */
};

#define STRETCH_OWN 0 /* in `donor` */

/* Consecutive rows of one record that belong to one tensor. */
struct stretch {
    size_t record; /* index for reader_record(): a later record has a higher one */
    uint32_t first_row, n_rows;
    int64_t position; /* of the first row's token in its request; -1: not known */
    uint32_t flags;   /* enum stretch_flags */
    uint32_t
        donor; /* 1 + the index of the request that the rows were computed for; STRETCH_OWN: the tensor's */
};

/**
 * stretches_arrange() - put rows in the order of their positions, each position once
 * @stretches: an array from malloc(), of known positions; replaced where it must grow
 * Where records overlap, the rows of the latest one count: an earlier one was computed again (preemption). Rejected rows
 * neither count nor make others superseded: they stay beside, before what else has their position and is later.
 * @keep: superseded rows stay too, flagged
 * @n_superseded: rows that no longer count are added
 * Return: 0; -ENOMEM; -E2BIG (more than @most stretches).
 */
int stretches_arrange(struct stretch **stretches, size_t *n, size_t most, bool keep,
                      uint64_t *n_superseded);

/* Puts stretches that share no position into their order. */
void stretches_sort(struct stretch *stretches, size_t n);

/* Leaves the part that lies in a range of positions. Return: false: there is none, or it has no position. */
bool stretch_cut(struct stretch *stretch, const struct range *range);

/**
 * stretches_clip() - leave the rows in some ranges of positions; what has no position is left out
 * @stretches: an array from malloc(), replaced
 * @ranges: ascending and apart
 * Return: 0 or -ENOMEM: then it is as it was.
 */
int stretches_clip(struct stretch **stretches, size_t *n, const struct range *ranges,
                   size_t n_ranges);

/* Rows of all. */
uint64_t stretches_rows(const struct stretch *stretches, size_t n);
