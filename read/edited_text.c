/* SPDX-License-Identifier: Apache-2.0 */
/* What one edit did in a request: of a row, and in words. */
#include "read/edited.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/words.h"
#include "policy/tree.h"
#include "read/layers.h"
#include "read/tensors.h"
#include "read/value.h"

#include <dmi/edit.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define RANGES_SHOWN 4

/* ------------------------------------------------------------------------- rows */

static const struct edited_part *part_at(const struct edited *e, int64_t position)
{
    return FIRST(i, e->n_parts, range_has(&e->parts[i].positions, position), &e->parts[i], NULL);
}

bool edited_wrote(const struct edited *e, int32_t layer, int64_t position)
{
    if (!e->name)
        return true;
    const struct edited_part *part =
        position < 0 && e->n_parts ? &e->parts[0] : part_at(e, position);
    return part && (!part->use || edit_takes_layer(part->use, layer));
}

static bool is_named(const struct reader *reader, uint32_t site, const char *name)
{
    return site < reader_n_sites(reader) && !strcmp(reader_site(reader, site)->name, name);
}

bool edited_is_shown(const struct reader *reader, uint32_t site)
{
    const struct dmi_site *s = reader_site(reader, site);
    return site && is_named(reader, site - 1, s->name) && reader_site(reader, site - 1)->writes &&
           !reader_site(reader, site - 1)->saves;
}

/* The index of its request. */
static size_t request_of(const struct edited_all *all, const struct tensor *t)
{
    const struct request *q =
        t->request ? requests_find(all->requests, t->request, t->n_request) : NULL;
    return q ? (size_t)(q - all->requests->all) : EDITED_NOBODY;
}

json_t *edited_names(const struct edited_all *all, const struct tensor *t, uint32_t site,
                     int64_t position)
{
    struct edited *edits;
    json_t *names = NULL;
    if (!all->n || !edited_is_shown(all->reader, site))
        return NULL;
    size_t n = edited_of(all, request_of(all, t), &edits);
    for (size_t i = 0; i < n; i++) {
        if (edits[i].name &&
            (strcmp(edits[i].site, t->site->name) || !edited_wrote(&edits[i], t->layer, position)))
            continue;
        names = names ? names : json_array();
        json_array_append_new(names, value_text(edits[i].name ? edits[i].name : "?"));
    }
    return names;
}

/* ------------------------------------------------------------------------- what was added */

static bool has_column(const struct edit *edit, uint64_t column)
{
    return FIRST(i, edit->n_columns, edit->columns[i] == column, true, !edit->n_columns);
}

/*
 * Adds the vector where it belongs in a row that was written, as dmi_edit_fit() has it: it is as wide as the row, as the named columns, or as a
 * head. Return: 0; -ENOTSUP: heads are named, and nothing says how wide they are.
 */
static int add_vector(const struct edit *edit, const float *v, uint64_t n_v, double times,
                      float *sum, uint64_t n)
{
    bool by_column = edit->n_columns && !edit->of_heads;
    bool is_list = by_column && n_v == edit->n_columns; /* one number a column */
    if (!n_v || (edit->of_heads && n_v == n) || (!is_list && n % n_v) ||
        (by_column && (edit->columns[edit->n_columns - 1] >= n || (!is_list && n_v != n))))
        return -ENOTSUP;
    for (uint64_t i = 0; i < (is_list ? n_v : n); i++)
        if (is_list)
            sum[edit->columns[i]] += (float)(times * v[i]);
        else if (has_column(edit, by_column ? i : i / n_v))
            sum[i] += (float)(times * v[i % n_v]);
    return 0;
}

/* Adds of one operation what it adds to a row. Return: 0; -ENOTSUP: it is another one, or of another width. */
static int add_op(const struct edit_use *use, uint32_t op, double times, int32_t layer, float *sum,
                  uint64_t n)
{
    const struct edit_op *o = &use->edit->ops[op];
    const struct edit_numbers *t = o->kind == DMI_EDIT_ADD && o->vector != EDIT_NO_VECTOR
                                       ? edits_numbers(use->of, o->vector, layer)
                                       : NULL;
    if (!t || edit_vector_rows(&use->of->vectors[o->vector]) > 1)
        return -ENOTSUP;
    const float *numbers = use->of->numbers + t->first;
    double scale = use->of->vectors[o->vector].unit ? times / edits_length(numbers, t->n) : times;
    return add_vector(use->edit, numbers, t->n, scale, sum, n);
}

