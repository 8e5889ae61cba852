/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rung of the codecs' ladder (storage/codec/codec.h) the next batch takes, from what became of those before: a batch for
 * which the drain had to wait while the ring filled asks for a quicker rung, or, where writing takes longer than encoding,
 * for one of fewer bytes, unless that one is known to be no better; once nothing waits, the ladder goes back to a rung that
 * would keep up. No clock, no device: a
 * function of what it hears. Thread: ladder_note() one at a time, ladder_rung() any.
 */
#pragma once

#include "storage/codec/rung.h"

#include <stdbool.h>
#include <stdint.h>

struct ladder {
    uint32_t rung;   /* enum codec_rung; atomic */
    uint32_t n_calm; /* batches in a row that nothing waited for */
    uint32_t n_here; /* batches since the rung was changed */
    /* a MiB of raw bytes, smoothed; 0: not known, or so long ago that it says nothing */
    uint64_t encode_ns[CODEC_RUNGS], append_ns[CODEC_RUNGS];
};

/* What became of a batch. */
struct ladder_batch {
    enum codec_rung rung;
    uint64_t n_bytes;
    uint64_t encode_ns, append_ns;
    uint64_t since_ns; /* from the batch before to this one, when they were filled */
    bool waited;       /* no batch was idle when the drain needed this one, and the ring filled */
};

/* The rung to encode on now. */
enum codec_rung ladder_rung(const struct ladder *ladder);

/* A batch was appended. @n_encoders: threads that encode beside one another */
void ladder_note(struct ladder *ladder, const struct ladder_batch *batch, uint32_t n_encoders);
