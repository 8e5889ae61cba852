/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dmi-dump export --format vllm-hook: queries and keys as vLLM Hook keeps them, RUN/tp_rank_R/qk.safetensors with
 * qk.json beside it. Requests are a batch, each tensor is [batch, tokens of the longest, heads * head_dim], what lies
 * after a request's tokens is 0. Source: vLLM Hook (mia), graph/artifact_writer.py and run_utils.py.
 */
#include "tools/dump/dataset.h"
#include "read/value.h"
#include "tools/dump/export.h"
#include "tools/dump/export_group.h"
#include "tools/dump/export_layers.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/err.h"
#include "core/whole.h"
#include "read/requests.h"
#include "read/safetensors.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROTATED "q_rot" /* what attention multiplies, where the model turns queries and keys */
#define PLAIN   "q"
#define MODULE  "model.layers.%d.self_attn.attn"
#define KEY     "model__layers__%d__self_attn__attn__%c"

struct hook_export {
    struct export_stock stock; /* its site is that of the queries */
    char *keys;                /* the site of the keys */
    struct layers wanted;
    uint32_t head_dim;
};

static void plan_deinit(struct hook_export *p)
{
    layers_deinit(&p->stock.layers);
    layers_deinit(&p->wanted);
    free(p->keys);
}

/* ------------------------------------------------------------------------- what there is */

static bool has_site(const struct exporter *x, const char *site)
{
    return ANY(i, x->n_targets, !strcmp(x->targets[i].tensor->site->name, site));
}

static int survey(struct hook_export *p, const struct exporter *x)
{
    const char *given = export_site(x->options, 0);
    p->stock.site = given ? given : has_site(x, ROTATED) ? ROTATED : PLAIN;
    p->keys = strdup(p->stock.site);
    if (!p->keys)
        return -ENOMEM;
    p->keys[0] = 'k';
    int r = 0;
    for (size_t i = 0; !r && i < x->n_targets; i++) {
        const struct tensor *t = x->targets[i].tensor;
        if (!strcmp(t->site->name, p->stock.site) && t->layer >= 0)
            r = layers_add(&p->stock.layers, t->layer);
    }
    layers_sort(&p->stock.layers);
    return r;
}

static int make_plan(struct err *err, struct hook_export *p, const struct exporter *x)
{
    if (survey(p, x))
        return err_set_errno(err, ENOMEM, "cannot export");
    if (p->stock.site[0] != 'q')
        return err_set(err, -EINVAL,
                       "--site %s: this layout has queries and keys, so a site of queries is "
                       "meant, whose name begins with q; that of the keys begins with k",
                       p->stock.site);
    if (!p->stock.layers.n || !has_site(x, p->keys))
        return err_set(err, -ENODATA,
                       "nothing of a site %s is there: this layout has queries and keys, so both "
                       "must be captured and selected",
                       p->stock.layers.n ? p->keys : p->stock.site);
    return export_layers_choose(err, &x->options->own, &p->stock, &p->wanted);
}

/* ------------------------------------------------------------------------- a request */

/* What keeps a tensor from being in the batch. NULL: nothing. */
static const char *fault_of(const struct target *t, const struct target *like)
{
    const struct tensor *a = t->tensor;
    if (a->site->row != DMI_ROW_TOKEN)
        return "has no row a token";
    if (a->dtype != like->tensor->dtype || a->width != like->tensor->width)
        return "has another element type or width than those before it";
    if (a->n_tail != like->tensor->n_tail ||
        memcmp(a->tail, like->tensor->tail, a->n_tail * sizeof *a->tail))
        return "has heads of another number or size than those before it, which this layout cannot "
               "say";
    if (a->site->scale != 0 && a->site->scale != 1)
        return "was captured with a scale, which this layout cannot say";
    return NULL;
}

static bool put_one(struct exporter *x, const struct target_group *g, const char *site,
                    int32_t layer, struct target *out)
{
    const struct target *t = group_find(g, site, layer);
    if (t) {
        *out = *t;
        return true;
    }
    _cleanup_(text_deinit) struct text name = { 0 };
    tensor_add_name(&name, site, layer);
    group_leave_out(x, g, SAMPLE_INCOMPLETE, name.failed ? site : name.data, "is not there");
    return false;
}

