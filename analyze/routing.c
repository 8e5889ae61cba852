/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/routing.h"

#include "core/cleanup.h"
#include "core/grow.h"
#include "core/sorted.h"
#include "storage/elements.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum role { NO_ROLE, IDS, WEIGHTS, LOGITS };

/* One tensor of the run, of a request and a layer. */
struct routing_tensor {
    enum role role;
    size_t layer;     /* index */
    int64_t request;  /* its number among those that are compared; -1: none */
    int64_t position; /* after the last token that was seen; -1: none was */
    uint32_t *last;   /* choices of that token, ascending */
    uint32_t n_last;
    uint32_t *load; /* by expert, of the request */
};

/* What becomes a layer's numbers. */
struct layer_load {
    uint64_t *load; /* the layer's, to be written */
    double overlap, share, entropy;
};

struct routing_reader {
    struct err *err;
    struct dmi_read *run;
    const struct dmi_routing_options *query;
    struct routing *out;
    struct routing_tensor *parts; /* by tensor */
    uint64_t n_tensors;
    double *values; /* of a row */
    uint64_t room;
    struct layer_load *sums; /* by layer */
};

/* ------------------------------------------------------------------------- a token */

/* Common members of two ascending lists. */
static uint32_t n_common(const uint32_t *a, uint32_t n_a, const uint32_t *b, uint32_t n_b)
{
    uint32_t n = 0, i = 0, k = 0;
    while (i < n_a && k < n_b) {
        n += a[i] == b[k];
        uint32_t at = a[i];
        i += at <= b[k];
        k += b[k] <= at;
    }
    return n;
}

/* The choices of one token, in any order: sorted here. */
static void add_choices(struct routing_reader *p, struct routing_tensor *part, uint32_t *ids,
                        uint32_t n, int64_t position)
{
    struct dmi_routing_layer *layer = &p->out->layers[part->layer];
    qsort(ids, n, sizeof *ids, order_u32);
    for (uint32_t i = 0; i < n; i++) {
        p->sums[part->layer].load[ids[i]]++;
        if (part->load)
            part->load[ids[i]]++;
    }
    layer->n_tokens++;
    if (position > 0 && position == part->position && n + part->n_last) {
        uint32_t both = n_common(part->last, part->n_last, ids, n);
        p->sums[part->layer].overlap += (double)both / (n + part->n_last - both);
        layer->n_pairs++;
    }
    memcpy(part->last, ids, n * sizeof *ids);
    part->n_last = n;
    part->position = position + 1;
}

static void add_ids(struct routing_reader *p, struct routing_tensor *part, uint64_t n,
                    int64_t position)
{
    struct dmi_routing_layer *layer = &p->out->layers[part->layer];
    uint32_t ids[ROUTING_MOST_CHOICES], n_ids = 0;
    for (uint64_t i = 0; i < n; i++) {
        double v = p->values[i];
        if (v >= 0 && v < layer->n_experts)
            ids[n_ids++] = (uint32_t)v;
        else
            layer->n_invalid++;
    }
    add_choices(p, part, ids, n_ids, position);
}

static void add_weights(struct routing_reader *p, const struct routing_tensor *part, uint64_t n)
{
    double most = 0, sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        most = fmax(most, p->values[i]);
        sum += p->values[i];
    }
    if (!(sum > 0 && isfinite(sum)))
        return;
    p->out->layers[part->layer].n_weighed++;
    p->sums[part->layer].share += most / sum;
}

/* Places of the largest values, the first of equals; @ids: gets @k of them, the largest first. */
static void find_largest(const double *values, uint64_t n, uint32_t k, uint32_t *ids)
{
    for (uint32_t found = 0; found < k; found++) {
        uint64_t best = n;
        for (uint64_t i = 0; i < n; i++) {
            bool taken = false;
            for (uint32_t j = 0; j < found; j++)
                taken |= ids[j] == i;
            if (!taken && (best == n || values[i] > values[best]))
                best = i;
        }
        ids[found] = (uint32_t)best;
    }
}

