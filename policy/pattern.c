/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/pattern.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(struct pattern_error *error, size_t offset, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static int fail(struct pattern_error *error, size_t offset, const char *fmt, ...)
{
    error->offset = offset;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(error->msg, sizeof error->msg, fmt, ap);
    va_end(ap);
    return PATTERN_E_INVALID;
}

/* The first character after the bracket expression that begins at @p; at the end of the text if it is not closed. */
static const char *skip_bracket(const char *p)
{
    p++;
    if (*p == '^')
        p++;
    if (*p == ']')
        p++;
    while (*p && *p != ']') {
        if (p[0] == '[' && (p[1] == '.' || p[1] == ':' || p[1] == '=')) {
            char close[] = { p[1], ']', 0 };
            const char *end = strstr(p + 2, close);
            p = end ? end + 2 : p + 1;
        } else {
            p++;
        }
    }
    return *p ? p + 1 : p;
}

/* The larger bound of `{M}`, `{M,}`, `{,N}`, `{M,N}` at @p; *@end: what follows it. 1 if it is no bound. */
static unsigned long largest_bound(const char *p, const char **end)
{
    unsigned long bounds[2] = { 0, 0 };
    int i = 0;
    const char *q = p + 1;
    for (; (*q >= '0' && *q <= '9') || (*q == ',' && i == 0); q++) {
        if (*q == ',')
            i = 1;
        else if (bounds[i] <= PATTERN_MAX_SIZE)
            bounds[i] = bounds[i] * 10 + (unsigned long)(*q - '0');
    }
    if (*q != '}' || q == p + 1) {
        *end = p + 1;
        return 1;
    }
    *end = q + 1;
    if (i && q[-1] == ',') /* no upper bound: one copy more, starred */
        return bounds[0] + 1;
    unsigned long most = bounds[0] > bounds[1] ? bounds[0] : bounds[1];
    return most ? most : 1;
}

/* An upper limit of what regcomp() makes of the pattern, before it does. */
static int check_size(const char *text, size_t *size, struct pattern_error *error)
{
    unsigned long before[PATTERN_MAX_DEPTH + 1] = { 0 }; /* size of a group up to its last atom */
    unsigned long atom[PATTERN_MAX_DEPTH + 1] = { 0 };   /* size of that atom */
    unsigned depth = 0;
    for (const char *p = text; *p;) {
        const char *start = p;
        unsigned long times = 0; /* of a bound; 0: an atom of size 1 */
        if (*p == '\\') {
            if (p[1] >= '1' && p[1] <= '9')
                return fail(error, (size_t)(p - text),
                            "found the back reference \"\\%c\"; expected "
                            "a pattern without",
                            p[1]);
            p += p[1] ? 2 : 1;
        } else if (*p == '[') {
            p = skip_bracket(p);
        } else if (*p == '(') {
            if (depth == PATTERN_MAX_DEPTH)
                return fail(error, (size_t)(p - text),
                            "found more than %d nested parentheses; "
                            "expected fewer",
                            PATTERN_MAX_DEPTH);
            before[depth] += atom[depth];
            depth++;
            before[depth] = atom[depth] = 0;
            p++;
            continue;
        } else if (*p == ')' && depth) {
            unsigned long inside = before[depth] + atom[depth];
            atom[--depth] = inside ? inside : 1;
            p++;
            continue;
        } else if (*p == '{') {
            times = largest_bound(p, &p);
        } else if (*p == '*' || *p == '?' || *p == '+') {
            times = *p++ == '+' ? 2 : 1; /* glibc writes x+ out as xx*, so x++++ is 16 of them */
        } else {
            p++;
        }
        if (times) {
            atom[depth] *= times;
        } else {
            before[depth] += atom[depth];
            atom[depth] = 1;
        }
        if (before[depth] + atom[depth] > PATTERN_MAX_SIZE)
            return fail(error, (size_t)(start - text),
                        "found repetitions that make more than %d "
                        "characters; expected fewer",
                        PATTERN_MAX_SIZE);
    }
    *size = before[0] + atom[0];
    return 0;
}

/* true if @text is ^NAME$ and matches nothing but NAME. Most patterns are. */
static bool is_literal(const char *text)
{
    size_t n = strlen(text);
    return n > 2 && text[0] == '^' && text[n - 1] == '$' &&
           strcspn(text + 1, "\\[](){}|.*+?^$") == n - 2;
}

/*
 * (glibc's regcomp() may free twice when it runs out of memory in the middle: 2.36, seen by failing
 * every allocation in turn. Literal names, which are most patterns, stay clear of it.)
 */
static int compile(struct pattern *pattern, struct pattern_error *error)
{
    int rc = regcomp(&pattern->re, pattern->text, REG_EXTENDED | REG_NOSUB);
    if (rc == REG_ESPACE)
        return -ENOMEM;
    if (!rc)
        return 0;
    char why[96];
    regerror(rc, &pattern->re, why, sizeof why);
    return fail(error, 0, "found \"%.60s\": %s; expected a POSIX extended regular expression",
                pattern->text, why);
}

int pattern_compile(const char *text, size_t *room, struct pattern *out,
                    struct pattern_error *error)
{
    if (!*text)
        return fail(error, 0,
                    "found an empty pattern; expected a regular expression (\".*\" for "
                    "every kernel)");
    if (strlen(text) > PATTERN_MAX_TEXT)
        return fail(error, PATTERN_MAX_TEXT, "found %zu bytes; expected at most %d", strlen(text),
                    PATTERN_MAX_TEXT);
    size_t size = 0;
    int rc = check_size(text, &size, error);
    if (rc)
        return rc;
    if (size > *room)
        return fail(error, 0,
                    "found patterns that together make more than %d characters; expected "
                    "fewer",
                    PATTERN_MAX_TOTAL);
    struct pattern pattern = { .text = strdup(text), .literal = is_literal(text) };
    if (!pattern.text)
        return -ENOMEM;
    rc = pattern.literal ? 0 : compile(&pattern, error);
    if (rc) {
        free(pattern.text);
        return rc;
    }
    *room -= size;
    *out = pattern;
    return 0;
}

void pattern_deinit(struct pattern *pattern)
{
    if (pattern->text && !pattern->literal)
        regfree(&pattern->re);
    free(pattern->text);
    *pattern = (struct pattern){ 0 };
}

bool pattern_matches(const struct pattern *pattern, const char *name)
{
    if (!pattern->literal)
        return regexec(&pattern->re, name, 0, NULL, 0) == 0;
    size_t n = strlen(name);
    return n == strlen(pattern->text) - 2 && !memcmp(pattern->text + 1, name, n);
}
