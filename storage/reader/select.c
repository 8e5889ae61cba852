/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The records that a query asks for and the steps that they name. The index says which chunks hold them; only
 * those are read. A footer that contradicts a chunk is not believed: its segment is walked, and the selection
 * begins again.
 */
#include "core/cleanup.h"
#include "core/err.h"
#include "storage/reader/reader_steps.h"
#include "storage/record_fields.h"
#include "storage/rows.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* ------------------------------------------------------------------------- what is wanted */

static bool id_is(const struct reader_query *q, const char *id, size_t n)
{
    return n == q->n_request && !memcmp(id, q->request, n);
}

static bool positions_meet(const struct reader_query *q, int64_t first, uint32_t n)
{
    int64_t end;
    if (q->end_position <= q->first_position)
        return true;
    return !__builtin_add_overflow(first, (int64_t)n, &end) && first < q->end_position &&
           end > q->first_position;
}

static int want_step(struct reader_wanted *w, uint64_t sequence)
{
    return PUSH(w->steps, w->n_steps, w->steps_room, 64, sequence);
}

static int want_repeated(const struct reader_chunk *c, struct reader_wanted *w)
{
    for (size_t i = 0; i < c->n_held; i++)
        for (uint32_t k = 0; k < c->steps[i].entry->n_spans; k++) {
            size_t n;
            const char *id = reader_span_id(&c->steps[i], k, &n);
            const struct dmi_span_entry *span = &c->steps[i].spans[k];
            if (id_is(w->query, id, n) &&
                positions_meet(w->query, span->first_position, span->n_tokens) &&
                want_step(w, c->steps[i].entry->sequence))
                return -ENOMEM;
        }
    return 0;
}

/* The index has no spans of repeated steps. What is wrong with such a chunk is named when it is read for its steps. */
static int want_all_repeated(struct reader *r, struct reader_wanted *w)
{
    struct reader_cursor at = { 0 };
    struct reader_chunk *c;
    int res;
    while (!(res = reader_next_listed(r, DMI_CHUNK_STEPS, &at, &c)) && c) {
        const char *wrong = NULL;
        if (!chunk_type_repeats(c->type))
            continue;
        res = reader_load_chunk(r, &r->index.segments[at.segment], c, &wrong);
        if (!res)
            res = want_repeated(c, w);
        if (res && res != -EBADMSG)
            return res;
    }
    return res;
}

/* A footer that could be read and cannot any more. Return: -EAGAIN, -errno. */
static int walk_instead(struct reader *r, uint32_t segment)
{
    int res = reader_walk_anew(r, segment);
    return res ? res : -EAGAIN;
}

/* Whether the segment was deleted meanwhile: then it is passed over, and its records that were not given are counted. */
static bool is_gone(struct reader *r, uint32_t segment, uint64_t *n_gone)
{
    struct reader_segment *s = &r->index.segments[segment];
    size_t n_entries;
    if (!n_gone || !reader_take_vanished(&r->notes))
        return false;
    reader_entries(s, &n_entries);
    *n_gone += n_entries - s->n_given;
    s->gone = true;
    return true;
}

int reader_need_index(struct reader *r, uint32_t segment, uint64_t *n_gone)
{
    int res = reader_load_index(r, &r->index.segments[segment]);
    if (res != -EBADMSG || is_gone(r, segment, n_gone))
        return res == -ENOMEM ? res : 0;
    return walk_instead(r, segment);
}

/* Steps with tokens of the request, from the indexes' spans. */
static int want_steps(struct reader *r, struct reader_wanted *w)
{
    if (!(w->steps = malloc(sizeof *w->steps)))
        return -ENOMEM;
    w->steps_room = 1;
    for (size_t i = 0; i < r->index.n_segments; i++) {
        size_t n;
        const char *strings;
        int needed = reader_need_index(r, (uint32_t)i, NULL);
        if (needed)
            return needed;
        const struct dmi_footer_span *spans = reader_spans(&r->index.segments[i], &n, &strings);
        for (size_t k = 0; k < n; k++) {
            if (!id_is(w->query, strings + spans[k].id_offset, spans[k].id_bytes) ||
                !positions_meet(w->query, spans[k].first_position, spans[k].n_tokens))
                continue;
            if (want_step(w, spans[k].sequence))
                return -ENOMEM;
        }
    }
    TRY(reader_is_incomplete(r) ? want_all_repeated(r, w) : 0);
    qsort(w->steps, w->n_steps, sizeof *w->steps, order_u64);
    return 0;
}

static void unwant(struct reader *r)
{
    free(r->selection.wanted.sites);
    free(r->selection.wanted.steps);
    r->selection.wanted = (struct reader_wanted){ 0 };
}

