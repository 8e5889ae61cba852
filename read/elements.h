/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of every type of the format as doubles. Pure: any thread. Source: docs/format.md 5.1. */
#ifndef READ_ELEMENTS_H
#define READ_ELEMENTS_H

#include <stddef.h>
#include <stdint.h>

/**
 * elements_to_double() - convert @n elements
 * @dtype: enum dmi_dtype; any other number gives NaN
 * @data: little-endian, of any alignment
 * 64-bit integers beyond 2^53 are rounded.
 */
void elements_to_double(uint32_t dtype, const void *data, size_t n, double *out);

#endif
