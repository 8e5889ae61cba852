/* SPDX-License-Identifier: Apache-2.0 */
/* The C ABI of <dmi/analyze_heads.h>. */
#include <dmi/analyze_heads.h>

#include "analyze/answer.h"
#include "analyze/attention.h"
#include "analyze/ids.h"
#include "analyze/scores.h"
#include "core/abi.h"
#include "core/cleanup.h"
#include "core/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Heads that are wanted, by layer and head. */
static uint64_t count_heads(const struct plan *p)
{
    uint64_t n = 0;
    for (size_t i = 0; i < p->n_layers; i++)
        for (uint32_t h = 0; h < p->n_heads; h++)
            n += p->layers[i].wanted[h];
    return n;
}

/* The same number of one of them. */
static uint64_t number_of(const struct plan *p, int32_t layer, uint32_t head)
{
    uint64_t n = 0;
    for (size_t i = 0; i < p->n_layers; i++)
        for (uint32_t h = 0; h < p->n_heads; h++) {
            if (p->layers[i].layer == layer && h == head)
                return n;
            n += p->layers[i].wanted[h];
        }
    return n;
}

/* ------------------------------------------------------------------------- heads */

struct scoring {
    const struct plan *plan;
    struct repeats repeats;
    struct head_sums *sums; /* by head */
    uint32_t flags;
    dmi_analyze_take *take; /* the caller's; NULL: none */
    void *arg;
};

static int take_scores(void *arg, const struct dmi_analyze_rows *rows,
                       const struct kernel_sums *sums)
{
    struct scoring *s = arg;
    scores_add(&s->sums[number_of(s->plan, rows->layer, rows->head)], &s->repeats, s->flags, rows,
               sums);
    return s->take ? s->take(s->arg, rows) : 0;
}

/* Ids that the caller gave, or the run's. Return: how many are known, or -errno. */
static int64_t find_ids(struct dmi_analyze *a, const struct dmi_analyze_heads_options *o,
                        int64_t *ids)
{
    int64_t known = 0;
    if (!o->ids)
        return ids_read(&a->err, a->plan.run, a->plan.request, a->plan.n_request, o->ids_site,
                        a->plan.n_keys, ids);
    for (int64_t i = 0; i < a->plan.n_keys; i++) {
        bool there = (uint64_t)i < o->n_ids;
        ids[i] = there ? o->ids[i] : IDS_NONE;
        known += there;
    }
    return known;
}

static void hand_out_scores(const struct scoring *s, bool has_ids, void *out, uint64_t size,
                            uint64_t n_room)
{
    uint64_t number = 0;
    for (size_t i = 0; i < s->plan->n_layers; i++)
        for (uint32_t h = 0; h < s->plan->n_heads; h++) {
            struct dmi_analyze_score score = { .layer = s->plan->layers[i].layer, .head = h };
            uint32_t theirs = (uint32_t)size;
            char *to = (char *)out + number * size;
            if (!s->plan->layers[i].wanted[h])
                continue;
            if (number < n_room) {
                scores_end(&s->sums[number], has_ids, &score);
                memcpy(to, &theirs, sizeof theirs);
                abi_hand_out(to, &score, sizeof score);
            }
            number++;
        }
}

int64_t dmi_analyze_heads(struct dmi_analyze *a, const struct dmi_analyze_heads_options *options,
                          void *out, uint64_t size, uint64_t n_room)
{
    struct dmi_analyze_heads_options o = { 0 };
    uint64_t n = count_heads(&a->plan);
    struct scoring s = { .plan = &a->plan };
    _cleanup_(freep) int64_t *ids = calloc((size_t)a->plan.n_keys + 1, sizeof *ids);
    _cleanup_(freep) struct head_sums *sums = calloc(n + 1, sizeof *sums);
    a->err = (struct err){ 0 };
    if (options && abi_take_in(&o, sizeof o, options))
        return answer_fail(a, -EINVAL, "the struct's size was not set");
    if (size < sizeof(uint32_t) || size > UINT32_MAX)
        return answer_fail(a, -EINVAL, "the size of a score is none");
    if (!ids || !sums)
        return answer_fail(a, -ENOMEM, "no memory for scores");
    int64_t known = find_ids(a, &o, ids);
    if (known < 0)
        return known;
    int r = repeats_init(&s.repeats, ids, a->plan.n_keys);
    s.sums = sums;
    s.flags = o.flags;
    s.take = o.take;
    s.arg = o.arg;
    r = r ? answer_fail(a, r, "no memory for scores")
          : attention_run(&a->err, &a->plan, take_scores, &s, true);
    if (!r)
        hand_out_scores(&s, known > 0, out, size, n_room);
    repeats_deinit(&s.repeats);
    return r ? r : (int64_t)n;
}

/* ------------------------------------------------------------------------- focus */

