/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void text_deinit(struct text *text)
{
    free(text->data);
    *text = (struct text){ 0 };
}

static int reserve(struct text *t, size_t more)
{
    if (t->failed)
        return -1;
    if (more < t->room - t->n)
        return 0;
    size_t room = t->room ? t->room : 256;
    while (room - t->n <= more) {
        if (room > SIZE_MAX / 2) {
            t->failed = 1;
            return -1;
        }
        room *= 2;
    }
    char *p = realloc(t->data, room);
    if (!p) {
        t->failed = 1;
        return -1;
    }
    t->data = p;
    t->room = room;
    return 0;
}

void text_add(struct text *text, const char *data, size_t n)
{
    if (reserve(text, n))
        return;
    memcpy(text->data + text->n, data, n);
    text->n += n;
    text->data[text->n] = 0;
}

void text_printf(struct text *text, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        text->failed = 1;
    else if (!reserve(text, (size_t)n)) {
        vsnprintf(text->data + text->n, (size_t)n + 1, fmt, again);
        text->n += (size_t)n;
    }
    va_end(again);
}

/* Bytes of the UTF-8 sequence at @s, 0 if there is none (RFC 3629: no surrogates, no overlong). */
static size_t utf8_length(const unsigned char *s, size_t n)
{
    static const struct {
        unsigned char first, last, low, high, n; /* bounds of byte 1 and byte 2, length */
    } forms[] = {
        { 0xc2, 0xdf, 0x80, 0xbf, 2 }, { 0xe0, 0xe0, 0xa0, 0xbf, 3 }, { 0xe1, 0xec, 0x80, 0xbf, 3 },
        { 0xed, 0xed, 0x80, 0x9f, 3 }, { 0xee, 0xef, 0x80, 0xbf, 3 }, { 0xf0, 0xf0, 0x90, 0xbf, 4 },
        { 0xf1, 0xf3, 0x80, 0xbf, 4 }, { 0xf4, 0xf4, 0x80, 0x8f, 4 },
    };
    if (s[0] < 0x80)
        return 1;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (s[0] < forms[i].first || s[0] > forms[i].last)
            continue;
        if (n < forms[i].n || s[1] < forms[i].low || s[1] > forms[i].high)
            return 0;
        for (size_t k = 2; k < forms[i].n; k++)
            if ((s[k] & 0xc0) != 0x80)
                return 0;
        return forms[i].n;
    }
    return 0;
}

void text_json_n(struct text *text, const char *s, size_t n)
{
    text_add(text, "\"", 1);
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        size_t len = utf8_length((const unsigned char *)s + i, n - i);
        if (!len) {
            text_add(text, "\\ufffd", 6);
            i++;
        } else if (c == '"' || c == '\\') {
            char esc[2] = { '\\', (char)c };
            text_add(text, esc, 2);
            i++;
        } else if (c < 0x20 || c == 0x7f) {
            text_printf(text, "\\u%04x", c);
            i++;
        } else {
            text_add(text, s + i, len);
            i += len;
        }
    }
    text_add(text, "\"", 1);
}

void text_json(struct text *text, const char *s)
{
    if (s)
        text_json_n(text, s, strlen(s));
    else
        text_add(text, "null", 4);
}

void text_json_double(struct text *text, double v)
{
    if (!isfinite(v)) {
        text_add(text, "null", 4);
        return;
    }
    char number[40];
    int n = snprintf(number, sizeof number, "%.17g", v);
    /* the application's locale may write a comma, or two bytes, for the point */
    for (int i = 0; i < n; i++)
        if (!strchr("0123456789+-e", number[i]))
            number[i] = '.';
    text_add(text, number, (size_t)n);
}
