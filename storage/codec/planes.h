/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte planes of elements, and back: with AVX2 where the CPU has it, by plain code elsewhere, to the same bytes. Plain functions,
 * any thread. Source: docs/format.md 5.2.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* @n elements of @element_bytes (1, 2, 4 or 8), of any alignment, to as many planes of @n bytes one after the other. */
void planes_split(const uint8_t *in, uint8_t *out, size_t n, uint32_t element_bytes, bool rotate);
void planes_join(const uint8_t *in, uint8_t *out, size_t n, uint32_t element_bytes, bool rotate);

/* The same by instructions that every CPU has: what the others are compared with. */
void planes_split_portable(const uint8_t *in, uint8_t *out, size_t n, uint32_t element_bytes,
                           bool rotate);
void planes_join_portable(const uint8_t *in, uint8_t *out, size_t n, uint32_t element_bytes,
                          bool rotate);
