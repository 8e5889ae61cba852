/* SPDX-License-Identifier: Apache-2.0 */
#include "read/window.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A whole number at @s, of which nothing may come first; @end: gets what comes after it. */
static bool take_number(const char *s, const char **end, int64_t *out)
{
    char *after;
    const char *digits = s + (*s == '-');
    if (*digits < '0' || *digits > '9')
        return false;
    errno = 0;
    *out = strtoll(s, &after, 10);
    *end = after;
    return !errno && *out < INT64_MAX;
}

/* "N]" or "A:B]" at @s, either of which may be left out. */
static bool take_slice(const char *s, struct range *out)
{
    *out = (struct range){ 0, INT64_MAX };
    if (*s != ':') {
        if (!take_number(s, &s, &out->first))
            return false;
        if (!strcmp(s, "]")) {
            out->end = out->first == -1 ? INT64_MAX : out->first + 1;
            return true;
        }
        if (*s != ':')
            return false;
    }
    s++;
    if (strcmp(s, "]") && !take_number(s, &s, &out->end))
        return false;
    bool is_empty = (out->first < 0) == (out->end < 0) && out->end <= out->first;
    return !strcmp(s, "]") && !is_empty;
}

bool window_parse(const char *text, size_t n, enum token_kind *kind, struct range *window)
{
    static const struct {
        const char *word;
        enum token_kind kind;
    } words[] = { { "prompt", TOKENS_PROMPT },
                  { "response", TOKENS_GENERATED },
                  { "generated", TOKENS_GENERATED } };
    char slice[64];
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t n_word = strlen(words[i].word);
        if (n < n_word || memcmp(text, words[i].word, n_word))
            continue;
        *kind = words[i].kind;
        *window = (struct range){ 0, INT64_MAX };
        if (n == n_word)
            return true;
        if (text[n_word] != '[' || n - n_word > sizeof slice)
            return false;
        memcpy(slice, text + n_word + 1, n - n_word - 1);
        slice[n - n_word - 1] = 0;
        return take_slice(slice, window);
    }
    return false;
}

/* Among @n things. */
static int64_t place(int64_t at, int64_t n)
{
    int64_t i = at < 0 ? at + n : at;
    return i < 0 ? 0 : i < n ? i : n;
}

struct range window_of(const struct range *tokens, int64_t end, const struct range *window)
{
    int64_t last = tokens->end < end ? tokens->end : end;
    int64_t n = last > tokens->first ? last - tokens->first : 0;
    int64_t from = place(window->first, n), to = place(window->end, n);
    return (struct range){ tokens->first + from, tokens->first + (to > from ? to : from) };
}
