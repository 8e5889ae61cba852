/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/plan.h"

#include "core/cleanup.h"
#include "core/err.h"
#include "core/grow.h"
#include "storage/text.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- tensors */

/* What a site's tensors are to attention. */
struct use {
    const char *name;
    size_t offset; /* of the struct sources in struct plan_layer */
    bool bare;     /* before RoPE */
    bool unnormed; /* before a norm by head, too */
};

#define USES 8

static const char *or_else(const char *given, const char *own)
{
    return given ? given : own;
}

/* In the order of preference. */
static void uses_of(const struct dmi_analyze_sites *s, struct use out[USES])
{
    const struct use all[USES] = {
        { or_else(s->q_rot, "q_rot"), offsetof(struct plan_layer, q), false, false },
        { or_else(s->q_norm, "q_norm"), offsetof(struct plan_layer, q), true, false },
        { or_else(s->q, "q"), offsetof(struct plan_layer, q), true, true },
        { or_else(s->k_rot, "k_rot"), offsetof(struct plan_layer, k), false, false },
        { or_else(s->k_norm, "k_norm"), offsetof(struct plan_layer, k), true, false },
        { or_else(s->k, "k"), offsetof(struct plan_layer, k), true, true },
        { or_else(s->v, "v"), offsetof(struct plan_layer, v), false, false },
        { or_else(s->z, "z"), offsetof(struct plan_layer, z), false, false },
    };
    memcpy(out, all, sizeof all);
}

/* Why rows of a site cannot become what attention multiplies; NULL: they can. */
static const char *objection(const struct plan *p, const struct use *use)
{
    const struct model *m = p->model;
    if (!use->bare)
        return NULL;
    if (!m)
        return "no config says how they are rotated (--config)";
    if (use->unnormed && m->has_norms)
        return "the model norms them by head before it rotates them";
    if (m->order_is_unknown && !p->rope_order)
        return "nothing says whether the engine turns halves of a head or pairs (--rope-order)";
    return m->no_rope[0] ? m->no_rope : NULL;
}

/* Is any tensor of a site selected? */
static bool is_there(struct dmi_read *run, const char *site)
{
    const struct dmi_read_name name = { site, strlen(site) };
    const struct dmi_read_selection which = { .size = sizeof which, .sites = &name, .n_sites = 1 };
    return dmi_read_match(run, &which, NULL, 0) > 0;
}

bool plan_is_captured(struct dmi_read *run)
{
    const struct dmi_analyze_sites usual = { 0 };
    struct use uses[USES];
    bool q = false, k = false;
    uses_of(&usual, uses);
    for (size_t i = 0; i < USES; i++) {
        q |= uses[i].offset == offsetof(struct plan_layer, q) && is_there(run, uses[i].name);
        k |= uses[i].offset == offsetof(struct plan_layer, k) && is_there(run, uses[i].name);
    }
    return q && k;
}

/* Tensors of a site that are selected. Return: how many; 0 also where the run has no such site. */
static int64_t match(struct err *err, struct dmi_read *run, const struct dmi_read_selection *which,
                     uint64_t **out)
{
    int64_t n = dmi_read_match(run, which, NULL, 0);
    *out = NULL;
    if (n == -ENOENT)
        return 0;
    if (n < 0)
        return err_set(err, (int)n, "%s", dmi_read_error(run));
    *out = calloc((size_t)n + 1, sizeof **out);
    if (!*out)
        return err_set(err, -ENOMEM, "no memory for the list of tensors");
    return dmi_read_match(run, which, *out, (uint64_t)n);
}

static struct plan_layer *layer_of(struct plan *p, int32_t layer)
{
    size_t at = 0;
    while (at < p->n_layers && p->layers[at].layer < layer)
        at++;
    if (at < p->n_layers && p->layers[at].layer == layer)
        return &p->layers[at];
    if (ONE_MORE(p->layers, p->n_layers))
        return NULL;
    struct plan_layer *to = &p->layers[at];
    memmove(to + 1, to, (p->n_layers++ - at) * sizeof *to);
    *to = (struct plan_layer){ .layer = layer };
    return to;
}

static int take_tensor(struct err *err, struct plan *p, uint64_t tensor, const struct use *use)
{
    struct dmi_read_tensor t = { .size = sizeof t };
    if (dmi_read_tensor(p->run, tensor, &t))
        return err_set(err, -EIO, "%s", dmi_read_error(p->run));
    if (!p->request && t.request && !(p->request = strndup(t.request, t.request_bytes)))
        return err_set(err, -ENOMEM, "no memory for a request's id");
    if (t.request && !p->n_request)
        p->n_request = t.request_bytes;
    if (t.request &&
        (t.request_bytes != p->n_request || memcmp(t.request, p->request, p->n_request)))
        return err_set(err, -ENOTUNIQ, "the run has several requests: name one (--request)");
    struct plan_layer *l = layer_of(p, t.layer);
    if (!l)
        return err_set(err, -ENOMEM, "no memory for a layer");
    return sources_add(err, (struct sources *)((char *)l + use->offset), p->run, tensor, use->bare,
                       false);
}

