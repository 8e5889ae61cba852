/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of `python -m dmi lens` (docs/analysis.md): which word comes first at each layer and token. Nothing in a file is trusted. */
#include "tools/view/view.h"

#include "core/cleanup.h"
#include "read/safetensors.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES 4096 /* in the document, beside arrays and texts */
#define ANY        UINT64_MAX

struct lens {
    const char *path;
    struct safetensors st;
    uint64_t n_layers, n_tokens, n_top, n_followed;
    const int64_t *positions, *text_ends;
    const int32_t *layers, *token_ids, *top_ids, *followed, *followed_ids, *followed_ranks,
        *text_ids;
    const float *top_logits, *logsumexp, *followed_logits;
    const char *texts;
    uint64_t n_texts, n_text_bytes;
    int64_t request; /* -1: none */
    const char *id;  /* NULL: none */
};

static void lens_deinit(struct lens *l)
{
    safetensors_deinit(&l->st);
}

/* ------------------------------------------------------------------------- a file */

/* Return: a text of the metadata, or NULL. */
static const char *said(const struct lens *l, const char *key)
{
    return json_string_value(json_object_get(l->st.metadata, key));
}

/*
 * An array of a type, of these dimensions; those that are ANY are set. @optional: it may lack, and is NULL then. Return: 0 or -EINVAL with a
 * sentence in @err.
 */
static int array(struct err *err, const struct lens *l, const char *key, uint32_t dtype,
                 bool optional, uint64_t *dims[], uint32_t n_dims, const void *out)
{
    const struct st_entry *e = safetensors_find(&l->st, key);
    const void **to = (const void **)(uintptr_t)out;
    *to = NULL;
    if (!e && optional)
        return 0;
    if (!e || e->dtype != dtype || e->n_dims != n_dims)
        return err_set(err, -EINVAL, "%s: its %s is not there, or of another type than an answer's",
                       l->path, key);
    for (uint32_t i = 0; i < n_dims; i++) {
        *dims[i] = *dims[i] == ANY ? e->dims[i] : *dims[i];
        if (*dims[i] != e->dims[i])
            return err_set(err, -EINVAL, "%s: its %s has another shape than its other arrays",
                           l->path, key);
    }
    if ((uintptr_t)e->data % dmi_dtype_bytes(dtype))
        return err_set(err, -EINVAL, "%s: its %s is not aligned", l->path, key);
    *to = e->data;
    return 0;
}

static int take_arrays(struct err *err, struct lens *l)
{
    uint64_t *T = &l->n_tokens, *L = &l->n_layers, *K = &l->n_top, *N = &l->n_followed;
    uint64_t *M = &l->n_texts, *B = &l->n_text_bytes;
    const struct {
        const char *key;
        uint32_t dtype;
        bool optional;
        uint64_t *dims[3];
        const void *to;
    } all[] = {
        { "layers", DMI_DTYPE_I32, false, { L }, &l->layers },
        { "positions", DMI_DTYPE_I64, false, { T }, &l->positions },
        { "token_ids", DMI_DTYPE_I32, true, { T }, &l->token_ids },
        { "top_ids", DMI_DTYPE_I32, false, { T, L, K }, &l->top_ids },
        { "top_logits", DMI_DTYPE_F32, false, { T, L, K }, &l->top_logits },
        { "logsumexp", DMI_DTYPE_F32, false, { T, L }, &l->logsumexp },
        { "followed", DMI_DTYPE_I32, false, { T }, &l->followed },
        { "followed_ids", DMI_DTYPE_I32, false, { N }, &l->followed_ids },
        { "followed_ranks", DMI_DTYPE_I32, false, { N, L }, &l->followed_ranks },
        { "followed_logits", DMI_DTYPE_F32, false, { N, L }, &l->followed_logits },
        { "text_ids", DMI_DTYPE_I32, true, { M }, &l->text_ids },
        { "text_ends", DMI_DTYPE_I64, true, { M }, &l->text_ends },
        { "texts", DMI_DTYPE_U8, true, { B }, &l->texts },
    };
    *T = *L = *K = *N = *M = *B = ANY;
    int r = 0;
    for (size_t i = 0; !r && i < sizeof all / sizeof *all; i++) {
        uint64_t *dims[3] = { all[i].dims[0], all[i].dims[1], all[i].dims[2] };
        uint32_t n = dims[2] ? 3 : dims[1] ? 2 : 1;
        r = array(err, l, all[i].key, all[i].dtype, all[i].optional, dims, n, all[i].to);
    }
    return r;
}

/* What the arrays say of one another. */
static int check_arrays(struct err *err, struct lens *l)
{
    uint64_t n = 0;
    if (!l->n_tokens || !l->n_layers || !l->n_top)
        return err_set(err, -EINVAL, "%s: it has no token, no layer or no word", l->path);
    for (uint64_t i = 0; i < l->n_tokens; i++) {
        n += l->followed[i] < 0 ? UINT32_MAX : (uint32_t)l->followed[i];
        if (n > l->n_followed || l->positions[i] < 0 || l->positions[i] > INT32_MAX)
            return err_set(err, -EINVAL, "%s: its numbers of words, or its positions, cannot be",
                           l->path);
    }
    if (!l->text_ids || !l->text_ends || !l->texts)
        l->n_texts = 0;
    for (uint64_t i = 0; i < l->n_texts; i++)
        if (l->text_ends[i] < (i ? l->text_ends[i - 1] : 0) ||
            (uint64_t)l->text_ends[i] > l->n_text_bytes)
            return err_set(err, -EINVAL, "%s: its texts do not end one after the other", l->path);
    return n == l->n_followed
               ? 0
               : err_set(err, -EINVAL, "%s: its numbers of words are not those of its ranks",
                         l->path);
}

