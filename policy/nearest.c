/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/nearest.h"

#include <stdio.h>
#include <string.h>

#define WORD_MAX 32 /* longer words are nobody's typing error */

static unsigned char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (unsigned char)(c + 32) : (unsigned char)c;
}

/* Optimal string alignment distance; both lengths are at most WORD_MAX. */
static unsigned distance(const char *a, size_t n_a, const char *b, size_t n_b)
{
    unsigned d[WORD_MAX + 1][WORD_MAX + 1];
    for (size_t i = 0; i <= n_a; i++)
        for (size_t k = 0; k <= n_b; k++) {
            if (!i || !k) {
                d[i][k] = (unsigned)(i + k);
                continue;
            }
            unsigned best = d[i - 1][k - 1] + (lower(a[i - 1]) != lower(b[k - 1]));
            if (d[i - 1][k] + 1 < best)
                best = d[i - 1][k] + 1;
            if (d[i][k - 1] + 1 < best)
                best = d[i][k - 1] + 1;
            if (i > 1 && k > 1 && lower(a[i - 1]) == lower(b[k - 2]) &&
                lower(a[i - 2]) == lower(b[k - 1]) && d[i - 2][k - 2] + 1 < best)
                best = d[i - 2][k - 2] + 1;
            d[i][k] = best;
        }
    return d[n_a][n_b];
}

int nearest_word(const char *word, size_t n_word, const char *const *candidates, size_t n)
{
    if (!n_word || n_word > WORD_MAX)
        return -1;
    int found = -1;
    unsigned least = 0;
    for (size_t i = 0; i < n; i++) {
        size_t n_candidate = strlen(candidates[i]);
        if (n_candidate > WORD_MAX)
            continue;
        unsigned edits = distance(word, n_word, candidates[i], n_candidate);
        size_t longer = n_word > n_candidate ? n_word : n_candidate;
        /* "forwards" for "forward" yes, "row" for "name" no */
        if (edits * 3 > longer + 1 || (found >= 0 && edits >= least))
            continue;
        found = (int)i;
        least = edits;
    }
    return found;
}

void nearest_hint(const char *word, size_t n_word, const char *const *candidates, size_t n,
                  char *buffer, size_t n_buffer)
{
    int i = nearest_word(word, n_word, candidates, n);
    if (n_buffer)
        buffer[0] = 0;
    if (i >= 0)
        snprintf(buffer, n_buffer, "; did you mean \"%s\"?", candidates[i]);
}
