/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/guess.h"

#include "core/any.h"
#include "core/cleanup.h"

#include <dmi/dtype.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_COUNTED 64u  /* different rows whose evidence is counted */
#define WRONG_COSTS 20.f /* bits that a forward takes which does not bear a guess out */

bool guess_equal(const struct guess *a, const struct guess *b)
{
    return a->kind == b->kind && a->site == b->site && a->layer == b->layer &&
           a->kernel == b->kernel && a->occ == b->occ && a->offset == b->offset &&
           a->distance == b->distance && a->last == b->last && a->turned == b->turned &&
           a->layout.dtype == b->layout.dtype && a->layout.row_stride == b->layout.row_stride &&
           a->layout.chunk_stride == b->layout.chunk_stride;
}

/* ------------------------------------------------------------------------- one forward */

enum verdict { NOTHING, RIGHT, WRONG };

static uint32_t launch_of(const struct recording *rec, const struct forward *f,
                          const struct guess *g)
{
    uint32_t occ = 0;
    for (uint32_t l = f->begin; l < f->end && l < rec->n_launches; l++)
        if (rec->launches[l].head.kernel == g->kernel && occ++ == g->occ)
            return l;
    return UINT32_MAX;
}

/* Where it would be at that launch. Return: false: the launch has no such pointer. */
static bool place(const struct rec_launch *l, const struct guess *g, uint32_t n_rows,
                  struct sighting *s)
{
    s->layout = g->layout;
    if (n_rows == 1)
        s->layout.row_stride = 0;
    if (g->turned)
        s->layout.chunk_stride = (int64_t)n_rows * (int64_t)dmi_dtype_bytes(g->layout.dtype);
    for (uint32_t i = 0; i < l->head.n_pointers; i++) {
        const struct dmi_recording_pointer *x = &l->pointers[i];
        s->layout.address = x->address + (uint64_t)g->distance;
        s->pointer = i;
        if (x->offset == g->offset && s->layout.address - x->base < x->n_bytes)
            return true;
    }
    return false;
}

static bool has_any_row(const struct probe *p, const struct guess *g, const struct sight_rows *rows)
{
    return ANY(i, rows->n, activations_row(p->ref, g->site, g->layer, rows->at[i]));
}

static enum verdict judge(const struct probe *p, const struct forwards *all, uint32_t forward,
                          const struct guess *g, const struct sight_rows *rows, struct sighting *s)
{
    *s = (struct sighting){ .forward = forward,
                            .site = g->site,
                            .layer = g->layer,
                            .n_rows = rows->n,
                            .last_rows = rows->last,
                            .doubtful = !g->certain };
    s->launch = launch_of(p->rec, &all->at[forward], g);
    if (s->launch == UINT32_MAX || !has_any_row(p, g, rows))
        return NOTHING;
    struct subject subject = { g->site, g->layer, rows->at, rows->n, REC_AFTER(s->launch) };
    if (!place(&p->rec->launches[s->launch], g, rows->n, s))
        return WRONG;
    s->error = layout_error(p, &s->layout, &subject);
    return isfinite(s->error) ? RIGHT : WRONG;
}

/* ------------------------------------------------------------------------- evidence */

/* How improbable it is that another number is this one: zeros, ones and small integers lie everywhere. */
static float bits_of(float v, bool whole, float limit)
{
    if (whole || v == 0 || fabsf(v) == 1)
        return 1 + log2f(1 + fabsf(v));
    return -log2f(limit);
}

/* Rows whose evidence was counted, and how often. */
struct counted {
    const float *rows[MAX_COUNTED];
    uint32_t times[MAX_COUNTED];
    uint32_t n, total;
};

/* May what is one of them be the other as well? */
static bool is_alike(const float *a, const float *b, uint32_t n, float limit)
{
    double apart = 0, norm = 0;
    for (uint32_t i = 0; i < n; i++) {
        apart += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)a[i] * a[i];
    }
    return apart <= (double)limit * limit * norm;
}

