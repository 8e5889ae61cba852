/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/stats.h"

#include "analyze/tile.h"
#include "analyze/workers.h"
#include "core/cleanup.h"
#include "core/err.h"
#include "core/grow.h"
#include "core/locked.h"
#include "core/sorted.h"
#include "storage/elements.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define TILE MOMENTS_TILE
#define ROWS 4 /* that are added together */

struct stats_reader {
    struct dmi_read *run;
    struct stats *out;
    const struct stats_query *query;
    const struct tile_kernel *kernel;
    double *scales;          /* by site */
    struct workers *workers; /* NULL: the calling thread computes */
    struct buffer *buffers;  /* by thread */
    pthread_mutex_t taking;  /* rows are handed out by one thread at a time */
};

/* What the rows of the stretch at hand hold. */
struct buffer {
    struct dmi_stats_row *rows;
    size_t room;
    double values[ROWS][TILE]; /* some channels of rows that are added together */
};

/* ------------------------------------------------------------------------- some rows */

enum { UPPER_OF_BF16 = 0, UPPER_OF_F32 = 2, NOT_IN_MEMORY = -1 };

/* Where an element, f32 or bf16, has the upper half of its value as a float, as bytes into it. */
static int upper_half_of(uint32_t dtype, double scale)
{
    const struct dmi_dtype_info *info = dmi_dtype_info(dtype);
    bool stored = scale == 1 || scale == 0;
    return stored && info && info->exponent == 8 ? (int)info->n_bytes - 2 : NOT_IN_MEMORY;
}

/* Consecutive rows of a layer, which are added together. */
struct tile_rows {
    const struct tile_kernel *kernel;
    struct stats_layer *layer;
    const uint8_t *data;
    double scale;
    int upper_half;
    double (*values)[TILE];       /* some channels of each */
    struct dmi_stats_place place; /* of the first */
    size_t n;                     /* up to ROWS */
    struct moments moments[ROWS];
    struct dmi_stats_place peaks[ROWS]; /* of those that are higher than the layer's was */
    uint64_t n_bad[ROWS];
};

/* Leaves the finite ones, in their order. Return: how many. */
static size_t leave_finite(struct stats_layer *layer, double *values, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        layer->n_nan += isnan(values[i]) != 0;
        layer->n_infinite += isinf(values[i]) != 0;
        if (isfinite(values[i]))
            values[kept++] = values[i];
    }
    return kept;
}

static void add_moments(struct tile_rows *rows, size_t row, uint64_t channel,
                        const struct moments *part)
{
    const struct stats_layer *layer = rows->layer;
    struct dmi_stats_place *to = &rows->peaks[row];
    const double *values = rows->values[row];
    double peak = moments_peak(part);
    bool is_higher = !layer->values.n || peak > fabs(layer->peak.value);
    if (is_higher && (!rows->moments[row].n || peak > fabs(to->value))) {
        while (fabs(*values) != peak) {
            values++;
            channel++;
        }
        *to = (struct dmi_stats_place){ .value = *values, .channel = channel };
    }
    moments_merge(&rows->moments[row], part);
}

/* Some channels of a row whose sum is not finite: a value is not, or the sum is too large for a double. */
static int add_odd_tile(struct tile_rows *rows, size_t row, uint64_t channel, size_t n)
{
    double finite[TILE];
    struct moments part;
    memcpy(finite, rows->values[row], n * sizeof *finite);
    size_t n_finite = leave_finite(rows->layer, finite, n);
    rows->n_bad[row] += n - n_finite;
    if (!n_finite)
        return 0;
    moments_of(rows->kernel, finite, n_finite, &part);
    add_moments(rows, row, channel, &part);
    return sketch_add(&rows->layer->sketch, finite, n_finite);
}

/* As elements_to_true(), which knows all types. */
static void widen(const struct tile_rows *rows, const uint8_t *data, size_t n, double *values)
{
    if (rows->upper_half == UPPER_OF_F32)
        rows->kernel->from_f32(data, n, values);
    else if (rows->upper_half == UPPER_OF_BF16)
        rows->kernel->from_bf16(data, n, values);
    else
        elements_to_true(rows->layer->dtype, data, n, rows->scale, values);
}

