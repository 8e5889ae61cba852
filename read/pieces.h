/* SPDX-License-Identifier: Apache-2.0 */
/* The order of a tensor's rows. Pure but for memory: any thread. Source: docs/format.md 8. */
#ifndef READ_PIECES_H
#define READ_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum piece_flags {
    PIECE_REJECTED = 1 << 0,   /* drafts that were rejected */
    PIECE_SUPERSEDED = 1 << 1, /* a later record computed their positions again */
};

/* Consecutive rows of one record that belong to one tensor. */
struct piece {
    size_t record; /* index for reader_record(): a later record has a higher one */
    uint32_t first_row, n_rows;
    int64_t position; /* of the first row's token in its request; -1: not known */
    uint32_t flags;   /* enum piece_flags */
};

/**
 * pieces_arrange() - put rows in the order of their positions, each position once
 * @pieces: an array from malloc(), of known positions; replaced where it must grow
 * Where records overlap, the rows of the latest one count: an earlier one was computed again (preemption). Rejected rows
 * neither count nor make others superseded: they stay beside, before what else has their position and is later.
 * @keep: superseded rows stay too, flagged
 * @n_superseded: rows that no longer count are added
 * Return: 0; -ENOMEM; -E2BIG (more than @most pieces).
 */
int pieces_arrange(struct piece **pieces, size_t *n, size_t most, bool keep,
                   uint64_t *n_superseded);

/* Cuts the rows outside of @first to before @end away; what has no position is left out. Return: rows that are left. */
uint64_t pieces_clip(struct piece *pieces, size_t *n, int64_t first, int64_t end);

/* Rows of all. */
uint64_t pieces_rows(const struct piece *pieces, size_t n);

#endif
