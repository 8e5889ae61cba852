/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element types, as numbered on the ring and on disk. Pure functions: any thread.
 * Numbers are part of the format (docs/format.md, "Element types"): never reused.
 */
#ifndef DMI_DTYPE_H
#define DMI_DTYPE_H

#include <stdint.h>
#include <string.h>

enum dmi_dtype {
    DMI_DTYPE_NONE = 0,
    DMI_DTYPE_F32 = 1,
    DMI_DTYPE_F16 = 2,
    DMI_DTYPE_BF16 = 3,
    DMI_DTYPE_F64 = 4,
    DMI_DTYPE_I8 = 5,
    DMI_DTYPE_I16 = 6,
    DMI_DTYPE_I32 = 7,
    DMI_DTYPE_I64 = 8,
    DMI_DTYPE_U8 = 9,
    DMI_DTYPE_U16 = 10,
    DMI_DTYPE_U32 = 11,
    DMI_DTYPE_U64 = 12,
    DMI_DTYPE_BOOL = 13,
    DMI_DTYPE_F8E4M3 = 14,
    DMI_DTYPE_F8E5M2 = 15,
    DMI_DTYPE_COUNT
};

struct dmi_dtype_info {
    const char *name;        /* as HookSpecs spell it */
    const char *safetensors; /* as safetensors headers spell it */
    const char *npy;         /* numpy descr, NULL where numpy has no such type */
    uint32_t n_bytes;
};

/* NULL for a number that names no type. */
static inline const struct dmi_dtype_info *dmi_dtype_info(uint32_t dtype)
{
    static const struct dmi_dtype_info table[DMI_DTYPE_COUNT] = {
        [DMI_DTYPE_F32] = { "f32", "F32", "<f4", 4 },
        [DMI_DTYPE_F16] = { "f16", "F16", "<f2", 2 },
        [DMI_DTYPE_BF16] = { "bf16", "BF16", NULL, 2 },
        [DMI_DTYPE_F64] = { "f64", "F64", "<f8", 8 },
        [DMI_DTYPE_I8] = { "i8", "I8", "|i1", 1 },
        [DMI_DTYPE_I16] = { "i16", "I16", "<i2", 2 },
        [DMI_DTYPE_I32] = { "i32", "I32", "<i4", 4 },
        [DMI_DTYPE_I64] = { "i64", "I64", "<i8", 8 },
        [DMI_DTYPE_U8] = { "u8", "U8", "|u1", 1 },
        [DMI_DTYPE_U16] = { "u16", "U16", "<u2", 2 },
        [DMI_DTYPE_U32] = { "u32", "U32", "<u4", 4 },
        [DMI_DTYPE_U64] = { "u64", "U64", "<u8", 8 },
        [DMI_DTYPE_BOOL] = { "bool", "BOOL", "|b1", 1 },
        [DMI_DTYPE_F8E4M3] = { "f8e4m3", "F8_E4M3", NULL, 1 },
        [DMI_DTYPE_F8E5M2] = { "f8e5m2", "F8_E5M2", NULL, 1 },
    };
    return dtype && dtype < DMI_DTYPE_COUNT ? &table[dtype] : NULL;
}

/* 0 for a number that names no type */
static inline uint32_t dmi_dtype_bytes(uint32_t dtype)
{
    const struct dmi_dtype_info *info = dmi_dtype_info(dtype);
    return info ? info->n_bytes : 0;
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
