/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of what ran on the device, on their way into the run: of records, or of sums. Thread: the collector. */
#pragma once

#include "cupti/aggregate.h"
#include "cupti/records.h"
#include "storage/ran.h"

#include <stdint.h>

/* Accepts being zeroed, but for @type. */
struct ran_chunks {
    uint16_t type; /* DMI_CHUNK_TRACE, DMI_CHUNK_SUMS */
    struct ran_writer writer;
    uint64_t waiting;            /* records in it */
    uint64_t stored;             /* records in chunks that the disk took */
    uint64_t no_memory, refused; /* records in no chunk */
};

/* A record of @step, as join_calls has it, at @place: its site and layer. */
void ran_chunks_record(struct ran_chunks *chunks, const struct records_event *event, uint64_t step,
                       struct ran_place place);

/* Sums of @step, of which one record at least was added; they are folded to @most names of kernels. */
void ran_chunks_sums(struct ran_chunks *chunks, struct aggregate *sums, uint64_t step, size_t most);

/* What waits becomes a chunk. */
void ran_chunks_write(struct ran_chunks *chunks);

/* Frees all. */
void ran_chunks_deinit(struct ran_chunks *chunks);
