/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/sight.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/grow.h"

#include <dmi/dtype.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PLACES 512u /* hits of one tensor in one launch that are looked at */
#define MAX_LATER  16u  /* launches after the first that may complete a tensor */

/* Hits of one tensor in one launch. */
struct launch_hits {
    uint32_t forward, launch;
    uint32_t site;
    int layer;
    uint32_t dtype;
    const struct hit *hits[MAX_PLACES];
    uint32_t n;
};

/* The forward that launch number @launch may show, UINT32_MAX: none. A gap between two belongs to both. */
static bool sight_within(const struct forwards *all, uint32_t forward, uint32_t launch)
{
    uint32_t from = forward ? all->at[forward - 1].last + 1 : 0;
    uint32_t end = forward + 1 < all->n ? all->at[forward + 1].first : UINT32_MAX;
    return launch >= from && launch < end;
}

/* ------------------------------------------------------------------------- rows */

/* The token after @row is not of this forward. */
static bool is_last(const struct probe *p, const struct forward *f, uint32_t row)
{
    const struct ref_request *q = activations_request(p->ref, row);
    bool more = row + 1 < q->first_row + q->n_rows;
    return !more || forward_row(f, p->ref->same_as[row + 1]) < 0;
}

int sight_rows(const struct probe *p, const struct forward *f, bool last, struct sight_rows *rows)
{
    *rows = (struct sight_rows){ .at = malloc((f->n_rows + 1) * sizeof *rows->at), .last = last };
    for (uint32_t i = 0; rows->at && i < f->n_rows; i++)
        if (!last || is_last(p, f, f->rows[i]))
            rows->at[rows->n++] = f->rows[i];
    return rows->at ? 0 : -ENOMEM;
}

static int index_of(const struct sight_rows *rows, uint32_t row)
{
    return FIRST(i, rows->n, rows->at[i] == row, (int)i, -1);
}

/* ------------------------------------------------------------------------- one tensor */

uint32_t sight_pointer(const struct rec_launch *l, uint64_t address)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < l->head.n_pointers; i++) {
        const struct dmi_recording_pointer *x = &l->pointers[i];
        if (address < x->base || address - x->base >= x->n_bytes)
            continue;
        const struct dmi_recording_pointer *b = best == UINT32_MAX ? NULL : &l->pointers[best];
        bool before = x->address <= address;
        if (!b || (before && (b->address > address || x->address > b->address)))
            best = i;
    }
    return best;
}

static bool fits(const struct probe *p, const struct launch_hits *g, const struct sight_rows *rows,
                 struct sighting *s)
{
    const struct rec_launch *l = &p->rec->launches[s->launch];
    struct subject subject = { g->site, g->layer, rows->at, rows->n, REC_AFTER(s->launch) };
    s->pointer = sight_pointer(l, s->layout.address);
    if (s->pointer == UINT32_MAX || !isfinite(layout_prefix_error(p, &s->layout, &subject)) ||
        !layout_find_chunks(p, &s->layout, &subject, l->pointers[s->pointer].base,
                            l->pointers[s->pointer].n_bytes))
        return false;
    s->error = layout_error(p, &s->layout, &subject);
    return true;
}

/* Where the first row would be, and how far apart rows are, if hits @a and @b are rows of it. */
static bool lay(const struct launch_hits *g, const struct sight_rows *rows, uint32_t a, uint32_t b,
                struct layout *out)
{
    int i = index_of(rows, g->hits[a]->row), j = index_of(rows, g->hits[b]->row);
    out->address = g->hits[a]->address;
    out->row_stride = 0;
    if (i < 0 || j < 0)
        return false;
    if (rows->n == 1)
        return a == b;
    int64_t apart = (int64_t)(g->hits[b]->address - g->hits[a]->address);
    if (i == j || apart % (j - i) || apart / (j - i) % (int64_t)dmi_dtype_bytes(g->dtype))
        return false;
    out->row_stride = apart / (j - i);
    out->address -= (uint64_t)(out->row_stride * i);
    return out->row_stride != 0;
}

/* At one time: the first pair of hits that explains all rows. */
static bool fit_at(const struct probe *p, const struct launch_hits *g,
                   const struct sight_rows *rows, struct sighting *s)
{
    uint32_t tried = 0;
    for (uint32_t a = 0; a < g->n; a++)
        for (uint32_t b = rows->n == 1 ? a : a + 1; b < g->n && tried < 64; b++) {
            s->layout = (struct layout){ .dtype = g->dtype, .scale = p->scale };
            if (!lay(g, rows, a, b, &s->layout))
                continue;
            tried++;
            if (fits(p, g, rows, s))
                return true;
            if (rows->n == 1)
                break;
        }
    return false;
}

