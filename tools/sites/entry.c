/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/entry.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/grow.h"
#include "core/sorted.h"
#include "tools/sites/entry_solve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sightings of one site by one kernel, alike in all that a site says once. */
struct sighting_group {
    const char *name;
    uint32_t pointer; /* byte among the parameters; UINT32_MAX: whichever */
    const struct sighting *like;
    const struct sighting **members; /* one a forward and layer */
    size_t n, room;
    uint32_t first; /* launches after its forward's begin: the earliest member */
    float error;    /* the largest of its members */
    bool chosen;
    bool tried; /* what it shows, a HookSpec cannot say */
};

/* One kind and site. */
struct search {
    const struct scene *scene;
    uint32_t kind, site;
    struct sighting_group *groups;
    size_t n_groups, room_groups;
    bool *need; /* [forward][layer + 1] */
    uint32_t n_layers;
    struct entry unsaid; /* the first that a HookSpec cannot say, for the report */
};

/* ------------------------------------------------------------------------- groups */

static const char *name_of(const struct scene *scene, const struct sighting *s)
{
    return recording_name(scene->probe->rec, &scene->probe->rec->launches[s->launch]);
}

static uint32_t pointer_of(const struct scene *scene, const struct sighting *s)
{
    return scene->probe->rec->launches[s->launch].pointers[s->pointer].offset;
}

/* A row of 576 side by side is 9 chunks of 64 side by side. */
static bool chunks_agree(const struct layout *a, const struct layout *b)
{
    return a->chunk == b->chunk || a->n_chunks == 1 || b->n_chunks == 1;
}

/* In a forward of one row, all rows and the last ones are the same. */
static bool rows_agree(const struct scene *scene, const struct sighting *a,
                       const struct sighting *b)
{
    return a->last_rows == b->last_rows || scene->forwards->at[a->forward].n_rows == 1 ||
           scene->forwards->at[b->forward].n_rows == 1;
}

static bool belongs(const struct scene *scene, const struct sighting_group *g,
                    const struct sighting *s)
{
    const struct sighting *x = g->like;
    return !strcmp(g->name, name_of(scene, s)) && x->layout.dtype == s->layout.dtype &&
           x->before == s->before && x->layout.scale == s->layout.scale &&
           x->doubtful == s->doubtful &&
           (g->pointer == UINT32_MAX || g->pointer == pointer_of(scene, s)) &&
           chunks_agree(&x->layout, &s->layout) && rows_agree(scene, x, s) &&
           sight_same_list(scene->probe->rec, x, s);
}

static int add_member(const struct scene *scene, struct sighting_group *g, const struct sighting *s)
{
    uint32_t at = s->launch - scene->forwards->at[s->forward].begin;
    for (size_t i = 0; i < g->n; i++)
        if (g->members[i]->forward == s->forward && g->members[i]->layer == s->layer)
            return 0; /* the first launch that leaves it counts */
    if (PUSH(g->members, g->n, g->room, 32, s))
        return -ENOMEM;
    g->first = at < g->first ? at : g->first;
    g->error = s->error > g->error ? s->error : g->error;
    return 0;
}

static bool concerns(const struct search *q, const struct sighting *s)
{
    const struct forward *f = &q->scene->forwards->at[s->forward];
    return s->site == q->site && f->kind == q->kind && s->launch >= f->begin && s->launch < f->end;
}

static int add_to_groups(struct search *q, const struct sighting *s, bool by_pointer)
{
    for (size_t i = 0; i < q->n_groups; i++)
        if (belongs(q->scene, &q->groups[i], s))
            return add_member(q->scene, &q->groups[i], s);
    if (grow((void **)&q->groups, q->n_groups, &q->room_groups, sizeof *q->groups, 16))
        return -ENOMEM;
    struct sighting_group *g = &q->groups[q->n_groups++];
    *g = (struct sighting_group){ .name = name_of(q->scene, s),
                                  .pointer = by_pointer ? pointer_of(q->scene, s) : UINT32_MAX,
                                  .like = s,
                                  .first = UINT32_MAX };
    return add_member(q->scene, g, s);
}

static void drop_groups(struct search *q)
{
    for (size_t i = 0; i < q->n_groups; i++)
        free(q->groups[i].members);
    q->n_groups = 0;
}