int edited_sum(const struct edited *e, int32_t layer, int64_t position, float *sum, uint64_t n)
{
    const struct edited_part *part = e->name ? part_at(e, position) : NULL;
    struct tree tags = { 0 };
    struct tree_error error;
    float times;
    int r = 0;
    if (!e->name || (part && !part->use))
        return -ENODATA;
    if (!part || !edit_takes_layer(part->use, layer))
        return 0;
    if (part->use->edit->pass) /* records do not say of which pass they are */
        return -ENOTSUP;
    if (part->n_tags && edit_asks_tags(part->use) &&
        tree_parse(part->tags, part->n_tags, &tags, &error))
        tags.root = NULL;
    for (uint32_t k = 0; !r && k < part->use->edit->n_ops; k++)
        r = edit_times_at(part->use, k, &tags, position - part->n_prompt, &times)
                ? add_op(part->use, k, (double)times, layer, sum, n)
                : -ENODATA;
    tree_deinit(&tags);
    return r ? r : 1;
}

/* ------------------------------------------------------------------------- in words */

/* Layers in which its vectors have numbers. Return: false: without numbers by layer. */
static bool layers_of_vectors(const struct edit_use *use, struct layers *out)
{
    for (uint32_t k = 0; k < use->edit->n_ops; k++)
        for (uint32_t i = 0; i < use->of->n_tensors; i++) {
            const struct edit_numbers *t = &use->of->tensors[i];
            if (t->vector == use->edit->ops[k].vector && t->layer != EDIT_ANY_LAYER &&
                edit_takes_layer(use, t->layer))
                layers_add(out, t->layer);
        }
    layers_sort(out);
    return out->n > 0;
}

const char *edited_layers(struct edited *e)
{
    if (e->layers.n)
        return e->layers.data;
    _cleanup_(layers_deinit) struct layers found = { 0 };
    const struct spec_layers *said = e->use ? &e->use->edit->layers : NULL;
    for (uint32_t i = 0; said && i < said->n; i++) {
        text_printf(&e->layers, "%s%d", i ? "," : "", said->at[i].first);
        if (said->at[i].last > said->at[i].first)
            text_printf(&e->layers, "-%d", said->at[i].last);
    }
    if (e->use && !said->n && layers_of_vectors(e->use, &found))
        layers_add_text(&e->layers, &found);
    if (!e->layers.n)
        text_printf(&e->layers, "all");
    return e->layers.failed ? "all" : e->layers.data;
}

static void add_positions(struct text *to, const struct edited *e)
{
    size_t n = e->n_parts < RANGES_SHOWN ? e->n_parts : RANGES_SHOWN;
    for (size_t i = 0; i < n; i++) {
        const struct range *r = &e->parts[i].positions;
        text_printf(to, "%s%" PRId64, i ? ", " : ", positions ", r->first);
        if (r->end > r->first + 1)
            text_printf(to, "-%" PRId64, r->end - 1);
    }
    if (n < e->n_parts)
        text_printf(to, " and %zu more ranges", e->n_parts - n);
}

const char *edited_phrase(struct edited *e)
{
    struct text *t = &e->text;
    if (!e->name)
        return "edits that the run does not name, as notes of them are missing";
    if (t->n)
        return t->data;
    text_printf(t, "%s (%s", e->name, e->site);
    if (!e->use) {
        text_printf(t, "; its layers and tokens are not known, as its text cannot be read)");
        return t->failed ? e->name : t->data;
    }
    const char *layers = edited_layers(e);
    if (strcmp(layers, "all"))
        text_printf(t, strpbrk(layers, ",-") ? ", layers %s" : ", layer %s", layers);
    else
        text_printf(t, ", all layers");
    if (e->use->edit->pass)
        text_printf(t, ", pass %u", e->use->edit->pass - 1);
    if (e->request != EDITED_NOBODY)
        add_positions(t, e);
    if (e->counted && e->written < e->due)
        text_printf(t, "; %" PRIu64 " %s written of %" PRIu64 " due", e->written,
                    word_for(e->written, "row", "rows"), e->due);
    text_printf(t, ")");
    return t->failed ? e->name : t->data;
}

void edited_add_phrases(struct text *to, const struct edited_all *all, size_t request)
{
    struct edited *edits;
    size_t n = edited_of(all, request, &edits);
    for (size_t i = 0; i < n; i++)
        text_printf(to, "%s%s", i ? ", " : "", edited_phrase(&edits[i]));
}
