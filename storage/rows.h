/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What may be said of rows and spans, for the writer and the reader alike. Pure; any thread.
 * Source: docs/format.md 5, 6.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rows_range {
    uint32_t first, n;
};

/**
 * rows_disjoint() - whether all ranges lie within @n_rows and none shares a row with another
 * @ranges: put in order of their first rows
 */
bool rows_disjoint(struct rows_range *ranges, size_t n, uint32_t n_rows);

/* Whether @n tokens from @first on have positions from 0 that an int64_t can hold. */
bool rows_position_fits(int64_t first, uint32_t n);

/* Sets *@rows to the product of the first @n_row_dims dimensions. Return: false where 32 bits cannot hold it. */
bool rows_count(const uint32_t *dims, uint32_t n_row_dims, uint32_t *rows);

/* Whether one of @rows stands there twice; puts them in order. */
bool rows_repeat(uint32_t *rows, size_t n);
