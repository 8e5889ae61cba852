/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps: what each row of a site holds, by layer and position, for each request. Where a map does not fit, positions next to one another
 * share a cell.
 */
#include "tools/view/view.h"

#include "core/cleanup.h"

#include <dmi/analyze_stats.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS     1024 /* that are asked for at a time */
#define N_FLOATS 4    /* arrays of a map */

/* A site of a request. */
struct map {
    uint64_t tensor; /* the first of its tensors, one a layer */
    struct cells cells;
    float *norm, *mean, *peak, *bad; /* [tensor][cell]: sums, then means; of @peak the largest */
    uint32_t *n;                     /* rows of each cell */
    uint8_t *state;
};

struct maps {
    struct dmi_read *run;
    struct map *all;
    size_t n;
    uint32_t *of_tensor; /* which map */
    uint64_t n_tensors;
    struct dmi_read_row *rows; /* room for ROWS */
    uint64_t n_damaged;
};

static void map_empty(struct map *m)
{
    free(m->norm);
    free(m->mean);
    free(m->peak);
    free(m->bad);
    free(m->n);
    free(m->state);
}

static void maps_deinit(struct maps *maps)
{
    for (size_t i = 0; i < maps->n; i++)
        map_empty(&maps->all[i]);
    free(maps->all);
    free(maps->of_tensor);
    free(maps->rows);
}

/* ------------------------------------------------------------------------- which maps there are */

/* Bytes of a tensor's name without its layer. */
static size_t site_bytes(const struct dmi_read_tensor *t)
{
    const char *dot = t->layer >= 0 ? strrchr(t->name, '.') : NULL;
    return dot ? (size_t)(dot - t->name) : strlen(t->name);
}

static bool same_map(const struct dmi_read_tensor *a, const struct dmi_read_tensor *b)
{
    size_t n = site_bytes(a);
    return n == site_bytes(b) && !memcmp(a->name, b->name, n) && !a->request == !b->request &&
           a->request_bytes == b->request_bytes &&
           (!a->request || !memcmp(a->request, b->request, a->request_bytes));
}

/* The positions of a tensor's rows. Return: 0 or -errno. */
static int add_extent(struct maps *maps, struct map *m, uint64_t tensor, uint64_t n_rows)
{
    struct dmi_read_row *rows = maps->rows;
    for (uint64_t first = 0; first < n_rows; first += ROWS) {
        uint64_t n = n_rows - first < ROWS ? n_rows - first : ROWS;
        int r = dmi_read_rows(maps->run, tensor, first, n, NULL, 0, rows, sizeof *rows);
        if (r)
            return r;
        for (uint64_t i = 0; i < n; i++)
            cells_widen(&m->cells, rows[i].position);
    }
    return 0;
}

/* Finds the maps, one after the other in the list of tensors. Return: 0 or -errno. */
static int find_maps(struct maps *maps)
{
    struct dmi_read_tensor t = { .size = sizeof t }, before = { .size = sizeof before };
    uint64_t most_rows = 0;
    int r = 0;
    for (uint64_t i = 0; !r && i < maps->n_tensors; i++) {
        if ((r = dmi_read_tensor(maps->run, i, &t)))
            break;
        if (!i || !same_map(&t, &before)) {
            if (i)
                cells_settle(&maps->all[maps->n - 1].cells, most_rows);
            most_rows = 0;
            maps->all[maps->n++] = (struct map){ .tensor = i, .cells = CELLS_NONE };
        }
        struct map *m = &maps->all[maps->n - 1];
        maps->of_tensor[i] = (uint32_t)(maps->n - 1);
        m->cells.n_layers++;
        most_rows = t.n_rows > most_rows ? t.n_rows : most_rows;
        r = add_extent(maps, m, i, t.n_rows);
        before = t;
    }
    if (maps->n)
        cells_settle(&maps->all[maps->n - 1].cells, most_rows);
    return r;
}

/* ------------------------------------------------------------------------- what fits */

