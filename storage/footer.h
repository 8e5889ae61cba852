/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of a segment that is being written: it grows in memory with each chunk and becomes the
 * segment's FOOTER. The caller locks. Source: docs/format.md 7.
 */
#pragma once

#include "storage/chunk.h"
#include "storage/text.h"

#include <stdbool.h>

struct footer {
    struct text chunks;  /* of struct dmi_footer_chunk */
    struct text entries; /* of struct dmi_footer_entry */
    struct text spans;   /* of struct dmi_footer_span */
    struct text strings;
    struct text sites; /* of struct dmi_footer_site, by site id; those without records too */
};

/* Where the index stood, to go back to when a commit fails. */
struct footer_mark {
    size_t chunks, entries, spans, strings;
};

/* The index as it stands. */
struct footer_mark footer_mark(const struct footer *footer);
/* The index as it stood at @mark. */
void footer_go_back(struct footer *footer, const struct footer_mark *mark);

/**
 * footer_add() - index a chunk that is to be written at @offset
 * Return: 0, -ENOMEM or -E2BIG; then footer_go_back() is the caller's to call.
 */
int footer_add(struct footer *footer, const struct chunk *chunk, uint64_t offset);

/* Once a chunk given to footer_add() is written: its records count for their sites. */
void footer_count(struct footer *footer, const struct chunk *chunk);

/* Chunks so far. */
uint64_t footer_chunks(const struct footer *footer);

/* Whether so much is indexed that the segment should be closed. */
bool footer_is_full(const struct footer *footer);

/**
 * footer_chunk() - the FOOTER chunk
 * @first_sequence: of the segment
 * Return: 0 or -ENOMEM.
 */
int footer_chunk(struct footer *footer, uint64_t first_sequence, struct chunk *out);

/* Frees the index. */
void footer_deinit(struct footer *footer);
