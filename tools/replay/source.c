/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/source.h"

#include "core/grow.h"
#include "read/record.h"
#include "read/requests.h"
#include "tools/common/select.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const struct tensor *source_tensor(const struct source *s, const struct source_rows *rows)
{
    return &s->tensors.all[rows->tensor];
}

const struct piece *source_piece(const struct source *s, const struct source_rows *rows)
{
    return &source_tensor(s, rows)->pieces[rows->piece];
}

/* ------------------------------------------------------------------------- the recorded order */

static int rows_order(const void *pa, const void *pb, void *arg)
{
    const struct source *s = arg;
    const struct piece *a = source_piece(s, pa), *b = source_piece(s, pb);
    if (a->record == b->record)
        return a->first_row < b->first_row ? -1 : a->first_row > b->first_row;
    struct position at = position_of(reader_record(s->reader, a->record)),
                    other = position_of(reader_record(s->reader, b->record));
    return position_order(&at, &other);
}

static bool is_wanted(const struct source *s, size_t record)
{
    const struct wanted *w = s->wanted;
    const struct reader_record *rec = reader_record(s->reader, record);
    uint64_t step = rec->step ? rec->step->entry->step : rec->at.forward;
    return (!w->by_step || range_has(&w->steps, (int64_t)step)) &&
           (!w->by_forward || range_has(&w->forwards, (int64_t)rec->at.forward));
}

/* All rows that are wanted, in the recorded order. */
static int list_rows(struct source *s, size_t *n_out)
{
    size_t n = 0, most = 0;
    for (size_t t = 0; t < s->tensors.n; t++)
        most += s->tensors.all[t].n_pieces;
    s->rows = calloc(most + 1, sizeof *s->rows);
    if (!s->rows)
        return -ENOMEM;
    for (size_t t = 0; t < s->tensors.n; t++)
        for (size_t p = 0; p < s->tensors.all[t].n_pieces; p++)
            if (is_wanted(s, s->tensors.all[t].pieces[p].record))
                s->rows[n++] = (struct source_rows){ (uint32_t)t, (uint32_t)p };
    qsort_r(s->rows, n, sizeof *s->rows, rows_order, s);
    *n_out = n;
    return 0;
}

static int list_entries(struct source *s, size_t n_rows)
{
    size_t room = 0;
    for (size_t i = 0, end; i < n_rows; i = end) {
        size_t record = source_piece(s, &s->rows[i])->record;
        for (end = i + 1; end < n_rows && source_piece(s, &s->rows[end])->record == record;)
            end++;
        if (grow((void **)&s->entries, s->n_entries, &room, sizeof *s->entries, 256))
            return -ENOMEM;
        s->entries[s->n_entries++] = (struct source_entry){ record, i, (uint32_t)(end - i) };
    }
    return 0;
}

/* ------------------------------------------------------------------------- what was said */

static bool is_request(const struct source *s, const char *id, size_t n_id)
{
    const struct selection *select = &s->wanted->select;
    return !select->request || (select->n_request == n_id && !memcmp(select->request, id, n_id));
}

static int add_event(struct source *s, size_t *room, struct source_event event)
{
    if (grow((void **)&s->events, s->n_events, room, sizeof *s->events, 64))
        return -ENOMEM;
    s->events[s->n_events++] = event;
    return 0;
}

static int list_outcomes(struct source *s, size_t *room)
{
    int r = 0;
    for (size_t i = 0; !r && i < reader_n_steps(s->reader); i++) {
        const struct reader_step *step = reader_step(s->reader, i);
        for (uint32_t k = 0; !r && step->n_outcomes && k < step->entry->n_spans; k++) {
            size_t n_id;
            const char *id = reader_span_id(step, k, &n_id);
            const struct reader_outcome *o = reader_outcome_of(step, k);
            if (o && is_request(s, id, n_id))
                r = add_event(s, room,
                              (struct source_event){
                                  { o->at.time_ns, step->entry->sequence, k }, i, SIZE_MAX });
        }
    }
    return r;
}

static int list_ends(struct source *s, size_t *room)
{
    int r = 0;
    for (size_t i = 0; !r && i < reader_n_ends(s->reader); i++) {
        const struct reader_end *e = reader_end(s->reader, i);
        /* After what was said of the rows of its steps at the same time. */
        struct moment at = { e->time_ns, UINT64_MAX, (uint32_t)i };
        if (is_request(s, e->id, e->n_id))
            r = add_event(s, room, (struct source_event){ at, e->after, i });
    }
    return r;
}

static int event_order(const void *pa, const void *pb)
{
    const struct source_event *a = pa, *b = pb;
    return moment_order(&a->at, &b->at);
}

