/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/nearest.h"

#include <stdio.h>
#include <string.h>

#define WORD_MAX 32 /* longer words are nobody's typing error */
#define TEXT_MAX 96 /* what is compared of a pattern's word */
#define NEAR_MAX 3  /* kernels that a sentence names, */
#define NAME_MAX 96 /* and of each so many bytes */

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

/* The pattern's longest run of what names consist of. Return: its length. */
static size_t longest_word(const char *pattern, const char **word)
{
    size_t most = 0;
    *word = pattern;
    for (const char *p = pattern; *p; p++) {
        size_t n = strspn(p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
        if (n > most) {
            most = n;
            *word = p;
        }
        p += n ? n - 1 : 0;
    }
    return most < TEXT_MAX ? most : TEXT_MAX;
}

/* The length of the longest text that both have; case is ignored. */
static unsigned in_common(const char *word, size_t n_word, const char *name)
{
    unsigned lengths[TEXT_MAX + 1] = { 0 }, most = 0; /* of texts that end before the word's byte */
    for (const char *p = name; *p; p++)
        for (size_t i = n_word; i; i--) {
            lengths[i] = lower(word[i - 1]) == lower(*p) ? lengths[i - 1] + 1 : 0;
            most = lengths[i] > most ? lengths[i] : most;
        }
    return most;
}

void nearest_kernels(const char *pattern, const char *const *names, size_t n, char *buffer,
                     size_t n_buffer)
{
    const char *word, *near[NEAR_MAX];
    unsigned scores[NEAR_MAX];
    size_t n_word = longest_word(pattern, &word), n_near = 0, used = 0;
    int misspelt = nearest_word(word, n_word, names, n);
    for (size_t i = 0; n_word && i < n; i++) {
        unsigned score = (int)i == misspelt ? TEXT_MAX + 1 : in_common(word, n_word, names[i]);
        size_t at = n_near, k = 0;
        while (k < n_near && strcmp(near[k], names[i]) != 0)
            k++;
        if (k < n_near || score < 4 || 2 * score < n_word)
            continue;
        while (at && scores[at - 1] < score)
            at--;
        if (at == NEAR_MAX)
            continue;
        n_near += n_near < NEAR_MAX;
        for (k = n_near - 1; k > at; k--) {
            near[k] = near[k - 1];
            scores[k] = scores[k - 1];
        }
        near[at] = names[i];
        scores[at] = score;
    }
    if (n_buffer)
        buffer[0] = 0;
    for (size_t k = 0; k < n_near && used < n_buffer; k++)
        used += (size_t)snprintf(buffer + used, n_buffer - used, "%s%.*s%s",
                                 k ? ", " : "; near it: ", NAME_MAX, near[k],
                                 strlen(near[k]) > NAME_MAX ? "..." : "");
}
