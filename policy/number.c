/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/number.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool parse_integer(const char *text, int64_t *out)
{
    bool negative = *text == '-';
    const char *p = text + (*text == '-' || *text == '+');
    int base = 10;
    if (p[0] == '0' && (p[1] == 'x' || p[1] == 'X')) {
        base = 16;
        p += 2;
    }
    if (!*p)
        return false;
    int64_t v = 0;
    for (; *p; p++) {
        int digit = *p >= '0' && *p <= '9'                 ? *p - '0'
                    : base == 16 && *p >= 'a' && *p <= 'f' ? *p - 'a' + 10
                    : base == 16 && *p >= 'A' && *p <= 'F' ? *p - 'A' + 10
                                                           : -1;
        if (digit < 0 || __builtin_mul_overflow(v, (int64_t)base, &v) ||
            (negative ? __builtin_sub_overflow(v, (int64_t)digit, &v)
                      : __builtin_add_overflow(v, (int64_t)digit, &v)))
            return false;
    }
    *out = v;
    return true;
}

bool parse_decimal(const char *text, double *out)
{
    char *end;
    if (!*text || text[strspn(text, "+-0123456789.eE")])
        return false;
    /* the application may have set a locale with a decimal comma */
    locale_t c = newlocale(LC_ALL_MASK, "C", NULL);
    if (!c)
        return false;
    *out = strtod_l(text, &end, c);
    freelocale(c);
    return !*end && isfinite(*out);
}

bool parse_size(const char *text, size_t n_text, uint64_t *out)
{
    char number[32];
    int64_t v;
    if (!n_text || n_text >= sizeof number)
        return false;
    memcpy(number, text, n_text);
    number[n_text] = 0;
    char *last = &number[n_text - 1];
    unsigned shift = *last == 'K' ? 10 : *last == 'M' ? 20 : *last == 'G' ? 30 : 0;
    if (shift)
        *last = 0;
    if (number[0] == '-' || !parse_integer(number, &v) || v > INT64_MAX >> shift)
        return false;
    *out = (uint64_t)v << shift;
    return true;
}