static int make_groups(struct search *q, bool by_pointer)
{
    int r = 0;
    drop_groups(q);
    for (size_t i = 0; !r && i < q->scene->sightings->n; i++)
        if (concerns(q, &q->scene->sightings->at[i]))
            r = add_to_groups(q, &q->scene->sightings->at[i], by_pointer);
    return r;
}

/* ------------------------------------------------------------------------- which are needed */

static bool *need_of(const struct search *q, const struct sighting *s)
{
    return &q->need[(size_t)s->forward * (q->n_layers + 1) + (size_t)(s->layer + 1)];
}

static int set_needs(struct search *q)
{
    const struct activations *ref = q->scene->probe->ref;
    const struct forwards *all = q->scene->forwards;
    q->n_layers = (uint32_t)ref->sites[q->site].n_layers;
    q->need = calloc((all->n + 1) * (q->n_layers + 1), sizeof *q->need);
    if (!q->need)
        return -ENOMEM;
    for (uint32_t f = 0; f < all->n; f++)
        for (int l = REF_NO_LAYER; all->at[f].kind == q->kind && l < (int)q->n_layers; l++)
            for (uint32_t r = 0; r < all->at[f].n_rows; r++)
                if (activations_row(ref, q->site, l, all->at[f].rows[r]))
                    q->need[(size_t)f * (q->n_layers + 1) + (size_t)(l + 1)] = true;
    return 0;
}

static bool needs_any(const struct search *q)
{
    return ANY(i, q->scene->forwards->n * (q->n_layers + 1), q->need[i]);
}

/* Of the members, those that are needed; *@wanted: how many there would be in all forwards, of their layers. */
static uint32_t worth(const struct search *q, const struct sighting_group *g, uint32_t *wanted)
{
    uint32_t n = 0;
    *wanted = 0;
    for (size_t i = 0; i < g->n; i++)
        n += *need_of(q, g->members[i]);
    for (uint32_t l = 0; l <= q->n_layers; l++) {
        bool has = false;
        for (size_t i = 0; i < g->n; i++)
            has = has || (g->members[i]->layer + 1 == (int)l && *need_of(q, g->members[i]));
        for (uint32_t f = 0; has && f < q->scene->forwards->n; f++)
            *wanted += q->need[(size_t)f * (q->n_layers + 1) + l];
    }
    return n;
}

/* Is one that shows as much much nearer to the reference? */
static bool is_likeness(const struct search *q, const struct sighting_group *g, uint32_t n)
{
    uint32_t wanted;
    return ANY(i, q->n_groups,
               !q->groups[i].chosen && !q->groups[i].like->doubtful &&
                   g->error > 4 * q->groups[i].error + 1e-4f &&
                   worth(q, &q->groups[i], &wanted) >= n);
}

/* That which shows most; of equals the earliest. @all: only those that show their layers in every forward. */
static struct sighting_group *best_group(const struct search *q, bool all)
{
    struct sighting_group *best = NULL;
    uint32_t most = 0, wanted;
    for (size_t i = 0; i < q->n_groups; i++) {
        struct sighting_group *g = &q->groups[i];
        uint32_t n = worth(q, g, &wanted);
        if (g->chosen || g->tried || !n || (all && n < wanted))
            continue;
        if (is_likeness(q, g, n))
            continue;
        if (!best || n > most || (n == most && g->first < best->first)) {
            best = g;
            most = n;
        }
    }
    return best;
}

/* ------------------------------------------------------------------------- entries */

static void take_traits(struct entry *e, const struct sighting *s)
{
    bool fresh = !e->n_members;
    if (fresh || (e->n_chunks == 1 && s->layout.n_chunks > 1)) {
        e->chunk = s->layout.chunk;
        e->n_chunks = s->layout.n_chunks;
    }
    e->dtype = s->layout.dtype;
    e->scale = s->layout.scale;
    e->before = s->before;
    e->last_rows = e->last_rows || s->last_rows;
    e->several = e->several || s->several;
    e->error = s->error > e->error ? s->error : e->error;
}

static int add_to_entry(struct search *q, struct entry *e, struct sighting_group *g)
{
    bool named = false;
    for (uint32_t i = 0; i < e->n_names; i++)
        named = named || !strcmp(e->names[i], g->name);
    if (!named && e->n_names < ENTRY_MAX_NAMES)
        e->names[e->n_names++] = g->name;
    g->chosen = true;
    for (size_t i = 0; i < g->n; i++) {
        if (!*need_of(q, g->members[i]))
            continue;
        if (grow((void **)&e->members, e->n_members, &e->room_members, sizeof *e->members, 32))
            return -ENOMEM;
        take_traits(e, g->members[i]);
        e->members[e->n_members++] = g->members[i];
        *need_of(q, g->members[i]) = false;
    }
    return 0;
}

