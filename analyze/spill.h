/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of a layer's keys and values as attention multiplies them, in a file without a name, where memory has room for one of each alone. A
 * block is read where the system keeps the file: to map one takes a third of the time of copying it, which takes a tenth of the time of
 * decoding it again. Without such a file nothing is kept, and blocks are decoded. One thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct spill {
    int fd;         /* -errno: nothing is kept */
    size_t n_bytes; /* of a block */
    size_t n_blocks;
    bool *there; /* by block */
};

/* @n_blocks: 0: nothing is to be kept. Return: 0 or -ENOMEM. spill_deinit() accepts a zeroed struct with fd -1. */
int spill_init(struct spill *spill, size_t n_bytes, size_t n_blocks);
void spill_deinit(struct spill *spill);

/* What is kept is of another layer, or of other heads, than what comes. */
void spill_clear(struct spill *spill);

/* A block's bytes, until spill_unmap(). NULL: it is not there. */
const void *spill_map(const struct spill *spill, size_t number);
/* Accepts NULL. */
void spill_unmap(const struct spill *spill, const void *data);

/* Keeps a block of at most n_bytes; one that cannot be written is decoded again. */
void spill_store(struct spill *spill, size_t number, const void *data, size_t n_bytes);
