/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the text of an expression to its tokens. Source: docs/hookspec.md, "Expressions".
 */
#include "policy/expr_lex.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int lex_fail(struct lexer *x, size_t offset, const char *fmt, ...)
{
    x->error->offset = offset;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(x->error->msg, sizeof x->error->msg, fmt, ap);
    va_end(ap);
    return EXPR_E_SYNTAX;
}

static bool is_name_start(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int digit_value(char c, int base)
{
    int v = is_digit(c)              ? c - '0'
            : (c >= 'a' && c <= 'f') ? c - 'a' + 10
            : (c >= 'A' && c <= 'F') ? c - 'A' + 10
                                     : 99;
    return v < base ? v : -1;
}

static int next_number(struct lexer *x)
{
    int base = 10;
    if (x->text[x->at] == '0' && x->at + 1 < x->n && (x->text[x->at + 1] | 32) == 'x') {
        base = 16;
        x->at += 2;
        if (x->at == x->n || digit_value(x->text[x->at], 16) < 0)
            return lex_fail(x, x->start,
                            "found \"0x\" without digits; expected a hexadecimal number");
    }
    int64_t v = 0;
    for (; x->at < x->n && digit_value(x->text[x->at], base) >= 0; x->at++)
        if (__builtin_mul_overflow(v, (int64_t)base, &v) ||
            __builtin_add_overflow(v, (int64_t)digit_value(x->text[x->at], base), &v))
            return lex_fail(x, x->start, "found a number above 9223372036854775807");
    if (x->at < x->n && (is_name_start(x->text[x->at]) || is_digit(x->text[x->at])))
        return lex_fail(x, x->at, "found '%c' in a number; expected digits", x->text[x->at]);
    x->number = v;
    x->token = TOKEN_NUMBER;
    return 0;
}

int lex_next(struct lexer *x)
{
    while (x->at < x->n && strchr(" \t\r\n", x->text[x->at]) && x->text[x->at])
        x->at++;
    x->start = x->at;
    if (x->at == x->n) {
        x->token = TOKEN_END;
        return 0;
    }
    char c = x->text[x->at];
    if (is_digit(c))
        return next_number(x);
    if (is_name_start(c)) {
        while (x->at < x->n && (is_name_start(x->text[x->at]) || is_digit(x->text[x->at])))
            x->at++;
        x->token = TOKEN_NAME;
        return 0;
    }
    if (c && strchr("+-*/%()[].,", c)) {
        x->at++;
        x->token = TOKEN_SIGN;
        x->sign = c;
        return 0;
    }
    if (c > ' ' && c < 127)
        return lex_fail(x, x->at,
                        "found '%c', which no expression holds; expected + - * / %% ( ) , a "
                        "number or a name",
                        c);
    return lex_fail(x, x->at, "found a byte 0x%02x, which no expression holds", (unsigned char)c);
}

const char *lex_found(const struct lexer *x, char *buffer, size_t n)
{
    if (x->token == TOKEN_END)
        snprintf(buffer, n, "the end");
    else
        snprintf(buffer, n, "\"%.*s\"", (int)(x->at - x->start > 40 ? 40 : x->at - x->start),
                 x->text + x->start);
    return buffer;
}

int lex_expected(struct lexer *x, const char *what)
{
    char was[64];
    return lex_fail(x, x->start, "found %s; expected %s", lex_found(x, was, sizeof was), what);
}

bool lex_at_sign(const struct lexer *x, char sign)
{
    return x->token == TOKEN_SIGN && x->sign == sign;
}

int lex_take_sign(struct lexer *x, char sign, const char *what)
{
    return lex_at_sign(x, sign) ? lex_next(x) : lex_expected(x, what);
}

bool lex_at_name(const struct lexer *x, const char *name)
{
    return x->token == TOKEN_NAME && strlen(name) == x->at - x->start &&
           !memcmp(name, x->text + x->start, x->at - x->start);
}
