/* SPDX-License-Identifier: Apache-2.0 */
#include "read/edited.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/err.h"
#include "core/grow.h"
#include "core/sorted.h"
#include "policy/tree.h"
#include "storage/object.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* An edit in force, as a note of a change has it. */
struct version_use {
    const json_t *entry;
    const struct edits *of; /* NULL: its text cannot be read */
    struct edit_use use;
    struct edit_coefficient times;
    bool live, off, idle; /* the last: it only saves rows */
};

struct edited_version {
    struct version_use *uses;
    size_t n;
};

/* ------------------------------------------------------------------------- versions */

static void read_use(struct edited_all *all, const json_t *entry, struct version_use *out)
{
    struct err err = { 0 };
    const char *hash = edit_text(entry, "hash");
    const json_t *times = json_object_get(entry, "times");
    json_int_t number = json_integer_value(json_object_get(entry, "number"));
    *out = (struct version_use){ .entry = entry,
                                 .off = edit_is_off(entry),
                                 .live = json_is_true(json_object_get(entry, "live")) };
    if (!all->packs.spec)
        return;
    out->of = edit_packs_find(&err, &all->packs, hash);
    if (!out->of || number < 0 || number >= out->of->n) {
        out->of = NULL;
        return;
    }
    out->use = (struct edit_use){ .of = out->of, .edit = &out->of->list[number] };
    out->idle = edit_saves(out->use.edit) != NULL;
    if (json_is_number(times)) {
        out->times.number = (float)json_number_value(times);
        out->use.times = &out->times;
    }
}

static int read_versions(struct edited_all *all)
{
    struct err err = { 0 };
    const struct edit_history *h = &all->history;
    all->versions = calloc(h->n + 1, sizeof *all->versions);
    if (!all->versions)
        return -ENOMEM;
    edit_packs_open(&err, reader_run(all->reader), &all->packs);
    for (size_t v = 0; v < h->n; v++) {
        struct edited_version *version = &all->versions[v];
        size_t n = json_array_size(h->changes[v].in_force);
        version->uses = calloc(n + 1, sizeof *version->uses);
        if (!version->uses)
            return -ENOMEM;
        for (version->n = 0; version->n < n; version->n++)
            read_use(all, json_array_get(h->changes[v].in_force, version->n),
                     &version->uses[version->n]);
    }
    return 0;
}

/* ------------------------------------------------------------------------- entries */

static size_t slot_of(const struct edited_all *all, size_t request)
{
    return request == EDITED_NOBODY ? all->requests->n : request;
}

/* The request's entry of an edit; a new one where there is none. Return: NULL: no memory. */
static struct edited *entry_of(struct edited_all *all, size_t request, const struct version_use *u)
{
    uint64_t uid = (uint64_t)json_integer_value(json_object_get(u->entry, "uid"));
    size_t *last = &all->last[slot_of(all, request)];
    for (size_t at = *last; at; at = all->all[at - 1].order)
        if (all->all[at - 1].uid == uid && all->all[at - 1].name)
            return &all->all[at - 1];
    if (GROW(all->all, all->n, all->room))
        return NULL;
    all->all[all->n] = (struct edited){ .request = request,
                                        .order = *last,
                                        .name = edit_text(u->entry, "name"),
                                        .site = edit_text(u->entry, "site"),
                                        .uid = uid,
                                        .use = u->of ? &u->use : NULL };
    *last = ++all->n;
    return &all->all[*last - 1];
}

static bool same_tags(const struct edited_part *a, const struct edited_part *b)
{
    return a->n_tags == b->n_tags && !(a->n_tags && memcmp(a->tags, b->tags, a->n_tags));
}

static int add_part(struct edited *e, const struct edited_part *part)
{
    struct edited_part *last = e->n_parts ? &e->parts[e->n_parts - 1] : NULL;
    if (last && last->positions.end == part->positions.first && last->use == part->use &&
        last->n_prompt == part->n_prompt && same_tags(last, part)) {
        last->positions.end = part->positions.end;
        return 0;
    }
    if (last && last->positions.first <= part->positions.first &&
        last->positions.end >= part->positions.end)
        return 0; /* of another version that the request may have begun with */
    return PUSH(e->parts, e->n_parts, e->room, 1, *part);
}

/* ------------------------------------------------------------------------- steps */