/* Does this launch write into the allocation of the group's hits? */
static bool writes_there(const struct probe *p, const struct launch_hits *g, uint32_t launch)
{
    const struct rec_launch *l = &p->rec->launches[launch];
    return l->n_runs && sight_pointer(l, g->hits[0]->address) != UINT32_MAX;
}

static bool fit(const struct probe *p, const struct forwards *all, const struct launch_hits *g,
                const struct sight_rows *rows, struct sighting *s)
{
    s->launch = g->launch;
    s->n_rows = rows->n;
    s->last_rows = rows->last;
    if (!rows->n || fit_at(p, g, rows, s))
        return rows->n != 0;
    for (uint32_t i = 1; i <= MAX_LATER && g->launch + i < p->rec->n_launches; i++) {
        s->launch = g->launch + i;
        if (!sight_within(all, g->forward, s->launch))
            return false;
        if (writes_there(p, g, s->launch) && fit_at(p, g, rows, s)) {
            s->several = true;
            return true;
        }
    }
    return false;
}

int sight_add(struct sightings *out, const struct sighting *s)
{
    for (size_t i = out->n; i > 0 && out->at[i - 1].forward == s->forward; i--) {
        const struct sighting *x = &out->at[i - 1];
        if (x->launch == s->launch && x->site == s->site && x->layer == s->layer &&
            x->layout.address == s->layout.address && x->before == s->before &&
            x->layout.list == s->layout.list && x->layout.list_dtype == s->layout.list_dtype)
            return 0;
    }
    return PUSH(out->at, out->n, out->room, 1024, *s);
}

bool sight_has_rows(const struct probe *p, uint32_t site, int layer, const struct sight_rows *rows)
{
    return ALL(i, rows->n, activations_row(p->ref, site, layer, rows->at[i]));
}

/* ------------------------------------------------------------------------- one tensor in slots */

bool sight_same_list(const struct recording *rec, const struct sighting *a,
                     const struct sighting *b)
{
    return a->layout.list_dtype == b->layout.list_dtype &&
           (!a->layout.list_dtype || rec->launches[a->launch].pointers[a->list].offset ==
                                         rec->launches[b->launch].pointers[b->list].offset);
}

/* The first row whose slot is not that of row 0, rows->n: there is one row. Return: false where it is no list of slots. */
static bool read_list(const struct probe *p, const struct layout *l, const struct sight_rows *rows,
                      uint64_t time, int64_t *slot0, uint32_t *other, int64_t *slot)
{
    *slot0 = layout_slot(p, l->list, l->list_dtype, 0, time);
    *other = rows->n;
    for (uint32_t i = 1; *slot0 >= 0 && i < rows->n; i++) {
        int64_t s = layout_slot(p, l->list, l->list_dtype, i, time);
        if (s < 0 || s == *slot0)
            return false; /* a slot has one row */
        if (*other == rows->n) {
            *other = i;
            *slot = s;
        }
    }
    return *slot0 >= 0;
}

/* Where slot 0 would be, and how far apart slots are, if hit @a is row 0 and @b row @other. One row alone is taken for packed. */
static bool lay_slots(const struct hit *a, int64_t slot0, const struct hit *b, int64_t slot,
                      uint32_t row_bytes, struct layout *l)
{
    int64_t apart = b ? (int64_t)(b->address - a->address) : row_bytes, n = b ? slot - slot0 : 1;
    if (apart % n || apart / n <= 0 || apart / n % (int64_t)dmi_dtype_bytes(l->dtype))
        return false;
    l->row_stride = apart / n;
    return !__builtin_mul_overflow(l->row_stride, slot0, &apart) &&
           !__builtin_sub_overflow(a->address, (uint64_t)apart, &l->address);
}

/* With the list that @s says: the first pair of hits that explains all rows. */
static bool fit_list(const struct probe *p, const struct launch_hits *g,
                     const struct sight_rows *rows, struct sighting *s)
{
    uint32_t other, row_bytes = p->ref->sites[g->site].width * dmi_dtype_bytes(g->dtype), tried = 0;
    int64_t slot0, slot = 0;
    if (!read_list(p, &s->layout, rows, REC_AFTER(s->launch), &slot0, &other, &slot))
        return false;
    for (uint32_t a = 0; a < g->n; a++) {
        if (g->hits[a]->row != rows->at[0])
            continue;
        for (uint32_t b = 0; b < g->n && tried < 64; b++) {
            const struct hit *second = other < rows->n ? g->hits[b] : NULL;
            if (second && second->row != rows->at[other])
                continue;
            tried++;
            if (lay_slots(g->hits[a], slot0, second, slot, row_bytes, &s->layout) &&
                fits(p, g, rows, s))
                return true;
            if (!second)
                break;
        }
    }
    return false;
}