/* Puts queries and keys, layer by layer, to @out; @like: those of the first request. Return: whether all is there. */
static bool put_group(struct exporter *x, const struct target_group *g, const struct hook_export *p,
                      struct target *out, const struct target *like)
{
    for (size_t i = 0; i < x->n_group; i++) {
        if (!put_one(x, g, i % 2 ? p->keys : p->stock.site, p->wanted.all[i / 2], &out[i]))
            return false;
        const char *fault = fault_of(&out[i], &like[i % 2]);
        if (fault)
            group_leave_out(x, g, SAMPLE_INCOMPLETE, out[i].tensor->name, fault);
        if (fault || !group_is_whole(x, g, &out[i]))
            return false;
    }
    return true;
}

static bool is_ours(const struct target_group *g, const struct hook_export *p)
{
    for (size_t i = 0; i < g->n; i++) {
        const char *site = g->first[i].tensor->site->name;
        if (!strcmp(site, p->stock.site) || !strcmp(site, p->keys))
            return true;
    }
    return false;
}

static size_t put_groups(struct exporter *x, const struct hook_export *p, struct target *kept)
{
    struct target_group g;
    size_t n = 0;
    for (size_t at = 0; at < x->n_targets; at += g.n) {
        g = group_at(x, at);
        if (is_ours(&g, p) && !(x->options->append && group_still_runs(x, &g)) &&
            put_group(x, &g, p, kept + n, kept))
            n += x->n_group;
    }
    return n;
}

/* ------------------------------------------------------------------------- heads */

/* Elements of a head: as said, or the last of two dimensions. 0: not known. */
static uint32_t head_dim(const struct exporter *x)
{
    const struct tensor *q = x->targets[0].tensor;
    return x->options->head_dim ? x->options->head_dim : q->n_tail == 2 ? q->tail[1] : 0;
}

static int check_heads(struct err *err, const struct exporter *x)
{
    uint64_t dim = head_dim(x), q = x->targets[0].tensor->width, k = x->targets[1].tensor->width;
    if (!dim)
        return err_set(err, -EINVAL,
                       "%s was captured without a dimension of heads: --head-dim says how many "
                       "elements a head has",
                       x->targets[0].tensor->name);
    const struct tensor *keys = x->targets[1].tensor;
    if (!x->options->head_dim && (keys->n_tail != 2 || keys->tail[1] != dim))
        return err_set(err, -EINVAL, "%s has heads of another size than %s", keys->name,
                       x->targets[0].tensor->name);
    if (!q || !k || q % dim || k % dim || q % k)
        return err_set(err, -EINVAL,
                       "heads of %" PRIu64 " elements do not divide queries of %" PRIu64
                       " and keys of %" PRIu64,
                       dim, q, k);
    return 0;
}

/* How many of these parts make up the tensor: a rank by itself has one of them. */
static uint64_t parts_of(const struct exporter *x, const struct tensor *t)
{
    const struct dmi_site *s = t->site;
    bool is_part = x->options->by_rank && x->options->ranks[DMI_AXIS_TP] >= 0 &&
                   s->shard == DMI_SHARD_DIM && s->shard_axis == DMI_AXIS_TP;
    int32_t size = reader_n_steps(x->reader)
                       ? reader_step(x->reader, 0)->entry->ranks[2 * DMI_AXIS_TP + 1]
                       : 1;
    return is_part && size > 1 ? (uint64_t)size : 1;
}

static json_t *config_of(const struct exporter *x)
{
    const struct tensor *q = x->targets[0].tensor, *k = x->targets[1].tensor;
    uint64_t dim = head_dim(x), n_q = q->width / dim * parts_of(x, q),
             n_k = k->width / dim * parts_of(x, k);
    double said = x->options->multiplier;
    return json_pack("{s:o, s:o, s:o, s:o, s:f}", "num_attention_heads", value_u64(n_q),
                     "num_key_value_heads", value_u64(n_k), "hidden_size", value_u64(n_q * dim),
                     "head_dim", value_u64(dim), "attention_multiplier",
                     said > 0 ? said : 1 / sqrt((double)dim));
}

/* ------------------------------------------------------------------------- the order */

/* A request's targets, and its number among all. */
struct place_of {
    const struct target *first;
    size_t number;
};

static int number_order(const void *pa, const void *pb)
{
    const struct place_of *a = pa, *b = pb;
    return a->number < b->number ? -1 : a->number > b->number;
}