/* A span of a request, and what is parsed of it. */
struct edited_span {
    size_t step, request;
    uint32_t number;
    const struct reader_step *of;
    struct dmi_span span;    /* as edits see it */
    char id[DMI_MAX_ID + 1]; /* as the engine said it */
    struct edited_part part; /* but for its positions and its edit */
    struct tree tags;
    bool parsed;
};

static void span_begin(struct edited_span *at, const struct reader_step *step)
{
    const struct dmi_span_entry *e = &step->spans[at->number];
    const char *base = (const char *)step->entry;
    at->of = step;
    at->parsed = false;
    at->span = (struct dmi_span){ .first_position = e->first_position,
                                  .n_tokens = e->n_tokens,
                                  .phase = e->phase,
                                  .n_prompt = e->n_prompt };
    size_t n = e->id_bytes < DMI_MAX_ID ? e->id_bytes : DMI_MAX_ID;
    memcpy(at->id, base + e->id_offset, n);
    at->id[n] = 0;
    at->part = (struct edited_part){ .tags = base + e->tags_offset,
                                     .n_tags = e->tags_bytes,
                                     .n_prompt = e->n_prompt };
}

static const struct tree *tags_of(struct edited_span *at, const struct edit_use *use)
{
    struct tree_error error;
    if (!at->parsed && at->part.n_tags && edit_asks_tags(use)) {
        at->parsed = true;
        if (tree_parse(at->part.tags, at->part.n_tags, &at->tags, &error))
            at->tags.root = NULL;
    }
    return &at->tags;
}

/* Does the span hold the last row that its request has in the step? */
static bool is_last(const struct edited_all *all, const struct edited_span *at)
{
    const uint32_t *owners = &all->requests->of_span[all->requests->first_span[at->step]];
    return !ANY(i, at->of->entry->n_spans,
                owners[i] == at->request &&
                    at->of->spans[i].first_position > at->span.first_position);
}

/* Has the request what the coefficients are taken from? */
static bool has_times(const struct version_use *u, const struct tree *tags)
{
    float number;
    return ALL(k, u->use.edit->n_ops, edit_times_at(&u->use, k, tags, 0, &number));
}

/* The positions of the span that the edit writes. */
static struct range wanted_of(const struct edited_all *all, const struct version_use *u,
                              struct edited_span *at)
{
    struct range r = { at->span.first_position, at->span.first_position + at->span.n_tokens };
    if (!u->of)
        return r;
    const struct select *who = &u->use.edit->who;
    const struct tree *tags = tags_of(at, &u->use);
    if (!select_request_of(who, at->id, tags->root) || !has_times(u, tags))
        return (struct range){ 0, 0 };
    select_positions(who, &at->span, who->tokens == SELECT_LAST && is_last(all, at), &r.first,
                     &r.end);
    return r;
}

/* What the edits of a version do in the span: those that follow changes, or those that do not. */
static int take_version(struct edited_all *all, size_t version, struct edited_span *at, bool live,
                        bool settled)
{
    const struct edited_version *v = &all->versions[version - 1];
    int r = 0;
    for (size_t i = 0; !r && version && i < v->n; i++) {
        const struct version_use *u = &v->uses[i];
        if (u->off || u->idle || !(u->live ? live : settled))
            continue;
        at->part.positions = wanted_of(all, u, at);
        if (at->part.positions.first >= at->part.positions.end)
            continue;
        at->part.use = u->of ? &u->use : NULL;
        struct edited *e = entry_of(all, at->request, u);
        r = e ? add_part(e, &at->part) : -ENOMEM;
    }
    return r;
}

/* With which versions a request began: that of its first step, or any up to the first step that is left of it. */
struct begun {
    bool seen;
    size_t first, last;
};

/* As the library does it: a request keeps what was in force at its first step, and live edits are those of the step. */
static int take_span(struct edited_all *all, struct begun *requests, struct edited_span *at)
{
    size_t now = edit_history_at(&all->history, at->of->entry->sequence);
    struct begun *own = &requests[at->request];
    bool whole = at->span.first_position <= at->of->spans[at->number].n_cached;
    if (!own->seen)
        *own = (struct begun){ true, whole ? now : 0, now };
    bool live = own->last == now; /* in the order in which they are done */
    int r = 0;
    for (size_t v = own->first; !r && v <= own->last; v++)
        r = take_version(all, v, at, live && v == now, true);
    return r || live ? r : take_version(all, now, at, true, false);
}

