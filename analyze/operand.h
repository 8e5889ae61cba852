/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of q, k, v and z as attention reads them: rotated where they were captured before RoPE, keys in panels. One thread, as the runs. */
#pragma once

#include "analyze/plan.h"

/* Consecutive keys or values of one layer, of some KV heads. */
struct operand_block {
    const struct plan_layer *layer; /* NULL: nothing was read yet */
    uint32_t first_head, n_heads;   /* KV heads */
    int64_t first;                  /* a multiple of KERNEL_LANES */
    size_t n;
    float *data; /* borrowed for as long as the block is of use */
};

/**
 * operand_read() - rows of consecutive positions
 * @width: of a row; @dim: of a head, whose rows are rotated where their source is before RoPE
 * @out: gets @n rows; a position without a row has zeros
 * Return: 0 or -errno with a sentence in @err.
 */
int operand_read(struct err *err, const struct plan_layer *layer, const struct sources *sources,
                 int64_t position, size_t n, size_t width, size_t dim, float *out);

/* Does a block have what @wanted names: layer, heads, first and n? Its data is not looked at. */
bool operand_has(const struct operand_block *block, const struct operand_block *wanted);

/* A block's data is now that of @wanted, whose own data is not looked at. */
void operand_becomes(struct operand_block *block, const struct operand_block *wanted);

/**
 * operand_keys() - keys as panels (kernel.h), those of a KV head after those of the one before
 * @wanted: layer, heads, first and n of it are asked for; n is at most @room
 * @room: keys of a KV head that @block has room for, a multiple of KERNEL_LANES. The last panel's lanes after n hold any numbers
 * @block: where it fails, it has nothing. Return: as operand_read().
 */
int operand_keys(struct err *err, const struct plan *plan, const struct operand_block *wanted,
                 size_t room, struct operand_block *block);

/* The same of values: @room rows of @value_dim floats a KV head, of which the last ones may be padding. */
int operand_values(struct err *err, const struct plan *plan, const struct operand_block *wanted,
                   size_t room, size_t value_dim, struct operand_block *block);
