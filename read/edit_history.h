/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which edits were in force when: of the notes that the process made of each change. Strings are borrowed from the reader. Not locked: the
 * owner's thread. Source: docs/format.md 6.3, 10.2.
 */
#pragma once

#include "storage/object.h"
#include "storage/reader/reader.h"

/* A change of edits, and what was in force after it. */
struct edit_change {
    const struct reader_change *at;
    json_t *note;           /* its keys */
    const json_t *in_force; /* array of objects; each has a string `name` */
};

struct edit_history {
    struct edit_change *changes; /* as they came */
    size_t n;
    bool any; /* at some time an edit was in force and not off, or may have been */
    bool
        unsalted; /* one may have written in requests without its salt: it says `cache: ignore`, or notes of changes are gone */
    bool live;    /* one may have followed changes in the middle of requests */
    bool
        lacks; /* notes of changes are not all there: edits may have been in force that it does not name */
};

/* Has the run places, into which edits may write? */
bool edit_history_has_places(const struct reader *reader);

/* Return: 0 or -ENOMEM. edit_history_deinit() accepts what was zeroed. */
int edit_history_build(const struct reader *reader, struct edit_history *out);
void edit_history_deinit(struct edit_history *history);

/* How many changes came before the step: requests that began at the same number began with the same edits. */
size_t edit_history_at(const struct edit_history *history, uint64_t step);

/* Is an entry of edit_change.in_force off? */
static inline bool edit_is_off(const json_t *edit)
{
    return json_is_true(json_object_get(edit, "off"));
}

/* A string of an entry; "" where it has none. */
const char *edit_text(const json_t *edit, const char *key);
