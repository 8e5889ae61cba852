/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of elements, as they were stored: of those that are finite, and how many are not. Pure: any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define STATISTICS_AT_A_TIME 512u /* elements, for whoever converts them */

struct statistics {
    double least, most, sum, squares;
    uint64_t n, n_nan, n_infinite;
};

/* Adds elements to what is 0 at first. */
void statistics_add(struct statistics *statistics, const double *values, size_t n);

/* The same of an array of elements of a type; @dtype: enum dmi_dtype. */
void statistics_take(struct statistics *statistics, uint32_t dtype, const uint8_t *data,
                     uint64_t n);

/* 0 where no element is finite. */
double statistics_mean(const struct statistics *statistics);
/* The greatest magnitude; likewise. */
double statistics_greatest(const struct statistics *statistics);
