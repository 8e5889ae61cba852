/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/text.h"

#include "core/utf8.h"

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
    size_t room = text->room - text->n; /* that it fits into, mostly */
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(room ? text->data + text->n : NULL, room, fmt, ap);
    va_end(ap);
    if (n < 0)
        text->failed = 1;
    else if ((size_t)n < room && !text->failed)
        text->n += (size_t)n;
    else if (!reserve(text, (size_t)n)) {
        vsnprintf(text->data + text->n, (size_t)n + 1, fmt, again);
        text->n += (size_t)n;
    }
    va_end(again);
}

void text_json_character(struct text *text, uint32_t c)
{
    if (c >= 0x10000)
        text_printf(text, "\\u%04x\\u%04x", 0xd7c0 + (c >> 10), 0xdc00 + (c & 0x3ff));
    else
        text_printf(text, "\\u%04x", c);
}

void text_json_n(struct text *text, const char *s, size_t n)
{
    text_add(text, "\"", 1);
    for (size_t i = 0; i < n;) {
        uint32_t c = 0xfffd;
        size_t len = utf8_next(s + i, n - i, &c);
        if (c == '"' || c == '\\')
            text_add(text, (char[2]){ '\\', (char)c }, 2);
        else if (!len || !utf8_is_printable(c))
            text_json_character(text, c);
        else
            text_add(text, s + i, len);
        i += len ? len : 1;
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