/* Kernels by other names that show the same layers in other forwards are one site under several names. */
static bool completes(const struct search *q, const struct entry *e, const struct sighting_group *g)
{
    const struct sighting *x = e->members[0], *y = g->like;
    if (x->layout.dtype != y->layout.dtype || x->before != y->before ||
        x->doubtful != y->doubtful || x->layout.scale != y->layout.scale ||
        !chunks_agree(&x->layout, &y->layout) ||
        pointer_of(q->scene, x) != pointer_of(q->scene, y) ||
        !sight_same_list(q->scene->probe->rec, x, y))
        return false;
    for (size_t i = 0; i < g->n; i++)
        for (size_t k = 0; *need_of(q, g->members[i]) && k < e->n_members; k++)
            if (e->members[k]->layer == g->members[i]->layer)
                return true;
    return false;
}

/* What lies at one pointer may be read in order and by several lists of numbers: it is the same all the same. */
static bool is_other_reading(const struct search *q, const struct sighting_group *g)
{
    return ANY(i, q->n_groups,
               q->groups[i].chosen && !strcmp(q->groups[i].name, g->name) &&
                   pointer_of(q->scene, q->groups[i].like) == pointer_of(q->scene, g->like) &&
                   !sight_same_list(q->scene->probe->rec, q->groups[i].like, g->like));
}

static void note_others(const struct search *q, struct entry *e)
{
    const struct recording *rec = q->scene->probe->rec;
    char place[48];
    for (size_t i = 0; i < q->n_groups; i++) {
        const struct sighting_group *g = &q->groups[i];
        size_t at = strlen(e->also);
        if (g->chosen || g->like->doubtful || g->n < e->n_members ||
            g->error > 4 * e->error + 1e-4f || is_other_reading(q, g))
            continue;
        const struct rec_launch *l = &rec->launches[g->like->launch];
        solve_place(rec, l, l->pointers[g->like->pointer].offset, place, sizeof place);
        at += (size_t)snprintf(e->also + at, sizeof e->also - at, "%s%s %s", at ? ", " : "",
                               g->name, place);
        if (g->like->layout.list_dtype && at < sizeof e->also) {
            solve_place(rec, l, l->pointers[g->like->list].offset, place, sizeof place);
            snprintf(e->also + at, sizeof e->also - at, " in the slots of %s", place);
        }
        e->unsure = e->unsure || g->error != e->error;
    }
}

static int fill_entry(struct search *q, struct sighting_group *first, struct entry *e)
{
    uint32_t n_forwards = 0, n_layers = 0;
    int r = add_to_entry(q, e, first);
    for (size_t i = 0; !r && i < q->n_groups; i++)
        if (!q->groups[i].chosen && completes(q, e, &q->groups[i]))
            r = add_to_entry(q, e, &q->groups[i]);
    for (size_t i = 0; i < q->scene->forwards->n; i++)
        n_forwards += q->scene->forwards->at[i].kind == q->kind;
    for (size_t i = 0; i < e->n_members; i++) {
        bool known = false;
        for (size_t k = 0; k < i; k++)
            known = known || e->members[k]->layer == e->members[i]->layer;
        n_layers += !known;
    }
    e->n_seen = (uint32_t)e->n_members;
    e->n_wanted = n_layers * n_forwards;
    if (first->like->doubtful)
        e->why = "values as few as these may lie there by chance: record more forwards";
    note_others(q, e);
    return r;
}

static void entry_deinit(struct entry *e)
{
    free(e->members);
    *e = (struct entry){ 0 };
}

/* It is no entry: what its groups show is needed as before. */
static void take_back(struct search *q, struct sighting_group *first, const bool *need,
                      struct entry *e)
{
    memcpy(q->need, need, q->scene->forwards->n * (q->n_layers + 1) * sizeof *need);
    for (size_t i = 0; i < q->n_groups; i++)
        q->groups[i].chosen = false;
    first->tried = true;
    if (e->why && !q->unsaid.n_members) {
        q->unsaid = *e;
        *e = (struct entry){ 0 };
    }
    entry_deinit(e);
}

