/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/source.h"

#include "tools/common/select.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MOST_SURVEYS 100 /* of a run whose segments are deleted as fast as they are read */

static int changed(struct err *err, const struct replay_source *s)
{
    return err_set(err, -EIO, "%s changed while it was read", reader_run(s->reader)->path);
}

/* ------------------------------------------------------------------------- all of the run */

static void forget(struct replay_source *s)
{
    rivals_deinit(&s->rivals);
    sites_deinit(&s->sites);
    attribution_deinit(&s->attribution);
    seen_deinit(&s->seen);
    source_events_deinit(&s->events);
    s->n_entries = 0;
    s->loaded = SIZE_MAX;
}

/* The first time that records are looked at. */
static int look(struct replay_source *s)
{
    int r = attribution_count(&s->attribution);
    for (size_t i = 0; !r && i < s->n_order; i++) {
        const struct reader_record *rec = reader_record(s->reader, s->order[i]);
        s->end_chunk = rec->place >= s->end_chunk ? rec->place + 1 : s->end_chunk;
        r = seen_add(&s->seen, &s->sites, &rec->at);
        if (!r && s->attribution.by_request)
            r = rivals_look(&s->rivals, rec);
    }
    return r;
}

static int gather(struct replay_source *s)
{
    int r = 0;
    for (size_t i = 0; !r && i < s->n_order; i++) {
        const struct dmi_record *at = &reader_record(s->reader, s->order[i])->at;
        if (selection_wants_record(&s->wanted->select, reader_site(s->reader, at->site), at->layer))
            r = rivals_gather(&s->rivals, &s->attribution, s->order[i]);
    }
    return r;
}

static int count(struct replay_source *s)
{
    int r = source_list(s, &s->left_out);
    s->n_all += s->n_entries;
    return r;
}

/* All records once, window by window. Return: 0; READER_E_AGAIN; what @visit returns, which is -errno; @err is set. */
static int visit_all(struct err *err, struct replay_source *s,
                     int (*visit)(struct replay_source *s))
{
    int r = 0;
    s->next_chunk = 0;
    while (!r && s->next_chunk != UINT64_MAX) {
        r = source_window(err, s, s->next_chunk);
        if (!r && s->n_gone) /* released meanwhile: what is left is looked at again */
            r = (r = reader_refresh(err, s->reader)) ? r : READER_E_AGAIN;
        s->n_gone = 0;
        if (!r && (r = visit(s)))
            err_set_errno(err, -r, "cannot replay");
    }
    return r;
}

/* All steps once: requests, and what was said. Return: 0; READER_E_AGAIN; -errno with a sentence in @err. */
static int survey_steps(struct err *err, struct replay_source *s)
{
    struct reader_step_place place = { 0 };
    struct reader_steps steps = { 0 };
    int r = 0;
    while (!r && !place.done) {
        struct reader_step_place from = place;
        r = reader_next_steps(err, s->reader, &place, &steps);
        if (!r && (rivals_take(&s->rivals, &steps) || source_events_add(&s->events, &from, &steps)))
            r = err_set_errno(err, ENOMEM, "cannot replay");
    }
    reader_free_steps(&steps);
    return r;
}

/* Which rows of the records count, and how many records are wanted. Return: as visit_all(). */
static int survey_once(struct err *err, struct replay_source *s)
{
    forget(s);
    s->left_out = (struct source_left_out){ 0 };
    s->n_all = s->end_chunk = 0;
    s->attribution.reader = s->reader;
    s->events.select = &s->wanted->select;
    rivals_begin(&s->rivals, s->reader, &s->sites, &s->wanted->select);
    if (sites_build(s->reader, &s->sites))
        return err_set_errno(err, ENOMEM, "cannot replay");
    int r = survey_steps(err, s);
    s->attribution.by_request = attribution_is_by_request(s->reader);
    if (!r)
        r = visit_all(err, s, look);
    if (r)
        return r;
    attribution_place(&s->attribution);
    if (rivals_are_needed(&s->rivals)) {
        r = visit_all(err, s, gather);
        r = r > 0 ? r : rivals_settle(err, &s->rivals, r);
        s->left_out.n_superseded = s->rivals.tensors.n_superseded;
    }
    return r ? r : visit_all(err, s, count);
}

/* Names that the run has not; and positions from an end that it does not say. */
static int check_wanted(struct err *err, struct replay_source *s)
{
    const struct selection *select = &s->wanted->select;
    for (size_t i = 0; i < select->n_tokens && !s->attribution.by_request; i++)
        if (select->tokens[i].kind == TOKENS_RANGE && slice_is_from_end(select->tokens[i].slice))
            return err_set(err, -EINVAL,
                           "--tokens: the run does not say whose its rows are, so no position "
                           "counts from the end");
    s->lacks = (struct err){ 0 };
    const struct missing_from run = { s->reader, &s->sites, &s->rivals.requests, &s->seen };
    int r = missing_check(&s->lacks, &run, select);
    return r == -ENOENT ? 0 : r;
}