static int take_steps(struct edited_all *all)
{
    const struct requests *q = all->requests;
    _cleanup_(freep) struct begun *begun = calloc(q->n + 1, sizeof *begun);
    struct edited_span at = { 0 };
    int r = begun ? 0 : -ENOMEM;
    for (at.step = 0; at.step < reader_n_steps(all->reader); at.step++) {
        const struct reader_step *step = reader_step(all->reader, at.step);
        for (at.number = 0; !r && at.number < step->entry->n_spans; at.number++) {
            uint32_t request = q->of_span[q->first_span[at.step] + at.number];
            if (request == UINT32_MAX)
                continue;
            at.request = request;
            span_begin(&at, step);
            r = take_span(all, begun, &at);
            tree_deinit(&at.tags);
            at.tags = (struct tree){ 0 };
        }
    }
    return r;
}

/* Rows of no request have the edits that want all of them. */
static int take_nobody(struct edited_all *all)
{
    int r = 0;
    for (size_t v = 0; v < all->history.n; v++)
        for (size_t i = 0; !r && i < all->versions[v].n; i++) {
            const struct version_use *u = &all->versions[v].uses[i];
            bool all_rows = !u->of || (select_is_default(&u->use.edit->who) &&
                                       !edit_asks_tags(&u->use) && !u->idle);
            if (u->off || !all_rows)
                continue;
            struct edited *e = entry_of(all, EDITED_NOBODY, u);
            struct edited_part part = { .positions = { 0, INT64_MAX },
                                        .use = u->of ? &u->use : NULL };
            r = !e ? -ENOMEM : e->n_parts ? 0 : add_part(e, &part);
        }
    return r;
}

/* ------------------------------------------------------------------------- what became of rows */

/* Does another request have the same id, after this one's end? Accounts do not tell them apart. */
static bool is_used_again(const struct requests *requests, const char *id, size_t n)
{
    char next[DMI_MAX_ID + 3];
    if (n > DMI_MAX_ID)
        return true;
    memcpy(next, id, n);
    memcpy(next + n, "~2", 2);
    return requests_find(requests, next, n + 2) != NULL;
}

/* @uid 0: any of the name. */
static void count(struct edited_all *all, const char *name, uint64_t uid, const char *id, size_t n,
                  uint64_t due, uint64_t written)
{
    const struct request *q = requests_find(all->requests, id, n);
    size_t at = q ? all->last[q - all->requests->all] : 0;
    if (q && is_used_again(all->requests, id, n))
        return;
    for (; at; at = all->all[at - 1].order) {
        struct edited *e = &all->all[at - 1];
        if (strcmp(e->name, name) || (uid && e->uid != uid))
            continue;
        e->counted = true;
        e->due += due;
        e->written += written;
    }
}

/* A note of a request of which a row was missed. */
static void count_note(struct edited_all *all, const struct reader_change *change)
{
    json_t *note = change->more ? object_parse(change->more, strlen(change->more)) : NULL;
    const json_t *id = json_object_get(note, "request");
    if (json_object_get(note, "missed") && json_is_string(id))
        count(all, edit_text(note, "edit"), 0, json_string_value(id), json_string_length(id),
              (uint64_t)json_integer_value(json_object_get(note, "due")),
              (uint64_t)json_integer_value(json_object_get(note, "written")));
    json_decref(note);
}

/* Requests that had ended are in totals, and a note says of which of them a row was missed. */
static void count_rows(struct edited_all *all)
{
    const struct reader_run *run = reader_run(all->reader);
    for (size_t i = 0; all->n && i < run->edits.n; i++) {
        const struct dmi_edit_account *a = run->edits.accounts[i].at;
        if (a->state == DMI_EDIT_ACCOUNT_OPEN)
            count(all, a->edit, a->uid, a->request, a->n_request, a->due, a->written);
    }
    for (size_t i = 0; all->n && i < run->n_changes; i++)
        count_note(all, &run->changes[i]);
}

/* ------------------------------------------------------------------------- all of it */

static void entry_deinit(struct edited *e)
{
    free(e->parts);
    text_deinit(&e->layers);
    text_deinit(&e->text);
}

/* What accounts say of an edit. */
struct uid_due {
    uint64_t uid, due;
};

