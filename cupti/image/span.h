/* SPDX-License-Identifier: Apache-2.0 */
/* What the readers of images share: bytes that may be read, and no others; limits; errors. Pure functions. */
#ifndef CUPTI_IMAGE_SPAN_H
#define CUPTI_IMAGE_SPAN_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define IMAGE_MAX_BYTES    (1ull << 31) /* of an image */
#define IMAGE_MAX_UNPACKED (1ull << 29) /* of an entry in a fatbin, once it is decompressed */

enum {
    IMAGE_E_KIND = 1,   /* no image of a kind that is known */
    IMAGE_E_BOUNDS = 2, /* its headers point out of it, or beyond the limits */
    IMAGE_E_PACKED = 3, /* an entry cannot be decompressed */
    IMAGE_E_END = 4,    /* there is no more of what was asked for */
};

struct span {
    const unsigned char *at; /* borrowed */
    uint64_t n;
};

/* @n bytes of @s from @offset on. Return: false where it has not so many. */
static inline bool span_cut(struct span s, uint64_t offset, uint64_t n, struct span *out)
{
    if (offset > s.n || n > s.n - offset)
        return false;
    *out = (struct span){ s.at + offset, n };
    return true;
}

/* Copies @n bytes of @s from @offset on. Return: as span_cut(). */
static inline bool span_read(struct span s, uint64_t offset, void *out, uint64_t n)
{
    if (!span_cut(s, offset, n, &s))
        return false;
    memcpy(out, s.at, n);
    return true;
}

#endif
