/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/elements.h"

#include <dmi/dtype.h>

#include <stdbool.h>
#include <string.h>

static double small_float(uint32_t bits, int n_exponent, int n_mantissa, bool finite_only)
{
    uint32_t exponent = bits >> n_mantissa & ((1u << n_exponent) - 1u);
    uint32_t mantissa = bits & ((1u << n_mantissa) - 1u);
    int bias = (1 << (n_exponent - 1)) - 1;
    double sign = bits >> (n_exponent + n_mantissa) & 1 ? -1.0 : 1.0;
    uint32_t top = (1u << n_exponent) - 1u;
    if (exponent == top && (!finite_only || mantissa == (1u << n_mantissa) - 1u))
        return mantissa ? __builtin_nan("") : sign * __builtin_inf();
    double value = exponent ? 1.0 + (double)mantissa / (double)(1u << n_mantissa)
                            : (double)mantissa / (double)(1u << n_mantissa);
    return sign * __builtin_ldexp(value, (exponent ? (int)exponent : 1) - bias);
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
            out[i] = small_float((uint32_t)b[2 * i] | (uint32_t)b[2 * i + 1] << 8, 5, 10, false);
        break;
    case DMI_DTYPE_BF16:
        for (size_t i = 0; i < n; i++) {
            uint32_t bits = (uint32_t)b[2 * i] << 16 | (uint32_t)b[2 * i + 1] << 24;
            float v;
            memcpy(&v, &bits, sizeof v);
            out[i] = (double)v;
        }
        break;
    case DMI_DTYPE_F8E4M3: /* the "fn" form: no infinity, NaN is all ones */
        for (size_t i = 0; i < n; i++)
            out[i] = small_float(b[i], 4, 3, true);
        break;
    case DMI_DTYPE_F8E5M2:
        for (size_t i = 0; i < n; i++)
            out[i] = small_float(b[i], 5, 2, false);
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

static bool is_float(uint32_t dtype)
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
        if (is_float(dtype)) {
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
        uint64_t bits = is_float(dtype) ? float_bits(dtype, sums[i].real) : sums[i].whole;
        memcpy((char *)out + i * size, &bits, size);
    }
}
