/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What device memory holds, block by block, as far as it was read: only what is another than last time goes into the
 * recording, so that it says which launch wrote what. Thread: one at a time, by the recorder's lock.
 */
#pragma once

#include "preload/base/stream.h"
#include "preload/recording/writer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pages {
    struct page *table; /* by hash of the address; a power of two */
    size_t n, room;
    void *staging;                  /* what was just read */
    struct dmi_recording_run *runs; /* that changed, and their bytes */
    size_t n_runs, room_runs;
    uint8_t *bytes;
    size_t n_bytes, room_bytes;
    uint64_t n_emitted; /* bytes that went into the recording */
};

/* Blocks of one allocation. They are counted from its beginning. */
struct pages_range {
    uint64_t address, n_bytes; /* begins at a block */
    bool first_too;            /* what was never read before goes into the recording */
};

/**
 * pages_look() - read memory, and write what has changed since it was last read
 * @after: the launch @sequence has run, and wrote it; else it was there before
 * Waits for @stream. Return: 0, -errno of the file, -EIO where the driver refuses.
 */
int pages_look(struct pages *pages, struct writer *writer, struct stream stream,
               const struct pages_range *ranges, size_t n_ranges, uint64_t sequence, bool after);

/* Accepts a zeroed struct. */
void pages_deinit(struct pages *pages);
