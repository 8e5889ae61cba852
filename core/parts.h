/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of powers of two, by which values are counted: below @parts each has a part of its own; of others the leading bit and those
 * after it say which, so a part is as wide as 1 / @parts of its values. Pure: any thread.
 */
#pragma once

#include <stdint.h>

/* The part of @value, below 64 * @parts. @parts: of a power of two; a power of two itself. */
static inline uint32_t parts_of(uint64_t value, uint32_t parts)
{
    unsigned top = value < parts ? 0 : 63 - (unsigned)__builtin_clzll(value / parts) + 1;
    return top ? top * parts + (uint32_t)(value >> (top - 1)) - parts : (uint32_t)value;
}

/* The value in the middle of a part. */
static inline uint64_t parts_middle(uint32_t part, uint32_t parts)
{
    uint32_t top = part / parts;
    return top ? ((uint64_t)(part % parts + parts) << (top - 1)) + ((1ull << (top - 1)) >> 1)
               : part;
}
