/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of chosen heads, whole: those of the last queries, over the keys from the first of them on. A program of one thread. */
#pragma once

#include "core/err.h"
#include "tools/view/document.h"

#include <dmi/analyze_heads.h>

#define PATTERNS_TOKENS    512 /* keys, at most */
#define PATTERNS_OF_A_KIND 4   /* heads of each kind of score, beside those that are named */

struct head_pattern {
    struct dmi_analyze_head head;
    float *weights; /* row by row: of a query the keys first_key to itself */
    size_t n;       /* that are there so far */
};

struct patterns {
    struct head_pattern *all;
    size_t n;
    int64_t first_key;
    uint64_t first_query, n_queries; /* indices among the answer's queries */
    size_t n_weights;                /* of a head */
};

/* Which queries and keys; no head yet. */
void patterns_size(struct patterns *patterns, const struct dmi_analyze_shape *shape);

/* Bytes of the document that a head takes, at most. */
uint64_t patterns_cost(const struct patterns *patterns);

/**
 * patterns_choose() - the heads that are named, then the best of each kind of score by turns; each once
 * @named: heads that the answer has
 * @scores: of the answer's @n_scores heads; their order changes
 * Return: 0 or -ENOMEM; patterns_deinit() in any case. @patterns->n are chosen.
 */
int patterns_choose(struct patterns *patterns, const struct dmi_analyze_head *named, size_t n_named,
                    struct dmi_analyze_score *scores, size_t n_scores);

/* Only the first @n of those that are chosen. */
void patterns_cut(struct patterns *patterns, size_t n);

/**
 * patterns_compute() - their weights
 * @options: of the answer that @shape is of; heads and queries are set here
 * Return: 0 or -errno with a sentence in @err.
 */
int patterns_compute(struct err *err, struct patterns *patterns, struct dmi_read *run,
                     const struct dmi_analyze_options *options,
                     const struct dmi_analyze_shape *shape);

/* Adds them as a member. */
void patterns_add(struct document *d, const struct patterns *patterns);

/* Accepts a zeroed struct. */
void patterns_deinit(struct patterns *patterns);
