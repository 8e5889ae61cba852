/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/analyze/weights_file.h"

#include "core/cleanup.h"
#include "core/whole.h"
#include "read/safetensors.h"
#include "read/value.h"
#include "tools/analyze/result.h"
#include "tools/common/npy.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FORMULA      "1"
#define ROOM_TO_GROW 512 /* bytes for numbers that are not known before the end */

/* ------------------------------------------------------------------------- metadata */

static json_t *text_of(json_t *value)
{
    char *text = value ? json_dumps(value, JSON_SORT_KEYS) : NULL;
    json_t *out = text ? json_string(text) : NULL;
    json_decref(value);
    free(text);
    return out;
}

static json_t *parameters(const struct analyze_options *o, const struct dmi_analyze_shape *shape)
{
    json_t *p = json_pack("{s:f, s:b, s:b}", "multiplier", shape->multiplier, "fill_cached",
                          o->fill_cached, "unchecked", o->unchecked);
    json_object_set_new(p, "layers", value_text(o->layers));
    json_object_set_new(p, "tokens", value_text(o->tokens));
    json_object_set_new(p, "config", value_text(o->config));
    json_object_set_new(p, "prefix", value_text(o->prefix));
    return p;
}

static json_t *checks(const struct dmi_analyze_proof *p)
{
    json_t *list = json_array();
    if (p->n_rows)
        json_array_append_new(list, json_pack("{s:s, s:o, s:f, s:I}", "name", "A v = z", "error",
                                              value_double(p->error), "bound", p->bound, "rows",
                                              (json_int_t)p->n_rows));
    return list;
}

static json_t *metadata(const struct analyze_options *o, struct asked *a)
{
    struct dmi_read_run run = { .size = sizeof run };
    struct dmi_analyze_shape s = { .size = sizeof s };
    struct dmi_analyze_proof p = { .size = sizeof p };
    dmi_read_run(a->run, &run);
    dmi_analyze_shape(a->answer, &s);
    dmi_analyze_proof(a->answer, -1, -1, &p);
    json_t *m = json_pack("{s:s, s:s, s:s}", "what", o->command->name, "formula", FORMULA, "tool",
                          "dmi-analyze " DMI_VERSION);
    json_object_set_new(m, "run", value_text(run.uuid ? run.uuid : ""));
    if (s.request)
        json_object_set_new(m, "request", value_bytes(s.request, s.request_bytes));
    json_object_set_new(m, "parameters", text_of(parameters(o, &s)));
    json_object_set_new(m, "checks", text_of(checks(&p)));
    result_say_edits(m, a->run, s.request, s.request_bytes);
    return m;
}

static void add_list(struct st_header *h, const char *key, uint64_t n)
{
    safetensors_add_dims(h, key, DMI_DTYPE_I64, &n, 1, n * 8);
}

/* Adds the header; arrays of 8 bytes an element come first, so that each is aligned. Return: where the weights begin after it. */
static uint64_t add_header(const struct analyze_options *o, struct asked *a,
                           const struct weights_file *r, struct st_header *h)
{
    json_t *m = metadata(o, a);
    const uint64_t dims[] = { r->n_layers, r->n_heads, r->n_queries, r->n_keys };
    safetensors_begin(h, m);
    json_decref(m);
    add_list(h, "queries", r->n_queries);
    add_list(h, "layers", r->n_layers);
    add_list(h, "heads", r->n_heads);
    return safetensors_add_dims(h, "weights", DMI_DTYPE_F32, dims, 4,
                                dims[0] * dims[1] * dims[2] * dims[3] * 4);
}

/* ------------------------------------------------------------------------- places */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && !strcmp(text + n - n_end, end);
}

static int find_axes(struct asked *a, struct weights_file *r)
{
    struct dmi_analyze_shape s = { .size = sizeof s };
    dmi_analyze_shape(a->answer, &s);
    r->n_layers = s.n_layers;
    r->n_heads = a->heads ? a->n_heads : s.n_heads;
    r->n_queries = s.n_queries;
    r->n_keys = (uint64_t)s.n_keys;
    r->layers = calloc(r->n_layers + 1, sizeof *r->layers);
    r->heads = calloc(r->n_heads + 1, sizeof *r->heads);
    if (!r->layers || !r->heads)
        return -ENOMEM;
    for (size_t i = 0; i < r->n_layers; i++)
        r->layers[i] = dmi_analyze_layer(a->answer, i);
    for (size_t i = 0; i < r->n_heads; i++)
        r->heads[i] = a->heads ? a->heads[i].head : (uint32_t)i;
    return 0;
}

