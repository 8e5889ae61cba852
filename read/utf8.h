/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text that was captured, or that a file claims, may hold any byte: here is what of it is UTF-8 (RFC 3629) and what
 * of that a terminal would act on. Pure functions: any thread.
 */
#pragma once

#include "core/utf8.h"
#include "storage/text.h"

/* Adds @s as valid UTF-8: each byte that belongs to no character becomes U+FFFD, and so does NUL. */
void utf8_add_valid(struct text *to, const char *s, size_t n);

/* Adds @s as a terminal may print it: what it may not, each byte or character, becomes '?'. */
void utf8_add_printable(struct text *to, const char *s, size_t n);

/* Columns that @s, printable, takes in a table: its characters. */
size_t utf8_columns(const char *s, size_t n);
