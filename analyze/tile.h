/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of statistics on tiles of doubles. Each number is computed by the same operations in the same order by every
 * instruction set: sums of a tile have eight lanes, a channel's sums add row by row. So answers are equal to the bit, whatever
 * the processor has. Pure: any thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define TILE_LANES 8

/* Sums over a tile, by value modulo TILE_LANES, of powers of value - shift. The shift is the tile's first value. */
struct tile_sums {
    double d1[TILE_LANES], d2[TILE_LANES], d3[TILE_LANES], d4[TILE_LANES];
    double least[TILE_LANES], most[TILE_LANES];
    int64_t n_zero[TILE_LANES];
};

/* Sums over rows, by channel, of what each value is above the channel's shift; and the largest magnitude. */
struct tile_channels {
    const double *shift;
    double *sum, *squares, *peak;
};

struct tile_kernel {
    const char *name; /* "avx512", "avx2", "portable" */
    /* Elements of type f32, of any alignment, and of type bf16, as elements_to_double() has them. */
    void (*from_f32)(const void *data, size_t n, double *out);
    void (*from_bf16)(const void *data, size_t n, double *out);
    /* @n: 1 or more. Which zero is the least or the most is not said where both signs occur. */
    void (*sums)(const double *values, size_t n, struct tile_sums *out);
    /* Adds @n_rows rows, @stride doubles apart, of @n channels. */
    void (*channels)(const struct tile_channels *to, const double *values, size_t stride,
                     size_t n_rows, size_t n);
};

/* The one that this processor is fastest with. */
const struct tile_kernel *tile_best(void);

extern const struct tile_kernel tile_portable;
#ifdef __x86_64__
extern const struct tile_kernel tile_avx2;   /* only where has_avx2() */
extern const struct tile_kernel tile_avx512; /* only where has_avx512() */
#endif