/* Requests in the order of their first steps, as dmi-dump list --requests has them: tensors come by the bytes of ids. */
static int order_requests(struct exporter *x)
{
    size_t n = x->n_targets / x->n_group;
    _cleanup_(freep) struct place_of *order = calloc(n + 1, sizeof *order);
    struct target *sorted = calloc(x->n_targets + 1, sizeof *sorted);
    if (!order || !sorted) {
        free(sorted);
        return -ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        const struct target *first = &x->targets[i * x->n_group];
        const struct tensor *t = first->tensor;
        const struct request *q = requests_find(&x->requests, t->request, t->n_request);
        order[i] = (struct place_of){ first, (size_t)(q - x->requests.all) };
    }
    qsort(order, n, sizeof *order, number_order);
    for (size_t i = 0; i < n; i++)
        memcpy(&sorted[i * x->n_group], order[i].first, x->n_group * sizeof *sorted);
    free(x->targets);
    x->targets = sorted;
    return 0;
}

static int arrange_by(struct err *err, struct exporter *x, const struct hook_export *p)
{
    x->n_group = 2 * p->wanted.n;
    struct target *kept = calloc(x->n_targets + x->n_group, sizeof *kept);
    if (!kept)
        return err_set_errno(err, ENOMEM, "cannot export");
    size_t n = put_groups(x, p, kept);
    free(x->targets);
    x->targets = kept;
    x->n_targets = n;
    if (!n)
        return err_set(err, -ENODATA, "no request has all that is needed");
    return order_requests(x) ? err_set_errno(err, ENOMEM, "cannot export") : check_heads(err, x);
}

/* ------------------------------------------------------------------------- one dataset of several runs */

static int32_t rank_of(const struct exporter *x)
{
    int32_t rank = x->options->by_rank ? x->options->ranks[DMI_AXIS_TP] : 0;
    return rank > 0 ? rank : 0;
}

static void add_path(struct text *to, const struct exporter *x, const char *name)
{
    text_printf(to, "%s", reader_run(x->reader)->uuid);
    if (name)
        text_printf(to, "/tp_rank_%" PRId32 "%s", rank_of(x), name);
}

/* What all batches of a dataset are. */
static json_t *facts_of(const struct exporter *x, const struct hook_export *p)
{
    const struct tensor *q = x->targets[0].tensor;
    json_t *layers = json_array();
    for (size_t i = 0; i < p->wanted.n; i++)
        json_array_append_new(layers, json_integer(p->wanted.all[i]));
    return VALUE_OBJECT({ "format", json_string("vllm-hook") },
                        { "site", value_text(p->stock.site) }, { "layers", layers },
                        { "dtype", json_string(dmi_dtype_info(q->dtype)->name) },
                        { "config", config_of(x) },
                        { "queries", json_string(x->options->last_queries ? "last" : "all") },
                        { "tokens", export_tokens(&x->options->select) });
}

static int add_samples(struct exporter *x, const char *file)
{
    int r = 0;
    for (size_t i = 0; !r && i < x->n_targets; i += x->n_group) {
        const struct tensor *t = x->targets[i].tensor;
        r = dataset_add(x->dataset, reader_run(x->reader)->uuid, t->request, t->n_request,
                        t->n_rows, file);
    }
    return r;
}

/* A run's requests are one batch: it is there with all of them, or it is written. */
static int join_dataset(struct err *err, struct exporter *x, const struct hook_export *p)
{
    _cleanup_(text_deinit) struct text file = { 0 };
    TRY(dataset_agree(err, x->dataset, x->output, facts_of(x, p)));
    add_path(&file, x, "/qk.safetensors");
    if (file.failed)
        return err_set_errno(err, ENOMEM, "cannot export");
    if (!dataset_has_file(x->dataset, file.data))
        return add_samples(x, file.data) ? err_set_errno(err, ENOMEM, "cannot export") : 0;
    for (size_t i = 0; i < x->n_targets; i += x->n_group) {
        const struct tensor *t = x->targets[i].tensor;
        const struct dataset_sample *s =
            dataset_find(x->dataset, reader_run(x->reader)->uuid, t->request, t->n_request);
        if (!s || s->n_tokens != t->n_rows)
            return err_set(err, -EINVAL,
                           "%s/%s is there, without request '%.*s' as it is now, and nothing is "
                           "added to a batch: name another folder with --output",
                           x->output, file.data, (int)t->n_request, t->request);
    }
    x->n_already = x->n_targets / x->n_group;
    x->n_targets = 0;
    return 0;
}

static int arrange(struct err *err, struct exporter *x)
{
    _cleanup_(plan_deinit) struct hook_export plan = { 0 };
    TRY(make_plan(err, &plan, x));
    TRY(arrange_by(err, x, &plan));
    return join_dataset(err, x, &plan);
}

/* ------------------------------------------------------------------------- qk.safetensors */

static bool last_only(const struct exporter *x, size_t i)
{
    return x->options->last_queries && !(i % 2);
}

