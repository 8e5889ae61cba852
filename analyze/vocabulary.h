/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tokens stand for (<dmi/analyze_vocabulary.h>). It makes no tokens of texts. Not changed once it is read: any thread.
 * Source: tokenizer.json of Hugging Face's tokenizers 0.23 (its decoder says how); docs/gguf.md of the ggml project, and llama.cpp's
 * token_to_piece for types of tokens.
 */
#pragma once

#include "core/err.h"
#include "storage/text.h"

#include <dmi/analyze_vocabulary.h>

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define VOCABULARY_MOST (1u << 22) /* ids are below */

struct vocabulary {
    struct text bytes; /* of all pieces */
    struct dmi_vocabulary_piece *pieces;
    uint64_t n, room; /* pieces, of which some may not be there */
};

/**
 * vocabulary_open() - reads a tokenizer.json, the one in a folder, or a GGUF's vocabulary
 * Return: 0; -errno (-EINVAL: no vocabulary, or one that is decoded in another way) with a sentence in @err. vocabulary_deinit() in any case.
 */
int vocabulary_open(struct err *err, const char *path, struct vocabulary *out);

/* The same of a tokenizer.json's object, and of a GGUF's bytes; into a zeroed struct. */
int vocabulary_of_json(struct err *err, const json_t *file, struct vocabulary *out);
int vocabulary_of_gguf(struct err *err, const void *data, size_t n, struct vocabulary *out);

/* Accepts a zeroed struct. */
void vocabulary_deinit(struct vocabulary *vocabulary);

/* The bytes of a token; NULL: the vocabulary lacks it. */
const char *vocabulary_bytes(const struct vocabulary *vocabulary, int64_t id, size_t *n);

/* The first token that stands for exactly this text, one of a single byte only where there is no other; -1: none does. */
int64_t vocabulary_find(const struct vocabulary *vocabulary, const char *text);