/* Whose it is. */
static int check_run(struct err *err, struct view_report *report, struct lens *l)
{
    struct dmi_read_run run = { .size = sizeof run };
    struct dmi_read_request r = { .size = sizeof r };
    const char *what = said(l, "what"), *formula = said(l, "formula"), *of = said(l, "run");
    if (!what || strcmp(what, "lens") || !formula || strcmp(formula, "1"))
        return err_set(err, -EINVAL, "%s: no answer of `python -m dmi lens`, or of another version",
                       l->path);
    int e = dmi_read_run(report->run, &run);
    if (e)
        return err_set(err, e, "%s", dmi_read_error(report->run));
    if (!of || !run.uuid || strcmp(of, run.uuid))
        return err_set(err, -EINVAL, "%s: an answer of another run", l->path);
    l->id = said(l, "request");
    l->request = -1;
    for (uint64_t i = 0; l->id && !dmi_read_request(report->run, i, &r); i++)
        if (r.id_bytes == strlen(l->id) && !memcmp(r.id, l->id, r.id_bytes))
            l->request = (int64_t)i;
    return 0;
}

static int lens_open(struct err *err, struct view_report *report, const char *path, struct lens *l)
{
    *l = (struct lens){ .path = path };
    int r = safetensors_open(err, path, &l->st);
    if (!r)
        r = check_run(err, report, l);
    if (!r)
        r = take_arrays(err, l);
    if (!r)
        r = check_arrays(err, l);
    return r;
}

/* ------------------------------------------------------------------------- the document */

static uint64_t bytes_of_texts(const struct lens *l)
{
    return 6 * l->n_text_bytes + 40 * l->n_texts; /* a byte may be written out */
}

/* So many of the last tokens fit; their words that are followed are the last @n_followed. */
static uint64_t tokens_that_fit(const struct lens *l, uint64_t room, uint64_t *n_followed)
{
    uint64_t n = 0, used = HEAD_BYTES + bytes_of_texts(l);
    *n_followed = 0;
    while (n < l->n_tokens) {
        uint64_t words = (uint64_t)l->followed[l->n_tokens - 1 - n];
        uint64_t cost =
            document_cost(4 * l->n_layers * (2 * l->n_top + 1 + 2 * words) + 16 + 4 * words);
        if (used + cost > room)
            break;
        used += cost;
        *n_followed += words;
        n++;
    }
    return n;
}

static void add_texts(struct document *d, const struct lens *l)
{
    document_begin(d, "texts", '{');
    for (uint64_t i = 0; i < l->n_texts; i++) {
        char key[16];
        int64_t from = i ? l->text_ends[i - 1] : 0;
        snprintf(key, sizeof key, "%" PRId32, l->text_ids[i]);
        document_add(d, key, document_bytes(l->texts + from, (size_t)(l->text_ends[i] - from)));
    }
    document_end(d, '}');
}

static void add_positions(struct document *d, const struct lens *l, uint64_t first)
{
    json_t *list = json_array();
    for (uint64_t i = first; i < l->n_tokens; i++)
        json_array_append_new(list, json_integer(l->positions[i]));
    document_add(d, "positions", list);
}

static void add_facts(struct document *d, const struct lens *l)
{
    static const char *const keys[] = { "parameters", "checks", "tool" };
    document_add(d, "request", json_integer(l->request));
    document_add(d, "id", document_text(l->id));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        document_add(d, keys[i], document_text(said(l, keys[i])));
    document_add(d, "tokens", value_u64(l->n_tokens));
    document_add(d, "top", value_u64(l->n_top));
}

/* The last @n tokens. */
static void lens_add(struct document *d, const struct lens *l, uint64_t n, uint64_t n_followed)
{
    uint64_t first = l->n_tokens - n, cells = l->n_layers, word = l->n_followed - n_followed;
    document_begin(d, NULL, '{');
    add_facts(d, l);
    add_positions(d, l, first);
    document_integers(d, "layers", l->layers, l->n_layers);
    if (l->token_ids)
        document_integers(d, "token_ids", l->token_ids + first, n);
    document_integers(d, "top_ids", l->top_ids + first * cells * l->n_top, n * cells * l->n_top);
    document_floats(d, "top_logits", l->top_logits + first * cells * l->n_top,
                    n * cells * l->n_top);
    document_floats(d, "logsumexp", l->logsumexp + first * cells, n * cells);
    document_integers(d, "followed", l->followed + first, n);
    document_integers(d, "followed_ids", l->followed_ids + word, n_followed);
    document_integers(d, "followed_ranks", l->followed_ranks + word * cells, n_followed * cells);
    document_floats(d, "followed_logits", l->followed_logits + word * cells, n_followed * cells);
    add_texts(d, l);
    document_end(d, '}');
}

/* Return: 0 or -errno with a sentence in @err. */
static int add_answer(struct err *err, struct view_report *report, const char *path)
{
    _cleanup_(lens_deinit) struct lens l = { 0 };
    uint64_t n_followed;
    int r = lens_open(err, report, path, &l);
    if (r)
        return r;
    uint64_t n = tokens_that_fit(&l, view_room(report) / 2, &n_followed);
    if (n < l.n_tokens)
        view_leave_out(report, "the lens of %s has the last %" PRIu64 " of %" PRIu64 " tokens",
                       l.id ? l.id : "the run", n, l.n_tokens);
    if (n)
        lens_add(&report->document, &l, n, n_followed);
    return 0;
}

int view_lens(struct err *err, struct view_report *report)
{
    int r = 0;
    document_begin(&report->document, "lens", '[');
    for (size_t i = 0; !r && i < report->n_answers; i++)
        r = add_answer(err, report, report->answers[i].text);
    document_end(&report->document, ']');
    return r;
}
