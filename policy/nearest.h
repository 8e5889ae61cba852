/* SPDX-License-Identifier: Apache-2.0 */
/* "Did you mean": the nearest of a few words to one that was misspelt. Pure functions, any thread. */
#pragma once

#include <stddef.h>

/**
 * nearest_word() - the candidate that @word becomes with the fewest edits (insertions, deletions, substitutions
 * and swaps of neighbours; case is ignored)
 * Return: its index, or -1 where none is near enough to be worth a mention.
 */
int nearest_word(const char *word, size_t n_word, const char *const *candidates, size_t n);

/* Writes `; did you mean "X"?`, or nothing, to @buffer. */
void nearest_hint(const char *word, size_t n_word, const char *const *candidates, size_t n,
                  char *buffer, size_t n_buffer);

/**
 * nearest_kernels() - kernels whose names are near to a pattern that fits none: misspelt, or with at least half of the pattern's longest word in them
 * @buffer: gets `; near it: A, B, C`, the nearest three, or nothing
 */
void nearest_kernels(const char *pattern, const char *const *names, size_t n, char *buffer,
                     size_t n_buffer);