/* Return: 0 or -ENOMEM. */
static int choose_cells(struct maps *maps, struct view_report *report, uint64_t room)
{
    uint64_t n_out;
    _cleanup_(freep) struct cells **all = calloc(maps->n + 1, sizeof *all);
    if (!all)
        return -ENOMEM;
    for (size_t i = 0; i < maps->n; i++)
        all[i] = &maps->all[i].cells;
    uint64_t n_pooled = cells_choose(all, maps->n, N_FLOATS, room, &n_out);
    if (n_out)
        view_leave_out(report, "%" PRIu64 " of %zu maps are left out", n_out, maps->n);
    if (n_pooled)
        view_leave_out(report, "in %" PRIu64 " of %zu maps several positions share a cell",
                       n_pooled, maps->n);
    return 0;
}

static int map_make(struct map *m)
{
    if (!m->cells.per)
        return 0;
    size_t n = cells_all(&m->cells) + 1;
    m->norm = calloc(n, sizeof *m->norm);
    m->mean = calloc(n, sizeof *m->mean);
    m->peak = calloc(n, sizeof *m->peak);
    m->bad = calloc(n, sizeof *m->bad);
    m->n = calloc(n, sizeof *m->n);
    m->state = calloc(n, sizeof *m->state);
    return m->norm && m->mean && m->peak && m->bad && m->n && m->state ? 0 : -ENOMEM;
}

/* ------------------------------------------------------------------------- rows */

static void add_row(struct map *m, size_t cell, const struct dmi_stats_row *row, uint64_t width)
{
    m->norm[cell] += (float)row->norm;
    m->mean[cell] += (float)row->mean;
    m->bad[cell] += width ? (float)((double)row->n_bad / (double)width) : 0;
    float peak = (float)row->peak;
    if (!m->n[cell] || (!isnan(peak) && !(peak <= m->peak[cell])))
        m->peak[cell] = peak;
    m->n[cell]++;
    m->state[cell] = m->state[cell] == CELL_DAMAGED ? CELL_DAMAGED : CELL_THERE;
}

/* A row that cannot be decoded has no number at all, and no value that is not finite either. */
static bool is_damaged(const struct dmi_stats_row *row, uint64_t width)
{
    return width && isnan(row->mean) && !row->n_bad;
}

/* At most ROWS of them. */
static int take_some(struct maps *maps, uint64_t tensor, uint64_t first,
                     const struct dmi_stats_row *rows, uint64_t n)
{
    struct map *m = &maps->all[maps->of_tensor[tensor]];
    struct dmi_read_tensor t = { .size = sizeof t };
    int r = dmi_read_tensor(maps->run, tensor, &t);
    if (!r)
        r = dmi_read_rows(maps->run, tensor, first, n, NULL, 0, maps->rows, sizeof *maps->rows);
    for (uint64_t i = 0; !r && i < n; i++) {
        bool damaged = is_damaged(&rows[i], t.width);
        maps->n_damaged += damaged;
        int64_t at = m->cells.by_row ? (int64_t)(first + i) : maps->rows[i].position;
        size_t cell = cells_at(&m->cells, tensor - m->tensor, at);
        if (cell == SIZE_MAX)
            continue;
        if (damaged)
            m->state[cell] = CELL_DAMAGED;
        else
            add_row(m, cell, &rows[i], t.width);
    }
    return r;
}

static int take(void *arg, uint64_t tensor, uint64_t first, const struct dmi_stats_row *rows,
                uint64_t n)
{
    int r = 0;
    for (uint64_t at = 0; !r && at < n; at += ROWS)
        r = take_some(arg, tensor, first + at, rows + at, n - at < ROWS ? n - at : ROWS);
    return r;
}

static void map_divide(struct map *m)
{
    for (size_t i = 0; i < cells_all(&m->cells); i++) {
        float n = m->n[i] ? (float)m->n[i] : 1;
        m->norm[i] /= n;
        m->mean[i] /= n;
        m->bad[i] /= n;
    }
}

/* ------------------------------------------------------------------------- the document */

