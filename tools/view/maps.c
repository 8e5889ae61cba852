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

#define POOLED_CELLS 512 /* of a layer, where positions share cells */
#define HEAD_BYTES   400 /* of a map, beside its arrays, at most; and for each layer */
#define LAYER_BYTES  12
#define ROWS         1024 /* that are asked for at a time */

enum { CELL_ABSENT = 0, CELL_THERE = 1, CELL_DAMAGED = 2 };

/* A site of a request. */
struct map {
    uint64_t tensor;    /* the first of its tensors */
    uint32_t n_tensors; /* one a layer */
    int64_t first, end; /* positions; where they are not known, rows */
    bool by_row;
    uint64_t per; /* positions that share a cell; 0: the map is left out */
    uint64_t n_cells;
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
        for (uint64_t i = 0; i < n; i++) {
            int64_t p = rows[i].position;
            m->by_row |= p < 0;
            m->first = p < m->first ? p : m->first;
            m->end = p >= m->end ? p + 1 : m->end;
        }
    }
    return 0;
}

/* Where positions are not known cells are rows. */
static void settle_extent(struct map *m, uint64_t most_rows)
{
    if (m->by_row || m->first > m->end) {
        m->first = 0;
        m->end = (int64_t)most_rows;
    }
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
                settle_extent(&maps->all[maps->n - 1], most_rows);
            most_rows = 0;
            maps->all[maps->n++] = (struct map){ .tensor = i, .first = INT64_MAX };
        }
        struct map *m = &maps->all[maps->n - 1];
        maps->of_tensor[i] = (uint32_t)(maps->n - 1);
        m->n_tensors++;
        most_rows = t.n_rows > most_rows ? t.n_rows : most_rows;
        r = add_extent(maps, m, i, t.n_rows);
        before = t;
    }
    if (maps->n)
        settle_extent(&maps->all[maps->n - 1], most_rows);
    return r;
}

/* ------------------------------------------------------------------------- what fits */

static uint64_t cells_of(const struct map *m, uint64_t per)
{
    return per ? ((uint64_t)(m->end - m->first) + per - 1) / per : 0;
}

static uint64_t cost_of(const struct map *m, uint64_t per)
{
    uint64_t n = m->n_tensors * cells_of(m, per);
    return HEAD_BYTES + LAYER_BYTES * m->n_tensors + 4 * document_cost(4 * n) + document_cost(n);
}

static uint64_t per_of_pooled(const struct map *m)
{
    return ((uint64_t)(m->end - m->first) + POOLED_CELLS - 1) / POOLED_CELLS;
}

/* The fewest positions a cell for which there is room, by powers of two. @room: beside what it has already. */
static uint64_t per_that_fits(const struct map *m, uint64_t room)
{
    uint64_t per = 1;
    while (per < m->per && cost_of(m, per) - cost_of(m, m->per) > room)
        per *= 2;
    return per < m->per ? per : m->per;
}

/* First as many maps as there is room for, then finer cells for the first of them. */
static void choose_cells(struct maps *maps, struct view_report *report)
{
    uint64_t room = view_room(report), n_out = 0, n_pooled = 0;
    for (size_t i = 0; i < maps->n; i++) {
        struct map *m = &maps->all[i];
        uint64_t cost = cost_of(m, per_of_pooled(m));
        bool fits = cost <= room;
        m->per = fits ? per_of_pooled(m) : 0;
        room -= fits ? cost : 0;
        n_out += !fits;
    }
    for (size_t i = 0; i < maps->n; i++) {
        struct map *m = &maps->all[i];
        uint64_t per = m->per ? per_that_fits(m, room) : 0;
        room -= m->per ? cost_of(m, per) - cost_of(m, m->per) : 0;
        m->per = per;
        n_pooled += per > 1;
    }
    if (n_out)
        view_leave_out(report, "%" PRIu64 " of %zu maps are left out", n_out, maps->n);
    if (n_pooled)
        view_leave_out(report, "in %" PRIu64 " of %zu maps several positions share a cell",
                       n_pooled, maps->n);
}

static int map_make(struct map *m)
{
    if (!m->per)
        return 0;
    m->n_cells = cells_of(m, m->per);
    size_t n = m->n_tensors * m->n_cells + 1;
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

/* The cell of a row; SIZE_MAX: outside of the map. */
static size_t cell_of(const struct map *m, uint64_t tensor, int64_t at)
{
    if (at < m->first || at >= m->end)
        return SIZE_MAX;
    return (size_t)((tensor - m->tensor) * m->n_cells + (uint64_t)(at - m->first) / m->per);
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
        int64_t at = m->by_row ? (int64_t)(first + i) : maps->rows[i].position;
        size_t cell = m->per ? cell_of(m, tensor, at) : SIZE_MAX;
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
    for (size_t i = 0; m->per && i < m->n_tensors * m->n_cells; i++) {
        float n = m->n[i] ? (float)m->n[i] : 1;
        m->norm[i] /= n;
        m->mean[i] /= n;
        m->bad[i] /= n;
    }
}

/* ------------------------------------------------------------------------- the document */

static int map_add(struct document *d, struct maps *maps, const struct map *m)
{
    struct dmi_read_tensor t = { .size = sizeof t };
    int r = dmi_read_tensor(maps->run, m->tensor, &t);
    if (r)
        return r;
    size_t n = m->n_tensors * m->n_cells;
    document_begin(d, NULL, '{');
    document_add(d, "request", json_integer(view_request_of(maps->run, &t)));
    document_add(d, "id", view_id_of(&t));
    document_add(d, "site", document_bytes(t.name, site_bytes(&t)));
    json_t *layers = json_array();
    for (uint32_t i = 0; !r && i < m->n_tensors; i++) {
        r = dmi_read_tensor(maps->run, m->tensor + i, &t);
        json_array_append_new(layers, t.layer < 0 ? json_null() : json_integer(t.layer));
    }
    document_add(d, "layers", layers);
    document_add(d, "by_row", json_boolean(m->by_row));
    document_add(d, "first", json_integer(m->first));
    document_add(d, "positions", json_integer(m->end - m->first));
    document_add(d, "per", value_u64(m->per));
    document_add(d, "cells", value_u64(m->n_cells));
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

int view_maps(struct err *err, struct view_report *report)
{
    struct dmi_read_run run = { .size = sizeof run };
    _cleanup_(maps_deinit) struct maps maps = { .run = report->run };
    int r = dmi_read_run(report->run, &run);
    maps.n_tensors = run.n_tensors;
    maps.all = calloc(run.n_tensors + 1, sizeof *maps.all);
    maps.of_tensor = calloc(run.n_tensors + 1, sizeof *maps.of_tensor);
    maps.rows = calloc(ROWS, sizeof *maps.rows);
    if (!r)
        r = maps.all && maps.of_tensor && maps.rows ? find_maps(&maps) : -ENOMEM;
    if (!r)
        choose_cells(&maps, report);
    if (!r)
        r = maps_make(&maps);
    if (!r && (r = read_all(err, &maps, report)))
        return r;
    document_begin(&report->document, "maps", '[');
    for (size_t i = 0; !r && i < maps.n; i++) {
        map_divide(&maps.all[i]);
        if (maps.all[i].per)
            r = map_add(&report->document, &maps, &maps.all[i]);
    }
    document_end(&report->document, ']');
    report->n_damaged = maps.n_damaged;
    return r ? err_set_errno(err, -r, "cannot compute the maps") : 0;
}
