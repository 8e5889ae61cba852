/* SPDX-License-Identifier: Apache-2.0 */
#include "core/utf8.h"

#include "core/any.h"

#include <string.h>

/* Bounds of byte 1 and of byte 2, and the length: RFC 3629, section 4. */
static const struct form {
    uint8_t first, last, low, high, n;
} forms[] = {
    { 0x00, 0x7f, 0, 0, 1 },       { 0xc2, 0xdf, 0x80, 0xbf, 2 }, { 0xe0, 0xe0, 0xa0, 0xbf, 3 },
    { 0xe1, 0xec, 0x80, 0xbf, 3 }, { 0xed, 0xed, 0x80, 0x9f, 3 }, { 0xee, 0xef, 0x80, 0xbf, 3 },
    { 0xf0, 0xf0, 0x90, 0xbf, 4 }, { 0xf1, 0xf3, 0x80, 0xbf, 4 }, { 0xf4, 0xf4, 0x80, 0x8f, 4 },
};

static const struct form *form_of(uint8_t byte)
{
    return FIRST(i, sizeof forms / sizeof forms[0], byte >= forms[i].first && byte <= forms[i].last,
                 &forms[i], NULL);
}

size_t utf8_next(const char *s, size_t n, uint32_t *character)
{
    const uint8_t *b = (const uint8_t *)s;
    const struct form *f = form_of(b[0]);
    if (!f || n < f->n || (f->n > 1 && (b[1] < f->low || b[1] > f->high)))
        return 0;
    uint32_t c = f->n == 1 ? b[0] : b[0] & (0x7fu >> f->n);
    for (size_t i = 1; i < f->n; i++) {
        if ((b[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (b[i] & 0x3fu);
    }
    *character = c;
    return f->n;
}

bool utf8_is_printable(uint32_t c)
{
    static const struct {
        uint32_t first, last;
    } barred[] = {
        { 0x0000, 0x001f },   { 0x007f, 0x009f }, /* C0, DEL, C1 */
        { 0x00ad, 0x00ad },   { 0x061c, 0x061c },
        { 0x180e, 0x180e }, /* soft hyphen, marks */
        { 0x200b, 0x200f },   { 0x2028, 0x202e },
        { 0x2060, 0x206f }, /* invisible, separators, bidi */
        { 0xfeff, 0xfeff },   { 0xfff9, 0xfffb },
        { 0xe0000, 0xe007f },
    };
    return !ANY(i, sizeof barred / sizeof barred[0], c >= barred[i].first && c <= barred[i].last);
}

size_t utf8_make_printable(char *s, size_t n)
{
    size_t used = 0;
    for (size_t i = 0, len; i < n; i += len ? len : 1) {
        uint32_t c;
        len = utf8_next(s + i, n - i, &c);
        bool good = len && utf8_is_printable(c);
        memmove(s + used, good ? s + i : "?", good ? len : 1);
        used += good ? len : 1;
    }
    return used;
}
