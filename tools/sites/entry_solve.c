/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/entry_solve.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/grow.h"

#include <dmi/dtype.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct rec_launch *launch_of(const struct scene *scene, const struct sighting *s)
{
    return &scene->probe->rec->launches[s->launch];
}

static bool is_named(const struct scene *scene, const struct entry *e, uint32_t launch)
{
    const char *name = recording_name(scene->probe->rec, &scene->probe->rec->launches[launch]);
    return ANY(i, e->n_names, !strcmp(e->names[i], name));
}

/* ------------------------------------------------------------------------- occurrences */

/* Which launch of those with the entry's names in its forward. */
static uint32_t occurrence_of(const struct scene *scene, const struct entry *e,
                              const struct sighting *s)
{
    uint32_t occ = 0;
    for (uint32_t l = scene->forwards->at[s->forward].begin; l < s->launch; l++)
        occ += is_named(scene, e, l);
    return occ;
}

static uint32_t expected(const struct scene *scene, const struct entry *e)
{
    uint32_t expect = 0;
    for (uint32_t i = 0; i < scene->forwards->n; i++) {
        const struct forward *f = &scene->forwards->at[i];
        uint32_t n = 0;
        for (uint32_t l = f->begin; f->kind == e->kind && l < f->end; l++)
            n += is_named(scene, e, l);
        if (f->kind == e->kind && expect && n != expect)
            return 0;
        expect = f->kind == e->kind ? n : expect;
    }
    return expect;
}

/* What the members' occurrences are, and the layer of each: [occ] is layer + 2, 0: none. Return: NULL: they disagree. */
static int *layers_by_occurrence(const struct entry *e, const struct sample *samples, uint32_t *n)
{
    *n = 0;
    for (size_t i = 0; i < e->n_members; i++)
        *n = samples[i].occ >= *n ? (uint32_t)samples[i].occ + 1 : *n;
    int *layers = calloc(*n + 1, sizeof *layers);
    for (size_t i = 0; layers && i < e->n_members; i++) {
        int *at = &layers[samples[i].occ];
        if (*at && *at != e->members[i]->layer + 2) {
            free(layers);
            return NULL;
        }
        *at = e->members[i]->layer + 2;
    }
    return layers;
}

/* The first occurrence after @occ that has a layer, or @n. */
static uint32_t next_of(const int *layers, uint32_t n, uint32_t occ)
{
    do
        occ++;
    while (occ < n && !layers[occ]);
    return occ;
}

/* Occurrences from e->from on that are equally far apart, as their layers are. Return: the step from layer to layer. */
static int line_from(const int *layers, uint32_t n, struct entry *e)
{
    uint32_t next = next_of(layers, n, e->from);
    int step = next < n ? layers[next] - layers[e->from] : 0;
    e->to = e->from;
    e->every = step ? next - e->from : 1;
    for (; step && next < n && next - e->to == e->every && layers[next] - layers[e->to] == step;
         next = next_of(layers, n, next))
        e->to = next;
    return step;
}

/* What comes of the text at @at: a number to add, if it is not 0. */
static void print_more(char *at, size_t n, int more)
{
    if (more)
        snprintf(at, n, " %c %d", more < 0 ? '-' : '+', abs(more));
}

static void print_layer(struct entry *e, const int *layers, int step)
{
    char occ[32] = "occ", times[16] = "";
    int first = layers[e->from] - 2, more = first;
    e->layer[0] = 0;
    if (first == REF_NO_LAYER)
        return;
    if (e->from == e->to) {
        snprintf(e->layer, sizeof e->layer, "%d", first);
        return;
    }
    if (e->every == 1)
        more = first - step * (int)e->from;
    else if (e->from)
        snprintf(occ, sizeof occ, "(occ - %u) / %u", e->from, e->every);
    else
        snprintf(occ, sizeof occ, "occ / %u", e->every);
    if (step != 1)
        snprintf(times, sizeof times, " * %d", step);
    int used = snprintf(e->layer, sizeof e->layer, "%s%s", occ, times);
    print_more(e->layer + used, sizeof e->layer - (size_t)used, more);
}

/* Occurrences or layers that are not equally far apart are several sites. */
static int split(struct entry *e, const int *layers, uint32_t n, struct entries *more)
{
    bool first = true;
    for (uint32_t occ = 0; occ < n; occ++) {
        if (!layers[occ])
            continue;
        struct entry part = *e;
        part.from = occ;
        print_layer(&part, layers, line_from(layers, n, &part));
        occ = part.to;
        if (first) {
            *e = part;
            first = false;
            continue;
        }
        part.members = NULL;
        part.n_members = part.room_members = 0;
        if (PUSH(more->at, more->n, more->room, 32, part))
            return -ENOMEM;
    }
    return 0;
}

/* ------------------------------------------------------------------------- where */

