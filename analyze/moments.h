/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mean, spread, shape and ends of a stream of values, in one pass and in one fixed order: a tile is summed in eight
 * lanes, and tiles are merged in the order that the caller has. So the same values in the same tiles give the same
 * bits, by each instruction set. Sums are of what values are above the tile's first one, and central moments are merged,
 * never raw ones: a mean far from zero costs no digits.
 * Pure: any thread. Source: P. Pebay, "Formulas for robust, one-pass parallel computation of covariances and arbitrary-order statistical
 * moments", Sandia report SAND2008-6212, equations 2.1, 3.1.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define MOMENTS_TILE 1024 /* values */

struct tile_kernel;

struct moments {
    uint64_t n;
    uint64_t n_zero;
    double mean;
    double m2, m3, m4;  /* sums of powers of value - mean */
    double least, most; /* where @n is not 0 */
};

/**
 * moments_of() - of one tile
 * @values: where one is not finite, @out->mean is not
 * @n: 1 to MOMENTS_TILE
 */
void moments_of(const struct tile_kernel *kernel, const double *values, size_t n,
                struct moments *out);
/* The same of one value. */
void moments_of_one(double value, struct moments *out);

/* Adds the values of @part after those of @to. Either may have none. */
void moments_merge(struct moments *to, const struct moments *part);

/* The standard deviation of all values, divided by n. NaN where there are none. */
double moments_sd(const struct moments *moments);
/* The fourth standardised moment: 3 for a normal distribution. NaN where all values are equal. */
double moments_kurtosis(const struct moments *moments);
/* The root of the sum of squares. */
double moments_norm(const struct moments *moments);
/* The largest magnitude. NaN where there are no values. */
double moments_peak(const struct moments *moments);