/* Bits of a row's values, and no more than there are in how often it came: what always comes says nothing. */
static float count(struct counted *c, const float *row, const struct ref_site *site, float limit)
{
    float bits = 0;
    uint32_t i = 0;
    while (i < c->n && !is_alike(c->rows[i], row, site->width, limit))
        i++;
    for (uint32_t k = 0; k < site->width; k++)
        bits += bits_of(row[k], site->whole, limit);
    c->total++;
    if (i < c->n) {
        float again = fminf(bits, log2f((float)c->total / (float)c->times[i]));
        if (++c->times[i] ==
            3) /* a row of few that there are: it was worth less the first time, too */
            again -= fmaxf(0, bits - log2f((float)c->total));
        return again;
    }
    if (c->n == MAX_COUNTED)
        return 0;
    c->rows[c->n] = row;
    c->times[c->n++] = 1;
    return bits;
}

/* Did the launch change row number @index? What was there before, another launch may have left. */
static bool is_fresh(const struct probe *p, const struct sighting *s, uint32_t index,
                     uint32_t width, double *room)
{
    double *before = room, *after = room + width;
    return !layout_row(p, &s->layout, index, width, REC_AFTER(s->launch) - 1, before) ||
           !layout_row(p, &s->layout, index, width, REC_AFTER(s->launch), after) ||
           memcmp(before, after, width * sizeof *before) != 0;
}

static float evidence(const struct probe *p, const struct sighting *s,
                      const struct sight_rows *rows, struct counted *counted)
{
    const struct ref_site *site = &p->ref->sites[s->site];
    float limit = layout_row_limit(p, s->site, s->layout.dtype), bits = 0;
    _cleanup_(freep) double *room = malloc((2 * (size_t)site->width + 1) * sizeof *room);
    for (uint32_t i = 0; room && i < rows->n && counted->n < MAX_COUNTED; i++) {
        const float *row = activations_row(p->ref, s->site, s->layer, rows->at[i]);
        if (row && is_fresh(p, s, i, site->width, room))
            bits += count(counted, row, site, limit);
    }
    return bits;
}

/* ------------------------------------------------------------------------- all forwards */

static uint32_t count_kind(const struct forwards *all, uint32_t kind)
{
    uint32_t n = 0;
    for (size_t i = 0; i < all->n; i++)
        n += all->at[i].kind == kind;
    return n;
}

bool guess_check(const struct probe *p, const struct forwards *all, float needed, struct guess *g)
{
    struct counted counted = { .n = 0 };
    uint32_t right = 0, wrong = 0, most = count_kind(all, g->kind) / 8;
    g->bits = g->error = 0;
    for (uint32_t f = 0; f < all->n && wrong <= most; f++) {
        struct sight_rows rows = { 0 };
        struct sighting s;
        if (all->at[f].kind != g->kind)
            continue;
        enum verdict v =
            sight_rows(p, &all->at[f], g->last, &rows) ? WRONG : judge(p, all, f, g, &rows, &s);
        right += v == RIGHT;
        wrong += v == WRONG;
        if (v == RIGHT) {
            g->bits += evidence(p, &s, &rows, &counted);
            g->error = fmaxf(g->error, s.error);
        }
        free(rows.at);
    }
    g->bits -= (float)wrong * WRONG_COSTS;
    g->certain = g->bits >= needed;
    return 8 * wrong <= right && g->bits > 0;
}

int guess_show(const struct probe *p, const struct forwards *all, const struct guess *g,
               struct sightings *out)
{
    int r = 0;
    for (uint32_t f = 0; !r && f < all->n; f++) {
        struct sight_rows rows = { 0 };
        struct sighting s;
        if (all->at[f].kind != g->kind)
            continue;
        r = sight_rows(p, &all->at[f], g->last, &rows);
        if (!r && judge(p, all, f, g, &rows, &s) == RIGHT)
            r = sight_add(out, &s);
        free(rows.at);
    }
    return r;
}
