/* SPDX-License-Identifier: Apache-2.0 */
/* The order of a tensor's rows. Pure but for memory: any thread. Source: docs/format.md 8. */
#ifndef READ_PIECES_H
#define READ_PIECES_H

#include <stddef.h>
#include <stdint.h>

/* Consecutive rows of one record that belong to one tensor. */
struct piece {
    size_t record; /* index for reader_record(): a later record has a higher one */
    uint32_t first_row, n_rows;
    int64_t position; /* of the first row's token in its request; -1: not known */
};

/**
 * pieces_arrange() - put rows in the order of their positions, each position once
 * @pieces: an array from malloc(), of known positions; replaced where it must grow
 * Where records overlap, the rows of the latest one count: an earlier one was computed again (preemption, a
 * rejected draft).
 * @n_superseded: rows that no longer count are added
 * Return: 0 or -ENOMEM.
 */
int pieces_arrange(struct piece **pieces, size_t *n, uint64_t *n_superseded);

#endif
