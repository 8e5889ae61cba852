/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What heads do: sums over the rows of weights as they come. Pure but for the sums: one thread.
 * Sources: induction and previous-token heads: Olsson et al., arXiv 2209.11895; mul and abs: TransformerLens 2, its head_detector;
 * focus: Attention Tracker, arXiv 2411.00348; documents: CoRe, arXiv 2510.02219.
 */
#pragma once

#include <dmi/analyze_heads.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where tokens came before. */
struct repeats {
    int64_t *first; /* by position: the first occurrence of its token, or -1 */
    int64_t *last;  /* the last one before it, or -1 */
};

/* @ids: by position; IDS_NONE: no token is the same. Return: 0 or -ENOMEM; repeats_deinit() in any case. */
int repeats_init(struct repeats *repeats, const int64_t *ids, int64_t n);
void repeats_deinit(struct repeats *repeats);

/* A pattern of TransformerLens's beside the weights: the sum of weights where it is 1, and how many these are. */
struct pattern_sum {
    double weights;
    uint64_t n;
};

/* Sums of one head. */
struct head_sums {
    double previous, duplicate, induction, sink, entropy, distance;
    double all; /* weights that mul and abs count */
    struct pattern_sum previous_pattern, duplicate_pattern, induction_pattern;
    uint64_t n_rows, n_queries, n_repeated;
};

struct kernel_sums;

/* Adds rows of a head. @flags: enum dmi_analyze_heads_flags; @sums: over each row */
void scores_add(struct head_sums *head, const struct repeats *repeats, uint32_t flags,
                const struct dmi_analyze_rows *rows, const struct kernel_sums *sums);

/* @out: its layer and head are set. @has_ids: false: every score that needs token ids is NaN */
void scores_end(const struct head_sums *sums, bool has_ids, struct dmi_analyze_score *out);

/* Sum and maximum of weights in a span, of one row. */
struct span_weights {
    double sum, most;
};

/* The row has all keys of the span. */
struct span_weights span_of(const float *row, const struct dmi_analyze_span *span);

/* One head's number. */
double scores_focus(uint32_t measure, const struct span_weights spans[2]);

/* As dmi_analyze_rerank() has it, of one document of @n tokens. */
double scores_document(const double *query, const double *null, uint64_t n);