static uint64_t longest(const struct exporter *x)
{
    uint64_t most = 0;
    for (size_t i = 0; i < x->n_targets; i += x->n_group)
        most = x->targets[i].tensor->n_rows > most ? x->targets[i].tensor->n_rows : most;
    return most;
}

/* Entry @i of a request's, for all requests: where the rows of each begin. */
static int put_entry(struct exporter *x, struct st_header *to, size_t i, uint64_t n_longest)
{
    const struct tensor *like = x->targets[i].tensor;
    uint64_t n_batch = x->n_targets / x->n_group, n_rows = last_only(x, i) ? 1 : n_longest;
    uint64_t n_row = like->width * dmi_dtype_bytes(like->dtype), n_each, n_all;
    if (__builtin_mul_overflow(n_rows, n_row, &n_each) ||
        __builtin_mul_overflow(n_batch, n_each, &n_all))
        return -EOVERFLOW;
    char key[64];
    snprintf(key, sizeof key, KEY, like->layer, i % 2 ? 'k' : 'q');
    const uint64_t all[] = { n_batch, n_longest, like->width }, last[] = { n_batch, like->width };
    uint64_t offset = last_only(x, i) ? safetensors_add_dims(to, key, like->dtype, last, 2, n_all)
                                      : safetensors_add_dims(to, key, like->dtype, all, 3, n_all);
    for (uint64_t b = 0; b < n_batch; b++)
        x->targets[b * x->n_group + i].offset = offset + b * n_each;
    return 0;
}

static int put_header(struct exporter *x, struct st_header *to)
{
    json_t *metadata = json_pack("{s:s, s:s, s:s}", "format", "pt", "producer", "dmi-dump", "run",
                                 reader_run(x->reader)->uuid);
    if (!metadata)
        return -ENOMEM;
    safetensors_begin(to, metadata);
    json_decref(metadata);
    int r = 0;
    for (size_t i = 0; !r && i < x->n_group; i++)
        r = put_entry(x, to, i, longest(x));
    return r ? r : safetensors_end(to);
}

static int open_file(const struct exporter *x, const char *name)
{
    _cleanup_(text_deinit) struct text path = { 0 };
    add_path(&path, x, name);
    int fd = path.failed ? -1
                         : openat(x->fd, path.data,
                                  O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    return fd < 0 ? (path.failed ? -ENOMEM : -errno) : fd;
}

static int make_folders(const struct exporter *x)
{
    _cleanup_(text_deinit) struct text outer = { 0 }, inner = { 0 };
    add_path(&outer, x, NULL);
    add_path(&inner, x, "");
    if (outer.failed || inner.failed)
        return -ENOMEM;
    return mkdirat(x->fd, outer.data, 0700) || mkdirat(x->fd, inner.data, 0700) ? -errno : 0;
}

static int begin_file(struct exporter *x, struct st_header *header)
{
    int r = make_folders(x);
    if (!r && (x->scratch = open_file(x, "/qk.safetensors")) < 0)
        r = x->scratch;
    if (!r)
        r = put_header(x, header);
    uint64_t data = 0;
    if (!r)
        r = safetensors_put(x->scratch, header, &data);
    for (size_t i = 0; i < x->n_targets; i++)
        x->targets[i].offset += data;
    return r;
}

static int begin(struct err *err, struct exporter *x)
{
    struct st_header header = { 0 };
    if (!export_n_sites(x->options) && !strcmp(x->targets[0].tensor->site->name, PLAIN))
        complain("q and k are exported, as nothing of a site " ROTATED " is there: vLLM Hook has "
                 "queries and keys after their rotary embedding");
    int r = begin_file(x, &header);
    text_deinit(&header.text);
    return r ? err_set_errno(err, -r, "cannot write the queries and keys to %s", x->output) : 0;
}

/* Of the queries perhaps the last row alone. */
static int write_rows(struct exporter *x, const struct target *t, const void *data, size_t n,
                      uint64_t at)
{
    uint64_t n_row = t->tensor->width * dmi_dtype_bytes(t->tensor->dtype);
    if (!last_only(x, (size_t)(t - x->targets) % x->n_group))
        return whole_write(x->scratch, data, n, t->offset + at);
    bool has_last = at + n == t->n_bytes;
    const char *last = (const char *)data + n - n_row;
    return has_last ? whole_write(x->scratch, last, n_row, t->offset) : 0;
}

/* ------------------------------------------------------------------------- qk.json */

static json_t *layer_order(const struct exporter *x, const char *mode)
{
    json_t *list = json_array();
    for (size_t i = 0; i < x->n_group; i += 2) {
        int32_t layer = x->targets[i].tensor->layer;
        char module[64], q[64], k[64];
        snprintf(module, sizeof module, MODULE, layer);
        snprintf(q, sizeof q, KEY, layer, 'q');
        snprintf(k, sizeof k, KEY, layer, 'k');
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:i, s:s}", "key_q", q, "key_k", k,
                                              "module_name", module, "layer_num", layer,
                                              "hookq_mode", mode));
    }
    return list;
}

