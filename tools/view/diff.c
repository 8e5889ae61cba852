/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two runs against each other, by the numbers of dmi-dump diff: how far each row is from the row at the same position, and which rows one
 * of them lacks.
 */
#include "tools/view/view.h"

#include "core/cleanup.h"
#include "core/err.h"
#include "read/handle.h"
#include "tools/common/differ.h"
#include "tools/view/pool.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define TENSOR_BYTES 480 /* of its numbers in the document, at most, but for a long name */
#define N_FLOATS     2   /* arrays of a map */

/* A site of a request. */
struct diff_map {
    size_t tensor; /* the first of the run's, one a layer */
    struct cells cells;
    size_t first_cell; /* in the pool: [layer][cell] */
};

/* The largest of its rows. */
struct diff_cell {
    float error, greatest;
    uint8_t state; /* enum cell_state */
};

struct diff {
    struct view_report *report;
    struct differ differ;
    struct selection select; /* its names but the requests are borrowed */
    struct diff_map *maps;
    size_t n_maps;
    struct pool cells; /* struct diff_cell, of all maps */
    size_t *of_tensor; /* which map */
    bool has_tensors;  /* there is room for the numbers of each tensor */
};

static void diff_deinit(struct diff *d)
{
    pool_deinit(&d->cells);
    free(d->maps);
    free(d->of_tensor);
    differ_deinit(&d->differ);
    reader_close(d->differ.run.reader);
    reader_close(d->differ.other.reader);
    selection_names_deinit(&d->select.requests);
}

/* The first page counts rows that cannot be decoded. */
static void pass_over(const struct err *why)
{
    (void)why;
}

static int open_both(struct err *err, struct diff *d)
{
    const struct view_report *report = d->report;
    d->select = report->run->select;
    d->select.requests = (struct selection_names){ 0 };
    for (size_t i = 0; i < report->n_pairs; i++)
        if (selection_add_name(&d->select.requests, report->pairs[i].text, report->pairs[i].bytes))
            return err_set_errno(err, ENOMEM, "cannot compare");
    int r = reader_open_index(err, report->path, &d->differ.run.reader);
    if (!r)
        r = reader_open_index(err, report->other_path, &d->differ.other.reader);
    d->differ.select = &d->select;
    d->differ.undecoded = pass_over;
    return r ? r : differ_pair(err, &d->differ);
}

/* ------------------------------------------------------------------------- which maps there are */

static bool same_map(const struct tensor *a, const struct tensor *b)
{
    return a->order == b->order && !a->request == !b->request && a->n_request == b->n_request &&
           (!a->request || !memcmp(a->request, b->request, a->n_request));
}

