/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dmi-dump export --format safetensors: one file; its metadata holds strings only, so what is more is JSON text in
 * them. Source: https://github.com/huggingface/safetensors, "Format" (0.5).
 */
#include "tools/dump/export.h"

#include "core/whole.h"
#include "read/safetensors.h"

#include <errno.h>
#include <inttypes.h>

/* Adds @text as a string to @metadata, and takes what it holds. */
static void put_text(json_t *metadata, const char *key, struct text *text)
{
    if (text->failed || json_object_set_new(metadata, key, json_stringn(text->data, text->n)))
        json_object_clear(metadata);
    text_deinit(text);
}

static void put_object(json_t *metadata, const char *key, json_t *object)
{
    struct text t = { 0 };
    value_add_new(&t, object);
    put_text(metadata, key, &t);
}

static void put_positions(json_t *metadata, const struct exporter *x)
{
    struct text t = { 0 };
    export_add_positions(&t, x);
    put_text(metadata, "positions", &t);
}

static void put_tensors(json_t *metadata, const struct exporter *x)
{
    struct text t = { 0 };
    text_printf(&t, "{");
    for (size_t i = 0; i < x->n_targets && t.n <= SAFETENSORS_MAX_HEADER; i++) {
        text_printf(&t, i ? ", " : "");
        value_add_new(&t, value_text(x->targets[i].tensor->key));
        text_printf(&t, ": ");
        value_add_new(&t, export_facts(x, &x->targets[i]));
    }
    text_printf(&t, "}");
    put_text(metadata, "tensors", &t);
}

/* Return: NULL or an empty object: no memory. */
static json_t *metadata_of(const struct exporter *x)
{
    const struct reader_run *run = reader_run(x->reader);
    json_t *m =
        json_pack("{s:s, s:s, s:s}", "format", "pt", "producer", "dmi-dump", "run", run->uuid);
    if (m && run->model)
        json_object_set_new(m, "model", value_text(run->model));
    if (m) {
        put_object(m, "conventions", facts_object(run->conventions, run->n_conventions));
        put_object(m, "absent", facts_object(run->absent, run->n_absent));
        put_positions(m, x);
        put_tensors(m, x);
    }
    return m;
}

static int put_header(struct err *err, struct exporter *x, struct st_header *header)
{
    json_t *metadata = metadata_of(x);
    if (!metadata || !json_object_size(metadata)) {
        json_decref(metadata);
        return err_set_errno(err, ENOMEM, "cannot describe the tensors");
    }
    safetensors_begin(header, metadata);
    json_decref(metadata);
    for (size_t i = 0; i < x->n_targets && header->text.n <= SAFETENSORS_MAX_HEADER; i++) {
        const struct tensor *t = x->targets[i].tensor;
        x->targets[i].offset =
            safetensors_add(header, t->key, t->dtype, t->n_rows, t->width, x->targets[i].n_bytes);
    }
    int r = safetensors_end(header);
    if (r == -EFBIG)
        return err_set(err, r,
                       "%zu tensors need a safetensors header of more than %u MB, which the "
                       "format's own package refuses: choose some with --site, --layer or "
                       "--request, or take --format npy",
                       x->n_targets, SAFETENSORS_MAX_HEADER / 1000000);
    return r ? err_set_errno(err, -r, "cannot describe the tensors") : 0;
}

static int begin(struct err *err, struct exporter *x)
{
    struct st_header header = { 0 };
    int r = put_header(err, x, &header);
    uint64_t data = 0;
    if (!r && (r = safetensors_put(x->fd, &header, &data)))
        err_set_errno(err, -r, "cannot write %s", x->output);
    for (size_t i = 0; i < x->n_targets; i++)
        x->targets[i].offset += data;
    text_deinit(&header.text);
    return r;
}

static int write_rows(struct exporter *x, const struct target *t, const void *data, size_t n,
                      uint64_t at)
{
    return whole_write(x->fd, data, n, t->offset + at);
}

const struct format format_safetensors = {
    .name = "safetensors",
    .what = "one file",
    .suffix = ".safetensors",
    .begin = begin,
    .write = write_rows,
};