static int want(struct reader *r)
{
    const struct reader_query *q = r->selection.have_query ? &r->selection.query : NULL;
    struct reader_wanted *w = &r->selection.wanted;
    unwant(r);
    w->query = q;
    w->first_chunk = q ? q->first_chunk : 0;
    w->end_chunk = UINT64_MAX;
    if (!q)
        return 0;
    if (q->site) {
        if (!(w->sites = calloc(r->said.n_sites + 1, sizeof *w->sites)))
            return -ENOMEM;
        for (size_t i = 0; i < r->said.n_sites; i++)
            w->sites[i] = !strcmp(r->said.sites[i].name, q->site);
    }
    return q->request ? want_steps(r, w) : 0;
}

static bool is_wanted(const struct reader_wanted *w, const struct reader_segment *s,
                      const struct dmi_footer_entry *e)
{
    uint64_t place = s->chunks[e->chunk].sequence;
    if (place < w->first_chunk || (place >= w->end_chunk && w->end_chunk != UINT64_MAX))
        return false;
    if (w->sites && !w->sites[e->site])
        return false;
    if (w->query && w->query->by_layer && e->layer != w->query->layer)
        return false;
    return !w->steps ||
           bsearch(&e->step, w->steps, w->n_steps, sizeof *w->steps, order_u64) != NULL;
}

/* ------------------------------------------------------------------------- records */

#define AGREES(type, name) rec->name == e->name &&

static bool agrees(const struct dmi_footer_entry *e, const struct dmi_record *rec)
{
    uint32_t rows = 0;
    rows_count(rec->dims, rec->n_row_dims, &rows);
    return RECORD_INDEXED(AGREES) rows == e->rows;
}

/* The chunk's table of kept rows, copied: the metadata may be freed before the records are. */
static int copy_kept(struct reader *r, const struct records_view *v)
{
    uint32_t *table = malloc((v->n_kept + 1u) * sizeof *table);
    if (!table || GROW(r->selection.kept, r->selection.n_kept, r->selection.kept_room)) {
        free(table);
        return -ENOMEM;
    }
    memcpy(table, v->kept, v->n_kept * sizeof *table);
    r->selection.kept[r->selection.n_kept++] = table;
    return 0;
}

static int add_record(struct reader *r, const struct records_view *v, uint32_t segment,
                      uint32_t chunk, uint32_t index)
{
    const struct dmi_record *at = &v->records[index];
    if (!dmi_dtype_info(at->dtype) || reader_keeps_twice(v, at))
        return 0; /* named by reader_note_strange() */
    if (GROW(r->selection.records, r->selection.n_records, r->selection.records_room))
        return -ENOMEM;
    struct reader_record rec = { .at = *at,
                                 .place = r->index.segments[segment].chunks[chunk].sequence,
                                 .number = index,
                                 .segment = segment,
                                 .chunk = chunk };
    rows_count(at->dims, at->n_row_dims, &rec.n_rows);
    const struct dmi_group *g = &v->groups[at->group];
    rec.n_stored = g->n_raw ? (double)g->n_stored * (double)at->n_bytes / (double)g->n_raw : 0;
    rec.kept = at->n_kept ? r->selection.kept[r->selection.n_kept - 1] + at->kept : NULL;
    r->selection.records[r->selection.n_records++] = rec;
    return 0;
}

/* The index of entries that are wanted, chunk by chunk. */
static int chunk_order(const void *pa, const void *pb)
{
    const struct dmi_footer_entry *a = *(const struct dmi_footer_entry *const *)pa;
    const struct dmi_footer_entry *b = *(const struct dmi_footer_entry *const *)pb;
    ORDER(a, b, chunk);
    return a->record < b->record ? -1 : a->record > b->record;
}

/* The wanted records of one chunk. Return: 0, -ENOMEM, -EBADMSG with *@wrong. */
static int take_chunk(struct reader *r, uint32_t segment,
                      const struct dmi_footer_entry *const *entries, size_t n, const char **wrong)
{
    struct reader_segment *s = &r->index.segments[segment];
    struct reader_chunk *c = &s->chunks[entries[0]->chunk];
    struct reader_meta *m;
    int res = reader_meta(r, s, c, &m, wrong);
    if (res)
        return res;
    reader_note_strange(r, s, c, &m->view);
    if (m->view.n_kept && (res = copy_kept(r, &m->view)))
        return res;
    for (size_t i = 0; i < n; i++) {
        if (!agrees(entries[i], &m->view.records[entries[i]->record])) {
            *wrong = "a record is not what the index says";
            return -EBADMSG;
        }
        TRY(add_record(r, &m->view, segment, entries[i]->chunk, entries[i]->record));
    }
    return 0;
}

