/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/interval.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LAST   "last"
#define MIDDLE "middle"

/* Digits alone, the whole of it. */
static bool number(const char *text, size_t n, int64_t most, int64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9' || __builtin_mul_overflow(*out, (int64_t)10, out) ||
            __builtin_add_overflow(*out, (int64_t)(text[i] - '0'), out) || *out > most)
            return false;
    }
    return n > 0;
}

static bool is(const char *text, size_t n, const char *word)
{
    return n == strlen(word) && !memcmp(text, word, n);
}

/* ------------------------------------------------------------------------- layers */

/* "last", "last-2", "last-2-last" */
static bool from_end(const char *text, size_t n, struct layer_word *out)
{
    static const char to_last[] = "-" LAST;
    size_t n_last = strlen(LAST), n_to = strlen(to_last);
    int64_t back = 0;
    if (n < n_last || memcmp(text, LAST, n_last))
        return false;
    text += n_last;
    n -= n_last;
    bool interval = n > n_to && !memcmp(text + n - n_to, to_last, n_to);
    n -= interval ? n_to : 0;
    if (n && (*text != '-' || !number(text + 1, n - 1, LAYER_MOST_BACK, &back)))
        return false;
    *out = (struct layer_word){ LAYER_FROM_END, (int32_t)back, interval ? 0 : (int32_t)back };
    return true;
}

bool layer_word_parse(const char *text, size_t n, struct layer_word *out)
{
    if (is(text, n, MIDDLE)) {
        *out = (struct layer_word){ LAYER_MIDDLE, 0, 0 };
        return true;
    }
    if (from_end(text, n, out))
        return true;
    const char *dash = memchr(text, '-', n);
    size_t n_first = dash ? (size_t)(dash - text) : n;
    int64_t first, last;
    if (!number(text, n_first, INT32_MAX, &first))
        return false;
    last = first;
    if (dash && is(dash + 1, n - n_first - 1, LAST))
        last = INT32_MAX;
    else if (dash && (!number(dash + 1, n - n_first - 1, INT32_MAX, &last) || last < first))
        return false;
    *out = (struct layer_word){ LAYER_INTERVAL, (int32_t)first, (int32_t)last };
    return true;
}

bool layer_word_has(const struct layer_word *word, int32_t layer, int32_t n_layers)
{
    switch (word->kind) {
    case LAYER_INTERVAL: return layer >= word->first && layer <= word->last;
    case LAYER_FROM_END:
        return n_layers > 0 && layer >= n_layers - 1 - word->first &&
               layer <= n_layers - 1 - word->last;
    case LAYER_MIDDLE: return n_layers > 0 && layer == n_layers / 2;
    }
    return false;
}

/* ------------------------------------------------------------------------- slices */

/* A number, below 0 too. */
static bool bound(const char *text, size_t n, int64_t *out)
{
    bool below = n && *text == '-';
    if (!number(text + below, n - below, INT64_MAX - 1, out))
        return false;
    *out = below ? -*out : *out;
    return !below || *out; /* "-0" counts from neither side */
}

/* Whether there is a number of things of which it holds one. */
static bool can_hold(struct slice s)
{
    return (s.first < 0) != (s.end < 0) ? s.end : s.first < s.end;
}

bool slice_parse(const char *text, size_t n, struct slice *out)
{
    const char *colon = memchr(text, ':', n);
    size_t n_first = colon ? (size_t)(colon - text) : n;
    *out = (struct slice){ 0, INT64_MAX };
    if ((n_first || !colon) && !bound(text, n_first, &out->first))
        return false;
    if (!colon) {
        out->end = out->first == -1 ? INT64_MAX : out->first + 1;
        return true;
    }
    size_t n_end = n - n_first - 1;
    return (!n_end || bound(colon + 1, n_end, &out->end)) && can_hold(*out);
}

static int64_t place(int64_t at, int64_t n)
{
    at = at < 0 ? at + n : at;
    return at < 0 ? 0 : at > n ? n : at;
}

struct slice slice_of(struct slice s, int64_t n)
{
    struct slice of = { place(s.first, n), place(s.end, n) };
    of.end = of.end < of.first ? of.first : of.end;
    return of;
}

/* ------------------------------------------------------------------------- the other's way */

void layer_word_hint(const char *text, size_t n, char *buffer, size_t n_buffer)
{
    struct slice s;
    buffer[0] = 0;
    if (!memchr(text, ':', n) || !slice_parse(text, n, &s) || slice_is_from_end(s))
        return;
    if (s.end == INT64_MAX)
        snprintf(buffer, n_buffer, "; '%.*s' is written %" PRId64 "-last", (int)n, text, s.first);
    else if (s.end == s.first + 1)
        snprintf(buffer, n_buffer, "; '%.*s' is written %" PRId64, (int)n, text, s.first);
    else
        snprintf(buffer, n_buffer, "; '%.*s' is written %" PRId64 "-%" PRId64, (int)n, text,
                 s.first, s.end - 1);
}

void slice_hint(const char *text, size_t n, char *buffer, size_t n_buffer)
{
    struct layer_word w;
    buffer[0] = 0;
    if (!memchr(text, '-', n) || !layer_word_parse(text, n, &w))
        return;
    if (w.kind == LAYER_INTERVAL && w.last < INT32_MAX)
        snprintf(buffer, n_buffer, "; '%.*s' is written %d:%" PRId64, (int)n, text, w.first,
                 (int64_t)w.last + 1);
    else if (w.kind == LAYER_INTERVAL)
        snprintf(buffer, n_buffer, "; '%.*s' is written %d:", (int)n, text, w.first);
    else
        snprintf(buffer, n_buffer, "; '%.*s' is written -%d%s", (int)n, text, w.first + 1,
                 w.last < w.first ? ":" : "");
}
