/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dmi-dump export --format vllm: a folder with a file a request, as vLLM's extraction of hidden states writes them:
 * hidden_states [tokens, layers, hidden], token_ids [tokens] int64; and, if masks are given, loss_mask [tokens] int64. Layer k is the residual stream that enters layer k.
 * What vLLM does not write stands in the metadata. Source: vllm 0.33,
 * vllm/distributed/kv_transfer/kv_connector/v1/example_hidden_states_connector.py.
 */
#include "tools/dump/dataset.h"
#include "read/value.h"
#include "tools/dump/export.h"
#include "tools/dump/export_group.h"
#include "tools/dump/export_layers.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/grow.h"
#include "core/whole.h"
#include "core/words.h"
#include "read/safetensors.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define IDS       "token_ids"
#define MASK      "loss_mask"
#define HIDDEN    "resid_pre"
#define LAST      "resid_final"
#define AT_A_TIME 512u /* ids */

/* ------------------------------------------------------------------------- what there is */

/* One of the tensors that are stacked. */
struct stacked {
    const char *site;
    int32_t layer; /* EXPORT_LAST: that of the site LAST */
};

struct stacking {
    struct stacked *all; /* in the order of the file */
    size_t n, room;
    json_t *sites; /* as they are named */
};

static void plan_deinit(struct stacking *p)
{
    free(p->all);
    json_decref(p->sites);
}

static bool is_of(const struct target *t, const char *site)
{
    return site && !strcmp(t->tensor->site->name, site);
}

static bool has_ids(const struct exporter *x)
{
    return ANY(i, x->n_targets, is_of(&x->targets[i], IDS));
}

static int survey(struct export_stock *stock, const struct exporter *x)
{
    int r = 0;
    for (size_t i = 0; !r && i < x->n_targets; i++) {
        const struct target *t = &x->targets[i];
        stock->has_last |= is_of(t, stock->last);
        if (is_of(t, stock->site) && !is_of(t, IDS))
            r = layers_add(&stock->layers, t->tensor->layer);
    }
    layers_sort(&stock->layers);
    return r;
}

/* A site's layers come after those of the sites that were named before it. */
static int add_wants(struct err *err, struct stacking *p, const struct export_stock *stock,
                     const struct layers *layers)
{
    for (size_t i = 0; i < layers->n; i++) {
        if (grow((void **)&p->all, p->n, &p->room, sizeof *p->all, 64))
            return err_set_errno(err, ENOMEM, "cannot export");
        bool is_last = layers->all[i] == EXPORT_LAST;
        p->all[p->n++] = (struct stacked){ is_last ? stock->last : stock->site, layers->all[i] };
    }
    return 0;
}

static int note_site(struct err *err, struct stacking *p, const char *site)
{
    for (size_t i = 0; i < json_array_size(p->sites); i++)
        if (!strcmp(json_string_value(json_array_get(p->sites, i)), site))
            return err_set(err, -EINVAL, "--site: %s is named twice", site);
    return json_array_append_new(p->sites, value_text(site))
               ? err_set_errno(err, ENOMEM, "cannot export")
               : 0;
}

static int add_site(struct err *err, struct stacking *p, const struct exporter *x, const char *site)
{
    struct export_stock stock = { .site = site, .last = strcmp(site, HIDDEN) ? NULL : LAST };
    struct layers layers = { 0 };
    int r = note_site(err, p, site);
    if (!r && survey(&stock, x))
        r = err_set_errno(err, ENOMEM, "cannot export");
    if (!r && !stock.layers.n && !stock.has_last)
        r = err_set(err, -ENODATA,
                    "nothing of a site %s is there to be hidden_states: --site names the site",
                    site);
    if (!r && !has_ids(x))
        r = err_set(err, -ENODATA,
                    "nothing of a site " IDS " is there: vLLM's layout has the tokens' ids "
                    "beside their hidden states, so both must be captured and selected");
    if (!r)
        r = export_layers_choose(err, &x->options->own, &stock, &layers);
    if (!r)
        r = add_wants(err, p, &stock, &layers);
    layers_deinit(&stock.layers);
    layers_deinit(&layers);
    return r;
}

