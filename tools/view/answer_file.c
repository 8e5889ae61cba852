/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/view/answer_file.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void answer_file_deinit(struct answer_file *f)
{
    safetensors_deinit(&f->st);
}

/* Return: a text of the metadata, or NULL. */
static const char *said(const struct answer_file *f, const char *key)
{
    return json_string_value(json_object_get(f->st.metadata, key));
}

bool answer_file_is(const struct answer_file *f, const char *name)
{
    const char *what = said(f, "what");
    return what && !strcmp(what, name);
}

/* Whose it is. */
static int check_run(struct err *err, struct view_report *report, struct answer_file *f)
{
    struct dmi_read_run run = { .size = sizeof run };
    const char *formula = said(f, "formula"), *of = said(f, "run");
    bool lens = answer_file_is(f, "lens"), dla = answer_file_is(f, "dla"); /* dla 2: with edits */
    if (!formula || !((lens && !strcmp(formula, "1")) ||
                      (dla && (!strcmp(formula, "1") || !strcmp(formula, "2")))))
        return err_set(err, -EINVAL,
                       "%s: no answer of `python -m dmi lens` or `python -m dmi dla`, or of "
                       "another version",
                       f->path);
    int e = dmi_read_run(report->run, &run);
    if (e)
        return err_set(err, e, "%s", dmi_read_error(report->run));
    if (!of || !run.uuid || strcmp(of, run.uuid))
        return err_set(err, -EINVAL, "%s: an answer of another run", f->path);
    f->id = said(f, "request");
    f->request = view_request(report->run, f->id, f->id ? strlen(f->id) : 0);
    return 0;
}

int answer_file_open(struct err *err, struct view_report *report, const char *path,
                     struct answer_file *f)
{
    *f = (struct answer_file){ .path = path };
    int r = safetensors_open(err, path, &f->st);
    return r ? r : check_run(err, report, f);
}

/* ------------------------------------------------------------------------- arrays */

static int take_array(struct err *err, const struct answer_file *f, const struct answer_array *a)
{
    const struct st_entry *e = safetensors_find(&f->st, a->key);
    const void **to = (const void **)(uintptr_t)a->to;
    uint32_t n_dims = a->dims[2] ? 3 : a->dims[1] ? 2 : 1;
    *to = NULL;
    if (!e && a->optional)
        return 0;
    if (!e || e->dtype != a->dtype || e->n_dims != n_dims)
        return err_set(err, -EINVAL, "%s: its %s is not there, or of another type than an answer's",
                       f->path, a->key);
    for (uint32_t i = 0; i < n_dims; i++) {
        *a->dims[i] = *a->dims[i] == ANSWER_ANY ? e->dims[i] : *a->dims[i];
        if (*a->dims[i] != e->dims[i])
            return err_set(err, -EINVAL, "%s: its %s has another shape than its other arrays",
                           f->path, a->key);
    }
    if ((uintptr_t)e->data % dmi_dtype_bytes(a->dtype))
        return err_set(err, -EINVAL, "%s: its %s is not aligned", f->path, a->key);
    *to = e->data;
    return 0;
}

int answer_file_arrays(struct err *err, const struct answer_file *f,
                       const struct answer_array *arrays, size_t n)
{
    int r = 0;
    for (size_t i = 0; !r && i < n; i++)
        r = take_array(err, f, &arrays[i]);
    return r;
}

int answer_file_texts(struct err *err, const struct answer_file *f, struct answer_texts *t)
{
    uint64_t *M = &t->n, *B = &t->n_bytes;
    const struct answer_array all[] = {
        { "text_ids", DMI_DTYPE_I32, true, { M }, &t->ids },
        { "text_ends", DMI_DTYPE_I64, true, { M }, &t->ends },
        { "texts", DMI_DTYPE_U8, true, { B }, &t->bytes },
    };
    *M = *B = ANSWER_ANY;
    int r = answer_file_arrays(err, f, all, sizeof all / sizeof *all);
    if (r || !t->ids || !t->ends || !t->bytes) {
        t->n = t->n_bytes = 0;
        return r;
    }
    for (uint64_t i = 0; i < t->n; i++)
        if (t->ends[i] < (i ? t->ends[i - 1] : 0) || (uint64_t)t->ends[i] > t->n_bytes)
            return err_set(err, -EINVAL, "%s: its texts do not end one after the other", f->path);
    return 0;
}

/* ------------------------------------------------------------------------- the document */

uint64_t answer_texts_cost(const struct answer_texts *t)
{
    return 6 * t->n_bytes + 40 * t->n; /* a byte may be written out */
}

void answer_texts_add(struct document *d, const struct answer_texts *t)
{
    document_begin(d, "texts", '{');
    for (uint64_t i = 0; i < t->n; i++) {
        char key[16];
        int64_t from = i ? t->ends[i - 1] : 0;
        snprintf(key, sizeof key, "%" PRId32, t->ids[i]);
        document_add(d, key, document_bytes(t->bytes + from, (size_t)(t->ends[i] - from)));
    }
    document_end(d, '}');
}

void answer_file_add_facts(struct document *d, const struct answer_file *f, uint64_t n_tokens)
{
    static const char *const keys[] = { "parameters", "checks", "edits", "tool" };
    document_add(d, "request", json_integer(f->request));
    document_add(d, "id", document_text(f->id));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        document_add(d, keys[i], document_text(said(f, keys[i])));
    document_add(d, "tokens", value_u64(n_tokens));
}

void answer_file_add_positions(struct document *d, const int64_t *positions, uint64_t first,
                               uint64_t n)
{
    json_t *list = json_array();
    for (uint64_t i = first; i < n; i++)
        json_array_append_new(list, json_integer(positions[i]));
    document_add(d, "positions", list);
}
