/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks in memory, ready to be written: headers, the encoding of records, of steps and of the
 * index. Nothing here touches files. A struct chunk is one thread's. Source: docs/format.md 3-7.
 */
#pragma once

#include "storage/codec/codec.h"
#include "storage/record.h"

#include <dmi/format.h>

#include <sys/uio.h>

struct chunk {
    struct dmi_chunk_header header;
    uint8_t *meta;    /* owned; padded with zeros to a multiple of 8 */
    uint8_t *payload; /* owned; likewise */
};

/* Frees metadata and payload. Thread: the chunk's owner. */
void chunk_deinit(struct chunk *chunk);

/* Bytes of a chunk in its file. */
uint64_t chunk_bytes(const struct dmi_chunk_header *header);

/* Records in it; of another type than RECORDS 0. */
uint32_t chunk_n_records(const struct chunk *chunk);

/* Up to the next multiple of 8: what metadata and payload take in a file. */
static inline uint64_t chunk_pad(uint64_t n)
{
    return (n + DMI_CHUNK_ALIGN - 1) & ~(uint64_t)(DMI_CHUNK_ALIGN - 1);
}

/**
 * chunk_records() - encode @records into @chunk
 * Return: 0, -ENOMEM, -EINVAL (a record's numbers contradict one another), -E2BIG.
 */
int chunk_records(struct chunk *chunk, struct codec *codec, const struct run_record *records,
                  size_t n_records);

/* Takes over @meta, which must be allocated up to chunk_pad(n_meta), the padding zeroed. */
void chunk_from_meta(struct chunk *chunk, uint16_t type, uint8_t *meta, size_t n_meta);

/* Fills in what is known only when the chunk's turn to be written comes, and the hash. */
void chunk_seal(struct chunk *chunk, uint64_t sequence, const uint8_t run_uuid[16]);

/* Sets three buffers to the chunk's parts, in file order. */
void chunk_buffers(const struct chunk *chunk, struct iovec buffers[3]);
