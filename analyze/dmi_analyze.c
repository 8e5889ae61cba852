/* SPDX-License-Identifier: Apache-2.0 */
/* The C ABI of <dmi/analyze.h>: attention and its proof. */
#include <dmi/analyze.h>

#include "analyze/answer.h"
#include "analyze/attention.h"
#include "analyze/plan_rows.h"
#include "core/abi.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

uint32_t dmi_analyze_version(void)
{
    return DMI_ANALYZE_VERSION;
}

int answer_fail(struct dmi_analyze *a, int code, const char *what)
{
    a->err = (struct err){ 0 };
    return err_set(&a->err, code, "%s", what);
}

/* The model's config as an adapter noted it in the run. */
static int take_model(struct err *err, struct dmi_read *run, struct model *own,
                      const struct model **out)
{
    const char *text = dmi_read_about(run, "config");
    if (!text)
        return 0;
    json_t *config = json_loads(text, 0, NULL);
    int r = config ? model_from_json(err, config, own) : err_set(err, -EINVAL, "it is no JSON");
    json_decref(config);
    *out = r ? NULL : own;
    return r ? err_prefix(err, "the config that the run holds (--config gives another one)") : 0;
}

int dmi_analyze_open(struct dmi_read *run, const struct dmi_analyze_options *options,
                     struct dmi_analyze **out, char *why, uint64_t n_why)
{
    struct err err = { 0 };
    struct dmi_analyze_options ours = { 0 };
    struct dmi_analyze *a = calloc(1, sizeof *a);
    int r = a ? 0 : err_set_errno(&err, ENOMEM, "cannot analyze");
    if (!r && options && abi_take_in(&ours, sizeof ours, options))
        r = err_set(&err, -EINVAL, "the struct's size was not set");
    const struct model *model = ours.model ? &ours.model->model : NULL;
    if (!r && !model)
        r = take_model(&err, run, &a->own, &model);
    if (!r)
        r = plan_make(&err, run, model, &ours, &a->plan);
    if (!r)
        r = plan_rows(&err, &a->plan, ours.queries, ours.n_queries);
    *out = r ? NULL : a;
    if (r && why && n_why)
        snprintf(why, n_why, "%s", err.msg);
    if (r)
        dmi_analyze_close(a);
    return r;
}

void dmi_analyze_close(struct dmi_analyze *a)
{
    if (!a)
        return;
    plan_deinit(&a->plan);
    model_deinit(&a->own);
    free(a);
}

const char *dmi_analyze_error(const struct dmi_analyze *a)
{
    return a->err.msg;
}

int dmi_analyze_shape(struct dmi_analyze *a, struct dmi_analyze_shape *out)
{
    const struct plan *p = &a->plan;
    const struct dmi_analyze_shape ours = {
        .n_layers = (uint32_t)p->n_layers,
        .n_heads = p->n_heads,
        .n_kv_heads = p->n_kv_heads,
        .dim = p->dim,
        .value_dim = p->value_dim,
        .n_queries = p->n_queries,
        .n_keys = p->n_keys,
        .multiplier = p->multiplier,
        .request = p->request,
        .request_bytes = p->n_request,
        .queries = p->queries,
        .n_borrowed = p->n_borrowed,
    };
    int r = abi_hand_out(out, &ours, sizeof ours);
    return r ? answer_fail(a, r, "the struct's size was not set") : 0;
}

int32_t dmi_analyze_layer(struct dmi_analyze *a, uint64_t index)
{
    return index < a->plan.n_layers ? a->plan.layers[index].layer
                                    : answer_fail(a, -ENOENT, "no such layer");
}

/* Whom the caller's rows go to. */
struct taking {
    dmi_analyze_take *take;
    void *arg;
};

static int hand_over(void *arg, const struct dmi_analyze_rows *rows, const struct kernel_sums *sums)
{
    const struct taking *t = arg;
    (void)sums;
    return t->take(t->arg, rows);
}

int dmi_analyze_attention(struct dmi_analyze *a, dmi_analyze_take *take, void *arg)
{
    struct taking taking = { take, arg };
    a->err = (struct err){ 0 };
    return attention_run(&a->err, &a->plan, take ? hand_over : NULL, &taking, false);
}

/* ------------------------------------------------------------------------- proofs */

/* Whether head @h of a layer is further off than what @out has. */
static void add_proof(const struct plan_layer *l, uint32_t h, struct dmi_analyze_proof *out)
{
    const struct proof *p = &l->proofs[h];
    double error = p->difference == 0 ? 0 : sqrt(p->difference / p->norm);
    out->n_rows += p->n_rows;
    if (!isnan(out->worst_row) && !(p->worst_row <= out->worst_row))
        out->worst_row = p->worst_row;
    if (!p->n_rows ||
        (out->layer >= 0 && (isnan(out->error) || error / l->bound <= out->error / out->bound)))
        return;
    out->error = error;
    out->bound = l->bound;
    out->layer = l->layer;
    out->head = h;
}

/* All wanted heads that nothing was compared of leave a layer unchecked. */
static bool is_unchecked(const struct plan_layer *l, uint32_t h)
{
    return l->wanted[h] && !l->proofs[h].n_rows;
}

int dmi_analyze_proof(struct dmi_analyze *a, int32_t layer, int64_t head,
                      struct dmi_analyze_proof *out)
{
    const struct plan *p = &a->plan;
    struct dmi_analyze_proof ours = { .layer = -1 };
    bool found = false, unchecked = false;
    for (size_t i = 0; i < p->n_layers; i++)
        for (uint32_t h = 0; h < p->n_heads; h++) {
            const struct plan_layer *l = &p->layers[i];
            if (!l->wanted[h] || (layer >= 0 && l->layer != layer) || (head >= 0 && h != head))
                continue;
            found = true;
            unchecked |= is_unchecked(l, h);
            add_proof(l, h, &ours);
        }
    if (!found)
        return answer_fail(a, -ENOENT, "no such head was asked for");
    bool holds = ours.error <= ours.bound;
    ours.state = ours.n_rows && !holds       ? DMI_ANALYZE_FAILS
                 : unchecked || !ours.n_rows ? DMI_ANALYZE_UNCHECKED
                                             : DMI_ANALYZE_HOLDS;
    int r = abi_hand_out(out, &ours, sizeof ours);
    return r ? answer_fail(a, r, "the struct's size was not set") : 0;
}

/* ------------------------------------------------------------------------- models */

int dmi_analyze_model_open(const char *path, struct dmi_analyze_model **out, char *why,
                           uint64_t n_why)
{
    struct err err = { 0 };
    struct dmi_analyze_model *m = calloc(1, sizeof *m);
    int r =
        m ? model_open(&err, path, &m->model) : err_set_errno(&err, ENOMEM, "cannot read %s", path);
    *out = r ? NULL : m;
    if (r && why && n_why)
        snprintf(why, n_why, "%s", err.msg);
    if (r)
        dmi_analyze_model_close(m);
    return r;
}

void dmi_analyze_model_close(struct dmi_analyze_model *m)
{
    if (!m)
        return;
    model_deinit(&m->model);
    free(m);
}