static const struct dmi_recording_pointer *pointer_at(const struct rec_launch *l, uint32_t offset,
                                                      uint64_t address)
{
    return FIRST(i, l->head.n_pointers,
                 l->pointers[i].offset == offset && address >= l->pointers[i].base &&
                     address - l->pointers[i].base < l->pointers[i].n_bytes,
                 &l->pointers[i], NULL);
}

/* With the pointer at byte @offset of the parameters. */
static bool solve_offset(const struct scene *scene, struct entry *e, struct sample *samples,
                         uint32_t offset)
{
    for (size_t i = 0; i < e->n_members; i++) {
        const struct dmi_recording_pointer *x =
            pointer_at(samples[i].launch, offset, e->members[i]->layout.address);
        if (!x)
            return false;
        samples[i].value = (int64_t)(e->members[i]->layout.address - x->address);
    }
    if (!solve(scene->probe->rec, samples, e->n_members, false, &e->offset))
        return false;
    solve_place(scene->probe->rec, samples[0].launch, offset, e->pointer, sizeof e->pointer);
    return true;
}

/* The nearest pointer first, then the others; a fixed offset is better than one that follows a number. */
static bool solve_pointer(const struct scene *scene, struct entry *e, struct sample *samples)
{
    const struct rec_launch *l = samples[0].launch;
    for (int fixed = 1; fixed >= 0; fixed--)
        for (uint32_t i = 0; i <= l->head.n_pointers; i++) {
            uint32_t index = i ? i - 1 : e->members[0]->pointer;
            if (solve_offset(scene, e, samples, l->pointers[index].offset) &&
                (!fixed || e->offset.constant))
                return true;
        }
    return false;
}

enum trait { TRAIT_COUNT, TRAIT_ROW_STRIDE, TRAIT_CHUNK_STRIDE };

/* The value of a member, and whether it says one. */
static bool trait_of(const struct entry *e, const struct sighting *s, enum trait trait,
                     int64_t *value)
{
    bool flat = s->layout.n_chunks == 1 && e->n_chunks > 1;
    switch (trait) {
    case TRAIT_COUNT: *value = s->n_rows; return true;
    case TRAIT_ROW_STRIDE: *value = s->layout.row_stride; return *value != 0;
    default:
        *value = flat ? (int64_t)(e->chunk * dmi_dtype_bytes(e->dtype)) : s->layout.chunk_stride;
        return *value != 0;
    }
}

static bool solve_trait(const struct scene *scene, const struct entry *e,
                        const struct sample *samples, enum trait trait, struct solution *out)
{
    size_t n = 0;
    _cleanup_(freep) struct sample *own = malloc((e->n_members + 1) * sizeof *own);
    *out = (struct solution){ .constant = true };
    for (size_t i = 0; own && i < e->n_members; i++) {
        own[n] = samples[i];
        n += trait_of(e, e->members[i], trait, &own[n].value);
    }
    return own && (!n || solve(scene->probe->rec, own, n, trait == TRAIT_COUNT, out));
}

/* The pointer to the list of slots is at one place in all launches: its members are alike. */
static void solve_list(const struct scene *scene, struct entry *e)
{
    const struct sighting *s = e->members[0];
    const struct rec_launch *l = launch_of(scene, s);
    e->list_dtype = s->layout.list_dtype;
    if (e->list_dtype)
        solve_place(scene->probe->rec, l, l->pointers[s->list].offset, e->list, sizeof e->list);
}

static void solve_all(const struct scene *scene, struct entry *e, struct sample *samples)
{
    if (!solve_pointer(scene, e, samples))
        e->why = "where it lies from its pointer on follows no number of the launch";
    else if (!solve_trait(scene, e, samples, TRAIT_COUNT, &e->count))
        e->why = "how many rows there are follows no number of the launch";
    else if (!solve_trait(scene, e, samples, TRAIT_ROW_STRIDE, &e->row_stride) ||
             !solve_trait(scene, e, samples, TRAIT_CHUNK_STRIDE, &e->chunk_stride))
        e->why = "how far apart its elements lie follows no number of the launch";
}

int entry_solve(const struct scene *scene, struct entry *e, struct entries *more)
{
    _cleanup_(freep) struct sample *samples = calloc(e->n_members + 1, sizeof *samples);
    uint32_t n;
    if (!samples)
        return -ENOMEM;
    for (size_t i = 0; i < e->n_members; i++)
        samples[i] = (struct sample){ .launch = launch_of(scene, e->members[i]),
                                      .occ = occurrence_of(scene, e, e->members[i]) };
    solve_all(scene, e, samples);
    solve_list(scene, e);
    e->expect = expected(scene, e);
    _cleanup_(freep) int *layers = layers_by_occurrence(e, samples, &n);
    if (!layers)
        e->why = "which occurrence is which layer differs between forwards";
    return e->why ? 0 : split(e, layers, n, more);
}
