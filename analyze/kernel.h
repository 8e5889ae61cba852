/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of attention on rows of floats. Each number is computed by the same operations in the same order, whatever the
 * block it is computed in: a score adds its products by dimension, a sum of weights has eight lanes by key modulo 8, z adds
 * values by key. So answers are equal to the bit for all sizes of blocks and numbers of threads, with AVX2 and without. Pure: any
 * thread.
 */
#ifndef ANALYZE_KERNEL_H
#define ANALYZE_KERNEL_H

#include <stddef.h>

/* Sums over one row of weights: the weights, the sum of weight * distance, and -(the sum of weight * ln weight). */
struct kernel_sums {
    double all, distance, entropy;
};

#define KERNEL_LANES 8 /* keys of a panel; blocks of keys begin at a multiple of it */
#define KERNEL_GROUP 4 /* queries that are computed together; rows of room come in such groups */

struct kernel {
    const char *name; /* "avx2", "portable" */
    /*
     * Scores of KERNEL_GROUP queries with @n_panels panels of keys. @queries: rows of @dim floats. @panels: key j of a panel has
     * its dimension i at [i][j]. @out: rows of @stride floats, of which 8 * @n_panels are set.
     */
    void (*scores)(const float *queries, const float *panels, size_t n_panels, size_t dim,
                   float scale, float *out, size_t stride);
    /*
     * Softmax of row[first..end), in place; the other floats up to @n, a multiple of 8, become 0. @cap: scores become
     * cap * tanh(score / cap) first; 0: they do not. @sink: one more score that takes its share and is no key's; -inf: none.
     */
    void (*softmax)(float *row, size_t first, size_t end, size_t n, float cap, float sink);
    /*
     * Adds weight j of a row times value j, for j in order, to @out. @n_rows: 1 or KERNEL_GROUP rows of weights, each @stride
     * floats after the last. @values: @n_keys rows of @dim floats; @out: a row of @dim floats a row of weights. @dim: a multiple of 8.
     */
    void (*weigh)(const float *weights, size_t stride, size_t n_rows, const float *values,
                  size_t n_keys, size_t dim, float *out);
    /* Sums of row[0..@n), a multiple of 8, whose query is at position @query; in double, in eight lanes by key modulo 8. */
    struct kernel_sums (*sum)(const float *row, size_t n, size_t query);
};

/* The one that this processor is fastest with. */
const struct kernel *kernel_best(void);

extern const struct kernel kernel_portable;
#ifdef __x86_64__
extern const struct kernel kernel_avx2; /* only where has_avx2() */
#endif

#endif