int reader_select_segment(struct reader *r, uint32_t segment, uint64_t *n_gone)
{
    struct reader_segment *s = &r->index.segments[segment];
    size_t n_entries, n = 0;
    int needed = reader_need_index(r, segment, n_gone);
    if (needed || s->gone)
        return needed;
    const struct dmi_footer_entry *entries = reader_entries(s, &n_entries);
    _cleanup_(freep) const struct dmi_footer_entry **list = malloc((n_entries + 1) * sizeof *list);
    if (!list)
        return -ENOMEM;
    for (size_t i = 0; i < n_entries; i++)
        if (is_wanted(&r->selection.wanted, s, &entries[i]))
            list[n++] = &entries[i];
    qsort(list, n, sizeof *list, chunk_order);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && list[end]->chunk == list[i]->chunk;)
            end++;
        const char *wrong = NULL;
        uint32_t chunk = list[i]->chunk;
        int res = take_chunk(r, segment, list + i, end - i, &wrong);
        if (res == -EBADMSG && is_gone(r, segment, n_gone))
            return 0;
        if (res == -EBADMSG)
            res = reader_distrust(r, segment, chunk, wrong);
        if (res)
            return res;
        s->n_given += end - i;
    }
    return 0;
}

int reader_place_order(const void *pa, const void *pb)
{
    const struct reader_record *a = pa, *b = pb;
    ORDER(a, b, segment);
    ORDER(a, b, chunk);
    ORDER(a, b, at.group);
    return a->at.offset < b->at.offset ? -1 : a->at.offset > b->at.offset;
}

int reader_record_order(const void *pa, const void *pb)
{
    const struct reader_record *a = pa, *b = pb;
    ORDER(a, b, at.launch);
    /* the records of one launch of a graph */
    ORDER(a, b, at.forward);
    ORDER(a, b, at.occurrence);
    ORDER(a, b, at.site);
    return reader_place_order(pa, pb);
}

/* ------------------------------------------------------------------------- the selection */

void reader_free_records(struct reader *r)
{
    for (size_t i = 0; i < r->selection.n_kept; i++)
        free(r->selection.kept[i]);
    r->selection.n_kept = r->selection.n_records = 0;
}

void reader_free_selection(struct reader *r)
{
    reader_free_records(r);
    reader_clear_steps(&r->selection.steps);
    free(r->selection.named);
    r->selection.named = NULL;
    r->selection.n_named = 0;
}

void reader_order_records(struct reader *r)
{
    SORT(r->selection.records, r->selection.n_records, reader_record_order);
    for (size_t i = 0; i < r->selection.n_records; i++)
        r->selection.records[i].step =
            r->selection.records[i].at.step == DMI_NO_STEP
                ? NULL
                : reader_find_step(&r->selection.steps, r->selection.records[i].at.step);
}

static int select_once(struct reader *r)
{
    const struct reader_query *q = r->selection.wanted.query;
    bool all_steps = !q || q->all_steps || r->selection.all_steps;
    int res = 0;
    reader_free_selection(r);
    if (q && q->by_window)
        return reader_find_extents(r);
    for (uint32_t i = 0; !res && i < r->index.n_segments; i++)
        res = reader_select_segment(r, i, NULL);
    if (!res && !all_steps)
        res = reader_name_steps(r);
    if (!res)
        res = reader_select_steps(r, all_steps);
    if (!res)
        res = reader_select_outcomes(r);
    if (!res)
        reader_order_records(r);
    return res;
}

int reader_select_again(struct err *err, struct reader *r)
{
    int res = -EAGAIN;
    while (res == -EAGAIN) { /* at most once a segment: what is walked has no footer to believe */
        res = want(r);
        if (!res)
            res = select_once(r);
    }
    return res ? err_set_errno(err, -res, "cannot read the records of %s", r->place.path) : 0;
}

/* ------------------------------------------------------------------------- the query */

void reader_free_query(struct reader *r)
{
    free((char *)(uintptr_t)r->selection.query.site);
    free((char *)(uintptr_t)r->selection.query.request);
    unwant(r);
    r->selection.query = (struct reader_query){ 0 };
    r->selection.have_query = false;
}

static int copy_query(struct reader *r, const struct reader_query *q)
{
    struct reader_query copy = *q;
    copy.site = q->site ? strdup(q->site) : NULL;
    char *request = q->request ? malloc(q->n_request + 1) : NULL;
    copy.request = request;
    if ((q->site && !copy.site) || (q->request && !request)) {
        free((char *)(uintptr_t)copy.site);
        free(request);
        return -ENOMEM;
    }
    if (request)
        memcpy(request, q->request, q->n_request);
    reader_free_query(r);
    r->selection.query = copy;
    r->selection.have_query = true;
    return 0;
}

int reader_keep_query(struct err *err, struct reader *r, const struct reader_query *query)
{
    if (!query)
        reader_free_query(r);
    else if (copy_query(r, query))
        return err_set_errno(err, ENOMEM, "cannot read the records of %s", r->place.path);
    r->selection.made = true;
    return 0;
}

/* ------------------------------------------------------------------------- what was selected */

size_t reader_n_records(const struct reader *r)
{
    return r->selection.n_records;
}

const struct reader_record *reader_record(const struct reader *r, size_t i)
{
    return i < r->selection.n_records ? &r->selection.records[i] : NULL;
}
