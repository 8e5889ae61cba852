/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/range_name.h"

#include <stdbool.h>
#include <string.h>

#define KEY       "Module"
#define MAX_DEPTH 32 /* of lists and dicts within a dict */

/* What is left of a text. */
struct name_rest {
    const char *p, *end;
};

/* Where a name goes to. */
struct name_room {
    char *text;
    size_t n;
};

static void put(struct name_room *name, char c)
{
    if (name->n < RANGE_NAME_MAX - 1)
        name->text[name->n++] = (unsigned char)c < ' ' ? '?' : c;
}

static void skip_spaces(struct name_rest *c)
{
    while (c->p < c->end && *c->p == ' ')
        c->p++;
}

static bool take(struct name_rest *c, char what)
{
    skip_spaces(c);
    if (c->p == c->end || *c->p != what)
        return false;
    c->p++;
    return true;
}

/* A string as Python prints it, in either kind of quotes. @name: NULL: nobody wants it. Return: false, it is none. */
static bool take_string(struct name_rest *c, struct name_room *name)
{
    skip_spaces(c);
    if (c->p == c->end || (*c->p != '\'' && *c->p != '"'))
        return false;
    for (char quote = *c->p++; c->p < c->end; c->p++) {
        if (*c->p == quote) {
            c->p++;
            return true;
        }
        if (*c->p == '\\' && c->p + 1 < c->end)
            c->p++; /* of \x41 and its like the rest stays as it is */
        if (name)
            put(name, *c->p);
    }
    return false;
}

/* Up to the comma or the brace after a value, whatever it is. Return: false where the text ends before. */
static bool skip_value(struct name_rest *c)
{
    int depth = 0;
    while (c->p < c->end) {
        char x = *c->p;
        if (x == '\'' || x == '"') {
            if (!take_string(c, NULL))
                return false;
            continue;
        }
        if (!depth && (x == ',' || x == '}'))
            return true;
        depth += (x == '{' || x == '[' || x == '(') - (x == '}' || x == ']' || x == ')');
        if (depth < 0 || depth > MAX_DEPTH)
            return false;
        c->p++;
    }
    return false;
}

/* The value of KEY in a dict. Return: false where the text is no dict with such a text in it. */
static bool take_module(struct name_rest c, struct name_room *name)
{
    char text[RANGE_NAME_MAX];
    if (!take(&c, '{'))
        return false;
    do {
        struct name_room key = { .text = text };
        if (!take_string(&c, &key) || !take(&c, ':'))
            return false;
        if (key.n == strlen(KEY) && !memcmp(text, KEY, key.n))
            return take_string(&c, name);
        if (!skip_value(&c))
            return false;
    } while (take(&c, ','));
    return false;
}

size_t range_name_parse(const char *text, size_t n, char *name)
{
    struct name_room out = { .text = name };
    if (!take_module((struct name_rest){ text, text + n }, &out)) {
        out.n = 0;
        for (size_t i = 0; i < n; i++)
            put(&out, text[i]);
    }
    name[out.n] = 0;
    return out.n;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

int32_t range_name_layer(const char *name)
{
    for (const char *p = name; *p; p++) {
        if (!is_digit(*p) || (p > name && (is_letter(p[-1]) || is_digit(p[-1]))))
            continue;
        int64_t n = 0;
        const char *q = p;
        for (; is_digit(*q) && n <= INT32_MAX; q++)
            n = n * 10 + (*q - '0');
        if (!is_digit(*q) && !is_letter(*q) && n <= INT32_MAX)
            return (int32_t)n;
    }
    return -1;
}