static void add_top(struct routing_reader *p, struct routing_tensor *part, uint64_t n,
                    int64_t position)
{
    uint32_t ids[ROUTING_MOST_CHOICES], k = p->query->top_k;
    double sum = 0;
    find_largest(p->values, n, k, ids);
    for (uint32_t i = 0; i < k; i++)
        sum += exp(p->values[ids[i]] - p->values[ids[0]]);
    p->out->layers[part->layer].n_weighed++;
    p->sums[part->layer].share += 1 / sum;
    add_choices(p, part, ids, k, position);
}

static double softmax_entropy(const double *values, uint64_t n)
{
    double most = values[0], sum = 0, dot = 0;
    for (uint64_t i = 1; i < n; i++)
        most = fmax(most, values[i]);
    for (uint64_t i = 0; i < n; i++) {
        double e = exp(values[i] - most);
        sum += e;
        dot += e > 0 ? e * (values[i] - most) : 0;
    }
    return log(sum) - dot / sum;
}

static void add_logits(struct routing_reader *p, struct routing_tensor *part, uint64_t n,
                       int64_t position)
{
    struct dmi_routing_layer *layer = &p->out->layers[part->layer];
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(p->values[i])) {
            layer->n_invalid += p->query->top_k;
            return;
        }
    layer->n_scored++;
    p->sums[part->layer].entropy += softmax_entropy(p->values, n);
    if (p->query->top_k)
        add_top(p, part, n, position);
}

/* ------------------------------------------------------------------------- visiting */

static int make_room(struct routing_reader *p, uint64_t n)
{
    return RESERVE(p->values, n, p->room) ? err_set_errno(p->err, ENOMEM, "cannot read routing")
                                          : 0;
}

/* Rows of another width than the layer's would be written past its arrays. */
static int check_width(struct routing_reader *p, const struct routing_tensor *part,
                       const struct dmi_read_stretch *s)
{
    const struct dmi_routing_layer *layer = &p->out->layers[part->layer];
    struct dmi_read_tensor t = { .size = sizeof t };
    uint64_t want = part->role == LOGITS ? layer->n_experts : layer->n_choices;
    if (s->width == want)
        return make_room(p, s->width);
    dmi_read_tensor(p->run, s->tensor, &t);
    return err_set(p->err, -EINVAL,
                   "%s has rows of %" PRIu64 " and of %" PRIu64
                   " elements: routing needs the same of all",
                   t.key, want, s->width);
}

static bool chooses(const struct routing_reader *p, const struct routing_tensor *part)
{
    return part->role == (p->query->top_k ? LOGITS : IDS);
}

static int take(void *ctx, const struct dmi_read_stretch *s)
{
    struct routing_reader *p = ctx;
    struct routing_tensor *part = &p->parts[s->tensor];
    struct dmi_read_site site = { .size = sizeof site };
    uint64_t n_row = s->width * dmi_dtype_bytes(s->dtype);
    if (!s->data) {
        p->out->layers[part->layer].n_damaged += chooses(p, part) ? s->n_rows : 0;
        return 0;
    }
    if (dmi_read_site(p->run, s->site, &site) || check_width(p, part, s))
        return p->err->code ? p->err->code : -EIO;
    for (uint64_t i = 0; i < s->n_rows; i++) {
        int64_t position = s->position < 0 ? (int64_t)(s->first + i) : s->position + (int64_t)i;
        elements_to_true(s->dtype, (const uint8_t *)s->data + i * n_row, s->width, site.scale,
                         p->values);
        if (part->role == IDS)
            add_ids(p, part, s->width, position);
        else if (part->role == WEIGHTS)
            add_weights(p, part, s->width);
        else
            add_logits(p, part, s->width, position);
    }
    return 0;
}

/* ------------------------------------------------------------------------- what there is */

static enum role role_of(const struct routing_reader *p, const char *site)
{
    const struct dmi_routing_options *q = p->query;
    if (!strcmp(site, q->logits ? q->logits : "router_logits"))
        return LOGITS;
    if (q->top_k)
        return NO_ROLE;
    if (!strcmp(site, q->ids ? q->ids : "topk_ids"))
        return IDS;
    return strcmp(site, q->weights ? q->weights : "topk_weights") ? NO_ROLE : WEIGHTS;
}