/* Counts values that are finite. @data: as they are in the run */
static int count(struct tile_rows *rows, const double *values, const uint8_t *data, size_t n)
{
    struct sketch *to = &rows->layer->sketch;
    if (rows->upper_half == NOT_IN_MEMORY)
        return sketch_add(to, values, n);
    return sketch_add_keys(to, data + rows->upper_half, dmi_dtype_bytes(rows->layer->dtype), n);
}

/* Some channels of a row. Return: 0, or 1 if one of them is not finite, or -ENOMEM. */
static int add_tile(struct tile_rows *rows, size_t row, uint64_t channel, size_t n)
{
    const struct stats_layer *layer = rows->layer;
    double *values = rows->values[row];
    const uint8_t *data =
        rows->data + (row * layer->width + channel) * dmi_dtype_bytes(layer->dtype);
    struct moments part;
    uint64_t n_bad = rows->n_bad[row];
    widen(rows, data, n, values);
    moments_of(rows->kernel, values, n, &part);
    if (isfinite(part.mean)) {
        add_moments(rows, row, channel, &part);
        return count(rows, values, data, n);
    }
    int r = add_odd_tile(rows, row, channel, n);
    return r ? r : rows->n_bad[row] != n_bad;
}

/* Some channels of all rows. Return: 0 or -ENOMEM. */
static int add_tiles(struct tile_rows *rows, uint64_t channel, size_t n)
{
    struct channels *to = &rows->layer->channels;
    bool bad = false;
    int r = 0;
    for (size_t row = 0; row < rows->n; row++) {
        r = add_tile(rows, row, channel, n);
        bad |= r > 0;
        if (r < 0)
            return r;
    }
    if (!bad)
        channels_add(rows->kernel, to, channel, rows->values[0], TILE, rows->n, n);
    for (size_t row = 0; bad && row < rows->n; row++)
        if (channels_add_bad(to, channel, rows->values[row], n))
            return -ENOMEM;
    return 0;
}

static int add_norm(struct stats_layer *layer, double norm, struct dmi_stats_place place)
{
    struct moments one;
    place.value = norm;
    if (!layer->norms.n || norm > layer->norm_peak.value)
        layer->norm_peak = place;
    moments_of_one(norm, &one);
    moments_merge(&layer->norms, &one);
    return sketch_add(&layer->norm_sketch, &norm, 1);
}

/* A row whose channels were all added. @place: its token */
static int end_row(struct tile_rows *rows, size_t row, struct dmi_stats_place place,
                   struct dmi_stats_row *out)
{
    struct stats_layer *layer = rows->layer;
    const struct moments *m = &rows->moments[row];
    bool is_whole = !rows->n_bad[row];
    *out = (struct dmi_stats_row){ .norm = is_whole ? moments_norm(m) : NAN,
                                   .mean = m->n ? m->mean : NAN,
                                   .peak = moments_peak(m),
                                   .n_bad = rows->n_bad[row] };
    if (m->n && (!layer->values.n || out->peak > fabs(layer->peak.value))) {
        layer->peak = place;
        layer->peak.value = rows->peaks[row].value;
        layer->peak.channel = rows->peaks[row].channel;
    }
    moments_merge(&layer->values, m);
    return is_whole ? add_norm(layer, out->norm, place) : 0;
}

/* Adds them all. Return: 0 or -ENOMEM. */
static int add_together(struct tile_rows *rows, struct dmi_stats_row *out)
{
    uint64_t width = rows->layer->width;
    int r = 0;
    memset(rows->moments, 0, sizeof rows->moments);
    memset(rows->n_bad, 0, sizeof rows->n_bad);
    rows->layer->n_rows += rows->n;
    channels_begin_rows(&rows->layer->channels, rows->n);
    for (uint64_t at = 0; !r && at < width; at += TILE)
        r = add_tiles(rows, at, width - at < TILE ? (size_t)(width - at) : TILE);
    for (size_t row = 0; !r && row < rows->n; row++, rows->place.position++)
        r = end_row(rows, row, rows->place, &out[row]);
    return r;
}

/* ------------------------------------------------------------------------- visiting */

static const struct dmi_stats_row no_row = { NAN, NAN, NAN, 0 };