/* Adds a sighting for each list of numbers among the launch's pointers by which all rows are there. */
static int sight_slots(const struct probe *p, const struct launch_hits *g,
                       const struct sight_rows *rows, struct sighting s, struct sightings *out)
{
    static const uint32_t dtypes[] = { DMI_DTYPE_I32, DMI_DTYPE_I64 };
    const struct rec_launch *l = &p->rec->launches[g->launch];
    int r = 0;
    s.launch = g->launch;
    s.n_rows = rows->n;
    for (uint32_t i = 0; !r && i < 2 * l->head.n_pointers; i++) {
        s.list = i / 2;
        s.layout = (struct layout){ .dtype = g->dtype,
                                    .scale = p->scale,
                                    .list = l->pointers[i / 2].address,
                                    .list_dtype = dtypes[i % 2] };
        if (fit_list(p, g, rows, &s))
            r = sight_add(out, &s);
    }
    return r;
}

static int sight_group(const struct probe *p, const struct forwards *all,
                       const struct launch_hits *g, const struct sight_rows *every,
                       const struct sight_rows *last, struct sightings *out)
{
    const struct sighting none = { .forward = g->forward, .site = g->site, .layer = g->layer };
    struct sighting s = none;
    size_t n_before = out->n;
    int r = 0;
    if (sight_has_rows(p, g->site, g->layer, every)) {
        if (fit(p, all, g, every, &s))
            r = sight_add(out, &s);
        if (!r)
            r = sight_slots(p, g, every, none, out);
    }
    if (r || out->n > n_before)
        return r;
    s = none;
    if (last->n < every->n && fit(p, all, g, last, &s))
        return sight_add(out, &s);
    return 0;
}

/* ------------------------------------------------------------------------- all of a launch */

static bool same_tensor(const struct probe *p, const struct hit *a, const struct hit *b)
{
    const struct ref_tensor *x = &p->ref->tensors[a->tensor], *y = &p->ref->tensors[b->tensor];
    return x->site == y->site && x->layer == y->layer && a->dtype == b->dtype;
}

/* Tokens may look alike (z, where attention sees little but the first one): of those at a place the nearest. */
static void add_hit(struct launch_hits *g, const struct hit *hit)
{
    const struct hit *last = g->n ? g->hits[g->n - 1] : NULL;
    if (!last || last->address != hit->address)
        g->hits[g->n++] = hit;
    else if (hit->error < last->error)
        g->hits[g->n - 1] = hit;
}

/* The hits in [from, to) that are of the same tensor as number @i, if that is the first of them. */
static bool gather(const struct probe *p, const struct hits *hits, size_t from, size_t to, size_t i,
                   const struct forward *f, struct launch_hits *g)
{
    const struct ref_tensor *t = &p->ref->tensors[hits->at[i].tensor];
    for (size_t k = from; k < i; k++)
        if (same_tensor(p, &hits->at[k], &hits->at[i]))
            return false;
    g->launch = hits->at[i].launch;
    g->site = t->site;
    g->layer = t->layer;
    g->dtype = hits->at[i].dtype;
    g->n = 0;
    for (size_t k = i; k < to && g->n < MAX_PLACES; k++)
        if (same_tensor(p, &hits->at[k], &hits->at[i]) && forward_row(f, hits->at[k].row) >= 0)
            add_hit(g, &hits->at[k]);
    return g->n != 0;
}

static int sight_launch(const struct probe *p, const struct forwards *all, uint32_t forward,
                        const struct hits *hits, size_t from, size_t to,
                        const struct sight_rows *every, const struct sight_rows *last,
                        struct sightings *out)
{
    struct launch_hits g = { .forward = forward };
    int r = 0;
    for (size_t i = from; !r && i < to; i++)
        if (gather(p, hits, from, to, i, &all->at[forward], &g))
            r = sight_group(p, all, &g, every, last, out);
    return r;
}

static int sight_forward(const struct probe *p, const struct forwards *all, uint32_t forward,
                         const struct hits *hits, struct sightings *out)
{
    struct sight_rows every = { 0 }, last = { 0 };
    int r = sight_rows(p, &all->at[forward], false, &every);
    if (!r)
        r = sight_rows(p, &all->at[forward], true, &last);
    for (size_t i = 0; !r && i < hits->n;) {
        size_t to = i;
        while (to < hits->n && hits->at[to].launch == hits->at[i].launch)
            to++;
        if (sight_within(all, forward, hits->at[i].launch))
            r = sight_launch(p, all, forward, hits, i, to, &every, &last, out);
        i = to;
    }
    free(every.at);
    free(last.at);
    return r;
}

