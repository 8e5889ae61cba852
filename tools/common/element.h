/* SPDX-License-Identifier: Apache-2.0 */
/* An element of a tensor as JSON text. Pure: any thread. */
#pragma once

#include "storage/text.h"

#include <stdint.h>

/* Adds an element that reads back as the same; what is not finite as "NaN", "Infinity" or "-Infinity". @at: its bytes,
 * as 64-bit integers do not fit a double; @v: as a double. */
void element_add_json(struct text *to, uint32_t dtype, const uint8_t *at, double v);