/* How many of a stretch's rows, from its first one on, are at positions that are left out. */
static uint64_t n_left_out(const struct dmi_read_stretch *s, int64_t position, int64_t skip_first)
{
    int64_t n = skip_first > position ? skip_first - position : 0;
    return (uint64_t)n < s->n_rows ? (uint64_t)n : s->n_rows;
}

static int add_rows(const struct stats_reader *p, struct stats_layer *layer,
                    const struct dmi_read_stretch *s, struct buffer *b)
{
    struct dmi_stats_row *out = b->rows;
    int64_t position = s->position < 0 ? (int64_t)s->first : s->position;
    uint64_t n_row = layer->width * dmi_dtype_bytes(layer->dtype);
    double scale = p->scales[s->site];
    struct tile_rows rows = { .kernel = p->kernel,
                              .layer = layer,
                              .scale = scale,
                              .upper_half = upper_half_of(layer->dtype, scale),
                              .values = b->values };
    uint64_t at = s->data ? n_left_out(s, position, p->query->skip_first) : s->n_rows;
    *(s->data ? &layer->n_skipped : &layer->n_damaged) += at;
    for (uint64_t i = 0; i < at; i++)
        out[i] = no_row;
    int r = 0;
    for (; !r && at < s->n_rows; at += rows.n) {
        rows.n = s->n_rows - at < ROWS ? (size_t)(s->n_rows - at) : ROWS;
        rows.data = (const uint8_t *)s->data + at * n_row;
        rows.place =
            (struct dmi_stats_place){ .tensor = s->tensor, .position = position + (int64_t)at };
        r = add_together(&rows, out + at);
    }
    return r;
}

static int hand_out(struct stats_reader *p, const struct dmi_read_stretch *s,
                    const struct dmi_stats_row *rows)
{
    return LOCKED(&p->taking, p->query->rows(p->query->arg, s->tensor, s->first, rows, s->n_rows));
}

/* A layer's stretches all come to one thread, in their order. */
static int compute(void *arg, size_t worker, const struct dmi_read_stretch *s)
{
    struct stats_reader *p = arg;
    struct buffer *b = &p->buffers[worker];
    int r = RESERVE(b->rows, s->n_rows, b->room);
    if (!r)
        r = add_rows(p, &p->out->layers[p->out->layer_of[s->tensor]], s, b);
    return !r && p->query->rows ? hand_out(p, s, b->rows) : r;
}

static int take(void *ctx, const struct dmi_read_stretch *s)
{
    struct stats_reader *p = ctx;
    if (!p->workers)
        return compute(p, 0, s);
    return workers_put(p->workers, p->out->layer_of[s->tensor] % workers_count(p->workers), s);
}

/* ------------------------------------------------------------------------- layers */

/* Which layer a tensor is of. */
struct layer_key {
    uint32_t site;
    int32_t layer;
    uint64_t tensor;
};

static int by_layer(const void *pa, const void *pb)
{
    const struct layer_key *a = pa, *b = pb;
    ORDER(a, b, site);
    ORDER(a, b, layer);
    return a->tensor < b->tensor ? -1 : a->tensor > b->tensor;
}

/* What a layer is, of the first of its tensors that has rows; and whether the others agree. */
static void take_shape(struct stats_layer *layer, const struct dmi_read_tensor *t)
{
    if (!t->n_rows)
        return;
    if (!layer->dtype) {
        layer->dtype = t->dtype;
        layer->width = t->width;
    }
    if (t->mixed == 1)
        layer->left_out = "its type or width changes from record to record";
    else if (t->dtype != layer->dtype || t->width != layer->width)
        layer->left_out = "its type or width changes from request to request";
    else if (!dmi_dtype_bytes(layer->dtype))
        layer->left_out = "its type is not known here";
}

struct site_name {
    const char *text;
    uint32_t site;
};

static int by_name(const void *pa, const void *pb)
{
    const struct site_name *a = pa, *b = pb;
    int c = strcmp(a->text, b->text);
    return c ? c : a->site < b->site ? -1 : a->site > b->site;
}

