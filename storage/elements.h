/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of every type of the format: as doubles, and added. Pure: any thread. Source: docs/format.md 5.1. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * elements_to_double() - convert @n elements
 * @dtype: enum dmi_dtype; any other number gives NaN
 * @data: little-endian, of any alignment
 * 64-bit integers beyond 2^53 are rounded.
 */
void elements_to_double(uint32_t dtype, const void *data, size_t n, double *out);

/* The same as true values: divided by @scale, which a site states; 0 and 1 change nothing. */
void elements_to_true(uint32_t dtype, const void *data, size_t n, double scale, double *out);

/* A sum of elements. */
union elements_sum {
    double real;
    uint64_t whole;
};

/**
 * elements_add() - add @n elements to sums
 * @sums: one a element, 0 at first: floats are added as doubles, integers modulo 2^64, other types not at all
 */
void elements_add(uint32_t dtype, const void *data, size_t n, union elements_sum *sums);

/* The sums as elements: floats rounded to the nearest, ties to even, and to infinity (NaN in f8e4m3) where they are too
 * large; integers by their low bits. */
void elements_from_sums(uint32_t dtype, const union elements_sum *sums, size_t n, void *out);