static int make_plan(struct err *err, struct stacking *p, const struct exporter *x)
{
    size_t n = export_n_sites(x->options);
    p->sites = json_array();
    int r = n ? 0 : add_site(err, p, x, HIDDEN);
    for (size_t i = 0; !r && i < n; i++)
        r = add_site(err, p, x, export_site(x->options, i));
    return r;
}

/* ------------------------------------------------------------------------- a request */

static const struct target *find_ids(const struct target_group *g)
{
    return FIRST(i, g->n, is_of(&g->first[i], IDS), &g->first[i], NULL);
}

static bool is_wanted(const struct target *t, const struct stacked *want)
{
    return is_of(t, want->site) && (want->layer == EXPORT_LAST || t->tensor->layer == want->layer);
}

static const struct target *find_layer(const struct target_group *g, const struct stacked *want)
{
    return FIRST(i, g->n, is_wanted(&g->first[i], want), &g->first[i], NULL);
}

static bool is_ours(const struct target_group *g, const struct stacking *p)
{
    for (size_t i = 0; i < g->n; i++)
        for (size_t k = 0; k < p->n; k++)
            if (is_of(&g->first[i], p->all[k].site))
                return true;
    return find_ids(g) != NULL;
}

static bool is_whole_number(uint32_t dtype)
{
    return dtype >= DMI_DTYPE_I8 && dtype <= DMI_DTYPE_U64;
}

/* What keeps a tensor from being ids, or a layer of hidden states beside @like. NULL: nothing. */
static const char *fault_of(const struct target *t, const struct target *ids,
                            const struct target *like)
{
    const struct tensor *a = t->tensor, *b = like->tensor;
    if (a->site->row != DMI_ROW_TOKEN)
        return "has no row a token";
    if (t == ids)
        return a->width != 1 || !is_whole_number(a->dtype) ? "is no integer a token" : NULL;
    if (a->dtype != b->dtype || a->width != b->width)
        return "has another element type or width than the layers before it";
    if (a->site->scale != 0 && a->site->scale != 1)
        return "was captured with a scale, which this layout cannot say";
    return NULL;
}

static void add_name(struct text *to, const struct stacked *want)
{
    tensor_add_name(to, want->site, want->layer == EXPORT_LAST ? DMI_NO_LAYER : want->layer);
}

static void lacks_layer(struct exporter *x, const struct target_group *g, const struct stacking *p,
                        const struct stacked *want)
{
    _cleanup_(text_deinit) struct text name = { 0 };
    if (json_array_size(p->sites) > 1) {
        add_name(&name, want);
    } else {
        text_printf(&name, "layer ");
        export_layers_add_name(&name, want->layer);
    }
    group_leave_out(x, g, SAMPLE_INCOMPLETE, name.data ? name.data : "a layer", "is not there");
}

/* Puts a request's targets in the file's order to @out: ids, then the layers. Return: whether all is there. */
static bool put_group(struct exporter *x, const struct target_group *g, const struct stacking *p,
                      struct target *out)
{
    const struct target *ids = find_ids(g);
    if (!ids) {
        group_leave_out(x, g, SAMPLE_INCOMPLETE, IDS, "is not there");
        return false;
    }
    const struct tensor *t0 = ids->tensor;
    if (x->masks && t0->request && !masks_find(x->masks, t0->request, t0->n_request)) {
        group_leave_out(x, g, SAMPLE_LACKS_MASK, x->masks->path, "has no line for it");
        return false;
    }
    for (size_t i = 0; i <= p->n; i++) {
        const struct target *t = i ? find_layer(g, &p->all[i - 1]) : ids;
        if (!t) {
            lacks_layer(x, g, p, &p->all[i - 1]);
            return false;
        }
        out[i] = *t;
        const char *fault = fault_of(t, ids, i ? &out[1] : ids);
        if (fault)
            group_leave_out(x, g, SAMPLE_INCOMPLETE, t->tensor->name, fault);
        if (fault || !group_is_whole(x, g, t))
            return false;
    }
    return true;
}

