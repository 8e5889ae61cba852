/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text that grows, with what JSON needs. Failure to allocate is remembered, so that a document is
 * built without a check a line and judged once at its end. Not locked: the owner's thread.
 * The capturing library writes its JSON with this, so that no JSON library is in the host.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct text {
    char *data; /* NUL-terminated once something was added */
    size_t n, room;
    int failed; /* no memory: content is incomplete */
};

/* Frees the text. */
void text_deinit(struct text *text);
/* Appends @n bytes. */
void text_add(struct text *text, const char *data, size_t n);
/* Appends what printf() would print. */
void text_printf(struct text *text, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* \uXXXX, two of them beyond U+FFFF. */
void text_json_character(struct text *text, uint32_t character);
/* A JSON string with its quotes: bytes that are no UTF-8 become U+FFFD, what a terminal would act on is escaped. NULL: null. */
void text_json(struct text *text, const char *s);
void text_json_n(struct text *text, const char *s, size_t n);

/* A JSON number that reads back as the same double, whatever the locale; null where not finite. */
void text_json_double(struct text *text, double v);
