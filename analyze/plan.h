/* SPDX-License-Identifier: Apache-2.0 */
/* What attention is computed from: which tensors, heads, queries and keys, and whether all of it is there. One thread, as the runs. */
#pragma once

#include "analyze/model.h"
#include "analyze/source.h"
#include "core/err.h"

#include <dmi/analyze.h>

#include <stdbool.h>

/* Norms of differences and of z, over the rows of one head. */
struct proof {
    double difference, norm; /* squared */
    double worst_row;        /* difference / norm, not squared */
    uint64_t n_rows;
};

struct plan_layer {
    int32_t layer;
    struct sources q, k, v, z;
    bool *wanted;         /* n_heads: which are computed */
    struct proof *proofs; /* n_heads */
    double bound;         /* above which its proof fails */
    bool is_checked;      /* v of all keys that are seen, and z, are there */
    uint64_t n_borrowed;  /* positions whose keys or values another request computed */
    struct model_layer about;
    struct rope_params rope; /* that about.rope points to */
    float *frequencies;      /* of about.rope */
};

struct plan {
    struct dmi_read *run;      /* borrowed */
    const struct model *model; /* borrowed; NULL: none */
    uint32_t rope_order;       /* enum dmi_analyze_order */
    struct dmi_analyze_sites sites;
    char *request; /* NULL: the rows are of none */
    size_t n_request;
    struct plan_layer *layers; /* ascending */
    size_t n_layers;
    uint32_t n_heads, n_kv_heads, dim, value_dim; /* the last: 0 where v and z are not both there */
    int64_t *queries;
    size_t n_queries;
    int64_t n_keys;
    double multiplier, cap;
    uint64_t n_borrowed;
    size_t n_threads;
    uint64_t n_memory; /* 0: not said */
};

/* As dmi_analyze_open(), without rows: plan_rows() comes next. @out: zeroed; to be given to plan_deinit() in any case. */
int plan_make(struct err *err, struct dmi_read *run, const struct model *model,
              const struct dmi_analyze_options *options, struct plan *out);
void plan_deinit(struct plan *plan);

/* The first key that a query of a layer sees. */
int64_t plan_first_key(const struct plan_layer *layer, int64_t query);

/* Does what is selected of a run have q and k, by the sites' usual names? */
bool plan_is_captured(struct dmi_read *run);

/**
 * plan_lacks() - say that rows of a site are not there, and which sites hold rows that cannot be used
 * @offset: of the sources in struct plan_layer; @name: of what lacks; @positions: goes after it
 * Return: -ENODATA.
 */
int plan_lacks(struct err *err, const struct plan *plan, const struct plan_layer *layer,
               size_t offset, const char *name, const char *positions);