void view_cells(struct document *d, const struct cells *c)
{
    document_add(d, "by_row", json_boolean(c->by_row));
    document_add(d, "first", json_integer(c->first));
    document_add(d, "positions", json_integer(c->end - c->first));
    document_add(d, "per", value_u64(c->per));
    document_add(d, "cells", value_u64(c->n));
}

static int map_add(struct document *d, struct maps *maps, const struct map *m)
{
    struct dmi_read_tensor t = { .size = sizeof t };
    int r = dmi_read_tensor(maps->run, m->tensor, &t);
    if (r)
        return r;
    const struct cells *c = &m->cells;
    size_t n = cells_all(c);
    document_begin(d, NULL, '{');
    document_add(d, "request", json_integer(view_request_of(maps->run, &t)));
    document_add(d, "id", view_id_of(&t));
    document_add(d, "site", document_bytes(t.name, site_bytes(&t)));
    json_t *layers = json_array();
    for (uint32_t i = 0; !r && i < c->n_layers; i++) {
        r = dmi_read_tensor(maps->run, m->tensor + i, &t);
        json_array_append_new(layers, t.layer < 0 ? json_null() : json_integer(t.layer));
    }
    document_add(d, "layers", layers);
    view_cells(d, c);
    document_floats(d, "norm", m->norm, n);
    document_floats(d, "mean", m->mean, n);
    document_floats(d, "max", m->peak, n);
    document_floats(d, "bad", m->bad, n);
    document_octets(d, "state", m->state, n);
    document_end(d, '}');
    return r;
}

/* Room for all that is computed. Return: 0 or -ENOMEM. */
static int maps_make(struct maps *maps)
{
    int r = 0;
    for (size_t i = 0; !r && i < maps->n; i++)
        r = map_make(&maps->all[i]);
    return r;
}

/* Reads all rows once. Layers without numbers are left out, with the reason. */
static int read_all(struct err *err, struct maps *maps, struct view_report *report)
{
    const struct dmi_stats_options options = {
        .size = sizeof options, .skip_first = 0, .take = take, .arg = maps
    };
    struct dmi_stats_layer layer = { .size = sizeof layer };
    struct dmi_stats *stats = NULL;
    char why[512] = "";
    int r = dmi_stats_open(maps->run, &options, &stats, why, sizeof why);
    if (r)
        return err_set(err, r, "%s", *why ? why : "cannot compute the maps");
    for (uint64_t i = 0; !dmi_stats_layer(stats, i, &layer); i++)
        if (layer.left_out)
            view_leave_out(report, "%s.%d is in no map: %s", layer.name, layer.layer,
                           layer.left_out);
    dmi_stats_close(stats);
    return 0;
}

int view_maps(struct err *err, struct view_report *report, struct dmi_read *of, const char *key,
              uint64_t room)
{
    struct dmi_read_run run = { .size = sizeof run };
    _cleanup_(maps_deinit) struct maps maps = { .run = of };
    int r = dmi_read_run(of, &run);
    maps.n_tensors = run.n_tensors;
    maps.all = calloc(run.n_tensors + 1, sizeof *maps.all);
    maps.of_tensor = calloc(run.n_tensors + 1, sizeof *maps.of_tensor);
    maps.rows = calloc(ROWS, sizeof *maps.rows);
    if (!r)
        r = maps.all && maps.of_tensor && maps.rows ? find_maps(&maps) : -ENOMEM;
    if (!r)
        r = choose_cells(&maps, report, room);
    if (!r)
        r = maps_make(&maps);
    if (!r && (r = read_all(err, &maps, report)))
        return r;
    document_begin(&report->document, key, '[');
    for (size_t i = 0; !r && i < maps.n; i++) {
        map_divide(&maps.all[i]);
        if (maps.all[i].cells.per)
            r = map_add(&report->document, &maps, &maps.all[i]);
    }
    document_end(&report->document, ']');
    report->n_damaged += maps.n_damaged;
    return r ? err_set_errno(err, -r, "cannot compute the maps") : 0;
}
