/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/elements.h"

#include <dmi/dtype.h>

#include <stdbool.h>
#include <string.h>

/*
 * Small floats as floats, without branches, so that the compiler vectorises the loops below (at -O3). Shifted to where a
 * float has its exponent and mantissa, the value is too small by a power of two, which also makes subnormal ones normal.
 * Where all bits of the exponent are 1 it is infinity, or NaN where the mantissa has some.
 */
static inline double small_to_double(uint32_t bits, int exponent, int mantissa, bool finite)
{
    uint32_t all = (1u << (exponent + mantissa)) - 1, m = bits & all;
    uint32_t special = finite ? all : all >> mantissa << mantissa;
    uint32_t magnitude = m << (23 - mantissa) | (m >= special ? 0x7f800000u : 0);
    uint32_t power = (255u - (1u << (exponent - 1))) << 23; /* 2 to the difference of the biases */
    float value, scale;
    memcpy(&value, &magnitude, sizeof value);
    memcpy(&scale, &power, sizeof scale);
    value *= scale;
    return bits & (all + 1) ? -(double)value : (double)value;
}

#define CONVERT(word, number, name, safetensors, npy, torch, c, exponent, mantissa, finite)        \
    case DMI_DTYPE_##word:                                                                         \
        for (size_t i = 0; i < n; i++) {                                                           \
            c v;                                                                                   \
            memcpy(&v, (const char *)data + i * sizeof v, sizeof v);                               \
            out[i] = exponent && sizeof v < sizeof(float)                                          \
                         ? small_to_double((uint32_t)v, exponent, mantissa, finite)                \
                         : (double)v;                                                              \
        }                                                                                          \
        break;

void elements_to_double(uint32_t dtype, const void *data, size_t n, double *out)
{
    switch (dtype) {
        DMI_DTYPES(CONVERT)
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

void elements_add(uint32_t dtype, const void *data, size_t n, union elements_sum *sums)
{
    size_t size = dmi_dtype_bytes(dtype);
    for (size_t i = 0; i < n; i++) {
        const char *at = (const char *)data + i * size;
        double value;
        uint64_t whole = 0;
        if (dmi_dtype_is_float(dtype)) {
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
    const struct dmi_dtype_info *info = dmi_dtype_info(dtype);
    float f = (float)value;
    uint64_t bits = 0;
    if (info->n_bytes < sizeof f)
        return small_bits(value, info->exponent, info->mantissa, info->finite);
    if (info->n_bytes == sizeof f)
        memcpy(&bits, &f, sizeof f);
    else
        memcpy(&bits, &value, sizeof value);
    return bits;
}

void elements_from_sums(uint32_t dtype, const union elements_sum *sums, size_t n, void *out)
{
    size_t size = dmi_dtype_bytes(dtype);
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = dmi_dtype_is_float(dtype) ? float_bits(dtype, sums[i].real) : sums[i].whole;
        memcpy((char *)out + i * size, &bits, size);
    }
}
