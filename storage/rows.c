/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/rows.h"

#include "core/sorted.h"

#include <stdlib.h>

static int range_order(const void *pa, const void *pb)
{
    const struct rows_range *a = pa, *b = pb;
    ORDER(a, b, first);
    return a->n < b->n ? -1 : a->n > b->n;
}

bool rows_disjoint(struct rows_range *ranges, size_t n, uint32_t n_rows)
{
    bool sorted = true;
    for (size_t i = 1; i < n && sorted; i++)
        sorted = range_order(&ranges[i - 1], &ranges[i]) <= 0;
    if (!sorted)
        qsort(ranges, n, sizeof *ranges, range_order);
    uint64_t end = 0;
    for (size_t i = 0; i < n; i++) {
        if (ranges[i].n && ranges[i].first < end)
            return false;
        end = (uint64_t)ranges[i].first + ranges[i].n;
        if (end > n_rows)
            return false;
    }
    return true;
}

bool rows_position_fits(int64_t first, uint32_t n)
{
    return first >= 0 && first <= INT64_MAX - (int64_t)n;
}

bool rows_count(const uint32_t *dims, uint32_t n_row_dims, uint32_t *rows)
{
    uint32_t n = 1;
    for (uint32_t d = 0; d < n_row_dims; d++)
        if (__builtin_mul_overflow(n, dims[d], &n))
            return false;
    *rows = n;
    return true;
}

bool rows_repeat(uint32_t *rows, size_t n)
{
    qsort(rows, n, sizeof *rows, order_u32);
    for (size_t i = 1; i < n; i++)
        if (rows[i - 1] == rows[i])
            return true;
    return false;
}
