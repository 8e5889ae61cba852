/* SPDX-License-Identifier: Apache-2.0 */
/* The C ABI of <dmi/analyze_stats.h>: statistics. */
#include <dmi/analyze_stats.h>

#include "analyze/stats.h"
#include "core/abi.h"
#include "core/cleanup.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static_assert(DMI_STATS_QUANTILE_ERROR == SKETCH_ERROR,
              "the error that is said is that of the sketch");

struct dmi_stats {
    struct dmi_read *run; /* borrowed: for names */
    struct stats stats;
};

static int say(char *why, uint64_t n_why, const struct err *err, int r)
{
    if (r && why && n_why)
        snprintf(why, n_why, "%s", err->msg);
    return r;
}

int dmi_stats_open(struct dmi_read *run, const struct dmi_stats_options *options,
                   struct dmi_stats **out, char *why, uint64_t n_why)
{
    struct err err = { 0 };
    struct dmi_stats_options ours = { 0 };
    *out = NULL;
    if (options && abi_take_in(&ours, sizeof ours, options))
        return say(why, n_why, &err, err_set(&err, -EINVAL, "the struct's size was not set"));
    const struct stats_query query = { ours.skip_first, ours.take, ours.arg, ours.n_threads };
    struct dmi_stats *s = calloc(1, sizeof *s);
    int r = s ? stats_build(&err, run, &query, &s->stats)
              : err_set_errno(&err, ENOMEM, "cannot compute statistics");
    if (r) {
        free(s);
        return say(why, n_why, &err, r);
    }
    s->run = run;
    *out = s;
    return 0;
}

void dmi_stats_close(struct dmi_stats *s)
{
    if (!s)
        return;
    stats_deinit(&s->stats);
    free(s);
}

static const char *name_of(const struct dmi_stats *s, uint32_t site)
{
    struct dmi_read_site about = { .size = sizeof about };
    return dmi_read_site(s->run, site, &about) ? "" : about.name;
}

static const struct stats_layer *layer_at(const struct dmi_stats *s, uint64_t index)
{
    return index < s->stats.n_layers ? &s->stats.layers[index] : NULL;
}

int dmi_stats_layer(const struct dmi_stats *s, uint64_t index, struct dmi_stats_layer *out)
{
    const struct stats_layer *l = layer_at(s, index);
    if (!l)
        return -ENOENT;
    const struct moments *v = &l->values, *norms = &l->norms;
    const struct dmi_stats_layer ours = {
        .dtype = l->dtype,
        .name = name_of(s, l->site),
        .layer = l->layer,
        .has_spread = l->has_spread,
        .left_out = l->left_out,
        .width = l->width,
        .n_rows = l->n_rows,
        .n_skipped = l->n_skipped,
        .n_damaged = l->n_damaged,
        .n_values = v->n,
        .n_zero = v->n_zero,
        .n_nan = l->n_nan,
        .n_infinite = l->n_infinite,
        .mean = v->n ? v->mean : NAN,
        .sd = moments_sd(v),
        .kurtosis = moments_kurtosis(v),
        .least = v->n ? v->least : NAN,
        .most = v->n ? v->most : NAN,
        .peak = l->peak,
        .n_norms = norms->n,
        .norm_mean = norms->n ? norms->mean : NAN,
        .norm_sd = moments_sd(norms),
        .norm_peak = l->norm_peak,
        .n_outliers = l->n_outliers,
    };
    return abi_hand_out(out, &ours, sizeof ours);
}

int64_t dmi_stats_layer_of(const struct dmi_stats *s, uint64_t tensor)
{
    return tensor < s->stats.n_tensors ? (int64_t)s->stats.layer_of[tensor] : -ENOENT;
}

int dmi_stats_outlier(const struct dmi_stats *s, uint64_t index, struct dmi_stats_outlier *out)
{
    if (index >= s->stats.n_outliers)
        return -ENOENT;
    const struct stats_outlier *o = &s->stats.outliers[index];
    const struct dmi_stats_outlier ours = {
        .n_layers = o->n_layers,
        .of_layers = o->of_layers,
        .layer = o->layer,
        .name = name_of(s, o->site),
        .channel = o->channel,
        .score = o->score,
    };
    return abi_hand_out(out, &ours, sizeof ours);
}

/* A quantile between the least and the most, which are exact. */
static double between(double value, double q, double least, double most)
{
    if (q <= 0 || value < least)
        return least;
    return q >= 1 || value > most ? most : value;
}

double dmi_stats_quantile(const struct dmi_stats *s, uint64_t layer, uint32_t of, double q)
{
    const struct stats_layer *l = layer_at(s, layer);
    const struct moments *m = l && of == DMI_STATS_OF_NORMS ? &l->norms : l ? &l->values : NULL;
    if (!m || !m->n)
        return NAN;
    if (of == DMI_STATS_OF_NORMS)
        return between(sketch_quantile(&l->norm_sketch, q), q, m->least, m->most);
    if (of == DMI_STATS_OF_VALUES)
        return between(sketch_quantile(&l->sketch, q), q, m->least, m->most);
    double most = moments_peak(m), magnitude = sketch_magnitude(&l->sketch, q);
    return q >= 1 || magnitude > most ? most : magnitude;
}

int64_t dmi_stats_channels(const struct dmi_stats *s, uint64_t layer, struct dmi_stats_channel *out,
                           uint64_t n_room)
{
    const struct stats_layer *l = layer_at(s, layer);
    if (!l)
        return -ENOENT;
    const struct channels *c = &l->channels;
    _cleanup_(freep) double *scores = calloc(3 * c->n + 1, sizeof *scores);
    if (!scores)
        return -ENOMEM;
    channels_scores(c, scores, scores + c->n);
    for (uint64_t i = 0; i < c->n && i < n_room; i++) {
        bool any = channels_count(c, i) != 0;
        out[i] = (struct dmi_stats_channel){ .mean = channels_mean(c, i),
                                             .sd = channels_sd(c, i),
                                             .peak = any ? c->peak[i] : NAN,
                                             .score = scores[i],
                                             .n_bad = c->n_bad ? c->n_bad[i] : 0 };
    }
    return (int64_t)c->n;
}
