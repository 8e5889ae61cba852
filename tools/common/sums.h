/* SPDX-License-Identifier: Apache-2.0 */
/* How far two rows, or many, are apart. Pure but for memory: any thread. */
#pragma once

#include <stdint.h>

/* Over elements; one that is the same on both sides and has no norm (infinite, NaN) counts, and adds nothing. */
struct sums {
    double err2, ref2, cap2,
        dot;              /* squares of the difference, the reference, the captured; products */
    double abs, greatest; /* of the difference; NaN on one side is infinitely far */
    uint64_t n;
};

/* Room for two rows; zeroed at first. */
struct row_pair {
    double *captured, *reference;
    uint64_t room;
};

/* Return: 0 or -ENOMEM; what the rows held may be lost. */
int row_pair_reserve(struct row_pair *pair, uint64_t width);
void row_pair_deinit(struct row_pair *pair);

/* Of @n elements captured and of the reference. */
struct sums sums_of(const double *captured, const double *reference, uint64_t n);
void sums_add(struct sums *to, const struct sums *more);

/* Norm of the difference / norm of the base; infinite where only the base is 0, and where the difference is not finite. */
double sums_error(double err2, double base2);
/* 1 where all is 0 on both sides; 0 where the difference is not finite. */
double sums_cosine(const struct sums *sums);
