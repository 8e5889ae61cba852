/* SPDX-License-Identifier: Apache-2.0 */
/* What of bytes is UTF-8 (RFC 3629), and what of that a terminal would act on. Pure functions: any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * utf8_next() - the character at the start of @s
 * @n: bytes that are there, at least 1
 * Return: the bytes that it takes; 0 where no character begins (no surrogates, no overlong forms).
 */
size_t utf8_next(const char *s, size_t n, uint32_t *character);

/* Whether a terminal may print it: no control (C0, DEL, C1), no line or paragraph separator, nothing that turns the
 * direction of text or is invisible. */
bool utf8_is_printable(uint32_t character);

/* Makes '?' of each character that a terminal may not print, and of each byte that begins none, in place. Return: bytes left. */
size_t utf8_make_printable(char *s, size_t n);
