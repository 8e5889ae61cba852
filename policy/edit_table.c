/* SPDX-License-Identifier: Apache-2.0 */
/* Edits as kernels read them: for each place and layer what is done there. Pure. */
#include "policy/edit.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/grow.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Numbers that the table has, at length 1 where @direction. */
struct lying {
    const float *numbers;
    bool direction;
    uint32_t at;
};

/* A table while it is built; it grows as a whole. */
struct table_builder {
    const struct edit_use *uses;
    uint32_t n_uses;
    const struct spec *spec;
    char *bytes;
    size_t n, room;
    struct dmi_edit_part *parts;
    uint32_t n_parts;
    size_t room_parts;
    struct dmi_edit_op *ops;
    uint32_t n_ops;
    size_t room_ops;
    struct lying *vectors; /* what lies in it already */
    size_t n_vectors, room_vectors;
    uint32_t *columns; /* per use: where its list lies; 0: not yet */
    uint32_t n_layers;
    bool no_memory;
};

/* Room for @n bytes, zeroed. Return: their offset in units of DMI_EDIT_ALIGN. */
static uint32_t add_bytes(struct table_builder *b, const void *from, size_t n)
{
    size_t at = b->n, end = (at + n + DMI_EDIT_ALIGN - 1) & ~(size_t)(DMI_EDIT_ALIGN - 1);
    if (end > b->room) {
        size_t room = end + end / 2;
        char *bytes = realloc(b->bytes, room);
        if (!bytes) {
            b->no_memory = true;
            return 0;
        }
        b->bytes = bytes;
        b->room = room;
    }
    memset(b->bytes + at, 0, end - at);
    if (from)
        memcpy(b->bytes + at, from, n);
    b->n = end;
    return (uint32_t)(at / DMI_EDIT_ALIGN);
}

/* ------------------------------------------------------------------------- vectors */

static uint32_t add_vector(struct table_builder *b, const float *numbers, uint64_t n,
                           bool direction)
{
    uint32_t at = add_bytes(b, numbers, n * sizeof *numbers);
    if (!direction || b->no_memory)
        return at;
    float *own = (float *)(b->bytes + (size_t)at * DMI_EDIT_ALIGN);
    double length = edits_length(numbers, n);
    for (uint64_t i = 0; i < n; i++)
        own[i] = (float)(own[i] / length);
    return at;
}

/* Where the numbers lie, divided by their length where an operation is along a direction. */
static uint32_t vector_at(struct table_builder *b, const struct edits *of,
                          const struct edit_numbers *t, bool direction)
{
    const float *numbers = of->numbers + t->first;
    for (size_t i = 0; i < b->n_vectors; i++)
        if (b->vectors[i].numbers == numbers && b->vectors[i].direction == direction)
            return b->vectors[i].at;
    if (GROW(b->vectors, b->n_vectors, b->room_vectors)) {
        b->no_memory = true;
        return 0;
    }
    uint32_t at = add_vector(b, numbers, t->n, direction);
    b->vectors[b->n_vectors++] = (struct lying){ numbers, direction, at };
    return at;
}

/* ------------------------------------------------------------------------- parts */

/* EDIT_NO_VECTOR has all that it needs. */
static bool has_numbers(const struct edits *of, uint32_t vector, int32_t layer)
{
    return vector == EDIT_NO_VECTOR || edits_numbers(of, vector, layer);
}

bool edit_takes_layer(const struct edit_use *use, int32_t layer)
{
    const struct edit *edit = use->edit;
    if (edit->layers.n && (layer < 0 || !spec_takes_layer(&edit->layers, layer, 0)))
        return false;
    return !ANY(k, edit->n_ops,
                !has_numbers(use->of, edit->ops[k].vector, layer) ||
                    !has_numbers(use->of, edit->ops[k].encoder, layer));
}

