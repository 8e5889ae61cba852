/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays in an order: how two of their elements compare, and where one of them is. Pure: any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* In a function for qsort(): returns where @a and @b, pointers to structs, differ in @field. Else the next line decides. */
#define ORDER(a, b, field)                                                                         \
    do {                                                                                           \
        if ((a)->field != (b)->field)                                                              \
            return (a)->field < (b)->field ? -1 : 1;                                               \
    } while (0)

/*
 * Sets @i to the first of @n sorted elements of which @before does not hold; to @n where it holds of all. @before is an
 * expression in @i, a variable. It holds of none after one of which it does not.
 */
#define SEARCH(i, n, before)                                                                       \
    do {                                                                                           \
        size_t low_ = 0, high_ = (n);                                                              \
        while (low_ < high_) {                                                                     \
            (i) = low_ + (high_ - low_) / 2;                                                       \
            if (before)                                                                            \
                low_ = (i) + 1;                                                                    \
            else                                                                                   \
                high_ = (i);                                                                       \
        }                                                                                          \
        (i) = low_;                                                                                \
    } while (0)

/* qsort() of @n elements, also where there is no array, as there are none. */
#define SORT(array, n, order)                                                                      \
    do {                                                                                           \
        if (n)                                                                                     \
            qsort(array, n, sizeof *(array), order);                                               \
    } while (0)

/* For qsort() of numbers of a type, the least first. */
#define ORDER_OF(name, type)                                                                       \
    static inline int name(const void *a, const void *b)                                           \
    {                                                                                              \
        type x = *(const type *)a, y = *(const type *)b;                                           \
        return x < y ? -1 : x > y;                                                                 \
    }

/* As their names say: qsort(rows, n, sizeof *rows, order_u32). */
ORDER_OF(order_u32, uint32_t)
ORDER_OF(order_u64, uint64_t)
ORDER_OF(order_i64, int64_t)

/* The same of pointers to texts, by their bytes. */
static inline int order_texts(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}