/* A prefix has keys and values alone: a layer that the request has not is of no use. @first: of the tensors that were taken */
static int take_foreign(struct err *err, struct plan *p, struct dmi_read *run, uint64_t tensor,
                        const struct use *use, struct dmi_read_tensor *first)
{
    struct dmi_read_tensor t = { .size = sizeof t };
    if (dmi_read_tensor(run, tensor, &t))
        return err_set(err, -EIO, "%s", dmi_read_error(run));
    if (!first->key)
        *first = t;
    if (t.request_bytes != first->request_bytes ||
        (t.request && memcmp(t.request, first->request, t.request_bytes) != 0))
        return err_set(err, -ENOTUNIQ, "it has several requests: name one (--prefix RUN:ID)");
    for (size_t i = 0; i < p->n_layers; i++)
        if (p->layers[i].layer == t.layer)
            return sources_add(err, (struct sources *)((char *)&p->layers[i] + use->offset), run,
                               tensor, use->bare, true);
    return 0;
}

static int take_foreign_site(struct err *err, struct plan *p, const struct dmi_analyze_options *o,
                             const struct use *use, struct dmi_read_tensor *first)
{
    _cleanup_(freep) uint64_t *tensors = NULL;
    const struct dmi_read_name name = { use->name, strlen(use->name) };
    const struct dmi_read_selection which = { .size = sizeof which,
                                              .request = o->prefix_request,
                                              .request_bytes = o->prefix_request_bytes,
                                              .sites = &name,
                                              .n_sites = 1 };
    int64_t n = match(err, o->prefix, &which, &tensors);
    int r = n < 0 ? (int)n : 0;
    for (int64_t k = 0; k < n && !r; k++)
        r = take_foreign(err, p, o->prefix, tensors[k], use, first);
    return r;
}

static int take_prefix(struct err *err, struct plan *p, const struct dmi_analyze_options *o)
{
    struct use uses[USES];
    struct dmi_read_tensor first = { 0 };
    uses_of(&p->sites, uses);
    for (size_t i = 0; i < USES && o->prefix; i++) {
        bool keys = uses[i].offset == offsetof(struct plan_layer, k),
             values = uses[i].offset == offsetof(struct plan_layer, v);
        if ((keys || values) && !objection(p, &uses[i]) &&
            take_foreign_site(err, p, o, &uses[i], &first))
            return err_prefix(err, "the prefix's run");
    }
    return 0;
}

static int take_site(struct err *err, struct plan *p, const struct dmi_read_selection *asked,
                     const struct use *use)
{
    _cleanup_(freep) uint64_t *tensors = NULL;
    const struct dmi_read_name name = { use->name, strlen(use->name) };
    struct dmi_read_selection which = *asked;
    which.sites = &name;
    which.n_sites = 1;
    int64_t n = match(err, p->run, &which, &tensors);
    int r = n < 0 ? (int)n : 0;
    for (int64_t i = 0; i < n && !r; i++)
        r = take_tensor(err, p, tensors[i], use);
    return r;
}

static int find_tensors(struct err *err, struct plan *p, const struct dmi_analyze_options *o)
{
    struct use uses[USES];
    const struct dmi_read_selection asked = { .size = sizeof asked,
                                              .request = o->request,
                                              .request_bytes = o->request_bytes,
                                              .layers = o->layers };
    int64_t n = dmi_read_match(p->run, &asked, NULL, 0);
    if (n < 0)
        return err_set(err, (int)n, "%s", dmi_read_error(p->run));
    uses_of(&p->sites, uses);
    for (size_t i = 0; i < USES; i++) {
        TRY(objection(p, &uses[i]) ? 0 : take_site(err, p, &asked, &uses[i]));
    }
    return 0;
}

/* ------------------------------------------------------------------------- what lacks altogether */

/* "q was captured, but no config says how ..." for the sites that could not be used. */
static void add_unused(const struct plan *p, size_t offset, struct text *to)
{
    struct use uses[USES];
    uses_of(&p->sites, uses);
    for (size_t i = 0; i < USES; i++) {
        const char *why = objection(p, &uses[i]);
        if (why && uses[i].offset == offset && is_there(p->run, uses[i].name))
            text_printf(to, "; rows of %s are not rotated yet: %s", uses[i].name, why);
    }
}

