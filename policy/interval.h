/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a user writes a choice of layers, positions or rows, in a HookSpec and in the options of every tool. Pure
 * functions, any thread. Source: docs/selections.md.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One word of a list of layers. */
struct layer_word {
    enum {
        LAYER_INTERVAL, /* "7", "3-9", "3-last": first to last, both included */
        LAYER_FROM_END, /* "last", "last-2", "last-2-last": first to last, in steps before the last one */
        LAYER_MIDDLE, /* "middle": layer n / 2 of n */
    } kind;
    int32_t first, last;
};

#define LAYER_MOST_BACK 31 /* of "last-N" */

/* Return: false where the @n bytes of @text are none. */
bool layer_word_parse(const char *text, size_t n, struct layer_word *out);

/* Is the layer the one, or one of those, that the word means? @n_layers: of the model, 0: not known. */
bool layer_word_has(const struct layer_word *word, int32_t layer, int32_t n_layers);

/* Python's slice: first <= i < end, and a number below 0 counts from the end. */
struct slice {
    int64_t first, end; /* INT64_MAX: no end */
};

/* "5", "A:B", either of which may be left out. Return: false where it is none, or holds nothing whatever there is. */
bool slice_parse(const char *text, size_t n, struct slice *out);

/* The same of @n things: 0 <= first <= end. */
struct slice slice_of(struct slice slice, int64_t n);

/* Does it count from the end? Then slice_of() says which are meant; else @n changes only what is not there. */
static inline bool slice_is_from_end(struct slice slice)
{
    return slice.first < 0 || slice.end < 0;
}

/**
 * layer_word_hint(), slice_hint() - how what was written in the other's way is written
 * @buffer: gets the words, "" where it is not the other's way either
 */
void layer_word_hint(const char *text, size_t n, char *buffer, size_t n_buffer);
void slice_hint(const char *text, size_t n, char *buffer, size_t n_buffer);