static int find_layer(struct routing_reader *p, int32_t number, size_t *room, size_t *index)
{
    struct routing *out = p->out;
    for (size_t i = 0; i < out->n_layers; i++)
        if (out->layers[i].layer == number) {
            *index = i;
            return 0;
        }
    if (GROW(out->layers, out->n_layers, *room))
        return err_set_errno(p->err, ENOMEM, "cannot read routing");
    out->layers[out->n_layers] = (struct dmi_routing_layer){ .layer = number };
    *index = out->n_layers++;
    return 0;
}

static int take_shape(struct routing_reader *p, struct dmi_routing_layer *layer, enum role role,
                      const struct dmi_read_tensor *t)
{
    if (role == LOGITS) {
        if (layer->n_experts && layer->n_experts != t->width)
            return err_set(p->err, -EINVAL,
                           "%s has logits of %" PRIu64 " experts, where there are %u", t->key,
                           t->width, layer->n_experts);
        if (!t->width || t->width > ROUTING_MOST_EXPERTS || p->query->top_k > t->width)
            return err_set(p->err, -EINVAL,
                           "%s has logits of %" PRIu64
                           " experts: 1 to %u, and %u choices, are possible",
                           t->key, t->width, ROUTING_MOST_EXPERTS, p->query->top_k);
        layer->n_experts = (uint32_t)t->width;
        return 0;
    }
    if (!t->width || t->width > ROUTING_MOST_CHOICES ||
        (layer->n_choices && layer->n_choices != t->width))
        return err_set(p->err, -EINVAL,
                       "%s has %" PRIu64
                       " choices a token: 1 to %u are possible, the same everywhere",
                       t->key, t->width, ROUTING_MOST_CHOICES);
    layer->n_choices = (uint32_t)t->width;
    return 0;
}

static int take_tensor(struct routing_reader *p, uint64_t index, size_t *room, bool *any)
{
    struct dmi_read_tensor t = { .size = sizeof t };
    struct dmi_read_site site = { .size = sizeof site };
    struct routing_tensor *part = &p->parts[index];
    if (dmi_read_tensor(p->run, index, &t) || dmi_read_site(p->run, t.site, &site))
        return err_set(p->err, -EIO, "%s", dmi_read_error(p->run));
    *part = (struct routing_tensor){ .role = role_of(p, site.name), .request = -1, .position = -1 };
    if (!t.n_rows)
        part->role = NO_ROLE;
    if (part->role == NO_ROLE)
        return 0;
    *any |= chooses(p, part);
    int r = find_layer(p, t.layer, room, &part->layer);
    return r ? r : take_shape(p, &p->out->layers[part->layer], part->role, &t);
}

static int missing(struct routing_reader *p)
{
    const struct dmi_routing_options *q = p->query;
    if (q->top_k)
        return err_set(p->err, -ENODATA, "what is selected of the run has no site %s",
                       q->logits ? q->logits : "router_logits");
    return err_set(p->err, -ENODATA,
                   "what is selected of the run has no site %s: name it with --ids, or take the "
                   "choices from router logits with --top-k",
                   q->ids ? q->ids : "topk_ids");
}

static int prepare_layer(struct routing_reader *p, size_t index)
{
    struct dmi_routing_layer *layer = &p->out->layers[index];
    const struct dmi_routing_options *q = p->query;
    if (q->n_experts && layer->n_experts && q->n_experts != layer->n_experts)
        return err_set(p->err, -EINVAL, "the router of layer %d has %u logits: not %u experts",
                       layer->layer, layer->n_experts, q->n_experts);
    layer->n_experts = layer->n_experts ? layer->n_experts : q->n_experts;
    layer->n_choices = q->top_k ? q->top_k : layer->n_choices;
    if (!layer->n_experts)
        return err_set(p->err, -ENODATA,
                       "how many experts layer %d has is not known: router_logits was not "
                       "captured, so say it with --experts",
                       layer->layer);
    layer->load = p->sums[index].load = calloc(layer->n_experts, sizeof *layer->load);
    return layer->load ? 0 : err_set_errno(p->err, ENOMEM, "cannot read routing");
}

