/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libdmi_analyze.so: what the tensors of a run hold, by site, layer, token and channel; and which experts a mixture of
 * experts chose. docs/analysis.md has formulas, sources and limits.
 *
 *     struct dmi_stats *stats;
 *     struct dmi_stats_layer layer = { .size = sizeof layer };
 *     char why[512];
 *     if (dmi_stats_open(run, NULL, &stats, why, sizeof why))
 *         die(why);
 *     for (uint64_t i = 0; !dmi_stats_layer(stats, i, &layer); i++)
 *         printf("%s.%d: %g\n", layer.name, layer.layer, layer.peak.value);
 *     dmi_stats_close(stats);
 *
 * An answer is about the rows that the run has selected when it is opened, and reads them once, there. It borrows nothing of the
 * run but names: those end when the run is refreshed, selected anew or closed. Errors, threads and the promise of the ABI are
 * those of <dmi/analyze.h>. Rows are added one by one in the order of their records: numbers are equal to the bit with AVX-512, AVX2 and neither.
 */
#ifndef DMI_ANALYZE_STATS_H
#define DMI_ANALYZE_STATS_H

#include <dmi/analyze.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------- statistics */

struct dmi_stats;

/* What a row holds. */
struct dmi_stats_row {
    double
        norm; /* root of the sum of squares; NaN where a value is not finite, and of rows that are left out */
    double mean,
        peak; /* of its finite values; NaN where there are none. @peak: the largest magnitude */
    uint64_t n_bad; /* values that are not finite */
};

/*
 * Takes rows of one tensor that follow one another, borrowed during the call. @first: the row of the tensor that rows[0] is.
 * Tensors come in the order of records; with several threads in any order, and from any thread, one at a time. Return: 0 to go on, else what ends it.
 */
typedef int dmi_stats_take(void *arg, uint64_t tensor, uint64_t first,
                           const struct dmi_stats_row *rows, uint64_t n);

struct dmi_stats_options {
    uint32_t size;
    uint32_t
        n_threads; /* that compute beside the caller's, which reads; 0, 1: the caller's alone. Numbers are the same to the bit */
    int64_t skip_first; /* tokens of lower positions are left out: massive activations sit there */
    dmi_stats_take *take; /* NULL: rows are not wanted */
    void *arg;
};

/* Where a value stands. */
struct dmi_stats_place {
    double value;
    uint64_t tensor;  /* index for dmi_read_tensor() */
    int64_t position; /* of its token; where that is not known, its row in the tensor */
    uint64_t channel; /* its index in the row */
};

/* One site and layer. NaN: there is no such number. Standard deviations are divided by n. */
struct dmi_stats_layer {
    uint32_t size;
    uint32_t dtype;       /* enum dmi_dtype */
    const char *name;     /* of the site */
    int32_t layer;        /* -1: none */
    uint32_t has_spread;  /* 0: more than half of its channels are equal, so that none stands out */
    const char *left_out; /* why there are no numbers; NULL: there are */
    uint64_t width;       /* channels */
    uint64_t n_rows;      /* that count */
    uint64_t n_skipped;   /* rows of first positions */
    uint64_t n_damaged;   /* rows that cannot be decoded */
    uint64_t n_values, n_zero; /* finite values, and which of them are 0 */
    uint64_t n_nan, n_infinite;
    double mean, sd, kurtosis, least,
        most;                    /* of finite values; kurtosis: 3 of a normal distribution */
    struct dmi_stats_place peak; /* the largest magnitude, signed; the first of equals */
    uint64_t n_norms;            /* rows that are finite throughout */
    double norm_mean, norm_sd;
    struct dmi_stats_place norm_peak; /* the largest norm */
    uint64_t n_outliers;              /* channels that stand out in this layer */
};

/* A channel that stands out in at least a quarter of a site's layers. */
struct dmi_stats_outlier {
    uint32_t size;
    uint32_t n_layers;  /* where it does */
    uint32_t of_layers; /* layers of the site whose channels have a spread */
    int32_t layer;      /* where it is furthest out */
    const char *name;   /* of the site */
    uint64_t channel;
    double score; /* there: robust standard deviations above the median */
};

/* What a channel holds over the rows of a layer. */
struct dmi_stats_channel {
    double mean, sd, peak; /* of its finite values; @peak: the largest magnitude */
    double
        score; /* how far its root mean square lies above the median channel's, in robust deviations */
    uint64_t n_bad; /* values that are not finite */
};

enum dmi_stats_of {
    DMI_STATS_OF_VALUES = 0,
    DMI_STATS_OF_MAGNITUDES = 1, /* of values without their sign */
    DMI_STATS_OF_NORMS = 2,
};

/* A quantile is off by this part of its magnitude at most. */
#define DMI_STATS_QUANTILE_ERROR 0.00390625

