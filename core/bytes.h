/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that a reader of a foreign format may read, and no others. Pure functions: any thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct bytes {
    const unsigned char *at; /* borrowed */
    uint64_t n;
};

/* @n bytes of @s from @offset on. Return: false where it has not so many. */
static inline bool bytes_cut(struct bytes s, uint64_t offset, uint64_t n, struct bytes *out)
{
    if (offset > s.n || n > s.n - offset)
        return false;
    *out = (struct bytes){ s.at + offset, n };
    return true;
}

/* Copies @n bytes of @s from @offset on. Return: as bytes_cut(). */
static inline bool bytes_read(struct bytes s, uint64_t offset, void *out, uint64_t n)
{
    if (!bytes_cut(s, offset, n, &s))
        return false;
    memcpy(out, s.at, n);
    return true;
}

/* The first @n bytes of @rest, which begins after them from then on. Return: NULL: it has not so many. */
static inline const void *bytes_take(struct bytes *rest, uint64_t n)
{
    const void *at = rest->at;
    return bytes_cut(*rest, n, n <= rest->n ? rest->n - n : 0, rest) ? at : NULL;
}
