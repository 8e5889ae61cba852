/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a GGUF's header says of its model. Any thread.
 * Source: docs/gguf.md of the ggml project, versions 2 and 3.
 */
#pragma once

#include "core/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Does a file begin as a GGUF? */
bool gguf_is(const void *data, size_t n);

/**
 * gguf_header() - numbers, truth values and short strings of the header, as an object by their keys; arrays are passed over
 * @data: the file, or so much of it as holds the header
 * A tensor rope_freqs.weight, which divides RoPE's frequencies, is noted as the key "dmi_rope_freqs". Return: a new reference; NULL with a
 * sentence in @err.
 */
json_t *gguf_header(struct err *err, const void *data, size_t n);

/**
 * gguf_texts() - the texts of an array of the header, in their order
 * @take: gets each of them, borrowed from @data; a negative return ends it
 * Return: 0; -ENOENT: there is no such array of texts; what @take returned; -EINVAL. A sentence is in @err, but for @take's.
 */
int gguf_texts(struct err *err, const void *data, size_t n, const char *key,
               int (*take)(void *arg, uint64_t i, const char *text, size_t n), void *arg);

/* An array of integers of 32 bits, packed, without alignment. Return: where it is in @data; NULL, and @n_out 0: the header has none. */
const void *gguf_integers(const void *data, size_t n, const char *key, uint64_t *n_out);

/* The config that Hugging Face would write for such a header, as far as attention needs it. Return: as gguf_header(). */
json_t *gguf_config(struct err *err, json_t *header);