static int begin_npy(struct weights_file *r)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    const uint64_t dims[] = { r->n_layers, r->n_heads, r->n_queries, r->n_keys };
    npy_header(&t, DMI_DTYPE_F32, dims, 4);
    r->weights_at = t.n;
    return t.failed ? -ENOMEM : whole_write(r->place.fd, t.data, t.n, 0);
}

static int begin_safetensors(const struct analyze_options *o, struct asked *a,
                             struct weights_file *r)
{
    struct st_header h;
    uint64_t at = add_header(o, a, r, &h);
    int res = safetensors_end(&h);
    r->n_header = h.text.n + ROOM_TO_GROW;
    r->weights_at = 8 + r->n_header + at;
    text_deinit(&h.text);
    return res;
}

int weights_file_begin(struct err *err, const struct analyze_options *o, struct asked *a,
                       struct weights_file *r)
{
    *r = (struct weights_file){ .is_npy = ends_with(o->output, ".npy"),
                                .place = { .fd = -1, .force = o->force } };
    int res = outfile_choose(err, &r->place, o->output, o->run, "", false);
    if (!res)
        res = outfile_open(err, &r->place);
    if (res)
        return res;
    res = find_axes(a, r);
    if (!res)
        res = r->is_npy ? begin_npy(r) : begin_safetensors(o, a, r);
    return res ? err_set_errno(err, -res, "cannot write %s", o->output) : 0;
}

static uint64_t index_of(const struct weights_file *r, uint32_t head)
{
    uint64_t i = 0;
    while (i < r->n_heads && r->heads[i] != head)
        i++;
    return i;
}

static uint64_t index_of_layer(const struct weights_file *r, int32_t layer)
{
    uint64_t i = 0;
    while (i < r->n_layers && r->layers[i] != layer)
        i++;
    return i;
}

int weights_file_add(struct weights_file *r, const struct dmi_analyze_rows *rows)
{
    uint64_t head = index_of_layer(r, rows->layer) * r->n_heads + index_of(r, rows->head);
    int res = 0;
    for (uint32_t i = 0; i < rows->n && !res; i++)
        res = whole_write(r->place.fd, rows->weights + i * rows->stride, r->n_keys * sizeof(float),
                          r->weights_at + (head * r->n_queries + rows->first_query + i) *
                                              r->n_keys * sizeof(float));
    return res;
}

/* The lists, and the header with blanks at its end. */
static int end_safetensors(const struct analyze_options *o, struct asked *a, struct weights_file *r)
{
    struct st_header h;
    struct dmi_analyze_shape s = { .size = sizeof s };
    uint64_t lists;
    dmi_analyze_shape(a->answer, &s);
    add_header(o, a, r, &h);
    int res = safetensors_end(&h);
    while (!res && h.text.n < r->n_header && !h.text.failed)
        text_add(&h.text, " ", 1);
    if (!res && (h.text.failed || h.text.n != r->n_header))
        res = -ENOMEM;
    if (!res)
        res = safetensors_put(r->place.fd, &h, &lists);
    if (!res)
        res = whole_write(r->place.fd, s.queries, r->n_queries * 8, lists);
    for (size_t i = 0; i < r->n_layers && !res; i++)
        res =
            whole_write(r->place.fd, &(int64_t){ r->layers[i] }, 8, lists + (r->n_queries + i) * 8);
    for (size_t i = 0; i < r->n_heads && !res; i++)
        res = whole_write(r->place.fd, &(int64_t){ r->heads[i] }, 8,
                          lists + (r->n_queries + r->n_layers + i) * 8);
    text_deinit(&h.text);
    return res;
}

int weights_file_end(struct err *err, const struct analyze_options *o, struct asked *a,
                     struct weights_file *r)
{
    int res = r->is_npy ? 0 : end_safetensors(o, a, r);
    return res ? err_set_errno(err, -res, "cannot write %s", o->output)
               : outfile_keep(err, &r->place);
}

void weights_file_deinit(struct weights_file *r)
{
    outfile_deinit(&r->place);
    free(r->layers);
    free(r->heads);
    r->layers = NULL;
    r->heads = NULL;
}
