/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A segment file that is being written: a chunk is appended in full or not at all, and the index for
 * its footer grows in memory. The caller locks. Source: docs/format.md 2, 7.
 */
#pragma once

#include "storage/chunk.h"
#include "storage/file.h"
#include "storage/footer.h"

#include <stdbool.h>

struct segment {
    struct file file;
    uint32_t number;
    uint8_t run_uuid[16];
    uint64_t end; /* bytes committed */
    uint64_t first_sequence;
    struct footer index;
    uint64_t sync_ns; /* that its syncs took so far */
    bool closed;
    bool uncut; /* the file is longer than @end: a failed write that could not be cut back */
};

/**
 * segment_open() - make DIR/seg-NUMBER.dmi with its header and the site dictionary
 * @sites: JSON of the dictionary
 * Uses one sequence number. Return: 0 or -errno; after a failure no file is left.
 */
int segment_open(struct segment *segment, const char *dir, uint32_t number,
                 const uint8_t run_uuid[16], uint64_t sequence, const char *sites);

/**
 * segment_append() - write chunks as one commit
 * They get the numbers @sequence and up. Return: 0 or -errno; the file is then as it was, or cut back to that
 * before anything else is written to it.
 */
int segment_append(struct segment *segment, struct chunk *chunks, size_t n_chunks,
                   uint64_t sequence, bool sync);

/* Writes footer (one sequence number) and trailer. Return: 0 or -errno; may be tried again. */
int segment_close(struct segment *segment, uint64_t sequence, bool sync);

/* Chunks so far, the footer included once closed. */
uint64_t segment_chunks(const struct segment *segment);
uint64_t segment_records(const struct segment *segment);

/* Whether the footer has grown so far that the segment should be closed. */
bool segment_index_is_full(const struct segment *segment);

/* Closes the file and frees the index. */
void segment_deinit(struct segment *segment);
