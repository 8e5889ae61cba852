/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/elements.h"

#include <dmi/dtype.h>

#include <stdbool.h>
#include <string.h>

/*
 * Small floats as floats, without branches, so that the compiler vectorises the loops below (at -O3). Shifted to where a
 * float has its exponent and mantissa, the value is too small by a power of two, which also makes subnormal ones normal.
 */
static inline double float_of(uint32_t magnitude, uint32_t sign, float scale)
{
    float value;
    memcpy(&value, &magnitude, sizeof value);
    value *= scale;
    return sign ? -(double)value : (double)value;
}

/* Where all bits of the exponent are 1: infinity, or NaN where the mantissa has some. */
static inline uint32_t special(uint32_t magnitude, uint32_t first)
{
    return magnitude >= first ? 0x7f800000u : 0;
}

static inline double half_to_double(uint32_t bits)
{
    uint32_t m = bits & 0x7fffu;
    return float_of(m << 13 | special(m, 0x7c00u), bits & 0x8000u, 0x1p112f);
}

/* The "fn" form: no infinity, NaN is all ones. */
static inline double f8e4m3_to_double(uint32_t bits)
{
    uint32_t m = bits & 0x7fu;
    return float_of(m << 20 | special(m, 0x7fu), bits & 0x80u, 0x1p120f);
}

#define CONVERT(TYPE)                                                                              \
    for (size_t i = 0; i < n; i++) {                                                               \
        TYPE v;                                                                                    \
        memcpy(&v, (const char *)data + i * sizeof v, sizeof v);                                   \
        out[i] = (double)v;                                                                        \
    }                                                                                              \
    break

void elements_to_double(uint32_t dtype, const void *data, size_t n, double *out)
{
    const uint8_t *b = data;
    switch (dtype) {
    case DMI_DTYPE_F32: CONVERT(float);
    case DMI_DTYPE_F64: CONVERT(double);
    case DMI_DTYPE_I8: CONVERT(int8_t);
    case DMI_DTYPE_I16: CONVERT(int16_t);
    case DMI_DTYPE_I32: CONVERT(int32_t);
    case DMI_DTYPE_I64: CONVERT(int64_t);
    case DMI_DTYPE_BOOL:
    case DMI_DTYPE_U8: CONVERT(uint8_t);
    case DMI_DTYPE_U16: CONVERT(uint16_t);
    case DMI_DTYPE_U32: CONVERT(uint32_t);
    case DMI_DTYPE_U64: CONVERT(uint64_t);
    case DMI_DTYPE_F16:
        for (size_t i = 0; i < n; i++)
            out[i] = half_to_double((uint32_t)b[2 * i] | (uint32_t)b[2 * i + 1] << 8);
        break;
    case DMI_DTYPE_BF16:
        for (size_t i = 0; i < n; i++) {
            uint32_t bits = (uint32_t)b[2 * i] << 16 | (uint32_t)b[2 * i + 1] << 24;
            float v;
            memcpy(&v, &bits, sizeof v);
            out[i] = (double)v;
        }
        break;
    case DMI_DTYPE_F8E4M3:
        for (size_t i = 0; i < n; i++)
            out[i] = f8e4m3_to_double(b[i]);
        break;
    case DMI_DTYPE_F8E5M2: /* the upper byte of an f16 */
        for (size_t i = 0; i < n; i++)
            out[i] = half_to_double((uint32_t)b[i] << 8);
        break;
    default:
        for (size_t i = 0; i < n; i++)
            out[i] = __builtin_nan("");
    }
}

void elements_to_true(uint32_t dtype, const void *data, size_t n, double scale, double *out)
{
    elements_to_double(dtype, data, n, out);
    for (size_t i = 0; i < n && scale != 1.0 && scale != 0.0; i++)
        out[i] /= scale;
}

/* ------------------------------------------------------------------------- sums */

bool elements_are_float(uint32_t dtype)
{
    return dtype == DMI_DTYPE_F32 || dtype == DMI_DTYPE_F64 || dtype == DMI_DTYPE_F16 ||
           dtype == DMI_DTYPE_BF16 || dtype == DMI_DTYPE_F8E4M3 || dtype == DMI_DTYPE_F8E5M2;
}

void elements_add(uint32_t dtype, const void *data, size_t n, union elements_sum *sums)
{
    size_t size = dmi_dtype_bytes(dtype);
    for (size_t i = 0; i < n; i++) {
        const char *at = (const char *)data + i * size;
        double value;
        uint64_t whole = 0;
        if (elements_are_float(dtype)) {
            elements_to_double(dtype, at, 1, &value);
            sums[i].real += value;
        } else {
            memcpy(&whole, at, size);
            sums[i].whole += whole;
        }
    }
}

/* The bits of a small float: the nearest value that there is. */
static uint32_t small_bits(double value, int n_exponent, int n_mantissa, bool finite_only)
{
    int bias = (1 << (n_exponent - 1)) - 1, exponent;
    uint32_t sign = (uint32_t)(__builtin_signbit(value) != 0) << (n_exponent + n_mantissa);
    uint32_t top = ((1u << n_exponent) - 1u) << n_mantissa;
    uint32_t nan = finite_only ? top | ((1u << n_mantissa) - 1u) : top | 1u << (n_mantissa - 1);
    if (__builtin_isnan(value))
        return nan;
    if (__builtin_isinf(value))
        return finite_only ? sign | nan : sign | top;
    __builtin_frexp(value, &exponent);
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    /* in units of the last place; below 2^(n_mantissa + 1) unless it was rounded up to the next power of two */
    double units =
        __builtin_nearbyint(__builtin_ldexp(value < 0 ? -value : value, n_mantissa - exponent));
    uint32_t bits = (uint32_t)units;
    if (bits >= 1u << n_mantissa) /* normal: the implied one counts the exponent up */
        bits += (uint32_t)(exponent + bias - 1) << n_mantissa;
    if (finite_only ? bits >= nan : bits >= top)
        return sign | (finite_only ? nan : top);
    return sign | bits;
}

static uint64_t float_bits(uint32_t dtype, double value)
{
    float f = (float)value;
    uint32_t bits;
    uint64_t wide;
    switch (dtype) {
    case DMI_DTYPE_F32: memcpy(&bits, &f, sizeof bits); return bits;
    case DMI_DTYPE_F64: memcpy(&wide, &value, sizeof wide); return wide;
    case DMI_DTYPE_F16: return small_bits(value, 5, 10, false);
    case DMI_DTYPE_BF16: return small_bits(value, 8, 7, false);
    case DMI_DTYPE_F8E4M3: return small_bits(value, 4, 3, true);
    default: return small_bits(value, 5, 2, false);
    }
}

void elements_from_sums(uint32_t dtype, const union elements_sum *sums, size_t n, void *out)
{
    size_t size = dmi_dtype_bytes(dtype);
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = elements_are_float(dtype) ? float_bits(dtype, sums[i].real) : sums[i].whole;
        memcpy((char *)out + i * size, &bits, size);
    }
}
