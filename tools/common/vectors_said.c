/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/vectors_said.h"

#include "core/any.h"

#include <ctype.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define N(list) (sizeof(list) / sizeof *(list))

/* Words of a key begin so; with a full stop at the end they are that word, or its plural. Factors leave numbers as they are where they say 1, summands where they say 0. */
static const char *const factors[] = { "scal",     "rescal", "coef",   "alpha.", "strength",
                                       "multipli", "mult.",  "factor", "gain." };
static const char *const summands[] = { "shift", "offset", "bias" };
static const char *const others[] = { "layer",   "site.",     "hook",    "block",     "head.",
                                      "index",   "indices",   "norm",    "renorm",    "unnorm",
                                      "denorm",  "center",    "centre",  "centering", "mean.",
                                      "avg.",    "average",   "thresh",  "project",   "ablat",
                                      "orthog",  "operat",    "mode.",   "sign.",     "apply",
                                      "applied", "transform", "interven" };
static const char *const neutral[] = { "", "none", "null", "false", "no", "off" };
static const char *const counts[] = { "n", "num",
                                      "number" }; /* a key that begins so counts something */

/* Does the word of @n letters begin so, or is it that? */
static bool fits(const char *word, size_t n, const char *stem)
{
    size_t k = strcspn(stem, ".");
    if (n < k || strncasecmp(word, stem, k))
        return false;
    return !stem[k] || n == k || (n == k + 1 && tolower((unsigned char)word[k]) == 's');
}

static bool any_fits(const char *word, size_t n, const char *const *stems, size_t n_stems)
{
    return ANY(i, n_stems, fits(word, n, stems[i]));
}

/* The next word of letters from @p on: an upper-case letter after a lower-case one begins another. Return: NULL: there is none. */
static const char *next_word(const char *p, size_t *n)
{
    while (*p && !isalpha((unsigned char)*p))
        p++;
    *n = *p ? 1 : 0;
    while (*n && isalpha((unsigned char)p[*n]) &&
           !(islower((unsigned char)p[*n - 1]) && isupper((unsigned char)p[*n])))
        ++*n;
    return *p ? p : NULL;
}

static bool is_neutral_text(const char *value)
{
    return ANY(i, N(neutral), !strcasecmp(value, neutral[i]));
}

bool said_bears(const char *key, const char *value)
{
    bool factor = false, summand = false, other = false;
    size_t n = 0;
    const char *word = next_word(key, &n);
    for (size_t i = 0; word && i < N(counts); i++)
        if (n == strlen(counts[i]) && !strncasecmp(word, counts[i], n))
            return false;
    for (; word; word = next_word(word + n, &n)) {
        factor = factor || any_fits(word, n, factors, N(factors));
        summand = summand || any_fits(word, n, summands, N(summands));
        other = other || any_fits(word, n, others, N(others));
    }
    if ((!factor && !summand && !other) || (value && is_neutral_text(value)))
        return false;
    char *end = NULL;
    double number = value ? strtod(value, &end) : 0;
    if (!value || end == value || *end)
        return true;
    return factor ? number != 1 : summand ? number != 0 : true;
}
