/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/view/patterns.h"

#include "core/cleanup.h"
#include "tools/common/head_scores.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES 60 /* in the document, beside its weights */

/* ------------------------------------------------------------------------- which */

void patterns_size(struct patterns *p, const struct dmi_analyze_shape *shape)
{
    p->first_key = shape->n_keys > PATTERNS_TOKENS ? shape->n_keys - PATTERNS_TOKENS : 0;
    p->first_query = 0;
    while (p->first_query < shape->n_queries && shape->queries[p->first_query] < p->first_key)
        p->first_query++;
    p->n_queries = shape->n_queries - p->first_query;
    p->n_weights = 0;
    for (uint64_t i = p->first_query; i < shape->n_queries; i++)
        p->n_weights += (size_t)(shape->queries[i] - p->first_key) + 1;
}

uint64_t patterns_cost(const struct patterns *p)
{
    return HEAD_BYTES + document_cost(sizeof(float) * p->n_weights);
}

static bool is_same(const struct dmi_analyze_head *a, const struct dmi_analyze_head *b)
{
    return a->layer == b->layer && a->head == b->head;
}

static void choose(struct patterns *p, struct dmi_analyze_head head)
{
    for (size_t i = 0; i < p->n; i++)
        if (is_same(&p->all[i].head, &head))
            return;
    p->all[p->n++] = (struct head_pattern){ .head = head };
}

/* The best of each kind, best first; of a kind that is not defined none. Return: how many lists there are. */
static size_t list_best(struct dmi_analyze_score *scores, size_t n,
                        struct dmi_analyze_head best[][PATTERNS_OF_A_KIND])
{
    size_t n_lists = 0;
    for (size_t kind = 0; kind < HEAD_SCORES; kind++) {
        if (!head_scores[kind].what || !n)
            continue;
        head_scores_sort(scores, n, kind);
        if (isnan(head_score_of(&scores[0], kind)))
            continue;
        for (size_t i = 0; i < PATTERNS_OF_A_KIND; i++) {
            bool there = i < n && !isnan(head_score_of(&scores[i], kind));
            const struct dmi_analyze_score *s = &scores[there ? i : 0];
            best[n_lists][i] = (struct dmi_analyze_head){ s->layer, s->head };
        }
        n_lists++;
    }
    return n_lists;
}

int patterns_choose(struct patterns *p, const struct dmi_analyze_head *named, size_t n_named,
                    struct dmi_analyze_score *scores, size_t n_scores)
{
    struct dmi_analyze_head best[HEAD_SCORES][PATTERNS_OF_A_KIND];
    p->all = calloc(n_named + HEAD_SCORES * PATTERNS_OF_A_KIND + 1, sizeof *p->all);
    if (!p->all)
        return -ENOMEM;
    size_t n_lists = list_best(scores, n_scores, best);
    for (size_t i = 0; i < n_named; i++)
        choose(p, named[i]);
    for (size_t i = 0; i < PATTERNS_OF_A_KIND; i++)
        for (size_t list = 0; list < n_lists; list++)
            choose(p, best[list][i]);
    return 0;
}

void patterns_cut(struct patterns *p, size_t n)
{
    p->n = n < p->n ? n : p->n;
}

/* ------------------------------------------------------------------------- weights */

static int take_rows(void *arg, const struct dmi_analyze_rows *rows)
{
    struct patterns *p = arg;
    const struct dmi_analyze_head head = { rows->layer, rows->head };
    size_t at = 0;
    while (at < p->n && !is_same(&p->all[at].head, &head))
        at++;
    if (at == p->n)
        return 0;
    struct head_pattern *one = &p->all[at];
    for (uint32_t i = 0; i < rows->n; i++) {
        size_t n = (size_t)(rows->queries[i] - p->first_key) + 1;
        memcpy(one->weights + one->n, rows->weights + i * rows->stride + p->first_key,
               n * sizeof *one->weights);
        one->n += n;
    }
    return 0;
}

static int take_memory(struct patterns *p, struct dmi_analyze_head *heads)
{
    for (size_t i = 0; i < p->n; i++) {
        heads[i] = p->all[i].head;
        p->all[i].weights = calloc(p->n_weights + 1, sizeof *p->all[i].weights);
        if (!p->all[i].weights)
            return -ENOMEM;
    }
    return 0;
}

int patterns_compute(struct err *err, struct patterns *p, struct dmi_read *run,
                     const struct dmi_analyze_options *options,
                     const struct dmi_analyze_shape *shape)
{
    char why[512] = "";
    struct dmi_analyze *answer = NULL;
    struct dmi_analyze_options o = *options;
    _cleanup_(freep) struct dmi_analyze_head *heads = calloc(p->n + 1, sizeof *heads);
    if (!heads || take_memory(p, heads))
        return err_set_errno(err, ENOMEM, "cannot compute attention");
    if (!p->n || !p->n_queries)
        return 0;
    o.heads = heads;
    o.n_heads = p->n;
    o.queries = shape->queries + p->first_query;
    o.n_queries = p->n_queries;
    int r = dmi_analyze_open(run, &o, &answer, why, sizeof why);
    if (r)
        return err_set(err, r, "%s", why);
    r = dmi_analyze_attention(answer, take_rows, p);
    if (r)
        r = err_set(err, r, "%s", dmi_analyze_error(answer));
    dmi_analyze_close(answer);
    return r;
}

void patterns_add(struct document *d, const struct patterns *p)
{
    document_begin(d, "patterns", '{');
    document_add(d, "first_key", json_integer(p->first_key));
    document_add(d, "first_query", value_u64(p->first_query));
    document_begin(d, "heads", '[');
    for (size_t i = 0; i < p->n; i++) {
        document_begin(d, NULL, '{');
        document_add(d, "layer", value_layer(p->all[i].head.layer));
        document_add(d, "head", json_integer(p->all[i].head.head));
        document_floats(d, "weights", p->all[i].weights, p->all[i].n);
        document_end(d, '}');
    }
    document_end(d, ']');
    document_end(d, '}');
}

void patterns_deinit(struct patterns *p)
{
    for (size_t i = 0; i < p->n; i++)
        free(p->all[i].weights);
    free(p->all);
    *p = (struct patterns){ 0 };
}