/* The requests that are compared: the first ones, in the order of tensors. */
static void number_requests(struct routing_reader *p)
{
    struct dmi_read_tensor t = { .size = sizeof t }, before = { 0 };
    int64_t number = -1;
    for (uint64_t i = 0; i < p->n_tensors; i++) {
        dmi_read_tensor(p->run, i, &t);
        if (!t.request)
            continue;
        bool same = before.request && before.request_bytes == t.request_bytes &&
                    !memcmp(before.request, t.request, t.request_bytes);
        number += !same;
        before = t;
        p->parts[i].request = number < ROUTING_MOST_REQUESTS ? number : -1;
    }
}

static int prepare_parts(struct routing_reader *p)
{
    for (uint64_t i = 0; i < p->n_tensors; i++) {
        struct routing_tensor *part = &p->parts[i];
        if (!chooses(p, part))
            continue;
        const struct dmi_routing_layer *layer = &p->out->layers[part->layer];
        part->last = calloc(layer->n_choices, sizeof *part->last);
        if (part->request >= 0)
            part->load = calloc(layer->n_experts, sizeof *part->load);
        if (!part->last || (part->request >= 0 && !part->load))
            return err_set_errno(p->err, ENOMEM, "cannot read routing");
    }
    return 0;
}

static int by_layer(const void *pa, const void *pb)
{
    const struct dmi_routing_layer *a = pa, *b = pb;
    return a->layer < b->layer ? -1 : a->layer > b->layer;
}

static int prepare(struct routing_reader *p)
{
    bool any = false;
    size_t room = 0;
    int r = 0;
    for (uint64_t i = 0; !r && i < p->n_tensors; i++)
        r = take_tensor(p, i, &room, &any);
    if (!r && !any)
        r = missing(p);
    if (!r && !(p->sums = calloc(p->out->n_layers, sizeof *p->sums)))
        r = err_set_errno(p->err, ENOMEM, "cannot read routing");
    for (size_t i = 0; !r && i < p->out->n_layers; i++)
        r = prepare_layer(p, i);
    if (r)
        return r;
    number_requests(p);
    return prepare_parts(p);
}

/* ------------------------------------------------------------------------- what follows */

static void judge_load(struct dmi_routing_layer *layer)
{
    double sum = 0, squares = 0, n = layer->n_experts;
    for (uint32_t e = 0; e < layer->n_experts; e++)
        sum += (double)layer->load[e];
    layer->entropy = sum > 0 ? 0 : NAN;
    for (uint32_t e = 0; e < layer->n_experts; e++) {
        double share = (double)layer->load[e] / sum, d = (double)layer->load[e] - sum / n;
        squares += d * d;
        layer->entropy -= share > 0 ? share * log(share) : 0;
        layer->n_idle += !layer->load[e];
        if (layer->load[e] > layer->load[layer->busiest])
            layer->busiest = e;
    }
    layer->variation = sqrt(squares / n) / (sum / n);
}

static uint64_t sum_of(const uint32_t *load, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t e = 0; e < n; e++)
        sum += load[e];
    return sum;
}

/* Adds the overlap and the likeness of two requests in one layer. */
static void compare(const uint32_t *a, const uint32_t *b, uint32_t n, double sums[2])
{
    double of_a = (double)sum_of(a, n), of_b = (double)sum_of(b, n);
    double least = 0, most = 0;
    uint32_t both = 0, either = 0;
    for (uint32_t e = 0; e < n; e++) {
        double x = a[e] / of_a, y = b[e] / of_b;
        both += a[e] && b[e];
        either += a[e] || b[e];
        least += fmin(x, y);
        most += fmax(x, y);
    }
    sums[0] += (double)both / either;
    sums[1] += least / most;
}