static struct dmi_edit_op *add_op(struct table_builder *b)
{
    if (GROW(b->ops, b->n_ops, b->room_ops)) {
        b->no_memory = true;
        return NULL;
    }
    b->ops[b->n_ops] = (struct dmi_edit_op){ 0 };
    return &b->ops[b->n_ops++];
}

/* A vector of the operation's in a layer. *@width: as of put_op(). Return: where it lies; 0: there is none. */
static uint32_t put_vector(struct table_builder *b, const struct edits *of,
                           const struct edit_op *op, uint32_t vector, int32_t layer,
                           uint32_t *width)
{
    const struct edit_numbers *t =
        vector == EDIT_NO_VECTOR ? NULL : edits_numbers(of, vector, layer);
    if (!t)
        return 0;
    uint32_t n = (uint32_t)(t->n / edit_vector_rows(&of->vectors[vector]));
    *width = *width && *width != n ? UINT32_MAX : n; /* no tensor has two widths */
    bool direction = dmi_edit_traits(op->kind) & DMI_EDIT_DIRECTION || of->vectors[vector].unit;
    return vector_at(b, of, t, direction);
}

/* The operation in a layer. *@width: what its vectors are for, where it has some. */
static void put_op(struct table_builder *b, const struct edits *of, const struct edit_op *op,
                   int32_t layer, uint32_t *width)
{
    uint32_t own = 0;
    struct dmi_edit_op filled = { .kind = op->kind, .a = op->a, .b = op->b };
    filled.vector = put_vector(b, of, op, op->vector, layer, &own);
    filled.n_vector = own;
    filled.encoder = put_vector(b, of, op, op->encoder, layer, &own);
    if (op->vector != EDIT_NO_VECTOR)
        filled.n_rows = edit_vector_rows(&of->vectors[op->vector]);
    if (own)
        *width = *width && *width != own ? UINT32_MAX : own;
    struct dmi_edit_op *out = add_op(b);
    if (out)
        *out = filled;
}

static void put_part(struct table_builder *b, uint32_t number, int32_t layer)
{
    const struct edits *of = b->uses[number].of;
    const struct edit *edit = b->uses[number].edit;
    struct dmi_edit_part part = { .edit = number,
                                  .first_op = b->n_ops,
                                  .n_ops = edit->n_ops,
                                  .n_columns = edit->n_columns,
                                  .of_heads = edit->of_heads,
                                  .pass = edit->pass };
    for (uint32_t k = 0; k < edit->n_ops; k++) {
        put_op(b, of, &edit->ops[k], layer, &part.width);
        part.sums |= !!(dmi_edit_traits(edit->ops[k].kind) & DMI_EDIT_SUMS);
    }
    if (edit->n_columns && !b->columns[number])
        b->columns[number] = add_bytes(b, edit->columns, edit->n_columns * sizeof *edit->columns);
    part.columns = b->columns[number];
    if (GROW(b->parts, b->n_parts, b->room_parts)) {
        b->no_memory = true;
        return;
    }
    b->parts[b->n_parts++] = part;
}

/* All that is done at the place in the layer, in the order of the edits. */
static struct dmi_edit_parts put_parts(struct table_builder *b, const char *site, int32_t layer)
{
    struct dmi_edit_parts parts = { .first = b->n_parts };
    for (uint32_t i = 0; i < b->n_uses; i++)
        if (!strcmp(b->uses[i].edit->site, site) && edit_takes_layer(&b->uses[i], layer))
            put_part(b, i, layer);
    parts.n = b->n_parts - parts.first;
    return parts;
}

/* ------------------------------------------------------------------------- the table */

/* Layers from 0 on that some edit or vector names. */
static void see_layers(const struct edit_use *use, int32_t *most)
{
    for (uint32_t k = 0; k < use->edit->layers.n; k++)
        if (use->edit->layers.at[k].last > *most)
            *most = use->edit->layers.at[k].last;
    for (uint32_t i = 0; i < use->of->n_tensors; i++)
        if (use->of->tensors[i].layer > *most)
            *most = use->of->tensors[i].layer;
}

