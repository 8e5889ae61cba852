/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The latest steps, what came of them, and the latest changes, as they were written: a record may come in a later segment than its step,
 * and that segment repeats the step, so that it can be read where the earlier one is gone. Memory is bounded: of what
 * is older than HISTORY_MAX_BYTES of steps nothing is repeated. Not locked: the caller's. Source: docs/format.md 6.2.
 */
#pragma once

#include "storage/chunk.h"
#include "storage/text.h"
#include "storage/writer/changes.h"

#define HISTORY_MAX_BYTES (16u << 20)

struct history_step;

/* Accepts being zeroed. */
struct history {
    struct history_step *steps; /* by sequence */
    size_t n, room;
    size_t n_bytes; /* of all entries */
    struct changes changes;
};

/* A chunk was written to segment number @segment: steps, outcomes and changes are noted, first or again; others are passed over. */
void history_note(struct history *history, const struct chunk *chunk, uint32_t segment);

/**
 * history_again() - what segment number @segment must repeat before it takes @records
 * @records: a chunk; one that is not of records names no step
 * @steps, @outcomes, @changes: metadata of STEPS_AGAIN, OUTCOMES_AGAIN and CHANGES, empty before; left empty where nothing
 * is to be repeated
 * Return: 0 or -ENOMEM.
 */
int history_again(const struct history *history, const struct chunk *records, uint32_t segment,
                  struct text *steps, struct text *outcomes, struct text *changes);

/* Frees all. */
void history_deinit(struct history *history);
