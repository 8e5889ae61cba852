/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a reader found that its user should know. Some of it is judged anew whenever the run is read again, some of it
 * belongs to a segment. For the reader's files alone; its one thread.
 */
#pragma once

#include "storage/reader/reader.h"

struct reader_note_entry {
    struct reader_finding finding;
    bool judged;      /* of the run as it stood: made anew by a refresh */
    uint32_t segment; /* number of the one that was walked; UINT32_MAX: none */
};

/* Zeroed but for @walking. */
struct reader_notes {
    struct reader_note_entry *list;
    size_t n, room;
    bool judging;     /* what is noted now is judged */
    uint32_t walking; /* segment being walked, UINT32_MAX: none */
    bool
        vanished; /* a file was gone that the manifest has: what is noted of that is not to be believed */
    bool missing_is_damage; /* nobody released it meanwhile */
};

/* Adds a finding; @chunk is a sequence number, -1 for none. */
void reader_note(struct reader_notes *notes, bool damage, const char *file, int64_t chunk,
                 uint64_t offset, const char *fmt, ...) __attribute__((format(printf, 6, 7)));

/* Something that was written as it should be and that this program does not know. */
void reader_note_unknown(struct reader_notes *notes, const char *file, int64_t chunk,
                         uint64_t offset, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* A segment's file is gone. Return: whether that may be as it was released since the manifest was read. */
bool reader_note_vanished(struct reader_notes *notes);

/* Whether a file was gone; the reader looks at the run again, or its user does. */
bool reader_take_vanished(struct reader_notes *notes);

/* Each gets the findings of the other. */
void reader_swap_notes(struct reader_notes *a, struct reader_notes *b);

/* Forgets what was judged (@segment UINT32_MAX), or what was found while that segment was read. */
void reader_forget(struct reader_notes *notes, uint32_t segment);

/* All findings are gone. */
void reader_forget_all(struct reader_notes *notes);
