/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of attention on rows of floats. Products of scores and of z are added without rounding in between (a fused multiply-add). Each number is computed by the same operations in the same order, whatever the
 * block it is computed in: a score adds its products by dimension, a sum of weights has eight lanes by key modulo 8, z adds
 * values by key. So answers are equal to the bit for all sizes of blocks and numbers of threads, with AVX-512, AVX2 and neither.
 * Pure: any thread.
 */
#pragma once

#include <stddef.h>

/* Sums over one row of weights: the weights, the sum of weight * distance to the query, and -(the sum of weight * ln weight). */
struct kernel_sums {
    double all, distance, entropy;
};

#define KERNEL_LANES 16 /* keys of a panel; blocks of keys begin at a multiple of it */
#define KERNEL_GROUP 4  /* queries that are computed together; rows of room come in such groups */

struct kernel {
    const char *name; /* "avx512", "avx2", "portable" */
    /*
     * Scores of KERNEL_GROUP queries with @n_panels panels of keys. @queries: rows of @dim floats. @panels: key j of a panel has
     * its dimension i at [i][j]. @out: rows of @stride floats, of which 16 * @n_panels are set.
     */
    void (*scores)(const float *queries, const float *panels, size_t n_panels, size_t dim,
                   float scale, float *out, size_t stride);
    /*
     * Softmax of row[first..end), in place; the other floats up to @n, a multiple of 16, become 0. @cap: scores become
     * cap * tanh(score / cap) first; 0: they do not. @sink: one more score that takes its share and is no key's; -inf: none.
     * @sums: gets those of the row, whose query is at position @end - 1, in double, in eight lanes by key modulo 8; NULL: not wanted.
     */
    void (*softmax)(float *row, size_t first, size_t end, size_t n, float cap, float sink,
                    struct kernel_sums *sums);
    /*
     * Adds weight j of a row times value j, for j in order, to @out. @n_rows: 1 or KERNEL_GROUP rows of weights, each @stride
     * floats after the last. @values: @n_keys rows of @dim floats; @out: a row of @dim floats a row of weights. @dim: a multiple of 16.
     */
    void (*weigh)(const float *weights, size_t stride, size_t n_rows, const float *values,
                  size_t n_keys, size_t dim, float *out);
};

/* The one that this processor is fastest with. */
const struct kernel *kernel_best(void);

extern const struct kernel kernel_portable;
#ifdef __x86_64__
extern const struct kernel kernel_avx2;   /* only where has_avx2() */
extern const struct kernel kernel_avx512; /* only where has_avx512() */
#endif