/* The requests of a layer, each with each. @loads: room for as many as are compared. */
static void judge_requests(struct routing_reader *p, size_t index, const uint32_t **loads)
{
    struct dmi_routing_layer *layer = &p->out->layers[index];
    double sums[2] = { 0 };
    uint64_t n = 0;
    for (uint64_t i = 0; i < p->n_tensors; i++) {
        const struct routing_tensor *part = &p->parts[i];
        if (part->load && part->layer == index && sum_of(part->load, layer->n_experts))
            loads[n++] = part->load;
    }
    for (uint64_t a = 0; a < n; a++)
        for (uint64_t b = a + 1; b < n; b++)
            compare(loads[a], loads[b], layer->n_experts, sums);
    double pairs = (double)n * ((double)n - 1) / 2;
    layer->n_requests = n;
    layer->request_overlap = pairs > 0 ? sums[0] / pairs : NAN;
    layer->request_likeness = pairs > 0 ? sums[1] / pairs : NAN;
}

static int judge(struct routing_reader *p)
{
    _cleanup_(freep) const uint32_t **loads = calloc(p->n_tensors + 1, sizeof *loads);
    if (!loads)
        return err_set_errno(p->err, ENOMEM, "cannot read routing");
    for (size_t i = 0; i < p->out->n_layers; i++) {
        struct dmi_routing_layer *layer = &p->out->layers[i];
        judge_load(layer);
        judge_requests(p, i, loads);
        layer->token_overlap = p->sums[i].overlap / (double)layer->n_pairs;
        layer->first_share = p->sums[i].share / (double)layer->n_weighed;
        layer->token_entropy = p->sums[i].entropy / (double)layer->n_scored;
    }
    qsort(p->out->layers, p->out->n_layers, sizeof *p->out->layers, by_layer);
    return 0;
}

static int visit(struct routing_reader *p)
{
    _cleanup_(freep) uint64_t *tensors = calloc(p->n_tensors + 1, sizeof *tensors);
    uint64_t n = 0;
    if (!tensors)
        return err_set_errno(p->err, ENOMEM, "cannot read routing");
    for (uint64_t i = 0; i < p->n_tensors; i++)
        if (p->parts[i].role != NO_ROLE)
            tensors[n++] = i;
    int r = dmi_read_visit(p->run, tensors, n, take, p);
    return r ? err_set(p->err, r, "%s", dmi_read_error(p->run)) : 0;
}

static void pass_deinit(struct routing_reader *p)
{
    for (uint64_t i = 0; p->parts && i < p->n_tensors; i++) {
        free(p->parts[i].last);
        free(p->parts[i].load);
    }
    free(p->parts);
    free(p->values);
    free(p->sums);
}

int routing_build(struct err *err, struct dmi_read *run, const struct dmi_routing_options *query,
                  struct routing *out)
{
    struct dmi_read_run about = { .size = sizeof about };
    struct routing_reader p = { .err = err, .run = run, .query = query, .out = out };
    *out = (struct routing){ 0 };
    if (query->top_k > ROUTING_MOST_CHOICES)
        return err_set(err, -EINVAL, "%u choices a token: 1 to %u are possible", query->top_k,
                       ROUTING_MOST_CHOICES);
    int r = dmi_read_run(run, &about);
    if (r)
        return err_set(err, r, "%s", dmi_read_error(run));
    p.n_tensors = about.n_tensors;
    p.parts = calloc(about.n_tensors + 1, sizeof *p.parts);
    r = p.parts ? prepare(&p) : err_set_errno(err, ENOMEM, "cannot read routing");
    if (!r)
        r = visit(&p);
    if (!r)
        r = judge(&p);
    pass_deinit(&p);
    if (r)
        routing_deinit(out);
    return r;
}

void routing_deinit(struct routing *routing)
{
    for (size_t i = 0; i < routing->n_layers; i++)
        free((void *)(uintptr_t)routing->layers[i].load);
    free(routing->layers);
    *routing = (struct routing){ 0 };
}