static int make_entry(struct search *q, struct sighting_group *first, struct entries *out)
{
    struct entry e = { .site = q->site, .kind = q->kind };
    size_t n_need = q->scene->forwards->n * (q->n_layers + 1), at = out->n;
    _cleanup_(freep) bool *need = malloc(n_need + 1);
    if (!need || grow((void **)&out->at, out->n, &out->room, sizeof *out->at, 32))
        return -ENOMEM;
    memcpy(need, q->need, n_need);
    int r = fill_entry(q, first, &e);
    bool likeness = 2 * e.n_seen < e.n_wanted; /* what is seen in few forwards */
    out->at[out->n++] = (struct entry){ 0 };   /* before what it falls apart into */
    if (!r && !likeness && !e.why)
        r = entry_solve(q->scene, &e, out);
    out->at[at] = e;
    if (!r && !likeness && !e.why)
        return 0;
    out->n = at;
    take_back(q, first, need, &e);
    return r;
}

/* What no HookSpec can say is reported, unless something else shows it. */
static int keep_unsaid(struct search *q, struct entries *out)
{
    if (!q->unsaid.n_members || !needs_any(q)) {
        entry_deinit(&q->unsaid);
        return 0;
    }
    if (grow((void **)&out->at, out->n, &out->room, sizeof *out->at, 32)) {
        entry_deinit(&q->unsaid);
        return -ENOMEM;
    }
    out->at[out->n++] = q->unsaid;
    return 0;
}

/* First by kernels that always show it at one pointer, then by what is left. */
static int search(struct search *q, struct entries *out)
{
    int r = set_needs(q);
    bool any = !r && needs_any(q);
    for (int round = 0; !r && any && round < 2; round++) {
        struct sighting_group *g;
        r = make_groups(q, round == 0);
        while (!r && (g = best_group(q, round == 0)))
            r = make_entry(q, g, out);
    }
    out->found[q->kind * out->n_sites + q->site] = !r && any && !needs_any(q);
    int kept = keep_unsaid(q, out);
    r = r ? r : kept;
    drop_groups(q);
    free(q->groups);
    free(q->need);
    return r;
}

/* What has a row a request in one kind has it in all. */
static void share_rows(struct entries *all)
{
    for (size_t i = 0; i < all->n; i++)
        for (size_t k = 0; k < all->n; k++)
            if (all->at[i].site == all->at[k].site && all->at[i].last_rows)
                all->at[k].last_rows = true;
}

/* The launches of its forward that come before it; of several forwards the fewest. */
static uint32_t place_of(const struct scene *scene, const struct entry *e)
{
    uint32_t place = UINT32_MAX;
    for (size_t i = 0; i < e->n_members; i++) {
        const struct sighting *s = e->members[i];
        uint32_t after = s->launch - scene->forwards->at[s->forward].begin;
        place = after < place ? after : place;
    }
    return place;
}

static int entry_order(const void *pa, const void *pb)
{
    const struct entry *a = pa, *b = pb;
    ORDER(a, b, kind);
    ORDER(a, b, place);
    return a->site < b->site ? -1 : a->site > b->site;
}

/* As the engine computes them. */
static void order(const struct scene *scene, struct entries *all)
{
    for (size_t i = 0; i < all->n; i++)
        all->at[i].place = place_of(scene, &all->at[i]);
    if (all->n)
        qsort(all->at, all->n, sizeof *all->at, entry_order);
}

int entries_find(const struct scene *scene, struct entries *out)
{
    *out = (struct entries){ .n_sites = (uint32_t)scene->probe->ref->n_sites };
    out->found = calloc((size_t)scene->kinds->n * out->n_sites + 1, 1);
    int r = out->found ? 0 : -ENOMEM;
    for (uint32_t k = 0; !r && k < scene->kinds->n; k++)
        for (uint32_t s = 0; !r && s < out->n_sites; s++)
            r = search(&(struct search){ .scene = scene, .kind = k, .site = s }, out);
    share_rows(out);
    order(scene, out);
    return r;
}

void entries_deinit(struct entries *entries)
{
    for (size_t i = 0; i < entries->n; i++)
        free(entries->at[i].members);
    free(entries->at);
    free(entries->found);
    *entries = (struct entries){ 0 };
}

bool entries_found(const struct entries *entries, uint32_t kind, uint32_t site)
{
    return entries->found[kind * entries->n_sites + site];
}
