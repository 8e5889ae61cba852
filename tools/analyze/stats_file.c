/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-analyze stats -o: all of it as safetensors. docs/analysis.md lays the file out. */
#include "tools/analyze/stats.h"

#include "core/cleanup.h"
#include "read/selection.h"
#include "tools/analyze/result.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <stdlib.h>

#define ROWS_AT_ONCE 256

static const char *const channel_parts[] = { "mean", "sd", "max", "score" };
static const char *const row_parts[] = { "norm", "mean", "max" };
#define N_CHANNEL_PARTS 4
#define N_ROW_PARTS     3

static double channel_part(const struct dmi_stats_channel *c, size_t part)
{
    const double parts[N_CHANNEL_PARTS] = { c->mean, c->sd, c->peak, c->score };
    return parts[part];
}

static double row_part(const struct dmi_stats_row *r, size_t part)
{
    const double parts[N_ROW_PARTS] = { r->norm, r->mean, r->peak };
    return parts[part];
}

/* ------------------------------------------------------------------------- what there is */

static json_t *metadata_of(const struct stats_answer *a)
{
    struct dmi_stats_layer l = { .size = sizeof l };
    struct dmi_stats_outlier o = { .size = sizeof o };
    json_t *parameters = json_pack("{s:I, s:o}", "skip_first", (json_int_t)a->skip_first,
                                   "quantile_error", value_double(DMI_STATS_QUANTILE_ERROR));
    json_t *m = result_metadata("stats", STATS_FORMULA, a->run, parameters);
    json_t *layers = json_array(), *outliers = json_array();
    for (uint64_t i = 0; !dmi_stats_layer(a->stats, i, &l); i++)
        json_array_append_new(layers, stats_layer_row(a, i));
    for (uint64_t i = 0; !dmi_stats_outlier(a->stats, i, &o); i++)
        json_array_append_new(outliers, stats_outlier_row(&o));
    result_say(m, "layers", layers);
    result_say(m, "outlier_channels", outliers);
    result_say_edits_of_all(m, a->run);
    return m;
}

static int add(struct result *result, const char *name, const char *what, const char *part,
               uint64_t n, uint64_t *at)
{
    _cleanup_(text_deinit) struct text key = { 0 };
    text_printf(&key, "%s/%s.%s", name, what, part);
    if (key.failed)
        return -ENOMEM;
    *at = result_add(result, key.data, DMI_DTYPE_F64, &n, 1);
    return 0;
}

static int layer_name(struct text *to, const struct dmi_stats_layer *l)
{
    tensor_add_name(to, l->name, l->layer);
    return to->failed ? -ENOMEM : 0;
}

/* Offsets of the tensors: of a layer's channels, then of a tensor's rows. */
struct offsets {
    uint64_t *channels; /* by layer: of the first of its parts */
    uint64_t *rows;     /* by tensor, likewise */
};

static int add_layers(struct result *result, const struct stats_answer *a, struct offsets *at)
{
    struct dmi_stats_layer l = { .size = sizeof l };
    int r = 0;
    for (uint64_t i = 0; !r && !dmi_stats_layer(a->stats, i, &l); i++) {
        _cleanup_(text_deinit) struct text name = { 0 };
        r = layer_name(&name, &l);
        for (size_t p = 0; !r && !l.left_out && p < N_CHANNEL_PARTS; p++) {
            uint64_t offset = 0;
            r = add(result, name.data, "channel", channel_parts[p], l.width, &offset);
            at->channels[i] = p ? at->channels[i] : offset;
        }
    }
    return r;
}

static int add_rows(struct result *result, const struct stats_answer *a, struct offsets *at)
{
    struct dmi_read_tensor t = { .size = sizeof t };
    int r = 0;
    for (uint64_t i = 0; !r && !dmi_read_tensor(a->run, i, &t); i++)
        for (size_t p = 0; !r && stats_has(a, i) && p < N_ROW_PARTS; p++) {
            uint64_t offset = 0;
            r = add(result, t.key, "row", row_parts[p], t.n_rows, &offset);
            at->rows[i] = p ? at->rows[i] : offset;
        }
    return r;
}