static int list_events(struct source *s)
{
    size_t room = 0;
    int r = list_outcomes(s, &room);
    if (!r)
        r = list_ends(s, &room);
    if (!r && s->n_events)
        qsort(s->events, s->n_events, sizeof *s->events, event_order);
    return r;
}

/* ------------------------------------------------------------------------- opening */

static void forget(struct source *s)
{
    tensors_deinit(&s->tensors);
    sites_deinit(&s->sites);
    free(s->rows);
    free(s->entries);
    free(s->events);
    s->rows = NULL;
    s->entries = NULL;
    s->events = NULL;
    s->n_entries = s->n_events = 0;
    s->loaded = SIZE_MAX;
}

static int find_request(struct source *s)
{
    const struct selection *select = &s->wanted->select;
    struct requests requests = { 0 };
    if (!select->request || !reader_n_steps(s->reader))
        return 0;
    int r = requests_build(s->reader, &requests);
    s->unknown_request = !r && !requests_find(&requests, select->request, select->n_request);
    if (!r)
        requests_deinit(&requests);
    return r;
}

static int build(struct err *err, struct source *s)
{
    struct tensors_query query = { .select = &s->wanted->select };
    size_t n_rows = 0;
    if (sites_build(s->reader, &s->sites))
        return err_set_errno(err, ENOMEM, "cannot replay");
    int r = tensors_build(err, s->reader, &s->sites, &query, &s->tensors);
    if (r)
        return r;
    r = list_rows(s, &n_rows);
    r = r ? r : list_entries(s, n_rows);
    r = r ? r : list_events(s);
    source_seek(s);
    return r ? err_set_errno(err, -r, "cannot replay") : 0;
}

int source_open(struct err *err, const char *path, const struct wanted *wanted, struct source *out)
{
    *out = (struct source){ .wanted = wanted, .step = DMI_NO_STEP, .loaded = SIZE_MAX };
    int r = reader_open_index(err, path, &out->reader);
    if (!r && wanted->by_rank && !reader_only_ranks(out->reader, wanted->ranks))
        r = SOURCE_E_RANK;
    if (!r)
        r = select_records(err, out->reader, &wanted->select);
    if (!r)
        r = build(err, out);
    if (!r && find_request(out))
        r = err_set_errno(err, ENOMEM, "cannot replay");
    if (r)
        source_deinit(out);
    return r;
}

void source_deinit(struct source *s)
{
    if (!s->wanted)
        return;
    forget(s);
    reader_close(s->reader);
    free(s->noted);
    free(s->raw);
    free(s->gathered);
    free(s->spans);
    *s = (struct source){ 0 };
}

/* Positions that no step says follow from all rows of the run, and so do those that a request has so far. */
static int leave_what_was_sent(struct err *err, struct source *s)
{
    size_t n = reader_n_records(s->reader);
    struct reader_query query = { .all_steps = true };
    if (s->at < s->n_entries || !n || !s->tensors.by_request)
        return 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t place = reader_record(s->reader, i)->place;
        query.first_chunk = place >= query.first_chunk ? place + 1 : query.first_chunk;
    }
    s->n_rejected += s->tensors.n_rejected;
    s->n_superseded += s->tensors.n_superseded;
    s->n_nobody += s->tensors.n_nobody;
    forget(s);
    return reader_select(err, s->reader, &query);
}

int source_refresh(struct err *err, struct source *s)
{
    int r = leave_what_was_sent(err, s);
    forget(s);
    if (!r)
        r = reader_refresh(err, s->reader);
    return r ? r : build(err, s);
}

bool source_grows(const struct source *s)
{
    return reader_run(s->reader)->state == READER_RUNNING;
}

/* ------------------------------------------------------------------------- where it is */

void source_seek(struct source *s)
{
    size_t low = 0, high = s->n_entries;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        struct position at = position_of(reader_record(s->reader, s->entries[mid].record));
        if (position_order(&at, &s->sent) <= 0)
            low = mid + 1;
        else
            high = mid;
    }
    s->at = low;
    s->event_at = 0;
    while (s->event_at < s->n_events && moment_order(&s->events[s->event_at].at, &s->said) <= 0)
        s->event_at++;
}

const struct reader_record *source_record(const struct source *s)
{
    return reader_record(s->reader, s->entries[s->at].record);
}

bool source_next_is_event(const struct source *s)
{
    if (s->event_at == s->n_events || s->at == s->n_entries)
        return s->event_at < s->n_events;
    return s->events[s->event_at].at.time_ns < source_record(s)->at.time_ns;
}

bool source_next_time(const struct source *s, uint64_t *time_ns)
{
    if (s->event_at == s->n_events && s->at == s->n_entries)
        return false;
    *time_ns =
        source_next_is_event(s) ? s->events[s->event_at].at.time_ns : source_record(s)->at.time_ns;
    return true;
}