static void add_extent(struct cells *cells, const struct tensor *t)
{
    for (size_t i = 0; i < t->n_stretches; i++) {
        const struct stretch *s = &t->stretches[i];
        cells_widen(cells, s->position);
        if (s->position >= 0 && s->n_rows)
            cells_widen(cells, s->position + s->n_rows - 1);
    }
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Maps are one after the other in the list of tensors, as their layers are. */
static void find_maps(struct diff *d)
{
    const struct differ *x = &d->differ;
    uint64_t most_rows = 0;
    for (size_t i = 0; i < x->run.tensors.n; i++) {
        const struct tensor *t = &x->run.tensors.all[i], *other = x->results[i].other;
        if (!i || !same_map(t, t - 1)) {
            if (i)
                cells_settle(&d->maps[d->n_maps - 1].cells, most_rows);
            d->maps[d->n_maps++] = (struct diff_map){ .tensor = i, .cells = CELLS_NONE };
            most_rows = 0;
        }
        struct cells *cells = &d->maps[d->n_maps - 1].cells;
        d->of_tensor[i] = d->n_maps - 1;
        cells->n_layers++;
        cells->by_row |= other && !x->results[i].by_position;
        most_rows = larger(most_rows, larger(t->n_rows, other ? other->n_rows : 0));
        add_extent(cells, t);
        if (other)
            add_extent(cells, other);
    }
    if (d->n_maps)
        cells_settle(&d->maps[d->n_maps - 1].cells, most_rows);
}

static int make_cells(struct diff *d)
{
    size_t n = 0;
    for (size_t i = 0; i < d->n_maps; i++) {
        d->maps[i].first_cell = n;
        n += cells_all(&d->maps[i].cells);
    }
    return pool_init(&d->cells, n, sizeof(struct diff_cell));
}

static int choose_cells(struct diff *d)
{
    struct view_report *report = d->report;
    uint64_t n_out, room = view_room(report), numbers = TENSOR_BYTES * d->differ.run.tensors.n;
    _cleanup_(freep) struct cells **all = calloc(d->n_maps + 1, sizeof *all);
    int r = all ? 0 : -ENOMEM;
    for (size_t i = 0; all && i < d->n_maps; i++)
        all[i] = &d->maps[i].cells;
    d->has_tensors = numbers <= room / 2;
    if (!d->has_tensors)
        view_leave_out(report, "how far each tensor is from that of the other run is left out");
    room -= d->has_tensors ? numbers : 0;
    uint64_t n_pooled = r ? 0 : cells_choose(all, d->n_maps, N_FLOATS, room, &n_out);
    if (!r && n_out)
        view_leave_out(report, "%" PRIu64 " of %zu maps of differences are left out", n_out,
                       d->n_maps);
    if (n_pooled)
        view_leave_out(report,
                       "in %" PRIu64 " of %zu maps of differences several positions share a cell",
                       n_pooled, d->n_maps);
    return r ? r : make_cells(d);
}

/* ------------------------------------------------------------------------- rows */

static size_t layer_of(const struct diff *d, size_t tensor)
{
    return tensor - d->maps[d->of_tensor[tensor]].tensor;
}

/* The cell of a row, borrowed until the next call; NULL: it is in none. */
static struct diff_cell *cell_of(struct diff *d, size_t tensor, uint64_t index, int64_t position)
{
    const struct diff_map *m = &d->maps[d->of_tensor[tensor]];
    size_t at =
        cells_at(&m->cells, layer_of(d, tensor), m->cells.by_row ? (int64_t)index : position);
    return at == SIZE_MAX ? NULL : pool_change(&d->cells, m->first_cell + at);
}

/* @cell: NULL: there is nothing to mark */
static void mark(struct diff_cell *cell, enum cell_state state)
{
    if (cell && cell->state < state)
        cell->state = (uint8_t)state;
}

static int take_row(void *arg, const struct differed_row *row)
{
    static const enum cell_state states[] = { [DIFFERED_COMPARED] = CELL_THERE,
                                              [DIFFERED_LACKING] = CELL_LACKING,
                                              [DIFFERED_DAMAGED] = CELL_DAMAGED };
    struct diff *d = arg;
    struct diff_cell *cell = cell_of(d, row->tensor, row->index, row->position);
    mark(cell, states[row->state]);
    if (!cell || !row->sums)
        return d->cells.failure;
    float error = (float)sums_error(row->sums->err2, row->sums->ref2);
    float greatest = (float)row->sums->greatest;
    cell->error = error > cell->error ? error : cell->error;
    cell->greatest = greatest > cell->greatest ? greatest : cell->greatest;
    return d->cells.failure;
}

/* All rows of a tensor of the run; or (@of is the counterpart) those that the run lacks. */
static void mark_rows(struct diff *d, size_t tensor, const struct tensor *of, enum cell_state state)
{
    const struct tensor *ours = &d->differ.run.tensors.all[tensor];
    bool by_position = d->differ.results[tensor].by_position;
    uint64_t index = 0;
    for (size_t i = 0; i < of->n_stretches; i++)
        for (uint32_t k = 0; k < of->stretches[i].n_rows; k++, index++) {
            int64_t at = of->stretches[i].position;
            at += at < 0 ? 0 : k;
            bool has = of != ours && (by_position ? differ_has(ours, at) : index < ours->n_rows);
            if (!has)
                mark(cell_of(d, tensor, index, at), state);
        }
}

static void mark_missing(struct diff *d)
{
    for (size_t i = 0; i < d->differ.run.tensors.n; i++) {
        const struct difference *x = &d->differ.results[i];
        const struct tensor *t = &d->differ.run.tensors.all[i];
        if (!x->other)
            mark_rows(d, i, t, CELL_LACKING);
        else if (x->bad_shape)
            mark_rows(d, i, t, CELL_SHAPE);
        else
            mark_rows(d, i, x->other, CELL_EXTRA);
    }
}

/* ------------------------------------------------------------------------- the document */

/* The same value, every text in it as people see it. */
static json_t *shown(json_t *value)
{
    const char *key;
    void *next;
    json_t *inner;
    if (json_is_string(value)) {
        json_t *text = document_bytes(json_string_value(value), json_string_length(value));
        json_decref(value);
        return text;
    }
    json_object_foreach_safe(value, next, key, inner)
        json_object_set_new(value, key, shown(json_incref(inner)));
    return value;
}

/* The run's own id of a request that may be named as the other run calls it. */
static struct dmi_read_name own_name(const struct view_report *report, const char *name, size_t n)
{
    for (size_t i = 0; i < report->n_pairs; i++) {
        const struct dmi_read_name *p = &report->pairs[i];
        const char *equals = memchr(p->text, '=', p->bytes);
        size_t n_id = equals ? (size_t)(equals - p->text) : 0;
        if (equals && p->bytes - n_id - 1 == n && !memcmp(equals + 1, name, n))
            return (struct dmi_read_name){ p->text, n_id };
    }
    return (struct dmi_read_name){ name, n };
}

/* Numbers of a tensor's request in both runs' lists; -1: none. */
static void add_requests(struct document *d, const struct diff *x, const struct tensor *t)
{
    struct dmi_read_name own = { 0 };
    if (t->request)
        own = own_name(x->report, t->request, t->n_request);
    document_add(d, "request", json_integer(view_request(x->report->run, own.text, own.bytes)));
    document_add(d, "id", own.text ? document_bytes(own.text, own.bytes) : json_null());
    document_add(d, "other_request",
                 json_integer(view_request(x->report->other, t->request, t->n_request)));
    document_add(d, "site", document_text(t->site->name));
}

static void add_tensors(struct document *d, const struct diff *x, const struct diff_map *m)
{
    document_begin(d, "tensors", '[');
    for (size_t i = 0; x->has_tensors && i < m->cells.n_layers; i++)
        document_add(d, NULL,
                     x->differ.results[m->tensor + i].other
                         ? shown(differ_tensor(&x->differ, m->tensor + i))
                         : json_null());
    document_end(d, ']');
}

/* An array of a map: of each cell a number. */
struct diff_array {
    struct diff *diff;
    const struct diff_map *map;
    bool greatest; /* else the error */
};

static int fill_floats(void *arg, size_t first, size_t n, void *out)
{
    const struct diff_array *p = arg;
    float *to = out;
    for (size_t i = 0, some; i < n;) {
        const struct diff_cell *c =
            pool_read(&p->diff->cells, p->map->first_cell + first + i, &some);
        for (; i < n && some; some--, c++)
            to[i++] = p->greatest ? c->greatest : c->error;
    }
    return p->diff->cells.failure;
}

static int fill_states(void *arg, size_t first, size_t n, void *out)
{
    const struct diff_array *p = arg;
    uint8_t *to = out;
    for (size_t i = 0, some; i < n;) {
        const struct diff_cell *c =
            pool_read(&p->diff->cells, p->map->first_cell + first + i, &some);
        for (; i < n && some; some--)
            to[i++] = (c++)->state;
    }
    return p->diff->cells.failure;
}

static void add_map(struct document *d, struct diff *x, const struct diff_map *m)
{
    struct diff_array error = { x, m, false }, greatest = { x, m, true };
    size_t n = cells_all(&m->cells);
    const struct tensor *t = &x->differ.run.tensors.all[m->tensor];
    json_t *layers = json_array();
    for (size_t i = 0; i < m->cells.n_layers; i++)
        json_array_append_new(layers, t[i].layer < 0 ? json_null() : json_integer(t[i].layer));
    document_begin(d, NULL, '{');
    add_requests(d, x, t);
    document_add(d, "layers", layers);
    view_cells(d, &m->cells);
    document_floats_by(d, "error", fill_floats, &error, n);
    document_floats_by(d, "greatest", fill_floats, &greatest, n);
    document_octets_by(d, "state", fill_states, &error, n);
    add_tensors(d, x, m);
    document_end(d, '}');
}

static void add_names(struct document *d, const char *key, const struct names *names)
{
    document_begin(d, key, '[');
    for (size_t i = 0; i < names->n; i++)
        document_add(d, NULL,
                     json_pack("{s:o, s:o}", "site",
                               document_bytes(names->all[i].name, names->all[i].n_name), "tensors",
                               value_u64(names->all[i].n)));
    document_end(d, ']');
}

static int add_only(struct document *d, const struct differ *x)
{
    _cleanup_(names_deinit) struct names run = { 0 }, other = { 0 };
    int r = differ_only(x, &run, &other);
    add_names(d, "only_in_run", &run);
    add_names(d, "only_in_other", &other);
    document_add(d, "rows_only_in_other", value_u64(differ_rows_only_in_other(x)));
    return r;
}

/* Where they part first, as the page finds it. */
static void add_first(struct document *d, const struct diff *x)
{
    const struct divergence *first = &x->differ.first;
    document_add(d, "first", shown(differ_divergence(first)));
    if (!first->tensor)
        return;
    document_begin(d, "first_at", '{');
    add_requests(d, x, first->tensor);
    document_add(d, "layer",
                 first->tensor->layer < 0 ? json_null() : json_integer(first->tensor->layer));
    document_end(d, '}');
}

static void add_sites(struct document *d, const struct differ *x)
{
    json_t *sites = differ_sites(x);
    document_begin(d, "sites", '[');
    for (size_t i = 0; i < json_array_size(sites); i++)
        document_add(d, NULL, shown(json_incref(json_array_get(sites, i))));
    document_end(d, ']');
    d->out.failed |= !sites;
    json_decref(sites);
}

static int add_diff(struct err *err, struct diff *x)
{
    struct document *d = &x->report->document;
    const struct differ_totals t = differ_total(&x->differ);
    const struct reader_run *other = reader_run(x->differ.other.reader);
    document_begin(d, "diff", '{');
    document_add(d, "path", document_text(other->path));
    document_add(d, "model", document_text(other->model));
    view_findings(d, x->report->other);
    document_add(d, "compared", value_u64(t.n_compared));
    document_add(d, "differing", value_u64(t.n_differing));
    document_add(d, "rows", value_u64(t.n_rows));
    document_add(d, "same_rows", value_u64(t.n_same));
    document_add(d, "unreadable_rows", value_u64(x->differ.n_unreadable));
    document_add(d, "equal", json_boolean(t.equal));
    add_first(d, x);
    int r = add_only(d, &x->differ);
    add_sites(d, &x->differ);
    r = r ? r : view_sites(err, d, x->report->other, "accounts");
    document_begin(d, "maps", '[');
    for (size_t i = 0; i < x->n_maps; i++)
        if (x->maps[i].cells.per)
            add_map(d, x, &x->maps[i]);
    document_end(d, ']');
    document_end(d, '}');
    return r;
}

static int compare(struct err *err, struct diff *d)
{
    TRY(open_both(err, d));
    d->maps = calloc(d->differ.run.tensors.n + 1, sizeof *d->maps);
    d->of_tensor = calloc(d->differ.run.tensors.n + 1, sizeof *d->of_tensor);
    if (!d->maps || !d->of_tensor)
        return err_set_errno(err, ENOMEM, "cannot compare");
    find_maps(d);
    if (choose_cells(d))
        return err_set_errno(err, ENOMEM, "cannot compare");
    d->differ.row = take_row;
    d->differ.arg = d;
    int r = differ_rows(err, &d->differ);
    if (!r)
        mark_missing(d);
    return r;
}

int view_diff(struct err *err, struct view_report *report)
{
    _cleanup_(diff_deinit) struct diff d = { .report = report, .cells = POOL_NONE };
    int r = compare(err, &d);
    if (!r && add_diff(err, &d))
        r = err_set_errno(err, ENOMEM, "cannot compare");
    report->n_damaged += d.differ.n_unreadable;
    return r;
}
