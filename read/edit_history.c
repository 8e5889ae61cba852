/* SPDX-License-Identifier: Apache-2.0 */
#include "read/edit_history.h"

#include "core/any.h"
#include "core/grow.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *edit_text(const json_t *edit, const char *key)
{
    return object_text_or(edit, key, "");
}

/* The edits that a note says are in force; NULL: it is of no change of edits. */
static const json_t *in_force_of(const json_t *note)
{
    const json_t *list = json_object_get(note, "edits");
    if (!json_is_integer(json_object_get(note, "version")) || !json_is_array(list))
        return NULL;
    return FIRST(i, json_array_size(list), !*edit_text(json_array_get(list, i), "name"), NULL,
                 list);
}

static void judge(struct edit_history *h, const json_t *in_force)
{
    for (size_t i = 0; i < json_array_size(in_force); i++) {
        const json_t *edit = json_array_get(in_force, i);
        h->any = h->any || !edit_is_off(edit);
        h->unsalted = h->unsalted || json_object_get(edit, "cache");
        h->live = h->live || json_is_true(json_object_get(edit, "live"));
    }
}

static int take(struct edit_history *h, const struct reader_change *change, size_t *room)
{
    json_t *note = change->more ? object_parse(change->more, strlen(change->more)) : NULL;
    const json_t *in_force = in_force_of(note);
    if (!in_force) {
        json_decref(note);
        return 0;
    }
    if (GROW(h->changes, h->n, *room)) {
        json_decref(note);
        return -ENOMEM;
    }
    h->changes[h->n++] = (struct edit_change){ change, note, in_force };
    judge(h, in_force);
    return 0;
}

bool edit_history_has_places(const struct reader *reader)
{
    return ANY(i, reader_n_sites(reader), reader_site(reader, i)->writes);
}

/*
 * Rows were due, and no note says of what; or notes are missing, as a segment is gone and a later one repeats the latest alone; or neither a note nor the
 * accounts can be read where there are places for edits.
 */
static bool lacks_notes(const struct reader *reader, const struct edit_history *h)
{
    const struct reader_run *run = reader_run(reader);
    if (!run->edits.known && !h->n)
        return edit_history_has_places(reader);
    for (size_t i = 0; run->n_runs == 1 && i < run->n_changes; i++)
        if (run->changes[i].number != i)
            return true;
    return run->edits.n && !h->n;
}

int edit_history_build(const struct reader *reader, struct edit_history *out)
{
    const struct reader_run *run = reader_run(reader);
    size_t room = 0;
    int r = 0;
    *out = (struct edit_history){ 0 };
    for (size_t i = 0; !r && i < run->n_changes; i++)
        r = take(out, &run->changes[i], &room);
    if (r) {
        edit_history_deinit(out);
        return r;
    }
    if (lacks_notes(reader, out))
        out->any = out->unsalted = out->live = out->lacks = true;
    return 0;
}

void edit_history_deinit(struct edit_history *h)
{
    for (size_t i = 0; i < h->n; i++)
        json_decref(h->changes[i].note);
    free(h->changes);
    *h = (struct edit_history){ 0 };
}

size_t edit_history_at(const struct edit_history *h, uint64_t step)
{
    size_t n = 0;
    while (n < h->n && h->changes[n].at->step <= step)
        n++;
    return n;
}