int sight_hits(const struct probe *p, const struct forwards *all, const struct hits *hits,
               struct sightings *out)
{
    int r = 0;
    for (uint32_t f = 0; !r && f < all->n; f++)
        r = sight_forward(p, all, f, hits, out);
    return r;
}

/* ------------------------------------------------------------------------- likenesses */

static bool same_place(const struct sighting *a, const struct sighting *b)
{
    return a->forward == b->forward && a->launch == b->launch &&
           a->layout.address == b->layout.address && a->layout.dtype == b->layout.dtype &&
           a->before == b->before && (a->doubtful || !b->doubtful);
}

void sight_compete(struct sightings *all, size_t from)
{
    size_t n = 0;
    _cleanup_(freep) bool *out = calloc(all->n + 1, sizeof *out);
    for (size_t i = 0; out && i < all->n; i++)
        for (size_t k = i < from ? from : 0; k < all->n && !out[i]; k++)
            out[i] = same_place(&all->at[i], &all->at[k]) &&
                     all->at[i].error > 4 * all->at[k].error + 1e-5f;
    for (size_t i = 0; out && i < all->n; i++)
        if (!out[i])
            all->at[n++] = all->at[i];
    if (out)
        all->n = n;
}

/* ------------------------------------------------------------------------- integers */

static bool holds(const struct probe *p, uint32_t site, const struct sight_rows *rows,
                  uint32_t dtype, uint64_t address, uint64_t time)
{
    size_t size = dmi_dtype_bytes(dtype);
    for (uint32_t i = 0; i < rows->n; i++) {
        const float *want = activations_row(p->ref, site, REF_NO_LAYER, rows->at[i]);
        int64_t value = 0;
        if (!want || memory_read(p->memory, address + i * size, size, time, &value, NULL) != size)
            return false;
        if ((float)(size == 4 ? (int32_t)value : value) != *want)
            return false;
    }
    return rows->n != 0;
}

/* Elements from a pointer on at which a chunk of a prompt may begin: 0, or that of its first token. */
static int sight_integer(const struct probe *p, uint32_t forward, uint32_t site,
                         const struct sight_rows *rows, uint32_t launch, uint32_t pointer,
                         struct sightings *out)
{
    static const uint32_t dtypes[] = { DMI_DTYPE_I32, DMI_DTYPE_I64 };
    const struct dmi_recording_pointer *x = &p->rec->launches[launch].pointers[pointer];
    uint32_t token = rows->at[0] - activations_request(p->ref, rows->at[0])->first_row;
    for (int i = 0; i < 8; i++) {
        uint32_t dtype = dtypes[i & 1], first = i & 2 ? token : 0;
        bool before = i & 4;
        uint64_t size = dmi_dtype_bytes(dtype), address = x->address + first * size;
        uint64_t time = before ? REC_BEFORE(launch) : REC_AFTER(launch);
        if (!holds(p, site, rows, dtype, address, time))
            continue;
        struct sighting s = {
            .forward = forward,
            .launch = launch,
            .site = site,
            .layer = REF_NO_LAYER,
            .n_rows = rows->n,
            .before = before,
            .pointer = pointer,
            .layout = { .dtype = dtype,
                        .scale = 1,
                        .address = address,
                        .chunk = 1,
                        .n_chunks = 1,
                        .row_stride = rows->n > 1 ? (int64_t)size : 0 },
        };
        return sight_add(out, &s);
    }
    return 0;
}

int sight_integers(const struct probe *p, const struct forwards *all, struct sightings *out)
{
    int r = 0;
    for (uint32_t f = 0; !r && f < all->n; f++) {
        struct sight_rows rows = { 0 };
        r = sight_rows(p, &all->at[f], false, &rows);
        for (uint32_t l = 0; !r && l < p->rec->n_launches && l <= all->at[f].last; l++)
            for (uint32_t x = 0;
                 sight_within(all, f, l) && !r && x < p->rec->launches[l].head.n_pointers; x++)
                for (uint32_t s = 0; !r && s < p->ref->n_sites; s++)
                    if (p->ref->sites[s].whole && p->ref->sites[s].width == 1)
                        r = sight_integer(p, f, s, &rows, l, x, out);
        free(rows.at);
    }
    return r;
}
