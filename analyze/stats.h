/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tensors of a run hold, by site and layer, over all requests that are selected: norms of rows, moments, the
 * largest value and its place, quantiles, what each channel holds, which channels stand out. One pass over the records;
 * memory does not grow with the rows. Rows are added one by one in the order of their records, so the answer is equal
 * to the bit whatever the size of a request's records. The calling thread reads. Threads that are asked for compute, each
 * some of the layers, and change no bit.
 */
#pragma once

#include "analyze/channels.h"
#include "analyze/moments.h"
#include "analyze/sketch.h"
#include "core/err.h"

#include <dmi/analyze_stats.h>

#include <stdbool.h>

/* One site and layer. */
struct stats_layer {
    uint32_t site; /* index for dmi_read_site(): the first of its name */
    int32_t layer;
    uint32_t dtype;
    uint64_t width;
    uint64_t n_rows;    /* that count */
    uint64_t n_skipped; /* rows of first positions, left out as asked for */
    uint64_t n_damaged; /* rows that cannot be decoded */
    uint64_t n_nan, n_infinite;
    struct moments values; /* of the finite ones */
    struct sketch sketch;  /* of them */
    struct dmi_stats_place
        peak; /* the largest magnitude, signed; the first of equals; where values.n is not 0 */
    struct moments norms;             /* of rows that are finite throughout */
    struct sketch norm_sketch;        /* of them */
    struct dmi_stats_place norm_peak; /* the largest norm; @channel is 0 */
    struct channels channels;
    uint64_t n_outliers; /* channels beyond OUTLIER_SD in this layer */
    bool
        has_spread; /* false: more than half of the channels are equal, so that none can stand out */
    const char *left_out; /* why the layer has no answer; NULL: it has */
};

/* A channel that stands out in at least a quarter of a site's layers. */
struct stats_outlier {
    uint32_t site; /* as struct stats_layer has it */
    uint64_t channel;
    uint32_t n_layers;  /* where it does */
    uint32_t of_layers; /* layers of the site that have a spread */
    double score;       /* the highest, in robust standard deviations */
    int32_t layer;      /* where that is */
};

struct stats_query {
    int64_t skip_first;   /* positions below are left out */
    dmi_stats_take *rows; /* NULL: not wanted */
    void *arg;
    uint32_t n_threads; /* that compute beside the one that reads; 0, 1: the reading one computes */
};

struct stats {
    struct stats_layer *layers; /* by site and layer */
    size_t n_layers;
    struct stats_outlier *outliers; /* by site, then the most layers, then the highest score */
    size_t n_outliers;
    size_t *layer_of; /* by tensor: its index in @layers */
    uint64_t n_tensors;
};

/**
 * stats_build() - read the rows of all tensors that are selected once
 * A layer whose tensors differ in type or width is left out, with the reason. Damaged rows are counted and left out.
 * Return: 0; -ENOMEM, -EIO with a sentence in @err; what query->rows returned.
 */
int stats_build(struct err *err, struct dmi_read *run, const struct stats_query *query,
                struct stats *out);
/* Accepts a zeroed struct. */
void stats_deinit(struct stats *stats);
