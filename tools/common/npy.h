/* SPDX-License-Identifier: Apache-2.0 */
/* The head of an npy file. Pure: any thread. Source: numpy.lib.format, version 1.0. */
#ifndef TOOLS_COMMON_NPY_H
#define TOOLS_COMMON_NPY_H

#include "storage/text.h"

#include <stdint.h>

/* numpy has no bf16 and no 8-bit floats: their bits go out as integers. */
const char *npy_type(uint32_t dtype);

/* Adds all that stands before the elements; @to is empty. */
void npy_header(struct text *to, uint32_t dtype, const uint64_t *dims, uint32_t n_dims);

#endif