int plan_lacks(struct err *err, const struct plan *p, const struct plan_layer *l, size_t offset,
               const char *name, const char *positions)
{
    struct text text = { 0 };
    add_unused(p, offset, &text);
    if (l->layer >= 0)
        err_set(err, -ENODATA, "layer %d has no row of %s%s%s", l->layer, name, positions,
                text.data ? text.data : "");
    else
        err_set(err, -ENODATA, "there is no row of %s%s%s", name, positions,
                text.data ? text.data : "");
    text_deinit(&text);
    return -ENODATA;
}

static int drop_empty(struct err *err, struct plan *p)
{
    const struct plan_layer none = { .layer = -1 };
    size_t n = 0;
    for (size_t i = 0; i < p->n_layers; i++) {
        struct plan_layer *l = &p->layers[i];
        if (l->q.n || l->k.n)
            p->layers[n++] = *l;
        else {
            sources_deinit(&l->v);
            sources_deinit(&l->z);
        }
    }
    p->n_layers = n;
    if (!n)
        return plan_lacks(err, p, &none, offsetof(struct plan_layer, q), "q or q_rot",
                          " that can be used");
    for (size_t i = 0; i < n; i++) {
        struct plan_layer *l = &p->layers[i];
        if (!l->q.n)
            return plan_lacks(err, p, l, offsetof(struct plan_layer, q), "q or q_rot", "");
        if (!l->k.n)
            return plan_lacks(err, p, l, offsetof(struct plan_layer, k), "k or k_rot", "");
    }
    return 0;
}

/* ------------------------------------------------------------------------- shapes */

/* Heads by elements of a tensor's row. */
static int split(struct err *err, const struct plan *p, const struct dmi_read_tensor *t,
                 uint32_t *heads, uint32_t *dim)
{
    *dim = t->n_dims > 1 ? t->dims[t->n_dims - 1] : *dim ? *dim : p->model ? p->model->head_dim : 0;
    if (!*dim)
        return err_set(err, -ENODATA,
                       "%s was captured without a dimension of heads, and no config says how many "
                       "elements one has (--config)",
                       t->key);
    if (t->width % *dim || *dim > ROPE_MOST_DIMS)
        return err_set(err, -EINVAL, "%s: rows of %" PRIu64 " elements are no heads of %u", t->key,
                       t->width, *dim);
    *heads = (uint32_t)(t->width / *dim);
    return 0;
}

static int same_shape(struct err *err, const struct plan *p, const struct sources *s,
                      uint32_t heads, uint32_t dim)
{
    for (size_t i = 0; i < s->n; i++) {
        uint32_t its_heads = 0, its_dim = dim;
        TRY(split(err, p, &s->all[i].about, &its_heads, &its_dim));
        if (its_heads != heads || its_dim != dim)
            return err_set(err, -EINVAL, "%s has %u heads of %u elements where %u of %u are due",
                           s->all[i].about.key, its_heads, its_dim, heads, dim);
    }
    return 0;
}

/* A rank that is missing, or whose site lacks its shard, makes a smaller model. */
static int check_heads(struct err *err, const struct plan *p)
{
    const struct model *m = p->model;
    if (p->n_heads % p->n_kv_heads)
        return err_set(err, -EINVAL, "%u heads of q do not share %u heads of k evenly", p->n_heads,
                       p->n_kv_heads);
    if (m && (m->n_heads != p->n_heads || m->n_kv_heads != p->n_kv_heads))
        return err_set(err, -EINVAL,
                       "%u heads of q and %u of k were captured, and the model has %u and %u: a "
                       "rank's run is missing, or its sites lack `shard`",
                       p->n_heads, p->n_kv_heads, m->n_heads, m->n_kv_heads);
    if (m && m->head_dim && m->head_dim != p->dim)
        return err_set(err, -EINVAL, "heads of %u elements were captured, and the model's have %u",
                       p->dim, m->head_dim);
    return m && m->no_scores[0]
               ? err_set(err, -ENODATA, "attention is not computed here: %s", m->no_scores)
               : 0;
}

static int find_shapes(struct err *err, struct plan *p)
{
    const struct plan_layer *first = &p->layers[0];
    uint32_t kv_dim;
    int r = split(err, p, &first->q.all[0].about, &p->n_heads, &p->dim);
    kv_dim = p->dim;
    if (!r)
        r = split(err, p, &first->k.all[0].about, &p->n_kv_heads, &kv_dim);
    if (!r && kv_dim != p->dim)
        r = err_set(err, -EINVAL, "heads of q have %u elements, those of k %u", p->dim, kv_dim);
    if (!r)
        r = check_heads(err, p);
    if (!r && first->v.n && !(first->v.all[0].about.width % p->n_kv_heads))
        p->value_dim = (uint32_t)(first->v.all[0].about.width / p->n_kv_heads);
    for (size_t i = 0; i < p->n_layers && !r; i++) {
        const struct plan_layer *l = &p->layers[i];
        if ((r = same_shape(err, p, &l->q, p->n_heads, p->dim)) ||
            (r = same_shape(err, p, &l->k, p->n_kv_heads, p->dim)) || !p->value_dim)
            continue;
        r = same_shape(err, p, &l->v, p->n_kv_heads, p->value_dim);
        if (!r)
            r = same_shape(err, p, &l->z, p->n_heads, p->value_dim);
    }
    return r;
}