/* ------------------------------------------------------------------------- the order */

/* Names a request's file, and notes its sample. Return: to be freed; NULL: no memory. */
static char *name_file(struct exporter *x, const struct tensor *t)
{
    _cleanup_(freep) char *base = export_file_name(t->request, t->n_request, "");
    _cleanup_(freep) char *file = base ? dataset_name(x->dataset, base, ".safetensors") : NULL;
    if (!file || dataset_add(x->dataset, reader_run(x->reader)->uuid, t->request, t->n_request,
                             t->n_rows, file))
        return NULL;
    return steal_ptr(file);
}

static int set_places(struct exporter *x, struct target *group)
{
    const struct tensor *t = group->tensor;
    uint64_t n = x->n_group, n_before = (x->masks ? 16 : 8) * t->n_rows;
    uint64_t n_row = group[1].tensor->width * dmi_dtype_bytes(group[1].tensor->dtype);
    _cleanup_(freep) char *file = name_file(x, t);
    group->n_bytes = 8 * t->n_rows;
    for (size_t i = 0; file && i < n; i++) {
        group[i].stride = i ? (n - 1) * n_row : 8;
        group[i].offset = i ? n_before + (i - 1) * n_row : 0;
        group[i].file = strdup(file);
        if (!group[i].file)
            return -ENOMEM;
    }
    return file ? 0 : -ENOMEM;
}

/* Whether the dataset has the request. */
static bool is_there(struct exporter *x, const struct target_group *g)
{
    const struct tensor *t = g->first->tensor;
    const struct target *ids = find_ids(g);
    const struct dataset_sample *s =
        t->request ? dataset_find(x->dataset, reader_run(x->reader)->uuid, t->request, t->n_request)
                   : NULL;
    if (!s)
        return false;
    if (!ids || ids->tensor->n_rows == s->n_tokens) {
        x->n_already++;
        return true;
    }
    char what[96];
    snprintf(what, sizeof what, "has it with %" PRIu64 " %s, and there are %" PRIu64 " by now",
             s->n_tokens, word_for(s->n_tokens, "token", "tokens"), ids->tensor->n_rows);
    group_leave_out(x, g, SAMPLE_GREW, "the dataset", what);
    return true;
}

static int put_groups(struct exporter *x, const struct stacking *p, struct target *kept,
                      size_t *n_kept)
{
    int r = 0;
    struct target_group g;
    for (size_t at = 0; !r && at < x->n_targets; at += g.n) {
        g = group_at(x, at);
        if (!is_ours(&g, p) || is_there(x, &g) || (x->options->append && group_still_runs(x, &g)) ||
            !put_group(x, &g, p, kept + *n_kept))
            continue;
        r = set_places(x, kept + *n_kept);
        *n_kept += x->n_group;
    }
    return r;
}

/* What all samples of a dataset are. */
static json_t *facts_of(const struct exporter *x, const struct stacking *p)
{
    json_t *layers = json_array();
    const struct target *like = x->targets;
    while (!is_wanted(like, p->all))
        like++;
    for (size_t i = 0; i < p->n; i++) {
        _cleanup_(text_deinit) struct text name = { 0 };
        add_name(&name, &p->all[i]);
        json_array_append_new(layers, value_text(name.data));
    }
    return VALUE_OBJECT({ "format", json_string("vllm") }, { "sites", json_incref(p->sites) },
                        { "layers", layers },
                        { "dtype", json_string(dmi_dtype_info(like->tensor->dtype)->name) },
                        { "width", value_u64(like->tensor->width) },
                        { "tokens", export_tokens(&x->options->select) },
                        { "loss_mask", json_boolean(x->masks != NULL) });
}

