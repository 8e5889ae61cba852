/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What heads do, by the weights that an answer of <dmi/analyze.h> computes: scores of each head, how much of its attention an
 * instruction keeps, which document a query reads. docs/heads.md has formulas, sources and limits. Conventions are those of <dmi/analyze.h>.
 * Each function computes the weights again, and dmi_analyze_proof() is of them.
 */
#ifndef DMI_ANALYZE_HEADS_H
#define DMI_ANALYZE_HEADS_H

#include <dmi/analyze.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dmi_analyze_heads_flags {
    DMI_ANALYZE_WITHOUT_FIRST =
        1, /* mul and abs: no weight of key 0, which models with a BOS rest on */
    DMI_ANALYZE_WITHOUT_CURRENT = 2, /* mul and abs: no weight that a query gives to itself */
};

/* What heads are asked about. */
struct dmi_analyze_heads_options {
    uint32_t size;
    uint32_t flags; /* enum dmi_analyze_heads_flags */
    const int32_t *
        ids; /* token ids of positions 0 to n_ids - 1; NULL: those of the site that @ids_site names */
    uint64_t n_ids;
    const char *ids_site; /* NULL: token_ids */
    dmi_analyze_take
        *take; /* gets the weights too, as from dmi_analyze_attention(); NULL: of no interest */
    void *arg;
};

/* Means over queries, 0 to 1 but for entropy and distance. NaN: no query has what it needs. */
struct dmi_analyze_score {
    uint32_t size;
    int32_t layer;
    uint32_t head;
    uint32_t reserved;
    double previous; /* the weight of the key before the query; without query 0 */
    double
        duplicate; /* of the first occurrence of the query's token, over queries whose token came before */
    double induction; /* of the key after its last earlier occurrence, over the same queries */
    double sink;      /* of key 0; without query 0 */
    double entropy;   /* in nats */
    double distance;  /* in positions */
    double mul_previous, mul_duplicate,
        mul_induction; /* as TransformerLens's head_detector, error_measure="mul" */
    double abs_previous, abs_duplicate,
        abs_induction;   /* the same, "abs", not rounded to three digits */
    uint64_t n_queries;  /* without query 0 */
    uint64_t n_repeated; /* whose token came before */
};

/**
 * dmi_analyze_heads() - scores of all heads that the answer is of
 * @options: NULL: the ids of the site token_ids
 * @out: gets @n_room structs of @size bytes each, whose size field is set here, by layer and head
 * Without token ids, duplicate and induction are NaN. Return: how many heads there are; -EINVAL, -errno as dmi_analyze_attention().
 */
DMI_ANALYZE_API int64_t dmi_analyze_heads(struct dmi_analyze *answer,
                                          const struct dmi_analyze_heads_options *options,
                                          void *out, uint64_t size, uint64_t n_room);

/* Positions first to before end. */
struct dmi_analyze_span {
    int64_t first, end;
};

/* How the weights of a span become one number. */
enum dmi_analyze_measure {
    DMI_ANALYZE_SUM_NORMALIZED =
        0, /* sum of the instruction / (the same + sum of the data + 1e-8) */
    DMI_ANALYZE_MAX_NORMALIZED = 1, /* the same of the largest weights */
    DMI_ANALYZE_SUM = 2,            /* sum of the instruction */
    DMI_ANALYZE_MAX = 3,            /* the largest weight of the instruction */
};

/**
 * dmi_analyze_focus() - how much of the attention of the answer's queries an instruction has, beside data
 * @spans: the instruction's, then the data's
 * @measure: enum dmi_analyze_measure
 * @by_head: gets a number a head, by layer and head, for @n_room of them; NULL with 0: of no interest
 * @score: gets the mean over all heads
 * Several queries count by their mean. Return: how many heads there are; -EINVAL (a span that is none, or of keys that no query sees), -errno.
 */
DMI_ANALYZE_API int64_t dmi_analyze_focus(struct dmi_analyze *answer,
                                          const struct dmi_analyze_span spans[2], uint32_t measure,
                                          double *by_head, uint64_t n_room, double *score);

/**
 * dmi_analyze_tokens() - what each key gets: the sum over heads of the mean over queries of its weight
 * @out: gets n_keys numbers (struct dmi_analyze_shape). Return: 0, -EINVAL (@n_room), -errno.
 */
DMI_ANALYZE_API int dmi_analyze_tokens(struct dmi_analyze *answer, double *out, uint64_t n_room);

/**
 * dmi_analyze_rerank() - scores of documents, by what their tokens get from a query and from one without content
 * @query, @null: of dmi_analyze_tokens(), for @n_keys keys of each
 * @documents: @n_documents spans, of keys that both have
 * @scores: gets a number a document: the sum of query - null over its tokens that are not more than two standard deviations below
 *          their mean
 * Any thread. Return: 0, -EINVAL (a span that is none).
 */
DMI_ANALYZE_API int dmi_analyze_rerank(const double *query, const double *null, uint64_t n_keys,
                                       const struct dmi_analyze_span *documents,
                                       uint64_t n_documents, double *scores);

#ifdef __cplusplus
}
#endif

#endif