/* ------------------------------------------------------------------------- layers */

/* By the coarsest type of what takes part: measured (docs/attention.md, "The proof"). */
static double bound_of(const struct plan_layer *l)
{
    const struct sources *all[] = { &l->q, &l->k, &l->v, &l->z };
    double bound = 1e-3;
    for (size_t i = 0; i < 4; i++)
        for (size_t s = 0; s < all[i]->n; s++) {
            uint32_t dtype = all[i]->all[s].about.dtype;
            if (dtype == DMI_DTYPE_BF16)
                bound = fmax(bound, 3e-2);
            else if (dtype == DMI_DTYPE_F16)
                bound = fmax(bound, 4e-3);
            else if (dtype == DMI_DTYPE_F8E4M3 || dtype == DMI_DTYPE_F8E5M2)
                bound = fmax(bound, 6e-2);
        }
    return bound;
}

static int want_heads(struct err *err, struct plan *p, const struct dmi_analyze_options *o)
{
    for (size_t k = 0; k < o->n_heads; k++) {
        bool found = false;
        for (size_t i = 0; i < p->n_layers && o->heads[k].head < p->n_heads; i++)
            if (o->heads[k].layer < 0 || o->heads[k].layer == p->layers[i].layer)
                found = p->layers[i].wanted[o->heads[k].head] = true;
        if (!found && o->heads[k].layer >= 0)
            return err_set(err, -EINVAL, "there is no head %d.%u: layers have %u heads",
                           o->heads[k].layer, o->heads[k].head, p->n_heads);
        if (!found)
            return err_set(err, -EINVAL, "there is no head %u: layers have %u", o->heads[k].head,
                           p->n_heads);
    }
    return 0;
}

static int fill_layer(struct err *err, const struct plan *p, struct plan_layer *l, bool all_heads)
{
    l->wanted = calloc(p->n_heads, sizeof *l->wanted);
    l->proofs = calloc(p->n_heads, sizeof *l->proofs);
    l->frequencies = calloc(ROPE_MOST_DIMS / 2, sizeof *l->frequencies);
    if (!l->wanted || !l->proofs || !l->frequencies)
        return err_set(err, -ENOMEM, "no memory for a layer");
    memset(l->wanted, all_heads, p->n_heads);
    l->about = model_layer(p->model, l->layer);
    l->bound = bound_of(l);
    if (!l->about.rope)
        return 0;
    l->rope = *l->about.rope;
    l->rope.pairs = p->rope_order ? p->rope_order == DMI_ANALYZE_PAIRS : l->rope.pairs;
    l->about.rope = &l->rope;
    rope_frequencies(l->about.rope, l->frequencies);
    return 0;
}

int plan_make(struct err *err, struct dmi_read *run, const struct model *model,
              const struct dmi_analyze_options *o, struct plan *p)
{
    *p = (struct plan){ .run = run,
                        .model = model,
                        .sites = o->sites,
                        .rope_order = o->rope_order,
                        .n_threads = o->n_threads ? o->n_threads : 1,
                        .n_memory = o->n_memory };
    int r = find_tensors(err, p, o);
    if (!r)
        r = take_prefix(err, p, o);
    if (!r)
        r = drop_empty(err, p);
    if (!r)
        r = find_shapes(err, p);
    if (r)
        return r;
    double own = 1 / sqrt(p->dim),
           models = model && model->multiplier > 0 ? model->multiplier : own;
    p->multiplier = o->multiplier > 0 ? o->multiplier : models;
    p->cap = model ? model->cap : 0;
    for (size_t i = 0; i < p->n_layers && !r; i++)
        r = fill_layer(err, p, &p->layers[i], !o->heads);
    if (!r)
        r = want_heads(err, p, o);
    return r;
}

void plan_deinit(struct plan *p)
{
    for (size_t i = 0; i < p->n_layers; i++) {
        struct plan_layer *l = &p->layers[i];
        sources_deinit(&l->q);
        sources_deinit(&l->k);
        sources_deinit(&l->v);
        sources_deinit(&l->z);
        free(l->wanted);
        free(l->proofs);
        free(l->frequencies);
    }
    free(p->layers);
    free(p->queries);
    free(p->request);
    *p = (struct plan){ 0 };
}