static int by_uid(const void *pa, const void *pb)
{
    const struct uid_due *a = pa, *b = pb;
    ORDER(a, b, uid);
    ORDER(b, a, due);
    return 0;
}

/* One for each account, sorted: an edit's highest first. Return: NULL: no memory. */
static struct uid_due *sort_accounts(const struct reader_run *run, size_t *n)
{
    struct uid_due *all = calloc(run->edits.n + 1, sizeof *all);
    *n = 0;
    for (size_t i = 0; all && i < run->edits.n; i++) {
        const struct dmi_edit_account *a = run->edits.accounts[i].at;
        if (a->state != DMI_EDIT_ACCOUNT_FREE)
            all[(*n)++] = (struct uid_due){ a->uid, a->due };
    }
    SORT(all, *n, by_uid);
    return all;
}

/* Was no row due of an edit that has accounts? A request that has ended has none of its own: the edit may have been for no layer, or no pass, of its. */
static bool had_nothing_to_do(const struct uid_due *dues, size_t n, uint64_t uid)
{
    size_t i;
    SEARCH(i, n, dues[i].uid < uid);
    return i < n && dues[i].uid == uid && !dues[i].due;
}

/* Without those that wrote nothing. Of joined runs only some notes may be there. */
static int drop_unwritten(struct edited_all *all)
{
    size_t n = 0, n_dues = 0;
    const struct reader_run *run = reader_run(all->reader);
    _cleanup_(freep) struct uid_due *dues = sort_accounts(run, &n_dues);
    if (!dues)
        return -ENOMEM;
    for (size_t i = 0; i < all->n; i++) {
        struct edited *e = &all->all[i];
        e->order = i;
        if (run->n_runs == 1 &&
            ((e->counted && e->due && !e->written) || had_nothing_to_do(dues, n_dues, e->uid)))
            entry_deinit(e);
        else
            all->all[n++] = *e;
    }
    all->n = n;
    return 0;
}

static int by_request(const void *pa, const void *pb)
{
    const struct edited *a = pa, *b = pb;
    ORDER(a, b, request);
    return a->order < b->order ? -1 : a->order > b->order;
}

static int arrange(struct edited_all *all)
{
    TRY(drop_unwritten(all));
    SORT(all->all, all->n, by_request);
    for (size_t i = 0, slot = 0; slot <= all->requests->n + 1; slot++) {
        all->first[slot] = i;
        while (i < all->n && slot_of(all, all->all[i].request) == slot)
            i++;
    }
    return 0;
}

/* What the run does not say may be in each of its requests. */
static int add_unknown(struct edited_all *all)
{
    for (size_t slot = 0; slot <= all->requests->n; slot++) {
        if (PUSH(all->all, all->n, all->room, 64,
                 (struct edited){ .request = slot == all->requests->n ? EDITED_NOBODY : slot }))
            return -ENOMEM;
    }
    return 0;
}

int edited_build(const struct reader *reader, const struct requests *requests,
                 struct edited_all *out)
{
    *out = (struct edited_all){ .reader = reader, .requests = requests };
    int r = edit_history_build(reader, &out->history);
    if (r || !out->history.any)
        return r;
    out->last = calloc(requests->n + 1, sizeof *out->last);
    out->first = calloc(requests->n + 2, sizeof *out->first);
    r = out->last && out->first ? read_versions(out) : -ENOMEM;
    if (!r)
        r = take_steps(out);
    if (!r)
        r = take_nobody(out);
    if (!r)
        count_rows(out);
    if (!r && out->history.lacks)
        r = add_unknown(out);
    if (!r)
        r = arrange(out);
    if (r)
        edited_deinit(out);
    return r;
}

void edited_deinit(struct edited_all *all)
{
    for (size_t i = 0; i < all->n; i++)
        entry_deinit(&all->all[i]);
    for (size_t v = 0; all->versions && v < all->history.n; v++)
        free(all->versions[v].uses);
    free(all->all);
    free(all->versions);
    free(all->last);
    free(all->first);
    edit_packs_close(&all->packs);
    edit_history_deinit(&all->history);
    *all = (struct edited_all){ 0 };
}

size_t edited_of(const struct edited_all *all, size_t request, struct edited **out)
{
    size_t slot = all->n ? slot_of(all, request) : 0;
    *out = all->n ? &all->all[all->first[slot]] : NULL;
    return all->n ? all->first[slot + 1] - all->first[slot] : 0;
}