/* By site: the first of its name. Return: NULL: no memory. */
static uint32_t *first_of_names(struct dmi_read *run, uint64_t n)
{
    uint32_t *first = calloc(n + 1, sizeof *first);
    _cleanup_(freep) struct site_name *names = calloc(n + 1, sizeof *names);
    struct dmi_read_site site = { .size = sizeof site };
    if (!first || !names) {
        free(first);
        return NULL;
    }
    for (uint32_t i = 0; i < n; i++) {
        dmi_read_site(run, i, &site);
        names[i] = (struct site_name){ site.name, i };
    }
    qsort(names, n, sizeof *names, by_name);
    for (uint64_t i = 0; i < n; i++) {
        bool again = i && !strcmp(names[i].text, names[i - 1].text);
        first[names[i].site] = again ? first[names[i - 1].site] : names[i].site;
    }
    return first;
}

/* The layers of tensors that are sorted by theirs. */
static int join_layers(struct stats_reader *p, const struct layer_key *keys, uint64_t n)
{
    struct stats *out = p->out;
    struct dmi_read_tensor t = { .size = sizeof t };
    size_t room = 0;
    for (uint64_t i = 0; i < n; i++) {
        bool again = i && keys[i].site == keys[i - 1].site && keys[i].layer == keys[i - 1].layer;
        if (!again && GROW(out->layers, out->n_layers, room))
            return -ENOMEM;
        if (!again)
            out->layers[out->n_layers++] =
                (struct stats_layer){ .site = keys[i].site, .layer = keys[i].layer };
        out->layer_of[keys[i].tensor] = out->n_layers - 1;
        dmi_read_tensor(p->run, keys[i].tensor, &t);
        take_shape(&out->layers[out->n_layers - 1], &t);
    }
    return 0;
}

static int list_layers(struct stats_reader *p, uint64_t n_sites)
{
    struct stats *out = p->out;
    struct dmi_read_tensor t = { .size = sizeof t };
    _cleanup_(freep) uint32_t *first = first_of_names(p->run, n_sites);
    _cleanup_(freep) struct layer_key *keys = calloc(out->n_tensors + 1, sizeof *keys);
    if (!first || !keys)
        return -ENOMEM;
    for (uint64_t i = 0; i < out->n_tensors; i++) {
        dmi_read_tensor(p->run, i, &t);
        keys[i] = (struct layer_key){ first[t.site], t.layer, i };
    }
    qsort(keys, out->n_tensors, sizeof *keys, by_layer);
    return join_layers(p, keys, out->n_tensors);
}

static int prepare(struct stats_reader *p)
{
    struct stats *out = p->out;
    struct dmi_read_run run = { .size = sizeof run };
    TRY(dmi_read_run(p->run, &run));
    struct dmi_read_site site = { .size = sizeof site };
    p->scales = calloc(run.n_sites + 1, sizeof *p->scales);
    for (uint32_t i = 0; p->scales && !dmi_read_site(p->run, i, &site); i++)
        p->scales[i] = site.scale;
    out->n_tensors = run.n_tensors;
    out->layer_of = calloc(run.n_tensors + 1, sizeof *out->layer_of);
    int r = out->layer_of && p->scales ? list_layers(p, run.n_sites) : -ENOMEM;
    for (size_t i = 0; !r && i < out->n_layers; i++)
        if (!out->layers[i].left_out)
            r = channels_init(&out->layers[i].channels, out->layers[i].width);
    return r;
}

/* ------------------------------------------------------------------------- channels that stand out */

static int by_weight(const void *pa, const void *pb)
{
    const struct stats_outlier *a = pa, *b = pb;
    ORDER(a, b, site);
    ORDER(b, a, n_layers);
    ORDER(b, a, score);
    return a->channel < b->channel ? -1 : a->channel > b->channel;
}

/* Adds what one layer says. @all: a channel each. */
static void judge_layer(struct stats_layer *layer, const double *scores, struct stats_outlier *all)
{
    for (size_t c = 0; c < layer->channels.n; c++) {
        layer->has_spread |= !isnan(scores[c]);
        if (!(scores[c] > OUTLIER_SD))
            continue;
        layer->n_outliers++;
        all[c].n_layers++;
        if (scores[c] > all[c].score) {
            all[c].score = scores[c];
            all[c].layer = layer->layer;
        }
    }
}

