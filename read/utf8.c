/* SPDX-License-Identifier: Apache-2.0 */
#include "read/utf8.h"

void utf8_add_valid(struct text *to, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t c;
        size_t len = utf8_next(s + i, n - i, &c);
        len &&c ? text_add(to, s + i, len) : text_add(to, "\xef\xbf\xbd", 3);
        i += len ? len : 1;
    }
}

static bool is_plain(const char *s, size_t n)
{
    while (n && *s >= ' ' && *s <= '~')
        s++, n--;
    return !n;
}

void utf8_add_printable(struct text *to, const char *s, size_t n)
{
    size_t start = to->n;
    text_add(to, s, n);
    if (to->failed || is_plain(s, n))
        return;
    to->n = start + utf8_make_printable(to->data + start, n);
    to->data[to->n] = 0;
}

size_t utf8_columns(const char *s, size_t n)
{
    size_t columns = 0;
    for (size_t i = 0; i < n; i++)
        columns += ((uint8_t)s[i] & 0xc0) != 0x80;
    return columns;
}
