/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was changed while the run was written: of CHANGES chunks, and of the manifest, where writers noted it before there
 * were such chunks. Source: docs/format.md 6.3, 9.
 */
#include "core/cleanup.h"
#include "core/err.h"
#include "storage/reader/reader_private.h"
#include "storage/text.h"

#include <errno.h>
#include <string.h>

/* ------------------------------------------------------------------------- all of the run */

static int noted_order(const void *pa, const void *pb)
{
    const struct reader_noted *a = pa, *b = pb;
    return a->at.number < b->at.number ? -1 : a->at.number > b->at.number;
}

/* Those of one chunk, added to the list. */
static int gather_chunk(struct reader *r, struct reader_segment *s, struct reader_chunk *c,
                        struct reader_noted **all, size_t *n, size_t *room)
{
    const char *wrong;
    int res = reader_load_chunk(r, s, c, &wrong);
    if (res == -EBADMSG)
        NOTE_CHUNK(r, s, c, "the chunk (%s) cannot be read: %s", chunk_type_name(c->type), wrong);
    if (res)
        return res == -EBADMSG ? 0 : res;
    for (size_t i = 0; i < c->n_held; i++) {
        if (GROW(*all, *n, *room))
            return -ENOMEM;
        (*all)[(*n)++] = c->noted_changes[i];
    }
    return 0;
}

/* Those of all chunks, by number, each once: segments repeat them. */
static int gather(struct reader *r, struct reader_noted **all, size_t *n)
{
    size_t room = 0, kept = 0;
    int res = 0;
    struct reader_cursor at = { 0 };
    for (struct reader_chunk *c; !res && (c = reader_next_chunk(r, DMI_CHUNK_CHANGES, &at));)
        res = gather_chunk(r, &r->index.segments[at.segment], c, all, n, &room);
    SORT(*all, *n, noted_order);
    for (size_t i = 0; i < *n; i++)
        if (!kept || (*all)[kept - 1].at.number != (*all)[i].at.number)
            (*all)[kept++] = (*all)[i];
    *n = kept;
    return res;
}

/* The words of a note: its "what", or all of an object that has none. */
static void add_words(struct text *words, const json_t *object)
{
    const char *what = json_string_value(json_object_get(object, "what"));
    _cleanup_(freep) char *all = what ? NULL : json_dumps(object, JSON_COMPACT);
    what = what ? what : all ? all : "";
    text_add(words, what, strlen(what) + 1);
}

/* Its other keys, as an object; "" where there is none, or all of them are its words. Takes @object over. */
static void add_more(struct text *words, json_t *object)
{
    bool any = json_is_string(json_object_get(object, "what")) && json_object_size(object) > 1;
    if (any)
        json_object_del(object, "what");
    _cleanup_(freep) char *all = any ? json_dumps(object, JSON_COMPACT) : NULL;
    words->failed |= any && !all;
    text_add(words, all ? all : "", (all ? strlen(all) : 0) + 1);
    json_decref(object);
}

static void fill(struct reader_change *changes, struct text *words, const json_t *list,
                 const struct reader_noted *noted, size_t n)
{
    size_t n_listed = json_array_size(list);
    for (size_t i = 0; i < n_listed; i++) {
        const json_t *o = json_array_get(list, i);
        changes[i] = (struct reader_change){ .number = i,
                                             .time_ns = object_number(o, "time_ns"),
                                             .launch = object_number(o, "launch"),
                                             .step = object_number(o, "step") };
        add_words(words, o);
        text_add(words, "", 1);
    }
    for (size_t i = 0; i < n; i++) {
        json_t *o = object_parse(noted[i].json, noted[i].at.json_bytes);
        changes[n_listed + i] = (struct reader_change){ .number = noted[i].at.number,
                                                        .time_ns = noted[i].at.time_ns,
                                                        .launch = noted[i].at.launch,
                                                        .step = noted[i].at.step };
        add_words(words, o);
        add_more(words, o);
    }
}

/* The text after this one. */
static const char *next_text(const char *text)
{
    return text + strlen(text) + 1;
}

int reader_fill_changes(struct reader *r)
{
    const json_t *list = json_object_get(r->said.manifest, "changes");
    _cleanup_(freep) struct reader_noted *noted = NULL;
    struct text words = { 0 };
    size_t n_noted = 0;
    TRY(gather(r, &noted, &n_noted));
    size_t n = json_array_size(list) + n_noted;
    struct reader_change *changes = calloc(n + 1, sizeof *changes);
    if (!changes)
        return -ENOMEM;
    fill(changes, &words, list, noted, n_noted);
    if (words.failed) {
        text_deinit(&words);
        free(changes);
        return -ENOMEM;
    }
    const char *at = words.data;
    for (size_t i = 0; i < n; i++, at = next_text(at)) {
        changes[i].what = at;
        at = next_text(at);
        changes[i].more = *at ? at : NULL;
    }
    reader_forget_changes(r);
    r->run.changes = changes;
    r->run.n_changes = n;
    r->change_words = words.data;
    return 0;
}

void reader_forget_changes(struct reader *r)
{
    free((void *)(uintptr_t)r->run.changes);
    free(r->change_words);
    r->run.changes = NULL;
    r->run.n_changes = 0;
    r->change_words = NULL;
}
