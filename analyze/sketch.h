/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantiles of a stream of values: counts in buckets of a known relative width, as DDSketch has them. A bucket is the
 * sign, the exponent and the upper seven bits of the mantissa of a float, so it needs no logarithm. Counts are
 * integers: sketches are equal to the bit whatever the order in which values were added. A sketch takes 256 KiB of
 * address space, and 4 KiB of memory for eight powers of two of one sign that occur. One thread at a time.
 * Source: Masson, Rim and Lee, "DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees",
 * VLDB 2019; with buckets that divide a power of two into equal parts.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* A quantile is off by this part of its magnitude at most, from 1.2e-38 to 3.4e38; below, by 1e-40. */
#define SKETCH_ERROR 0.00390625

#define SKETCH_BUCKETS 65536

struct sketch {
    uint32_t *recent;  /* private: counts of the last values, mapped at the first one */
    uint64_t *earlier; /* private: of those before; NULL: there are none */
    uint64_t n_recent; /* values */
    uint64_t n;        /* values */
};

/**
 * sketch_add() - count values
 * @values: finite. What a float cannot hold counts as the largest float
 * Return: 0 or -ENOMEM: none is counted.
 */
int sketch_add(struct sketch *sketch, const double *values, size_t n);

/**
 * sketch_add_keys() - count values by what they are in memory: elements of type bf16, or the upper halves of elements of type f32
 * @keys: of finite values: 16 bits, little-endian, @step bytes from one to the next
 * Return: 0 or -ENOMEM: none is counted.
 */
int sketch_add_keys(struct sketch *sketch, const void *keys, size_t step, size_t n);

/* Return: the value of rank floor(q * (n - 1)), within SKETCH_ERROR of it; @q from 0 to 1. NaN where nothing was added. */
double sketch_quantile(const struct sketch *sketch, double q);

/* As sketch_quantile(), of the values without their sign. */
double sketch_magnitude(const struct sketch *sketch, double q);

/* Accepts a zeroed struct. */
void sketch_deinit(struct sketch *sketch);