/**
 * dmi_stats_open() - read all rows that are selected once
 * @options: NULL: all tokens, and rows are not wanted
 * @why: gets a sentence on failure, cut to @n_why bytes; may be NULL
 * Memory does not grow with the rows. Damaged rows are counted. Return: 0; -ENOMEM, -EIO, -EINVAL; what the options' @take returned.
 */
DMI_ANALYZE_API int dmi_stats_open(struct dmi_read *run, const struct dmi_stats_options *options,
                                   struct dmi_stats **out, char *why, uint64_t n_why);
/* Accepts NULL. */
DMI_ANALYZE_API void dmi_stats_close(struct dmi_stats *stats);

/* Each fills @out, whose size the caller has set; by site and layer, by site and weight. Return: 0, -EINVAL (no size), -ENOENT. */
DMI_ANALYZE_API int dmi_stats_layer(const struct dmi_stats *stats, uint64_t index,
                                    struct dmi_stats_layer *out);
DMI_ANALYZE_API int dmi_stats_outlier(const struct dmi_stats *stats, uint64_t index,
                                      struct dmi_stats_outlier *out);

/* Return: the index of a tensor's layer; -ENOENT. */
DMI_ANALYZE_API int64_t dmi_stats_layer_of(const struct dmi_stats *stats, uint64_t tensor);

/**
 * dmi_stats_quantile() - the value of rank floor(q * (n - 1)), within DMI_STATS_QUANTILE_ERROR of it; the ends are exact
 * @of: enum dmi_stats_of; @q: 0 to 1
 * Return: NaN where there are no values, or no such layer.
 */
DMI_ANALYZE_API double dmi_stats_quantile(const struct dmi_stats *stats, uint64_t layer,
                                          uint32_t of, double q);

/* Fills @out with the channels of a layer, at most @n_room. Return: how many there are; -ENOENT, -ENOMEM. */
DMI_ANALYZE_API int64_t dmi_stats_channels(const struct dmi_stats *stats, uint64_t layer,
                                           struct dmi_stats_channel *out, uint64_t n_room);

/* ------------------------------------------------------------------------- routing */

struct dmi_routing;

struct dmi_routing_options {
    uint32_t size;
    uint32_t n_experts; /* 0: as many as there are router logits */
    uint32_t
        top_k; /* 0: choices are captured; else they are the largest router logits, and weights their softmax */
    uint32_t reserved;
    const char *ids, *weights, *logits; /* sites; NULL: topk_ids, topk_weights, router_logits */
};

/* One layer. NaN: there is no such number. */
struct dmi_routing_layer {
    uint32_t size;
    int32_t layer;
    uint32_t n_experts, n_choices; /* choices: of a token */
    uint64_t n_tokens;             /* rows of choices */
    uint64_t n_damaged;            /* rows that cannot be decoded */
    uint64_t n_invalid;            /* choices that are no expert: they count nowhere */
    const uint64_t *load;          /* choices by expert, until dmi_routing_close() */
    double variation;              /* of the load: standard deviation / mean */
    double entropy;       /* of the load's shares, in nats: log(n_experts) where all are equal */
    uint32_t n_idle;      /* experts without a choice */
    uint32_t busiest;     /* expert */
    uint64_t n_pairs;     /* of tokens at neighbouring positions of a request */
    double token_overlap; /* mean Jaccard index of their sets of experts */
    uint64_t n_requests;  /* that were compared with each other: the first 256 at most */
    double
        request_overlap; /* mean over their pairs of the Jaccard index of their sets of experts */
    double
        request_likeness; /* the same of loads: sum of the lesser shares / sum of the greater ones */
    uint64_t n_weighed;   /* tokens with weights */
    double first_share;   /* mean of a token's largest weight / the sum of its weights */
    uint64_t n_scored;    /* tokens with router logits */
    double token_entropy; /* mean entropy of the softmax over a token's logits, in nats */
};

/**
 * dmi_routing_open() - read all choices that are selected once
 * @options: NULL: captured choices
 * Return: 0; -ENODATA (no choices, or the number of experts is not known), -EINVAL (sites that hold something else), -ENOMEM, -EIO;
 * with a sentence in @why as dmi_stats_open().
 */
DMI_ANALYZE_API int dmi_routing_open(struct dmi_read *run,
                                     const struct dmi_routing_options *options,
                                     struct dmi_routing **out, char *why, uint64_t n_why);
/* Accepts NULL. */
DMI_ANALYZE_API void dmi_routing_close(struct dmi_routing *routing);

/* As dmi_stats_layer(). */
DMI_ANALYZE_API int dmi_routing_layer(const struct dmi_routing *routing, uint64_t index,
                                      struct dmi_routing_layer *out);

#ifdef __cplusplus
}
#endif

#endif
