/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element types, as numbered on the ring and on disk. Pure functions: any thread.
 * Numbers are part of the format (docs/format.md, "Element types"): never reused.
 */
#ifndef DMI_DTYPE_H
#define DMI_DTYPE_H

#include <stdint.h>
#include <string.h>

/*
 * Every type that there is, and all that differs by type:
 *
 *     TYPE(WORD, number, name, safetensors, npy, torch, c, exponent, mantissa, finite)
 *
 *     WORD                 after DMI_DTYPE_
 *     name                 as HookSpecs spell it
 *     safetensors          as safetensors headers do
 *     npy                  numpy's descr, NULL where numpy has no such type
 *     torch                as PyTorch does
 *     c                    what has its bits: of C, where C has the type
 *     exponent, mantissa   bits of a float that its number has; 0: no float
 *     finite               1: the float has no infinity, and all ones is NaN
 */
#define DMI_DTYPES(TYPE)                                                                           \
    TYPE(F32, 1, "f32", "F32", "<f4", "float32", float, 8, 23, 0)                                  \
    TYPE(F16, 2, "f16", "F16", "<f2", "float16", uint16_t, 5, 10, 0)                               \
    TYPE(BF16, 3, "bf16", "BF16", NULL, "bfloat16", uint16_t, 8, 7, 0)                             \
    TYPE(F64, 4, "f64", "F64", "<f8", "float64", double, 11, 52, 0)                                \
    TYPE(I8, 5, "i8", "I8", "|i1", "int8", int8_t, 0, 0, 0)                                        \
    TYPE(I16, 6, "i16", "I16", "<i2", "int16", int16_t, 0, 0, 0)                                   \
    TYPE(I32, 7, "i32", "I32", "<i4", "int32", int32_t, 0, 0, 0)                                   \
    TYPE(I64, 8, "i64", "I64", "<i8", "int64", int64_t, 0, 0, 0)                                   \
    TYPE(U8, 9, "u8", "U8", "|u1", "uint8", uint8_t, 0, 0, 0)                                      \
    TYPE(U16, 10, "u16", "U16", "<u2", "uint16", uint16_t, 0, 0, 0)                                \
    TYPE(U32, 11, "u32", "U32", "<u4", "uint32", uint32_t, 0, 0, 0)                                \
    TYPE(U64, 12, "u64", "U64", "<u8", "uint64", uint64_t, 0, 0, 0)                                \
    TYPE(BOOL, 13, "bool", "BOOL", "|b1", "bool", uint8_t, 0, 0, 0)                                \
    TYPE(F8E4M3, 14, "f8e4m3", "F8_E4M3", NULL, "float8_e4m3fn", uint8_t, 4, 3, 1)                 \
    TYPE(F8E5M2, 15, "f8e5m2", "F8_E5M2", NULL, "float8_e5m2", uint8_t, 5, 2, 0)

#define DMI_DTYPE_NUMBER(word, number, ...) DMI_DTYPE_##word = number,
enum dmi_dtype { DMI_DTYPE_NONE = 0, DMI_DTYPES(DMI_DTYPE_NUMBER) DMI_DTYPE_COUNT };

struct dmi_dtype_info {
    const char *name, *safetensors, *npy, *torch;
    uint32_t n_bytes;
    uint8_t exponent, mantissa, finite;
};

/* NULL for a number that names no type. */
static inline const struct dmi_dtype_info *dmi_dtype_info(uint32_t dtype)
{
#define DMI_DTYPE_ROW(word, number, name, safetensors, npy, torch, c, exponent, mantissa, finite)  \
    [number] = { name, safetensors, npy, torch, sizeof(c), exponent, mantissa, finite },
    static const struct dmi_dtype_info table[DMI_DTYPE_COUNT] = { DMI_DTYPES(DMI_DTYPE_ROW) };
    return dtype && dtype < DMI_DTYPE_COUNT ? &table[dtype] : NULL;
}

/* 0 for a number that names no type */
static inline uint32_t dmi_dtype_bytes(uint32_t dtype)
{
    const struct dmi_dtype_info *info = dmi_dtype_info(dtype);
    return info ? info->n_bytes : 0;
}

/* Whether its elements are floating-point numbers; not for a number that names no type. */
static inline int dmi_dtype_is_float(uint32_t dtype)
{
    const struct dmi_dtype_info *info = dmi_dtype_info(dtype);
    return info && info->exponent;
}

/* DMI_DTYPE_NONE for an unknown name */
static inline uint32_t dmi_dtype_from_name(const char *name)
{
    for (uint32_t d = 1; d < DMI_DTYPE_COUNT; d++)
        if (!strcmp(dmi_dtype_info(d)->name, name))
            return d;
    return DMI_DTYPE_NONE;
}

#endif
