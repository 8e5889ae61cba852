/* SPDX-License-Identifier: Apache-2.0 */
/* The checksum of every file of a run: XXH3_64bits, seed 0 (docs/format.md, "Hashes"). Pure: any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* XXH3_64bits with seed 0 of @n_bytes bytes. */
uint64_t hash_bytes(const void *data, size_t n_bytes);

/* The same without AVX2, whatever the processor has; for tests. */
uint64_t hash_bytes_portable(const void *data, size_t n_bytes);

/* A hash of two parts, as if the second followed the first; the first has at most 64 bytes. */
uint64_t hash_two(const void *a, size_t n_a, const void *b, size_t n_b);

/* A hash of what comes in parts. */
struct hash_stream;
/* Return: NULL where there is no memory. */
struct hash_stream *hash_start(void);
/* The next part. */
void hash_add(struct hash_stream *stream, const void *data, size_t n_bytes);
/* The hash of all parts; frees @stream. */
uint64_t hash_end(struct hash_stream *stream);
