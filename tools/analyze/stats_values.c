/* SPDX-License-Identifier: Apache-2.0 */
/* What dmi-analyze stats says of a layer and of a channel, as JSON. */
#include "tools/analyze/stats.h"

#include "read/value.h"

#include <dmi/dtype.h>

#include <math.h>

/* Quantiles that are printed: their names, and which. */
static const struct {
    const char *name;
    double q;
} quantiles[] = {
    { "p0.1", 0.001 }, { "p1", 0.01 }, { "p50", 0.5 }, { "p99", 0.99 }, { "p99.9", 0.999 }
};

static json_t *quantiles_value(const struct dmi_stats *stats, uint64_t layer, uint32_t of)
{
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof quantiles / sizeof *quantiles; i++)
        json_object_set_new(o, quantiles[i].name,
                            value_double(dmi_stats_quantile(stats, layer, of, quantiles[i].q)));
    return o;
}

/* Where a value stands; null where there are none. */
static json_t *place_value(struct dmi_read *run, const struct dmi_stats_place *place, bool any)
{
    struct dmi_read_tensor t = { .size = sizeof t };
    if (!any || dmi_read_tensor(run, place->tensor, &t))
        return json_null();
    return json_pack("{s:o, s:o, s:o, s:o}", "value", value_double(place->value), "request",
                     t.request ? value_bytes(t.request, t.request_bytes) : json_null(), "token",
                     json_integer(place->position), "channel", value_u64(place->channel));
}

static json_t *share_value(uint64_t part, uint64_t all)
{
    return value_double(all ? (double)part / (double)all : NAN);
}

static json_t *counts_value(const struct dmi_stats_layer *l)
{
    uint64_t n_bad = l->n_nan + l->n_infinite, n = l->n_values + n_bad;
    return VALUE_OBJECT(
        { "channels", value_u64(l->width) }, { "rows", value_u64(l->n_rows) },
        { "rows_skipped", value_u64(l->n_skipped) }, { "rows_damaged", value_u64(l->n_damaged) },
        { "values", value_u64(l->n_values) }, { "zeros", value_u64(l->n_zero) },
        { "share_zero", share_value(l->n_zero, n) }, { "nan", value_u64(l->n_nan) },
        { "infinite", value_u64(l->n_infinite) }, { "share_nonfinite", share_value(n_bad, n) });
}

static json_t *norm_value(const struct stats_answer *a, uint64_t index,
                          const struct dmi_stats_layer *l)
{
    struct dmi_stats_place most = l->norm_peak;
    json_t *max = place_value(a->run, &most, l->n_norms);
    json_object_del(max, "channel");
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "rows", value_u64(l->n_norms), "mean",
                     value_double(l->norm_mean), "sd", value_double(l->norm_sd), "median",
                     value_double(dmi_stats_quantile(a->stats, index, DMI_STATS_OF_NORMS, 0.5)),
                     "max", max);
}

json_t *stats_layer_row(const struct stats_answer *a, uint64_t index)
{
    struct dmi_stats_layer l = { .size = sizeof l };
    if (dmi_stats_layer(a->stats, index, &l))
        return NULL;
    const struct dmi_dtype_info *dtype = dmi_dtype_info(l.dtype);
    json_t *row = VALUE_OBJECT(
        { "site", value_text(l.name) }, { "layer", value_layer(l.layer) },
        { "dtype", value_text(dtype ? dtype->name : NULL) }, { "left_out", value_text(l.left_out) },
        { "norm", norm_value(a, index, &l) }, { "mean", value_double(l.mean) },
        { "sd", value_double(l.sd) }, { "kurtosis", value_double(l.kurtosis) },
        { "least", value_double(l.least) }, { "most", value_double(l.most) },
        { "max", place_value(a->run, &l.peak, l.n_values) },
        { "quantiles", quantiles_value(a->stats, index, DMI_STATS_OF_VALUES) },
        { "magnitudes", quantiles_value(a->stats, index, DMI_STATS_OF_MAGNITUDES) },
        { "outlier_channels", l.has_spread ? value_u64(l.n_outliers) : json_null() });
    json_t *counts = counts_value(&l);
    if (!row || !counts || json_object_update(row, counts)) {
        json_decref(row);
        row = NULL;
    }
    json_decref(counts);
    return row;
}

bool stats_has(const struct stats_answer *a, uint64_t tensor)
{
    struct dmi_stats_layer l = { .size = sizeof l };
    int64_t index = dmi_stats_layer_of(a->stats, tensor);
    return index >= 0 && !dmi_stats_layer(a->stats, (uint64_t)index, &l) && !l.left_out;
}

json_t *stats_outlier_row(const struct dmi_stats_outlier *o)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "site", value_text(o->name), "channel",
                     value_u64(o->channel), "layers", json_integer(o->n_layers), "of_layers",
                     json_integer(o->of_layers), "furthest_layer", value_layer(o->layer), "score",
                     value_double(o->score));
}
