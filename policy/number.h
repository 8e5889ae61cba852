/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as people write them: "-1", "0x10", "256M". Pure functions, any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An integer in decimal or 0x form, to the end of the text. */
bool parse_integer(const char *text, int64_t *out);

/* A finite number in decimal form, to the end of the text, in whatever locale the program is. */
bool parse_decimal(const char *text, double *out);

/**
 * parse_size() - a number that K, M or G (1024, 1024^2, 1024^3) may follow
 * @text: @n_text bytes and a NUL
 * Return: whether it is one, of at most 63 bits.
 */
bool parse_size(const char *text, size_t n_text, uint64_t *out);
