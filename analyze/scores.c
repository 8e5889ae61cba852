/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/scores.h"

#include "analyze/ids.h"
#include "analyze/kernel.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* ------------------------------------------------------------------------- repeats */

struct token_at {
    int64_t id, position;
};

static int by_id(const void *a, const void *b)
{
    const struct token_at *x = a, *y = b;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return x->position < y->position ? -1 : x->position > y->position;
}

int repeats_init(struct repeats *r, const int64_t *ids, int64_t n)
{
    struct token_at *places = calloc((size_t)n + 1, sizeof *places);
    *r = (struct repeats){ calloc((size_t)n + 1, sizeof *r->first),
                           calloc((size_t)n + 1, sizeof *r->last) };
    if (!places || !r->first || !r->last) {
        free(places);
        return -ENOMEM;
    }
    for (int64_t i = 0; i < n; i++)
        places[i] = (struct token_at){ ids[i], i };
    qsort(places, (size_t)n, sizeof *places, by_id);
    for (int64_t i = 0; i < n; i++) {
        bool again = i && places[i].id == places[i - 1].id && places[i].id != IDS_NONE;
        r->last[places[i].position] = again ? places[i - 1].position : -1;
        r->first[places[i].position] = !again ? -1
                                       : r->first[places[i - 1].position] < 0
                                           ? places[i - 1].position
                                           : r->first[places[i - 1].position];
    }
    free(places);
    return 0;
}

void repeats_deinit(struct repeats *r)
{
    free(r->first);
    free(r->last);
    *r = (struct repeats){ 0 };
}

/* ------------------------------------------------------------------------- heads */

/* Is the weight one that mul and abs count? */
static bool counts(uint32_t flags, int64_t query, int64_t key)
{
    return !(flags & DMI_ANALYZE_WITHOUT_FIRST && !key) &&
           !(flags & DMI_ANALYZE_WITHOUT_CURRENT && key == query);
}

static void add_pattern(struct pattern_sum *sum, uint32_t flags, const float *row, int64_t query,
                        int64_t key)
{
    if (!counts(flags, query, key))
        return;
    sum->weights += (double)row[key];
    sum->n++;
}

/* All earlier occurrences, and the keys after them: TransformerLens's patterns are of all, not of the first or the last. */
static void add_occurrences(struct head_sums *s, const struct repeats *r, uint32_t flags,
                            const float *row, int64_t query)
{
    for (int64_t key = r->last[query]; key >= 0; key = r->last[key]) {
        add_pattern(&s->duplicate_pattern, flags, row, query, key);
        add_pattern(&s->induction_pattern, flags, row, query, key + 1);
    }
}

/* What is added over all keys of a row; what mul and abs do not count is taken off. */
static void add_keys(struct head_sums *s, uint32_t flags, const float *row, int64_t query,
                     const struct kernel_sums *sums)
{
    s->entropy += sums->entropy;
    s->distance += sums->distance;
    s->all += sums->all;
    if (!counts(flags, query, 0))
        s->all -= (double)row[0];
    if (query && !counts(flags, query, query))
        s->all -= (double)row[query];
}

static void add_row(struct head_sums *s, const struct repeats *r, uint32_t flags, const float *row,
                    int64_t query, const struct kernel_sums *sums)
{
    s->n_rows++;
    add_keys(s, flags, row, query, sums);
    if (!query)
        return; /* it sees itself alone */
    s->n_queries++;
    s->previous += (double)row[query - 1];
    s->sink += (double)row[0];
    add_pattern(&s->previous_pattern, flags, row, query, query - 1);
    if (r->last[query] < 0)
        return;
    s->n_repeated++;
    s->duplicate += (double)row[r->first[query]];
    s->induction += (double)row[r->last[query] + 1];
    add_occurrences(s, r, flags, row, query);
}

void scores_add(struct head_sums *s, const struct repeats *r, uint32_t flags,
                const struct dmi_analyze_rows *rows, const struct kernel_sums *sums)
{
    for (uint32_t i = 0; i < rows->n; i++)
        add_row(s, r, flags, rows->weights + i * rows->stride, rows->queries[i], &sums[i]);
}

static double mean(double sum, uint64_t n)
{
    return n ? sum / (double)n : NAN;
}

/* The share of all weights that lies in the pattern. */
static double mul_of(const struct head_sums *s, const struct pattern_sum *p)
{
    return p->n ? p->weights / s->all : NAN;
}

/* 1 less the differences between weights and pattern, by row: |1 - w| where it is 1, w elsewhere. */
static double abs_of(const struct head_sums *s, const struct pattern_sum *p)
{
    return p->n ? 1 - (s->all - 2 * p->weights + (double)p->n) / (double)s->n_rows : NAN;
}

void scores_end(const struct head_sums *s, bool has_ids, struct dmi_analyze_score *out)
{
    static const struct pattern_sum none;
    const struct pattern_sum *duplicate = has_ids ? &s->duplicate_pattern : &none,
                             *induction = has_ids ? &s->induction_pattern : &none;
    uint64_t n_repeated = has_ids ? s->n_repeated : 0;
    out->previous = mean(s->previous, s->n_queries);
    out->duplicate = mean(s->duplicate, n_repeated);
    out->induction = mean(s->induction, n_repeated);
    out->sink = mean(s->sink, s->n_queries);
    out->entropy = mean(s->entropy, s->n_rows);
    out->distance = mean(s->distance, s->n_rows);
    out->mul_previous = mul_of(s, &s->previous_pattern);
    out->mul_duplicate = mul_of(s, duplicate);
    out->mul_induction = mul_of(s, induction);
    out->abs_previous = abs_of(s, &s->previous_pattern);
    out->abs_duplicate = abs_of(s, duplicate);
    out->abs_induction = abs_of(s, induction);
    out->n_queries = s->n_queries;
    out->n_repeated = n_repeated;
}

/* ------------------------------------------------------------------------- spans */

struct span_weights span_of(const float *row, const struct dmi_analyze_span *span)
{
    struct span_weights s = { 0 };
    for (int64_t key = span->first; key < span->end; key++) {
        double weight = (double)row[key];
        s.sum += weight;
        s.most = weight > s.most ? weight : s.most;
    }
    return s;
}

double scores_focus(uint32_t measure, const struct span_weights spans[2])
{
    bool most = measure == DMI_ANALYZE_MAX || measure == DMI_ANALYZE_MAX_NORMALIZED;
    double instruction = most ? spans[0].most : spans[0].sum,
           data = most ? spans[1].most : spans[1].sum;
    if (measure == DMI_ANALYZE_SUM || measure == DMI_ANALYZE_MAX)
        return instruction;
    return instruction / (instruction + data + 1e-8);
}

double scores_document(const double *query, const double *null, uint64_t n)
{
    double sum = 0, squares = 0, kept = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += query[i] - null[i];
    double middle = sum / (double)n;
    for (uint64_t i = 0; i < n; i++)
        squares += (query[i] - null[i] - middle) * (query[i] - null[i] - middle);
    double least =
        middle -
        2 * sqrt(
                squares /
                (double)(n -
                         1)); /* NaN for one token, which no standard deviation is of: it is kept */
    for (uint64_t i = 0; i < n; i++)
        kept += query[i] - null[i] <= least ? 0 : query[i] - null[i];
    return kept;
}
