/* SPDX-License-Identifier: Apache-2.0 */
/* How a block of the device does what edit_ops.h and edit_rows.h say: a thread has every DMI_EDIT_THREADS-th element. */
#pragma once

#include "kernels/gather.cuh"

#include <dmi/edit.h>

#define for_each(i, n)     for (dmi_u32 i = threadIdx.x; i < (n); i += DMI_EDIT_THREADS)
#define for_each_row(i, n) for (dmi_u32 i = blockIdx.x; i < (n); i += gridDim.x)

#define BLOCK_FUNCTION static __device__
#define BLOCK_MEMORY   __shared__

static __device__ __forceinline__ void meet(void)
{
    __syncthreads();
}

static __device__ __forceinline__ bool any_of_block(bool mine)
{
    return __syncthreads_or(mine);
}

static __device__ __forceinline__ bool speaks_for_block(void)
{
    return !threadIdx.x;
}

/* ------------------------------------------------------------------------- memory */

static __device__ __forceinline__ dmi_u32 load_word(const char *at)
{
    return *(const dmi_u32 *)at;
}

static __device__ __forceinline__ dmi_u32 load_half(const char *at)
{
    return *(const unsigned short *)at;
}

static __device__ __forceinline__ void store_word(char *at, dmi_u32 bits)
{
    *(dmi_u32 *)at = bits;
}

static __device__ __forceinline__ void store_half(char *at, dmi_u32 bits)
{
    *(unsigned short *)at = (unsigned short)bits;
}

/* Words that other blocks read and write meanwhile; fence() comes between what they mark and the mark. */
static __device__ __forceinline__ dmi_u32 saw(const dmi_u32 *at)
{
    return *(const volatile dmi_u32 *)at;
}

static __device__ __forceinline__ dmi_u64 saw(const dmi_u64 *at)
{
    return *(const volatile dmi_u64 *)at;
}

static __device__ __forceinline__ void say(dmi_u32 *at, dmi_u32 value)
{
    *(volatile dmi_u32 *)at = value;
}

static __device__ __forceinline__ void say(dmi_u64 *at, dmi_u64 value)
{
    *(volatile dmi_u64 *)at = value;
}

static __device__ __forceinline__ void fence(void)
{
    __threadfence();
}

/* Return: was it 0? */
static __device__ __forceinline__ bool claim(dmi_u64 *at, dmi_u64 value)
{
    return atomicCAS(at, 0ull, value) == 0ull;
}

static __device__ __forceinline__ void count_one(dmi_u64 *at)
{
    atomicAdd(at, 1ull);
}

static __device__ __forceinline__ dmi_i64 row_lies(const struct dmi_gather *g, dmi_u32 row)
{
    struct choice all = { nullptr, 0 };
    return row_at(g, &all, row, wild_note{});
}

/* ------------------------------------------------------------------------- arithmetic, never contracted */

static __device__ __forceinline__ float float_of(dmi_u32 bits)
{
    return __uint_as_float(bits);
}

static __device__ __forceinline__ dmi_u32 bits_of(float v)
{
    return __float_as_uint(v);
}

static __device__ __forceinline__ float add_rn(float a, float b)
{
    return __fadd_rn(a, b);
}

static __device__ __forceinline__ float sub_rn(float a, float b)
{
    return __fsub_rn(a, b);
}

static __device__ __forceinline__ float mul_rn(float a, float b)
{
    return __fmul_rn(a, b);
}

static __device__ __forceinline__ float div_rn(float a, float b)
{
    return __fdiv_rn(a, b);
}

static __device__ __forceinline__ float sqrt_rn(float a)
{
    return __fsqrt_rn(a);
}

static __device__ __forceinline__ float f16_value(dmi_u32 bits)
{
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"((unsigned short)bits));
    return v;
}

static __device__ __forceinline__ dmi_u32 f16_bits(float v)
{
    unsigned short bits;
    if ((bits_of(v) & 0x7fffffffu) > 0x7f800000u)
        return 0x7e00;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
    return bits;
}
