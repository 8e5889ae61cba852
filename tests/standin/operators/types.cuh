/* SPDX-License-Identifier: Apache-2.0 */
/*
 * types.cuh - elements of tensors, and how one type becomes another
 *
 * The numbers of types are those of c10::ScalarType, in which PyTorch hands them to kernels that convert.
 */
#ifndef OPERATORS_TYPES_CUH
#define OPERATORS_TYPES_CUH

typedef long long i64;
typedef unsigned long long u64;
typedef double f64;
typedef float f32;
typedef int i32;
typedef short i16;
typedef signed char i8;
typedef unsigned char u8;

/* The upper half of a float. To the nearest, ties to even; NaN is 0x7fff, as cvt.rn.bf16.f32 has it. */
struct bf16 {
    unsigned short bits;
    bf16() = default;
    __device__ bf16(float value)
    {
        unsigned all = __float_as_uint(value);
        bits = value != value ? 0x7fff : (all + 0x7fff + (all >> 16 & 1)) >> 16;
    }
    __device__ operator float() const
    {
        return __uint_as_float((unsigned)bits << 16);
    }
};

struct f16 {
    unsigned short bits;
    f16() = default;
    __device__ f16(float value)
    {
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    }
    __device__ operator float() const
    {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
        return value;
    }
};

struct alignas(16) u128 {
    u64 low, high;
};

/* What is computed in, for elements of a type. */
template <class T> struct math_of {
    typedef T type;
};
template <> struct math_of<bf16> {
    typedef float type;
};
template <> struct math_of<f16> {
    typedef float type;
};

enum { U8 = 0, I8, I16, I32, I64, F16, F32, F64, BOOL = 11, BF16 = 15 };

template <class T> __device__ T fetch(int type, const void *at)
{
    switch (type) {
    case U8: return (T) * (const u8 *)at;
    case I8: return (T) * (const i8 *)at;
    case I16: return (T) * (const i16 *)at;
    case I32: return (T) * (const i32 *)at;
    case I64: return (T) * (const i64 *)at;
    case F16: return (T)(float)*(const f16 *)at;
    case F32: return (T) * (const float *)at;
    case F64: return (T) * (const double *)at;
    case BOOL: return (T) * (const bool *)at;
    case BF16: return (T)(float)*(const bf16 *)at;
    default: __trap(); return T();
    }
}

template <class T> __device__ void store(int type, void *at, T value)
{
    typename math_of<T>::type v = value;
    switch (type) {
    case U8: *(u8 *)at = (u8)(i64)v; break;
    case I8: *(i8 *)at = (i8)v; break;
    case I16: *(i16 *)at = (i16)v; break;
    case I32: *(i32 *)at = (i32)v; break;
    case I64: *(i64 *)at = (i64)v; break;
    case F16: *(f16 *)at = f16((float)v); break;
    case F32: *(float *)at = (float)v; break;
    case F64: *(double *)at = (double)v; break;
    case BOOL: *(bool *)at = v != 0; break;
    case BF16: *(bf16 *)at = bf16((float)v); break;
    default: __trap();
    }
}

#endif
