/* SPDX-License-Identifier: Apache-2.0 */
#include "read/elements.h"

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
