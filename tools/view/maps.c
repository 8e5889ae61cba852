/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps: what each row of a site holds, by layer and position, for each request. Where a map does not fit, positions next to one another
 * share a cell.
 */
#include "tools/view/view.h"

#include "core/cleanup.h"
#include "core/err.h"
#include "tools/view/pool.h"

#include <dmi/analyze_stats.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS     1024 /* that are asked for at a time */
#define N_FLOATS 4    /* arrays of a map */

/* A site of a request. */
struct value_map {
    uint64_t tensor; /* the first of its tensors, one a layer */
    struct cells cells;
    size_t first; /* of its cells in the pool: [tensor][cell] */
};

/* What the rows of a cell hold: sums, of @peak the largest. */
struct cell {
    float norm, mean, peak, bad;
    uint32_t n; /* rows */
    uint8_t state;
};

struct maps {
    struct dmi_read *run;
    struct value_map *all;
    size_t n;
    uint32_t *of_tensor; /* which map */
    uint64_t n_tensors;
    struct dmi_read_row *rows; /* room for ROWS */
    struct pool cells;         /* struct cell, of all maps */
    uint64_t n_damaged;
};

static void maps_deinit(struct maps *maps)
{
    pool_deinit(&maps->cells);
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
static int add_extent(struct maps *maps, struct value_map *m, uint64_t tensor, uint64_t n_rows)
{
    struct dmi_read_row *rows = maps->rows;
    for (uint64_t first = 0; first < n_rows; first += ROWS) {
        uint64_t n = n_rows - first < ROWS ? n_rows - first : ROWS;
        TRY(dmi_read_rows(maps->run, tensor, first, n, NULL, 0, rows, sizeof *rows));
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
            maps->all[maps->n++] = (struct value_map){ .tensor = i, .cells = CELLS_NONE };
        }
        struct value_map *m = &maps->all[maps->n - 1];
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

/* Room for all that is computed. Return: 0 or -ENOMEM. */
static int take_room(struct maps *maps)
{
    size_t n = 0;
    for (size_t i = 0; i < maps->n; i++) {
        maps->all[i].first = n;
        n += maps->all[i].cells.per ? cells_all(&maps->all[i].cells) : 0;
    }
    return pool_init(&maps->cells, n, sizeof(struct cell));
}

/* ------------------------------------------------------------------------- rows */

static void add_row(struct cell *c, const struct dmi_stats_row *row, uint64_t width)
{
    c->norm += (float)row->norm;
    c->mean += (float)row->mean;
    c->bad += width ? (float)((double)row->n_bad / (double)width) : 0;
    float peak = (float)row->peak;
    if (!c->n || (!isnan(peak) && !(peak <= c->peak)))
        c->peak = peak;
    c->n++;
    c->state = c->state == CELL_DAMAGED ? CELL_DAMAGED : CELL_THERE;
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
    struct value_map *m = &maps->all[maps->of_tensor[tensor]];
    struct dmi_read_tensor t = { .size = sizeof t };
    int r = dmi_read_tensor(maps->run, tensor, &t);
    if (!r)
        r = dmi_read_rows(maps->run, tensor, first, n, NULL, 0, maps->rows, sizeof *maps->rows);
    for (uint64_t i = 0; !r && i < n; i++) {
        bool damaged = is_damaged(&rows[i], t.width);
        maps->n_damaged += damaged;
        int64_t at = m->cells.by_row ? (int64_t)(first + i) : maps->rows[i].position;
        size_t place = cells_at(&m->cells, tensor - m->tensor, at);
        if (place == SIZE_MAX)
            continue;
        struct cell *cell = pool_change(&maps->cells, m->first + place);
        if (damaged)
            cell->state = CELL_DAMAGED;
        else
            add_row(cell, &rows[i], t.width);
    }
    return r ? r : maps->cells.failure;
}

static int take(void *arg, uint64_t tensor, uint64_t first, const struct dmi_stats_row *rows,
                uint64_t n)
{
    int r = 0;
    for (uint64_t at = 0; !r && at < n; at += ROWS)
        r = take_some(arg, tensor, first + at, rows + at, n - at < ROWS ? n - at : ROWS);
    return r;
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

/* An array of a map: of each cell a number. */
struct map_array {
    struct maps *maps;
    const struct value_map *map;
    float (*number)(const struct cell *cell);
};

static float rows_of(const struct cell *c)
{
    return c->n ? (float)c->n : 1;
}

static float norm_of(const struct cell *c)
{
    return c->norm / rows_of(c);
}

static float mean_of(const struct cell *c)
{
    return c->mean / rows_of(c);
}

static float peak_of(const struct cell *c)
{
    return c->peak;
}

static float bad_of(const struct cell *c)
{
    return c->bad / rows_of(c);
}

static int fill_floats(void *arg, size_t first, size_t n, void *out)
{
    const struct map_array *p = arg;
    float *to = out;
    for (size_t i = 0, some; i < n;) {
        const struct cell *c = pool_read(&p->maps->cells, p->map->first + first + i, &some);
        for (; i < n && some; some--)
            to[i++] = p->number(c++);
    }
    return p->maps->cells.failure;
}

static int fill_states(void *arg, size_t first, size_t n, void *out)
{
    const struct map_array *p = arg;
    uint8_t *to = out;
    for (size_t i = 0, some; i < n;) {
        const struct cell *c = pool_read(&p->maps->cells, p->map->first + first + i, &some);
        for (; i < n && some; some--)
            to[i++] = (c++)->state;
    }
    return p->maps->cells.failure;
}

static void add_planes(struct document *d, struct maps *maps, const struct value_map *m)
{
    static const struct {
        const char *name;
        float (*number)(const struct cell *cell);
    } all[N_FLOATS] = {
        { "norm", norm_of }, { "mean", mean_of }, { "max", peak_of }, { "bad", bad_of }
    };
    struct map_array plane = { .maps = maps, .map = m };
    for (size_t i = 0; i < N_FLOATS; i++) {
        plane.number = all[i].number;
        document_floats_by(d, all[i].name, fill_floats, &plane, cells_all(&m->cells));
    }
    document_octets_by(d, "state", fill_states, &plane, cells_all(&m->cells));
}

static int map_add(struct document *d, struct maps *maps, const struct value_map *m)
{
    struct dmi_read_tensor t = { .size = sizeof t };
    int r = dmi_read_tensor(maps->run, m->tensor, &t);
    if (r)
        return r;
    const struct cells *c = &m->cells;
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
    add_planes(d, maps, m);
    document_end(d, '}');
    return r ? r : maps->cells.failure;
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
    _cleanup_(maps_deinit) struct maps maps = { .run = of, .cells = POOL_NONE };
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
        r = take_room(&maps);
    if (!r && (r = read_all(err, &maps, report)))
        return r;
    document_begin(&report->document, key, '[');
    for (size_t i = 0; !r && i < maps.n; i++)
        if (maps.all[i].cells.per)
            r = map_add(&report->document, &maps, &maps.all[i]);
    document_end(&report->document, ']');
    report->n_damaged += maps.n_damaged;
    return r ? err_set_errno(err, -r, "cannot compute the maps") : 0;
}