static int keep_outliers(struct stats *out, size_t *room, const struct stats_outlier *all, size_t n,
                         uint32_t site, uint32_t of_layers)
{
    for (size_t c = 0; c < n; c++) {
        if (!all[c].n_layers || 4 * (uint64_t)all[c].n_layers < of_layers)
            continue;
        if (grow((void **)&out->outliers, out->n_outliers, room, sizeof *out->outliers, 16))
            return -ENOMEM;
        struct stats_outlier *to = &out->outliers[out->n_outliers++];
        *to = all[c];
        to->site = site;
        to->channel = c;
        to->of_layers = of_layers;
    }
    return 0;
}

static size_t widest(const struct stats_layer *layers, size_t n)
{
    size_t width = 0;
    for (size_t i = 0; i < n; i++)
        width = layers[i].channels.n > width ? layers[i].channels.n : width;
    return width;
}

/* The layers of one site. */
static int judge_site(struct stats *out, size_t *room, struct stats_layer *layers, size_t n)
{
    size_t width = widest(layers, n);
    _cleanup_(freep) struct stats_outlier *all = calloc(width + 1, sizeof *all);
    _cleanup_(freep) double *scores = calloc(3 * width + 1, sizeof *scores);
    uint32_t of_layers = 0;
    if (!all || !scores)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        if (!layers[i].n_rows)
            continue;
        channels_scores(&layers[i].channels, scores, scores + width);
        judge_layer(&layers[i], scores, all);
        of_layers += layers[i].has_spread;
    }
    return keep_outliers(out, room, all, width, layers->site, of_layers);
}

static int judge(struct stats *out)
{
    size_t room = 0, n;
    int r = 0;
    for (size_t i = 0; !r && i < out->n_layers; i += n) {
        for (n = 1; i + n < out->n_layers && out->layers[i + n].site == out->layers[i].site;)
            n++;
        r = judge_site(out, &room, &out->layers[i], n);
    }
    if (out->n_outliers)
        qsort(out->outliers, out->n_outliers, sizeof *out->outliers, by_weight);
    return r;
}

/* ------------------------------------------------------------------------- all */

/* All tensors but those of layers that are left out. */
static int visit(struct stats_reader *p)
{
    const struct stats *out = p->out;
    _cleanup_(freep) uint64_t *tensors = calloc(out->n_tensors + 1, sizeof *tensors);
    uint64_t n = 0;
    if (!tensors)
        return -ENOMEM;
    for (uint64_t i = 0; i < out->n_tensors; i++)
        if (!out->layers[out->layer_of[i]].left_out)
            tensors[n++] = i;
    return dmi_read_visit(p->run, tensors, n, take, p);
}

static int compute_all(struct stats_reader *p)
{
    size_t n = p->query->n_threads > 1 ? p->query->n_threads : 1;
    p->buffers = calloc(n, sizeof *p->buffers);
    if (!p->buffers)
        return -ENOMEM;
    p->workers = n > 1 ? workers_start(n, compute, p) : NULL;
    int r = visit(p);
    int done = p->workers ? workers_end(p->workers) : 0;
    for (size_t i = 0; i < n; i++)
        free(p->buffers[i].rows);
    free(p->buffers);
    return r ? r : done;
}

int stats_build(struct err *err, struct dmi_read *run, const struct stats_query *query,
                struct stats *out)
{
    struct stats_reader p = { .run = run,
                              .out = out,
                              .query = query,
                              .kernel = tile_best(),
                              .taking = PTHREAD_MUTEX_INITIALIZER };
    *out = (struct stats){ 0 };
    int r = prepare(&p);
    if (!r)
        r = compute_all(&p);
    free(p.scales);
    if (!r)
        r = judge(out);
    if (r)
        stats_deinit(out);
    return r < 0 ? err_set_errno(err, -r, "cannot compute statistics") : r;
}

void stats_deinit(struct stats *stats)
{
    for (size_t i = 0; i < stats->n_layers; i++) {
        sketch_deinit(&stats->layers[i].sketch);
        sketch_deinit(&stats->layers[i].norm_sketch);
        channels_deinit(&stats->layers[i].channels);
    }
    free(stats->layers);
    free(stats->outliers);
    free(stats->layer_of);
    *stats = (struct stats){ 0 };
}