struct focusing {
    const struct plan *plan;
    struct dmi_analyze_span spans[2];
    uint32_t measure;
    double *by_head;
};

static int take_focus(void *arg, const struct dmi_analyze_rows *rows,
                      const struct kernel_sums *sums)
{
    (void)sums;
    struct focusing *f = arg;
    double *to = &f->by_head[number_of(f->plan, rows->layer, rows->head)];
    for (uint32_t i = 0; i < rows->n; i++) {
        const float *row = rows->weights + i * rows->stride;
        const struct span_weights found[2] = { span_of(row, &f->spans[0]),
                                               span_of(row, &f->spans[1]) };
        *to += scores_focus(f->measure, found) / (double)f->plan->n_queries;
    }
    return 0;
}

static bool is_span(const struct dmi_analyze_span *s, int64_t n_keys)
{
    return s->first >= 0 && s->first <= s->end && s->end <= n_keys;
}

int64_t dmi_analyze_focus(struct dmi_analyze *a, const struct dmi_analyze_span spans[2],
                          uint32_t measure, double *by_head, uint64_t n_room, double *score)
{
    uint64_t n = count_heads(&a->plan);
    _cleanup_(freep) double *sums = calloc(n + 1, sizeof *sums);
    struct focusing f = { &a->plan, { spans[0], spans[1] }, measure, sums };
    double all = 0;
    a->err = (struct err){ 0 };
    if (measure > DMI_ANALYZE_MAX)
        return answer_fail(a, -EINVAL, "the measure is none");
    if (!is_span(&spans[0], a->plan.n_keys) || !is_span(&spans[1], a->plan.n_keys) ||
        spans[0].first == spans[0].end)
        return answer_fail(a, -EINVAL,
                           "a span begins below 0, is empty, or ends after the last query");
    if (!sums)
        return answer_fail(a, -ENOMEM, "no memory for a focus");
    TRY(attention_run(&a->err, &a->plan, take_focus, &f, false));
    for (uint64_t i = 0; i < n; i++) {
        all += sums[i];
        if (i < n_room)
            by_head[i] = sums[i];
    }
    *score = n ? all / (double)n : 0;
    return (int64_t)n;
}

/* ------------------------------------------------------------------------- documents */

/* Heads may come side by side. Each has its own sums, which are added up in order, so that no bit depends on memory. */
struct adding {
    const struct plan *plan;
    int32_t layer;
    double *by_head; /* of @layer: by head, key */
    double *out;
};

static void end_layer(struct adding *t)
{
    size_t n_keys = (size_t)t->plan->n_keys;
    for (size_t h = 0; h < t->plan->n_heads; h++)
        for (size_t key = 0; key < n_keys; key++)
            t->out[key] += t->by_head[h * n_keys + key];
    memset(t->by_head, 0, t->plan->n_heads * n_keys * sizeof *t->by_head);
}

static int take_tokens(void *arg, const struct dmi_analyze_rows *rows,
                       const struct kernel_sums *sums)
{
    (void)sums;
    struct adding *t = arg;
    double *to = t->by_head + rows->head * (size_t)t->plan->n_keys;
    if (rows->layer != t->layer)
        end_layer(t);
    t->layer = rows->layer;
    for (uint32_t i = 0; i < rows->n; i++)
        for (int64_t key = 0; key <= rows->queries[i]; key++)
            to[key] +=
                (double)rows->weights[i * rows->stride + (size_t)key] / (double)t->plan->n_queries;
    return 0;
}

int dmi_analyze_tokens(struct dmi_analyze *a, double *out, uint64_t n_room)
{
    _cleanup_(freep) double *by_head =
        calloc((size_t)a->plan.n_keys + 1, a->plan.n_heads * sizeof *by_head);
    struct adding t = { &a->plan, -1, by_head, out };
    a->err = (struct err){ 0 };
    if (n_room < (uint64_t)a->plan.n_keys)
        return answer_fail(a, -EINVAL, "there is no room for a number a key");
    if (!by_head)
        return answer_fail(a, -ENOMEM, "no memory for scores of tokens");
    memset(out, 0, (size_t)a->plan.n_keys * sizeof *out);
    int r = attention_run(&a->err, &a->plan, take_tokens, &t, false);
    end_layer(&t);
    return r;
}

int dmi_analyze_rerank(const double *query, const double *null, uint64_t n_keys,
                       const struct dmi_analyze_span *documents, uint64_t n_documents,
                       double *scores)
{
    for (uint64_t i = 0; i < n_documents; i++) {
        const struct dmi_analyze_span *d = &documents[i];
        if (!is_span(d, (int64_t)n_keys) || d->first == d->end)
            return -EINVAL;
        scores[i] =
            scores_document(query + d->first, null + d->first, (uint64_t)(d->end - d->first));
    }
    return 0;
}