static json_t *lengths(const struct exporter *x)
{
    json_t *list = json_array();
    for (size_t i = 0; i < x->n_targets; i += x->n_group)
        json_array_append_new(list, value_u64(x->targets[i].tensor->n_rows));
    return list;
}

static json_t *requests(const struct exporter *x)
{
    json_t *list = json_array();
    for (size_t i = 0; i < x->n_targets; i += x->n_group) {
        const struct tensor *t = x->targets[i].tensor;
        json_array_append_new(list, value_bytes(t->request, t->n_request));
    }
    return list;
}

/* Of each request's rows, as pairs of a first position and a number of rows. */
static json_t *positions(const struct exporter *x)
{
    json_t *list = json_array();
    for (size_t i = 0; i < x->n_targets; i += x->n_group) {
        const struct position_list *own = &x->positions[x->targets[i].positions];
        json_t *pairs = json_array();
        for (size_t k = 0; k < own->n; k++)
            json_array_append_new(pairs, json_pack("[I, o]", (json_int_t)own->pairs[k].first,
                                                   value_u64(own->pairs[k].n)));
        json_array_append_new(list, pairs);
    }
    return list;
}

/* By request: whose rows those of its cached tokens are, {tensor: [[first, rows, request], ...]}. */
static json_t *donors(const struct exporter *x)
{
    json_t *list = json_array();
    for (size_t i = 0; i < x->n_targets; i += x->n_group) {
        json_t *of = export_donors_of(x, &x->targets[i], x->n_group);
        json_array_append_new(list, of ? of : json_object());
    }
    return list;
}

/* By request: what edits wrote in it, in words. NULL: none wrote in any. */
static json_t *edits(const struct exporter *x)
{
    json_t *list = x->edited.n ? json_array() : NULL;
    for (size_t i = 0; list && i < x->n_targets; i += x->n_group) {
        json_t *of = export_edits(x, x->targets[i].tensor);
        json_array_append_new(list, of ? of : json_array());
    }
    return list;
}

static int put_facts(struct text *to, const struct exporter *x)
{
    const char *mode = x->options->last_queries ? "last_token" : "all_tokens";
    json_t *o = VALUE_OBJECT(
        { "config", config_of(x) }, { "layer_order", layer_order(x, mode) },
        { "batch_size", value_u64(x->n_targets / x->n_group) }, { "hookq_mode", json_string(mode) },
        { "tp_rank", json_integer(rank_of(x)) }, { "seq_lens", lengths(x) },
        { "k_seq_lens", lengths(x) }, { "run", json_string(reader_run(x->reader)->uuid) },
        { "requests", requests(x) }, { "positions", positions(x) });
    if (o && !x->options->last_queries)
        json_object_set_new(o, "q_seq_lens", lengths(x));
    if (o && x->options->select.fill_cached)
        json_object_set_new(o, "filled", donors(x));
    json_t *of_edits = edits(x);
    if (o && of_edits)
        json_object_set(o, "edits", of_edits);
    json_decref(of_edits);
    value_add_new(to, o);
    text_printf(to, "\n");
    return to->failed ? -ENOMEM : 0;
}

static int finish(struct err *err, struct exporter *x)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    int r = put_facts(&t, x);
    _cleanup_(closep) int fd = r ? -1 : open_file(x, "/qk.json");
    if (!r)
        r = fd < 0 ? fd : whole_write(fd, t.data, t.n, 0);
    return r ? err_set_errno(err, -r, "cannot write qk.json to %s", x->output)
             : export_dataset_index(err, x);
}

const struct format format_vllm_hook = {
    .name = "vllm-hook",
    .what = "a folder RUN/tp_rank_R with qk.safetensors and qk.json: queries and keys, a batch",
    .suffix = "-vllm-hook",
    .is_folder = true,
    .is_dataset = true,
    .chooses = true,
    .takes_heads = true,
    .arrange = arrange,
    .begin = begin,
    .write = write_rows,
    .finish = finish,
};
