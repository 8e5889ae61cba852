/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was changed while a run is written, on its way into CHANGES chunks. The latest notes are kept: a later segment
 * repeats them, so that they outlive the segments before it. Not locked: the caller's. Source: docs/format.md 6.3.
 */
#pragma once

#include "storage/chunk.h"
#include "storage/text.h"

#define CHANGES_MAX_BYTES                                                                          \
    (64u << 10) /* of notes that are repeated, and of those that wait for the disk */

struct run_change;

/* Accepts being zeroed. */
struct changes {
    struct text latest; /* struct dmi_change_entry each, as in CHANGES, by number */
    uint64_t next;      /* after the highest number */
    uint32_t segment;   /* the last one that has any, */
    uint64_t first;     /* and the lowest number in it */
};

/* Appends change @number to @entries. Return: 0; -ENOMEM, and @entries is as before. */
int changes_add(struct text *entries, uint64_t number, const struct run_change *change);

/* A chunk of changes was written to segment number @segment, first or again. */
void changes_note(struct changes *changes, const struct chunk *chunk, uint32_t segment);

/* Adds to @out, an empty text, what segment number @segment has to repeat. Return: 0 or -ENOMEM. */
int changes_again(const struct changes *changes, uint32_t segment, struct text *out);

/* Frees all. */
void changes_deinit(struct changes *changes);