/* ------------------------------------------------------------------------- numbers */

static int write_channels(struct err *err, struct result *result, const struct stats_answer *a,
                          uint64_t layer, uint64_t width, uint64_t at)
{
    _cleanup_(freep) struct dmi_stats_channel *all = calloc(width + 1, sizeof *all);
    _cleanup_(freep) double *numbers = calloc(width + 1, sizeof *numbers);
    int r = 0;
    if (!all || !numbers || dmi_stats_channels(a->stats, layer, all, width) < 0)
        return err_set_errno(err, ENOMEM, "cannot write channels");
    for (size_t p = 0; !r && p < N_CHANNEL_PARTS; p++) {
        for (uint64_t c = 0; c < width; c++)
            numbers[c] = channel_part(&all[c], p);
        r = result_write(err, result, numbers, width * sizeof *numbers,
                         at + p * width * sizeof *numbers);
    }
    return r;
}

static int write_rows(struct err *err, struct result *result, const struct stats_answer *a,
                      uint64_t tensor, uint64_t n_rows, uint64_t at)
{
    struct dmi_stats_row rows[ROWS_AT_ONCE];
    double numbers[ROWS_AT_ONCE];
    int r = 0;
    for (uint64_t first = 0, n; !r && first < n_rows; first += n) {
        n = n_rows - first < ROWS_AT_ONCE ? n_rows - first : ROWS_AT_ONCE;
        r = stats_rows_read(err, &a->rows, tensor, first, rows, n);
        for (size_t p = 0; !r && p < N_ROW_PARTS; p++) {
            for (uint64_t i = 0; i < n; i++)
                numbers[i] = row_part(&rows[i], p);
            r = result_write(err, result, numbers, n * sizeof *numbers,
                             at + (p * n_rows + first) * sizeof *numbers);
        }
    }
    return r;
}

static int write_all(struct err *err, struct result *result, const struct stats_answer *a,
                     const struct offsets *at)
{
    struct dmi_stats_layer l = { .size = sizeof l };
    struct dmi_read_tensor t = { .size = sizeof t };
    int r = 0;
    for (uint64_t i = 0; !r && !dmi_stats_layer(a->stats, i, &l); i++)
        if (!l.left_out)
            r = write_channels(err, result, a, i, l.width, at->channels[i]);
    for (uint64_t i = 0; !r && !dmi_read_tensor(a->run, i, &t); i++)
        if (stats_has(a, i))
            r = write_rows(err, result, a, i, t.n_rows, at->rows[i]);
    return r;
}

static int write_file(struct err *err, struct result *result, const struct stats_answer *a,
                      struct offsets *at)
{
    int r = result_begin(err, result, metadata_of(a));
    if (!r && (add_layers(result, a, at) || add_rows(result, a, at)))
        r = err_set_errno(err, ENOMEM, "cannot describe the answer");
    if (!r)
        r = result_end_header(err, result);
    if (!r)
        r = write_all(err, result, a, at);
    return r ? r : result_keep(err, result);
}

int stats_write(struct err *err, const struct stats_answer *a, const char *path, bool force)
{
    struct dmi_read_run run = { .size = sizeof run };
    struct result result;
    struct offsets at = { 0 };
    dmi_read_run(a->run, &run);
    int r = result_open(err, &result, path, force, a->run);
    at.channels = calloc(run.n_tensors + 1, sizeof *at.channels);
    at.rows = calloc(run.n_tensors + 1, sizeof *at.rows);
    if (!r && (!at.channels || !at.rows))
        r = err_set_errno(err, ENOMEM, "cannot write the answer");
    if (!r)
        r = write_file(err, &result, a, &at);
    free(at.channels);
    free(at.rows);
    result_deinit(&result);
    return r;
}
