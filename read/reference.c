/* SPDX-License-Identifier: Apache-2.0 */
#include "read/reference.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/err.h"
#include "core/sorted.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A member of the metadata, which is JSON text in a string. NULL: none, or none that can be read. */
static json_t *metadata_of(const struct safetensors *st, const char *key)
{
    const json_t *text = json_object_get(st->metadata, key);
    return json_is_string(text)
               ? json_loadb(json_string_value(text), json_string_length(text), JSON_ALLOW_NUL, NULL)
               : NULL;
}

/* ------------------------------------------------------------------------- positions */

static bool take_span(struct reference_rows *rows, const json_t *pair)
{
    const json_t *first = json_array_get(pair, 0), *number = json_array_get(pair, 1);
    json_int_t position = json_integer_value(first), n = json_integer_value(number);
    int64_t end;
    if (json_array_size(pair) != 2 || !json_is_integer(first) || !json_is_integer(number) ||
        position < -1 || n < 1 || __builtin_add_overflow(position, n, &end) ||
        __builtin_add_overflow(rows->n_rows, (uint64_t)n, &end))
        return false;
    const struct reference_span *last = rows->n ? &rows->spans[rows->n - 1] : NULL;
    if (position < 0 || (last && last->position + (int64_t)last->n > position))
        rows->ordered = false;
    rows->spans[rows->n++] = (struct reference_span){ position, rows->n_rows, (uint64_t)n };
    rows->n_rows += (uint64_t)n;
    return true;
}

static int take_list(struct reference_rows *rows, const json_t *list)
{
    size_t n = json_array_size(list);
    *rows = (struct reference_rows){ .ordered = true };
    rows->spans = calloc(n + 1, sizeof *rows->spans);
    if (!rows->spans)
        return -ENOMEM;
    return FIRST(i, n, !take_span(rows, json_array_get(list, i)), -EINVAL, 0);
}

static int take_lists(struct reference *ref, const json_t *lists)
{
    size_t n = json_array_size(lists);
    ref->lists = calloc(n + 1, sizeof *ref->lists);
    if (!ref->lists)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        ref->n_lists = i + 1;
        TRY(take_list(&ref->lists[i], json_array_get(lists, i)));
    }
    return 0;
}

/* ------------------------------------------------------------------------- tensors */

static int take_facts(struct reference *ref, const json_t *facts)
{
    for (size_t i = 0; i < ref->st.n; i++) {
        struct reference_tensor *t = &ref->tensors[i];
        const json_t *of = json_object_get(facts, t->entry->key);
        const json_t *index = json_object_get(of, "positions");
        const json_t *scale = json_object_get(of, "scale");
        json_int_t at = json_integer_value(index);
        if (!json_is_integer(index))
            continue;
        if (at < 0 || (uint64_t)at >= ref->n_lists || !t->entry->n_dims ||
            ref->lists[at].n_rows != t->entry->dims[0])
            return -EINVAL;
        t->rows = &ref->lists[at];
        t->scale =
            json_is_number(scale) && json_number_value(scale) != 0 ? json_number_value(scale) : 1.0;
    }
    return 0;
}

static int take_metadata(struct err *err, const char *path, struct reference *ref)
{
    _cleanup_(json_decrefp) json_t *lists = metadata_of(&ref->st, "positions");
    _cleanup_(json_decrefp) json_t *facts = metadata_of(&ref->st, "tensors");
    if (!json_is_array(lists) || !json_is_object(facts))
        return 0; /* none of ours: row p is position p */
    int r = take_lists(ref, lists);
    if (!r)
        r = take_facts(ref, facts);
    return r ? err_set(err, r, "%s: what its metadata says of positions does not fit its tensors",
                       path)
             : 0;
}

int reference_open(struct err *err, const char *path, struct reference *out)
{
    *out = (struct reference){ 0 };
    int r = safetensors_open(err, path, &out->st);
    if (!r && !(out->tensors = calloc(out->st.n + 1, sizeof *out->tensors)))
        r = err_set_errno(err, ENOMEM, "cannot read %s", path);
    for (size_t i = 0; !r && i < out->st.n; i++)
        out->tensors[i] = (struct reference_tensor){ &out->st.entries[i], NULL, 1.0 };
    if (!r)
        r = take_metadata(err, path, out);
    if (r)
        reference_deinit(out);
    return r;
}

void reference_deinit(struct reference *ref)
{
    for (size_t i = 0; i < ref->n_lists; i++)
        free(ref->lists[i].spans);
    free(ref->lists);
    free(ref->tensors);
    safetensors_deinit(&ref->st);
    *ref = (struct reference){ 0 };
}

const struct reference_tensor *reference_find(const struct reference *ref, const char *key)
{
    const struct st_entry *e = safetensors_find(&ref->st, key);
    return e ? &ref->tensors[e - ref->st.entries] : NULL;
}

int64_t reference_row(const struct reference_tensor *t, int64_t position, uint64_t index)
{
    uint64_t n_rows = t->entry->dims[0];
    if (!t->rows)
        return position >= 0 && (uint64_t)position < n_rows ? position : -1;
    if (!t->rows->ordered)
        return index < n_rows ? (int64_t)index : -1;
    size_t i; /* after the last span that begins at or before @position */
    SEARCH(i, t->rows->n, t->rows->spans[i].position <= position);
    if (!i)
        return -1;
    const struct reference_span *s = &t->rows->spans[i - 1];
    uint64_t skip = (uint64_t)(position - s->position);
    return skip < s->n ? (int64_t)(s->row + skip) : -1;
}