static uint32_t n_layers_of(const struct edit_use *uses, uint32_t n)
{
    int32_t most = -1;
    for (uint32_t i = 0; i < n; i++)
        see_layers(&uses[i], &most);
    return (uint32_t)(most + 1);
}

static void put_places(struct table_builder *b, struct dmi_edit_parts *entries)
{
    for (uint32_t s = 0; s < b->spec->n_sites; s++) {
        const struct spec_site *site = &b->spec->sites[s];
        if (site->action != SPEC_EDIT)
            continue;
        struct dmi_edit_parts *of_place = &entries[(size_t)site->write.place * (b->n_layers + 2)];
        for (uint32_t k = 0; k < b->n_layers + 2; k++)
            of_place[k] = put_parts(b, site->about.name, (int32_t)k - 1);
    }
}

static int put_table(struct table_builder *b)
{
    uint32_t n_places = b->spec->n_places;
    size_t n_entries = (size_t)n_places * (b->n_layers + 2);
    _cleanup_(freep) struct dmi_edit_parts *entries = calloc(n_entries + 1, sizeof *entries);
    add_bytes(b, NULL, sizeof(struct dmi_edit_table)); /* the head, at offset 0 */
    if (!entries)
        return -ENOMEM;
    put_places(b, entries);
    struct dmi_edit_table head = {
        .n_places = n_places,
        .n_layers = b->n_layers,
        .entries = add_bytes(b, entries, n_entries * sizeof *entries),
        .parts = add_bytes(b, b->parts, b->n_parts * sizeof *b->parts),
        .ops = add_bytes(b, b->ops, b->n_ops * sizeof *b->ops),
    };
    if (b->no_memory)
        return -ENOMEM;
    if (b->n / DMI_EDIT_ALIGN > UINT32_MAX)
        return -E2BIG;
    memcpy(b->bytes, &head, sizeof head);
    return 0;
}

int edit_table_build(const struct edit_use *uses, uint32_t n, const struct spec *spec,
                     struct edit_table *out)
{
    struct table_builder b = {
        .uses = uses, .n_uses = n, .spec = spec, .n_layers = n_layers_of(uses, n)
    };
    b.columns = calloc(n + 1, sizeof *b.columns);
    int r = b.columns ? put_table(&b) : -ENOMEM;
    free(b.vectors);
    free(b.columns);
    free(b.parts);
    free(b.ops);
    if (r)
        free(b.bytes);
    else
        *out = (struct edit_table){ b.bytes, b.n, spec->n_places, b.n_layers };
    return r;
}

void edit_table_deinit(struct edit_table *table)
{
    free(table->bytes);
    *table = (struct edit_table){ 0 };
}

const struct dmi_edit_part *edit_table_parts(const struct edit_table *table, uint32_t place,
                                             int32_t layer, uint32_t *n)
{
    const struct dmi_edit_table *t = table->bytes;
    const char *base = table->bytes;
    *n = 0;
    if (place >= table->n_places || layer > SPEC_MAX_PLACE_LAYER)
        return NULL;
    uint32_t at = DMI_EDIT_AT(layer, 0);
    const struct dmi_edit_parts *entry =
        (const struct dmi_edit_parts *)(base + (size_t)t->entries * DMI_EDIT_ALIGN) +
        DMI_EDIT_ENTRY(t, place, at);
    *n = entry->n;
    return (const struct dmi_edit_part *)(base + (size_t)t->parts * DMI_EDIT_ALIGN) + entry->first;
}

struct dmi_edit_fit edit_part_fit(const struct edit_table *table, const struct dmi_edit_part *p,
                                  struct dmi_edit_shape row, struct dmi_edit_cut cut)
{
    const uint32_t *list =
        (const uint32_t *)((const char *)table->bytes + (size_t)p->columns * DMI_EDIT_ALIGN);
    return dmi_edit_fit(p, list, row, cut);
}