static int arrange_by(struct err *err, struct exporter *x, const struct stacking *p)
{
    size_t n_kept = 0;
    x->n_group = 1 + p->n;
    struct target *kept = calloc(x->n_targets + x->n_group, sizeof *kept);
    int r = kept ? put_groups(x, p, kept, &n_kept) : -ENOMEM;
    if (kept) {
        free(x->targets);
        x->targets = kept;
        x->n_targets = n_kept;
    }
    if (r)
        return err_set_errno(err, -r, "cannot export");
    return n_kept || x->n_already
               ? 0
               : err_set(err, -ENODATA, "no request has all that its file needs");
}

static int arrange(struct err *err, struct exporter *x)
{
    _cleanup_(plan_deinit) struct stacking plan = { 0 };
    int r = make_plan(err, &plan, x);
    if (!r)
        r = dataset_agree(err, x->dataset, x->output, facts_of(x, &plan));
    return r ? r : arrange_by(err, x, &plan);
}

/* ------------------------------------------------------------------------- a file */

static void put_string(json_t *metadata, const char *key, const struct text *t)
{
    json_object_set_new(metadata, key, t->failed ? NULL : value_bytes(t->data, t->n));
}

/* Whose rows those of cached tokens are: {tensor: [[first, rows, request], ...]}. */
static void put_donors(json_t *metadata, const struct exporter *x, const struct target *group)
{
    _cleanup_(text_deinit) struct text filled = { 0 };
    json_t *donors = export_donors_of(x, group, x->n_group);
    if (!donors)
        return;
    value_add_new(&filled, donors);
    put_string(metadata, "filled", &filled);
}

/* What edits wrote in the request, in words. */
static void put_edits(json_t *metadata, const struct exporter *x, const struct tensor *t)
{
    _cleanup_(text_deinit) struct text text = { 0 };
    json_t *edits = export_edits(x, t);
    if (!edits)
        return;
    value_add_new(&text, edits);
    put_string(metadata, "edits", &text);
}

/* Strings only, JSON text where they are more. Return: NULL: no memory. */
static json_t *metadata_of(const struct exporter *x, const struct target *group)
{
    const struct tensor *t = group->tensor;
    _cleanup_(text_deinit) struct text layers = { 0 }, positions = { 0 };
    json_t *m =
        json_pack("{s:s, s:s, s:s, s:o}", "format", "pt", "producer", "dmi-dump", "run",
                  reader_run(x->reader)->uuid, "site", value_text(group[1].tensor->site->name));
    if (m)
        json_object_set_new(m, "request", value_bytes(t->request, t->n_request));
    text_printf(&layers, "[");
    for (size_t i = 1; i < x->n_group; i++) {
        text_printf(&layers, i > 1 ? ", " : "");
        value_add_new(&layers, value_text(group[i].tensor->name));
    }
    text_printf(&layers, "]");
    export_add_position_list(&positions, &x->positions[group->positions]);
    if (m) {
        put_string(m, "layers", &layers);
        put_string(m, "positions", &positions);
        put_donors(m, x, group);
        put_edits(m, x, t);
    }
    return m;
}

static int put_header(const struct exporter *x, const struct target *group, struct st_header *to)
{
    const struct tensor *hidden = group[1].tensor;
    size_t n_layers = x->n_group - 1;
    json_t *metadata = metadata_of(x, group);
    if (!metadata)
        return -ENOMEM;
    safetensors_begin(to, metadata);
    json_decref(metadata);
    safetensors_add_dims(to, IDS, DMI_DTYPE_I64, &hidden->n_rows, 1, group->n_bytes);
    if (x->masks)
        safetensors_add_dims(to, MASK, DMI_DTYPE_I64, &hidden->n_rows, 1, group->n_bytes);
    const uint64_t dims[] = { hidden->n_rows, n_layers, hidden->width };
    safetensors_add_dims(to, "hidden_states", hidden->dtype, dims, 3, n_layers * group[1].n_bytes);
    return safetensors_end(to);
}

