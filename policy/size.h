/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes as people write them: "4096", "256M". Pure functions, any thread. */
#ifndef POLICY_SIZE_H
#define POLICY_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * size_parse() - a number that K, M or G (1024, 1024^2, 1024^3) may follow
 * @text: @n_text bytes and a NUL
 * Return: whether it is one, of at most 63 bits.
 */
bool size_parse(const char *text, size_t n_text, uint64_t *out);

#endif
