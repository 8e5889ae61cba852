/* SPDX-License-Identifier: Apache-2.0 */
/* What a launch wrote in one run of bytes, as numbers of one type. One thread. */
#pragma once

#include "tools/sites/memory.h"
#include "tools/sites/recording.h"

#include <dmi/dtype.h>

#define VIEW_TYPE(dtype) (1u << (dtype))
#define VIEW_FLOATS                                                                                \
    (VIEW_TYPE(DMI_DTYPE_F32) | VIEW_TYPE(DMI_DTYPE_F16) | VIEW_TYPE(DMI_DTYPE_BF16) |             \
     VIEW_TYPE(DMI_DTYPE_F64))
#define VIEW_SMALL_FLOATS (VIEW_TYPE(DMI_DTYPE_F8E4M3) | VIEW_TYPE(DMI_DTYPE_F8E5M2))
#define VIEW_INTEGERS     (VIEW_TYPE(DMI_DTYPE_I64) | VIEW_TYPE(DMI_DTYPE_I32))

struct memory_view {
    uint32_t dtype, size;
    uint64_t address;
    float *values;
    uint8_t *fresh; /* a byte of the element changed */
    size_t n;
};

/* Which bytes of @run are others than before. Return: NULL where there is no memory; free() it. */
uint8_t *view_changes(const struct memory *memory, const struct rec_run *run);

/* @changed: of view_changes(). Return: 0 or -ENOMEM; view_deinit() follows in any case. */
int view_open(const struct rec_run *run, const uint8_t *changed, uint32_t dtype,
              struct memory_view *out);
/* Accepts a zeroed struct. */
void view_deinit(struct memory_view *view);

/* How much a type's rounding adds to the error of some values: norm over norm. */
float view_rounding(uint32_t dtype);