/* @at: of the file's first byte of data */
static int write_mask(int fd, struct exporter *x, const struct target *group, uint64_t at)
{
    const struct tensor *t = group->tensor;
    const struct mask *mask = masks_find(x->masks, t->request, t->n_request);
    const struct position_list *list = &x->positions[group->positions];
    _cleanup_(freep) int64_t *all = calloc(t->n_rows + 1, sizeof *all);
    if (!mask || !all)
        return -ENOMEM;
    int64_t *to = all;
    for (size_t i = 0; i < list->n; to += list->pairs[i++].n)
        mask_fill(mask, list->pairs[i].first, list->pairs[i].n, to);
    x->n_without_loss += !memchr(all, 1, group->n_bytes);
    return whole_write(fd, all, group->n_bytes, at + group->n_bytes);
}

/* Never over another request's file: names differ, but a file system may take two for one. */
static int begin_file(struct exporter *x, struct target *group)
{
    struct st_header header = { 0 };
    _cleanup_(closep) int fd =
        openat(x->fd, group->file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    int r = fd < 0 ? -errno : put_header(x, group, &header);
    uint64_t data = 0;
    if (!r)
        r = safetensors_put(fd, &header, &data);
    if (!r && x->masks)
        r = write_mask(fd, x, group, data);
    for (size_t i = 0; i < x->n_group; i++)
        group[i].offset += data;
    text_deinit(&header.text);
    return r;
}

static int begin(struct err *err, struct exporter *x)
{
    for (size_t i = 0; i < x->n_targets; i += x->n_group) {
        int r = begin_file(x, &x->targets[i]);
        if (r)
            return err_set_errno(err, -r, "cannot write %s/%s", x->output, x->targets[i].file);
    }
    return 0;
}

/* ------------------------------------------------------------------------- rows */

static int64_t whole_number(uint32_t dtype, const uint8_t *at)
{
    uint32_t n = dmi_dtype_bytes(dtype);
    uint64_t v = 0;
    memcpy(&v, at, n); /* little-endian */
    bool is_signed = dtype <= DMI_DTYPE_I64;
    unsigned shift = 64 - 8 * n;
    return is_signed ? (int64_t)(v << shift) >> shift : (int64_t)v;
}

static int write_ids(int fd, const struct target *t, const uint8_t *data, size_t n, uint64_t row)
{
    int64_t ids[AT_A_TIME];
    uint32_t n_id = dmi_dtype_bytes(t->tensor->dtype);
    int r = 0;
    for (size_t done = 0, some; !r && done < n; done += some) {
        some = n - done < AT_A_TIME ? n - done : AT_A_TIME;
        for (size_t i = 0; i < some; i++)
            ids[i] = whole_number(t->tensor->dtype, data + (done + i) * n_id);
        r = whole_write(fd, ids, 8 * some, t->offset + 8 * (row + done));
    }
    return r;
}

static int write_layer(int fd, const struct target *t, const uint8_t *data, size_t n, uint64_t row)
{
    uint64_t n_row = t->tensor->width * dmi_dtype_bytes(t->tensor->dtype);
    if (t->stride == n_row)
        return whole_write(fd, data, n * n_row, t->offset + row * n_row);
    int r = 0;
    for (size_t i = 0; !r && i < n; i++)
        r = whole_write(fd, data + i * n_row, n_row, t->offset + (row + i) * t->stride);
    return r;
}

static int write_rows(struct exporter *x, const struct target *t, const void *data, size_t n,
                      uint64_t at)
{
    uint64_t n_row = t->tensor->width * dmi_dtype_bytes(t->tensor->dtype);
    _cleanup_(closep) int fd = openat(x->fd, t->file, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return -errno;
    bool is_ids = !((size_t)(t - x->targets) % x->n_group);
    return (is_ids ? write_ids : write_layer)(fd, t, data, n / n_row, at / n_row);
}

const struct format format_vllm = {
    .name = "vllm",
    .what = "a folder with a file a request: hidden_states, token_ids (needs the site token_ids)",
    .suffix = "-vllm",
    .is_folder = true,
    .is_dataset = true,
    .chooses = true,
    .takes_mask = true,
    .takes_sites = true,
    .arrange = arrange,
    .begin = begin,
    .write = write_rows,
    .finish = export_dataset_index,
};