static int build(struct err *err, struct replay_source *s)
{
    int r = READER_E_AGAIN;
    for (int i = 0; r == READER_E_AGAIN && i < MOST_SURVEYS; i++)
        r = survey_once(err, s);
    if (r == READER_E_AGAIN)
        return changed(err, s);
    if (!r)
        r = check_wanted(err, s);
    return r ? r : source_seek(err, s);
}

/* ------------------------------------------------------------------------- opening */

int source_open(struct err *err, const char *path, const struct source_wanted *wanted,
                struct replay_source *out)
{
    *out = (struct replay_source){ .wanted = wanted, .step = DMI_NO_STEP, .loaded = SIZE_MAX };
    int r = reader_open_index(err, path, &out->reader);
    if (!r && wanted->by_rank && missing_ranks(err, out->reader, wanted->ranks))
        r = SOURCE_E_RANK;
    if (!r)
        r = select_records(err, out->reader, &wanted->select, true);
    if (!r)
        r = build(err, out);
    if (r)
        source_deinit(out);
    return r;
}

void source_deinit(struct replay_source *s)
{
    if (!s->wanted)
        return;
    forget(s);
    reader_close(s->reader);
    free(s->order);
    free(s->rows);
    free(s->entries);
    free(s->noted);
    free(s->raw);
    free(s->gathered);
    free(s->spans);
    *s = (struct replay_source){ 0 };
}

/* Positions that no step says follow from all rows of the run, and so do those that a request has so far. */
static int leave_what_was_sent(struct err *err, struct replay_source *s)
{
    struct reader_query query = { .first_chunk = s->end_chunk,
                                  .all_steps = true,
                                  .by_window = true };
    if (s->at < s->n_entries || !s->end_chunk || !s->attribution.by_request)
        return 0;
    s->left_out_before.n_rejected += s->left_out.n_rejected;
    s->left_out_before.n_superseded += s->left_out.n_superseded;
    s->left_out_before.n_nobody += s->left_out.n_nobody;
    forget(s);
    return reader_select(err, s->reader, &query);
}

int source_refresh(struct err *err, struct replay_source *s)
{
    int r = leave_what_was_sent(err, s);
    forget(s);
    if (!r)
        r = reader_refresh(err, s->reader);
    return r ? r : build(err, s);
}

bool source_grows(const struct replay_source *s)
{
    return reader_run(s->reader)->state == READER_RUNNING;
}

/* ------------------------------------------------------------------------- where it is */

/* The next window with records that are wanted, if there is one. */
static int fill_window(struct err *err, struct replay_source *s)
{
    struct source_left_out counted = { 0 };
    int r = 0;
    while (!r && s->at == s->n_entries && s->next_chunk != UINT64_MAX) {
        r = source_window(err, s, s->next_chunk);
        if (!r && source_list(s, &counted))
            r = err_set_errno(err, ENOMEM, "cannot replay");
    }
    return r > 0 ? changed(err, s) : r;
}

int source_seek(struct err *err, struct replay_source *s)
{
    int r = source_events_seek(err, &s->events, s->reader, &s->said);
    s->n_past = 0;
    s->next_chunk = s->sent.any ? s->sent.chunk : 0;
    s->n_entries = s->at = 0;
    r = r > 0 ? changed(err, s) : r ? r : fill_window(err, s);
    while (!r && s->sent.any && s->at < s->n_entries) {
        struct position at = position_of(source_record(s));
        if (position_order(&at, &s->sent) > 0)
            break;
        r = source_advance(err, s);
    }
    return r;
}

int source_advance(struct err *err, struct replay_source *s)
{
    s->at++;
    s->n_past++;
    return fill_window(err, s);
}

int source_pass(struct err *err, struct replay_source *s)
{
    s->said = source_events_next(&s->events, NULL)->at;
    int r = source_events_pass(err, &s->events, s->reader, &s->said);
    return r > 0 ? changed(err, s) : r;
}

const struct source_rows *source_rows(const struct replay_source *s, size_t *n)
{
    *n = s->entries[s->at].n;
    return s->rows + s->entries[s->at].first;
}

const struct reader_record *source_record(const struct replay_source *s)
{
    return reader_record(s->reader, s->entries[s->at].record);
}

bool source_next_is_event(const struct replay_source *s)
{
    const struct source_event *event = source_events_next(&s->events, NULL);
    return event && (s->at == s->n_entries || event->at.time_ns < source_record(s)->at.time_ns);
}

bool source_next_time(const struct replay_source *s, uint64_t *time_ns)
{
    const struct source_event *event = source_events_next(&s->events, NULL);
    if (!event && s->at == s->n_entries)
        return false;
    *time_ns = source_next_is_event(s) ? event->at.time_ns : source_record(s)->at.time_ns;
    return true;
}
