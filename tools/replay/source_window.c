/* SPDX-License-Identifier: Apache-2.0 */
/* Records of some chunks, and their rows by owner. */
#include "tools/replay/source.h"

#include "core/grow.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW_RECORDS 4096u

/* ------------------------------------------------------------------------- the recorded order */

static int record_order(const void *pa, const void *pb, void *arg)
{
    const struct replay_source *s = arg;
    struct position a = position_of(reader_record(s->reader, *(const size_t *)pa)),
                    b = position_of(reader_record(s->reader, *(const size_t *)pb));
    return position_order(&a, &b);
}

static int put_in_order(struct replay_source *s)
{
    size_t n = reader_n_records(s->reader);
    for (s->n_order = 0; s->n_order < n; s->n_order++) {
        if (grow((void **)&s->order, s->n_order, &s->order_room, sizeof *s->order, WINDOW_RECORDS))
            return -ENOMEM;
        s->order[s->n_order] = s->n_order;
    }
    if (n)
        qsort_r(s->order, n, sizeof *s->order, record_order, s);
    return 0;
}

int source_window(struct err *err, struct replay_source *s, uint64_t first)
{
    uint64_t n_gone;
    s->n_entries = s->n_listed = s->at = 0;
    s->loaded = SIZE_MAX;
    int r = reader_window(err, s->reader, first, WINDOW_RECORDS, &s->next_chunk, &n_gone);
    s->n_gone += r ? 0 : n_gone;
    if (!r && put_in_order(s))
        r = err_set_errno(err, ENOMEM, "cannot replay");
    return r;
}

/* ------------------------------------------------------------------------- rows of a record */

struct window_listing {
    struct replay_source *source;
    struct source_left_out *left_out;
    const struct reader_record *record;
    bool has_rivals;
};

static int add_rows(struct replay_source *s, const char *request, size_t n_request,
                    const struct stretch *stretch)
{
    return PUSH(s->rows, s->n_listed, s->rows_room, 1024,
                (struct source_rows){ request, n_request, *stretch });
}

/* Whether its tensor is among those that are wanted by name. */
static bool is_named(const struct replay_source *s, const struct part *part,
                     const struct reader_record *rec)
{
    return !s->wanted->select.sites.n ||
           tensors_find(&s->rivals.tensors, part->request, part->n_request,
                        s->sites.first[rec->at.site], rec->at.layer);
}

static int add_part(void *ctx, const struct part *part)
{
    struct window_listing *l = ctx;
    struct replay_source *s = l->source;
    const struct selection *select = &s->wanted->select;
    if (!selection_wants_request(select, part->request, part->n_request))
        return 0;
    l->left_out->n_rejected += part->rejected ? part->n_rows : 0;
    if (part->rejected && !select->rejected)
        return 0;
    if (rivals_has(&s->rivals, l->record, part->request, part->n_request)) {
        l->has_rivals = true;
        return 0;
    }
    if (!is_named(s, part, l->record))
        return 0;
    const struct stretch stretch = { part->record, part->first_row, part->n_rows, part->position,
                                     part->rejected ? STRETCH_REJECTED : 0 };
    if (!select->n_tokens)
        return add_rows(s, part->request, part->n_request, &stretch);
    struct ranges ranges =
        selection_ranges(select, &s->rivals.requests, part->request, part->n_request, 0);
    int r = 0;
    for (size_t i = 0; !r && i < ranges.n; i++) {
        struct stretch some = stretch;
        if (stretch_cut(&some, &ranges.all[i]))
            r = add_rows(s, part->request, part->n_request, &some);
    }
    return r;
}

/* Those that count although others have their positions. */
static int add_rivals(struct replay_source *s, const struct reader_record *rec)
{
    const struct rivals_rows *rows = NULL;
    size_t n = rivals_of(&s->rivals, rec, &rows);
    int r = 0;
    for (size_t i = 0; !r && i < n; i++) {
        const struct tensor *t = &s->rivals.tensors.all[rows[i].tensor];
        r = add_rows(s, t->request, t->n_request, &t->stretches[rows[i].stretch]);
    }
    return r;
}

/* Rows that several requests claim come in the order of their tensors. */
static int rows_order(const void *pa, const void *pb)
{
    const struct source_rows *a = pa, *b = pb;
    if (a->stretch.first_row != b->stretch.first_row)
        return a->stretch.first_row < b->stretch.first_row ? -1 : 1;
    size_t n = a->n_request < b->n_request ? a->n_request : b->n_request;
    int c = n ? memcmp(a->request, b->request, n) : 0;
    if (c || a->n_request != b->n_request)
        return c ? c : a->n_request < b->n_request ? -1 : 1;
    return a->stretch.position < b->stretch.position ? -1
                                                     : a->stretch.position > b->stretch.position;
}

static bool is_wanted(const struct replay_source *s, const struct reader_record *rec)
{
    const struct source_wanted *w = s->wanted;
    uint64_t step = rec->step ? rec->step->entry->step : rec->at.forward;
    return slices_have(&w->steps, (int64_t)step) &&
           slices_have(&w->forwards, (int64_t)rec->at.forward);
}

static int list_record(struct window_listing *l, size_t index)
{
    struct replay_source *s = l->source;
    const struct reader_record *rec = reader_record(s->reader, index);
    size_t first = s->n_listed;
    if (!selection_wants_record(&s->wanted->select, reader_site(s->reader, rec->at.site),
                                rec->at.layer))
        return 0;
    l->record = rec;
    l->has_rivals = false;
    int r = attribution_record(&s->attribution, index);
    if (!r && l->has_rivals)
        r = add_rivals(s, rec);
    if (!is_wanted(s, rec))
        s->n_listed = first;
    if (r || s->n_listed == first)
        return r;
    if (s->n_listed > first + 1)
        qsort(s->rows + first, s->n_listed - first, sizeof *s->rows, rows_order);
    return PUSH(s->entries, s->n_entries, s->entries_room, 256,
                (struct source_entry){ index, first, (uint32_t)(s->n_listed - first) });
}

int source_list(struct replay_source *s, struct source_left_out *left_out)
{
    struct window_listing l = { .source = s, .left_out = left_out };
    uint64_t n_before = s->attribution.n_nobody;
    int r = 0;
    s->attribution.add = add_part;
    s->attribution.ctx = &l;
    for (size_t i = 0; !r && i < s->n_order; i++)
        r = list_record(&l, s->order[i]);
    left_out->n_nobody += s->attribution.n_nobody - n_before;
    return r;
}
