/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of q, k, v and z as attention reads them: rotated where they were captured before RoPE, keys in panels. One thread, as the runs. */
#ifndef ANALYZE_OPERAND_H
#define ANALYZE_OPERAND_H

#include "analyze/plan.h"

/* Consecutive keys or values of one layer. */
struct operand_block {
    const struct plan_layer *layer; /* NULL: nothing was read yet */
    int64_t first;                  /* a multiple of KERNEL_LANES */
    size_t n;
    float *data; /* owned */
};

/**
 * operand_read() - rows of consecutive positions
 * @width: of a row; @dim: of a head, whose rows are rotated where their source is before RoPE
 * @out: gets @n rows; a position without a row has zeros
 * Return: 0 or -errno with a sentence in @err.
 */
int operand_read(struct err *err, const struct plan_layer *layer, const struct sources *sources,
                 int64_t position, size_t n, size_t width, size_t dim, float *out);

/**
 * operand_keys() - keys as panels (kernel.h), those of a KV head after those of the one before
 * @block: has room for @room keys of all KV heads, a multiple of KERNEL_LANES; it stays as it is where it has these already
 * @n: at most @room. Return: as operand_read().
 */
int operand_keys(struct err *err, const struct plan *plan, const struct plan_layer *layer,
                 int64_t first, size_t n, size_t room, struct operand_block *block);

/* The same of values: @room rows of @value_dim floats a KV head, of which the last ones may be padding. */
int operand_values(struct err *err, const struct plan *plan, const struct plan_layer *layer,
                   int64_t first, size_t n, size_t room, size_t value_dim,
                   struct operand_block *block);

#endif
