/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a thread of the host does what edit_ops.h and edit_rows.h say, for all threads of a block, one after the other. Results are the device's in
 * bits: nothing is contracted (kernels/meson.build), and a NaN that arises is the one that arises there.
 */
#pragma once

#include "core/atomic.h"
#include "kernels/gather.h"

#include <dmi/edit.h>

#include <float.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static_assert(FLT_EVAL_METHOD == 0, "a result is rounded to its type at once");

#define for_each(i, n)     for (dmi_u32 i = 0; i < (n); i++)
#define for_each_row(i, n) for_each (i, n)

#define BLOCK_FUNCTION static
#define BLOCK_MEMORY

/* All that was written before is there for the threads of the block after it: there is one. */
static inline void meet(void)
{
}

/* Does a thread of the block say so? There is one. */
static inline bool any_of_block(bool mine)
{
    return mine;
}

/* Is this the one thread of the block that counts? */
static inline bool speaks_for_block(void)
{
    return true;
}

/* ------------------------------------------------------------------------- memory; an address may be odd */

/* Four bytes at an address. */
static inline dmi_u32 load_word(const char *at)
{
    dmi_u32 bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
}

/* Two bytes at an address. */
static inline dmi_u32 load_half(const char *at)
{
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
}

/* Four bytes. */
static inline void store_word(char *at, dmi_u32 bits)
{
    memcpy(at, &bits, sizeof bits);
}

/* Two bytes. */
static inline void store_half(char *at, dmi_u32 bits)
{
    uint16_t half = (uint16_t)bits;
    memcpy(at, &half, sizeof half);
}

/* Words that other threads read and write meanwhile: what was written before say() is there for the thread that saw() it. */
#define saw(at)        atomic_load_acquire(at)
#define say(at, value) atomic_store_release(at, value)

/* Between what words mark and the mark: say() has an order of its own. */
static inline void fence(void)
{
}

/* Return: was it 0? */
static inline bool claim(dmi_u64 *at, dmi_u64 value)
{
    dmi_u64 expected = 0;
    return atomic_cas_acq_rel(at, &expected, value);
}

/* One more. */
static inline void count_one(dmi_u64 *at)
{
    atomic_add_relaxed(at, 1);
}

/* Where a row lies, in bytes from the first. */
static inline dmi_i64 row_lies(const struct dmi_gather *g, dmi_u32 row)
{
    return gather_row(g, row);
}

#define NOWHERE INT64_MIN /* no row of host memory lies there */

/* ------------------------------------------------------------------------- arithmetic */

/* The number of these bits. */
static inline float float_of(dmi_u32 bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* The bits of a number. */
static inline dmi_u32 bits_of(float v)
{
    dmi_u32 bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

/* As the device has it (PTX ISA, "Floating-Point"): payloads of NaNs are not kept. */
static inline float canonical(float v)
{
    return v == v ? v : float_of(0x7fffffffu);
}

/* Each rounded to the nearest, of two the even one. */
static inline float add_rn(float a, float b)
{
    return canonical(a + b);
}

/* As add_rn(). */
static inline float sub_rn(float a, float b)
{
    return canonical(a - b);
}

/* As add_rn(). */
static inline float mul_rn(float a, float b)
{
    return canonical(a * b);
}

/* As add_rn(). */
static inline float div_rn(float a, float b)
{
    return canonical(a / b);
}

/* As add_rn(). */
static inline float sqrt_rn(float a)
{
    return canonical(__builtin_sqrtf(a));
}

/* The number of these bits of an f16. */
static inline float f16_value(dmi_u32 bits)
{
    dmi_u32 sign = (bits & 0x8000u) << 16, rest = bits & 0x7fffu;
    if (rest < 0x400u) /* a multiple of the least one, 2^-24 */
        return float_of(sign | bits_of((float)rest * 0x1p-24f));
    if (rest < 0x7c00u)
        return float_of(sign | ((rest << 13) + (112u << 23)));
    return rest > 0x7c00u ? float_of(0x7fffffffu) : float_of(sign | 0x7f800000u);
}

/* To the nearest, of two the even one. */
static inline dmi_u32 f16_bits(float v)
{
    dmi_u32 u = bits_of(v), sign = u >> 16 & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return 0x7e00;
    if (u >= 0x477ff000u) /* 65520 and more */
        return sign | 0x7c00u;
    if (u < 0x38800000u) /* a sum with 0.5 is rounded to multiples of 2^-24 */
        return sign | (bits_of(float_of(u) + 0.5f) - 0x3f000000u);
    return sign | (u - (112u << 23) + 0xfffu + (u >> 13 & 1u)) >> 13;
}
