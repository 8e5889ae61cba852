/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump export: what edits wrote in the requests that are exported. */
#include "tools/dump/export.h"

static json_t *phrases(const struct exporter *x, size_t request)
{
    struct edited *edits;
    size_t n = edited_of(&x->edited, request, &edits);
    json_t *list = n ? json_array() : NULL;
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, value_text(edited_phrase(&edits[i])));
    return list;
}

json_t *export_edits(const struct exporter *x, const struct tensor *t)
{
    const struct request *q =
        t->request ? requests_find(&x->requests, t->request, t->n_request) : NULL;
    return phrases(x, q ? (size_t)(q - x->requests.all) : EDITED_NOBODY);
}

json_t *export_edited_by(const struct exporter *x, const struct tensor *t)
{
    return t->n_stretches
               ? edited_names(&x->edited, t,
                              reader_record(x->reader, t->stretches[0].record)->at.site, -1)
               : NULL;
}

static void add(json_t *out, const char *id, size_t n_id, json_t *edits)
{
    json_t *key = id ? value_bytes(id, n_id) : json_string("");
    if (edits && key)
        json_object_set(out, json_string_value(key), edits);
    json_decref(edits);
    json_decref(key);
}

void export_edited(const struct exporter *x, json_t *out)
{
    for (size_t i = 0; x->edited.n && i < x->n_targets; i++) {
        const struct tensor *t = x->targets[i].tensor;
        if (!i || !export_same_request(t, x->targets[i - 1].tensor))
            add(out, t->request, t->n_request, export_edits(x, t));
    }
    /* of a format that copies records there are no targets */
    for (size_t i = 0; x->edited.n && !x->n_targets && i <= x->requests.n; i++) {
        const struct request *q = i < x->requests.n ? &x->requests.all[i] : NULL;
        if (q && selection_wants_request(&x->options->select, q->id, q->n_id))
            add(out, q->id, q->n_id, phrases(x, i));
        else if (!q && !x->requests.n)
            add(out, NULL, 0, phrases(x, EDITED_NOBODY));
    }
}

bool export_same_request(const struct tensor *a, const struct tensor *b)
{
    if (!a->request || !b->request)
        return !a->request && !b->request;
    return a->n_request == b->n_request && !memcmp(a->request, b->request, a->n_request);
}
