/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/guessing.h"

#include "core/any.h"
#include "core/grow.h"
#include "tools/sites/look.h"
#include "tools/sites/seed.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ROWS    64u   /* different rows of a layer that are looked for */
#define MAX_COLUMNS 16u   /* elements of which the columns are looked for */
#define MIN_COLUMN  8u    /* rows that tell a column from others */
#define NO_CHANCE   26.f  /* bits beyond those that say which place it is: one in 60 million */
#define INTEGER     1e-7f /* error of what is the same */

/* What is looked for: rows, or columns; and in how many forwards of a kind at most. */
struct way {
    bool whole, turned;
    uint32_t types;
    uint8_t most;
};

static const struct way ways[] = {
    { .types = VIEW_FLOATS, .most = 4 },
    { .whole = true, .types = VIEW_INTEGERS, .most = 4 },
    { .turned = true, .types = VIEW_FLOATS, .most = 2 },
    { .turned = true, .whole = true, .types = VIEW_INTEGERS, .most = 2 },
};

struct guessing {
    const struct probe *probe;
    const struct forwards *forwards;
    struct sightings *out;
    const struct way *way;
    uint32_t forward; /* under way */
    uint32_t n_layers;
    uint8_t *tried;  /* [kind][site]: forwards */
    bool *seen;      /* [site][layer + 1]: in the forward under way */
    float **columns; /* of the forward under way */
    size_t n_columns, room_columns;
    struct guesses found, doubtful;
};

/* ------------------------------------------------------------------------- what is still to be found */

static bool *seen_at(const struct guessing *g, uint32_t site, int layer)
{
    return &g->seen[site * (g->n_layers + 1) + (uint32_t)(layer + 1)];
}

static void mark_seen(struct guessing *g)
{
    memset(g->seen, 0, g->probe->ref->n_sites * (g->n_layers + 1) * sizeof *g->seen);
    for (size_t i = 0; i < g->out->n; i++)
        if (g->out->at[i].forward == g->forward)
            *seen_at(g, g->out->at[i].site, g->out->at[i].layer) = true;
}

static const struct forward *under_way(const struct guessing *g)
{
    return &g->forwards->at[g->forward];
}

static bool is_of_this_way(const struct guessing *g, uint32_t site)
{
    const struct ref_site *s = &g->probe->ref->sites[site];
    if (s->whole != g->way->whole)
        return false;
    if (g->way->turned)
        return s->width > 1 && under_way(g)->n_rows >= MIN_COLUMN;
    return s->whole ? s->width > 1 || s->n_layers > 0 : s->width < PROBE_FEWEST;
}

/* ------------------------------------------------------------------------- what is looked for */

/* The first tensor of the site's layer; NULL: the reference has none of the forward's rows. */
static const struct ref_tensor *tensor_of(const struct guessing *g, uint32_t site, int layer)
{
    const struct activations *ref = g->probe->ref;
    const struct ref_tensor *t = NULL;
    for (uint32_t i = 0; !t && i < under_way(g)->n_rows; i++)
        t = activations_tensor(ref, site, layer, under_way(g)->rows[i]);
    while (t && t > ref->tensors && t[-1].site == site && t[-1].layer == layer)
        t--;
    return t;
}

static bool is_known(const float *const *rows, uint32_t n, const float *row, uint32_t width)
{
    return ANY(i, n, !memcmp(rows[i], row, width * sizeof *row));
}

static int look_for_rows(struct guessing *g, struct look *look, const struct ref_tensor *t)
{
    const float *rows[MAX_ROWS];
    uint32_t n = 0;
    int r = 0;
    for (uint32_t i = 0; !r && i < under_way(g)->n_rows && n < MAX_ROWS; i++) {
        const float *row = activations_row(g->probe->ref, t->site, t->layer, under_way(g)->rows[i]);
        if (!row || is_known(rows, n, row, t->width))
            continue;
        rows[n++] = row;
        r = look_for(look, row, t->width, (uint32_t)(t - g->probe->ref->tensors), i);
    }
    return r;
}

/* The beginning of the column of an element. Return: false: the reference lacks a row. */
static bool read_column(const struct guessing *g, const struct ref_tensor *t, uint32_t element,
                        uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i++) {
        const float *row = activations_row(g->probe->ref, t->site, t->layer, under_way(g)->rows[i]);
        if (!row)
            return false;
        out[i] = row[element];
    }
    return true;
}

static int look_for_columns(struct guessing *g, struct look *look, const struct ref_tensor *t)
{
    uint32_t n_rows = under_way(g)->n_rows, n = n_rows < PROBE_VALUES ? n_rows : PROBE_VALUES;
    uint32_t n_elements = t->width < MAX_COLUMNS ? t->width : MAX_COLUMNS;
    int r = 0;
    for (uint32_t e = 0; !r && e < n_elements; e++) {
        float *column = malloc(PROBE_VALUES * sizeof *column);
        if (!column ||
            grow((void **)&g->columns, g->n_columns, &g->room_columns, sizeof(float *), 64)) {
            free(column);
            return -ENOMEM;
        }
        g->columns[g->n_columns++] = column;
        if (!read_column(g, t, e, n, column))
            return 0;
        r = look_for(look, column, n, (uint32_t)(t - g->probe->ref->tensors), e);
    }
    return r;
}

static void drop_columns(struct guessing *g)
{
    for (size_t i = 0; i < g->n_columns; i++)
        free(g->columns[i]);
    g->n_columns = 0;
}

static int look_for_site(struct guessing *g, struct look *look, uint32_t site)
{
    const struct ref_site *s = &g->probe->ref->sites[site];
    uint8_t *tried = &g->tried[under_way(g)->kind * g->probe->ref->n_sites + site];
    bool any = false;
    int r = 0;
    if (*tried == g->way->most || !is_of_this_way(g, site))
        return 0;
    for (int l = REF_NO_LAYER; !r && l < s->n_layers; l++) {
        const struct ref_tensor *t = *seen_at(g, site, l) ? NULL : tensor_of(g, site, l);
        if (t)
            r = g->way->turned ? look_for_columns(g, look, t) : look_for_rows(g, look, t);
        any = any || t;
    }
    *tried += any;
    return r;
}

/* ------------------------------------------------------------------------- what the others bear out */

/* Is @g a part of the larger numbers that @x has there? The upper half of an f32 is a bf16. */
static bool is_part_of(const struct guess *g, const struct guess *x)
{
    int64_t from = g->distance - x->distance, size = dmi_dtype_bytes(x->layout.dtype);
    return x->certain && x->site == g->site && x->layer == g->layer && x->kernel == g->kernel &&
           x->occ == g->occ && x->offset == g->offset && from >= 0 && from < size &&
           size > dmi_dtype_bytes(g->layout.dtype);
}

/* Is @x, of the same kernel, much nearer to the reference? */
static bool is_like(const struct guess *g, const struct guess *x)
{
    return x->certain && x->site == g->site && x->layer == g->layer && x->kernel == g->kernel &&
           g->error > 4 * x->error + 1e-5f;
}

static bool is_another(const struct guesses *all, const struct guess *g)
{
    return ANY(i, all->n, is_part_of(g, &all->at[i]) || is_like(g, &all->at[i]));
}

/* Of the doubtful ones of a layer the likeliest is kept. */
static int keep_doubtful(struct guesses *all, const struct guess *g)
{
    for (size_t i = 0; i < all->n; i++) {
        struct guess *x = &all->at[i];
        if (x->kind != g->kind || x->site != g->site || x->layer != g->layer)
            continue;
        if (g->bits > x->bits)
            *x = *g;
        return 0;
    }
    if (grow((void **)&all->at, all->n, &all->room, sizeof *g, 16))
        return -ENOMEM;
    all->at[all->n++] = *g;
    return 0;
}

/* Is another layer certain to lie in the same place at another launch? Then there are few places to choose from. */
static bool is_among_layers(const struct guesses *all, const struct guess *g)
{
    for (size_t i = 0; g->bits >= NO_CHANCE && i < all->n; i++) {
        const struct guess *x = &all->at[i];
        if (x->certain && x->site == g->site && x->layer != g->layer && x->kernel == g->kernel &&
            x->occ != g->occ && x->offset == g->offset && x->distance == g->distance &&
            x->layout.dtype == g->layout.dtype)
            return true;
    }
    return false;
}

/* Takes out what the other forwards do not bear out. */
static void check_all(struct guessing *g, uint64_t n_places)
{
    float needed = NO_CHANCE + log2f((float)n_places + 1);
    size_t n = 0;
    for (size_t i = 0; i < g->found.n; i++) {
        struct guess x = g->found.at[i];
        if (guess_check(g->probe, g->forwards, needed, &x))
            g->found.at[n++] = x;
    }
    g->found.n = n;
    for (size_t i = 0; i < n; i++)
        if (is_among_layers(&g->found, &g->found.at[i]))
            g->found.at[i].certain = true;
}

static int judge(struct guessing *g, uint64_t n_places)
{
    int r = 0;
    check_all(g, n_places);
    for (size_t i = 0; !r && i < g->found.n; i++) {
        const struct guess *x = &g->found.at[i];
        if (!x->certain)
            r = keep_doubtful(&g->doubtful, x);
        else if (!is_another(&g->found, x))
            r = guess_show(g->probe, g->forwards, x, g->out);
    }
    return r;
}

/* Those of what nothing better was found for. */
static int show_doubtful(struct guessing *g)
{
    size_t n = g->out->n;
    int r = 0;
    for (size_t i = 0; !r && i < g->doubtful.n; i++) {
        const struct guess *x = &g->doubtful.at[i];
        bool found = false;
        for (size_t k = 0; k < n && !found; k++)
            found = g->out->at[k].site == x->site && g->out->at[k].layer == x->layer &&
                    g->forwards->at[g->out->at[k].forward].kind == x->kind;
        if (!found)
            r = guess_show(g->probe, g->forwards, x, g->out);
    }
    return r;
}

/* ------------------------------------------------------------------------- all forwards */

static int look_at_forward(struct guessing *g)
{
    struct look look = { .probe = g->probe, .types = g->way->types, .most = LOOK_MOST };
    int r = 0;
    look.error = g->way->whole    ? INTEGER
                 : g->way->turned ? PROBE_ERROR
                                  : g->probe->usual + view_rounding(DMI_DTYPE_BF16);
    mark_seen(g);
    for (uint32_t s = 0; !r && s < g->probe->ref->n_sites; s++)
        r = look_for_site(g, &look, s);
    bool any = look.index.n;
    if (!r && any)
        r = look_at(&look, under_way(g)->begin, under_way(g)->end);
    g->found.n = 0;
    if (!r && any)
        r = seed_find(g->probe, g->forwards, g->forward, g->way->turned, &look.hits, &g->found);
    if (!r)
        r = judge(g, look.n_places);
    look_deinit(&look);
    drop_columns(g);
    return r;
}

/* Those of many rows first: they suggest little that is not so. Return: NULL: no memory. */
static uint32_t *order_forwards(const struct forwards *all)
{
    uint32_t *order = malloc((all->n + 1) * sizeof *order);
    for (uint32_t i = 0; order && i < all->n; i++) {
        uint32_t at = i;
        for (; at && all->at[order[at - 1]].n_rows < all->at[i].n_rows; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    return order;
}

static int look_each_way(struct guessing *g, const uint32_t *order, size_t n_tried)
{
    int r = 0;
    for (size_t w = 0; !r && w < sizeof ways / sizeof *ways; w++) {
        g->way = &ways[w];
        memset(g->tried, 0, n_tried);
        for (size_t i = 0; !r && i < g->forwards->n; i++) {
            g->forward = order[i];
            r = look_at_forward(g);
        }
    }
    return r ? r : show_doubtful(g);
}

int guessing_look(const struct probe *probe, const struct forwards *forwards,
                  const struct kinds *kinds, struct sightings *out)
{
    struct guessing g = { .probe = probe, .forwards = forwards, .out = out };
    size_t n_sites = probe->ref->n_sites, n_tried = kinds->n * n_sites;
    for (size_t s = 0; s < n_sites; s++)
        if (probe->ref->sites[s].n_layers > (int)g.n_layers)
            g.n_layers = (uint32_t)probe->ref->sites[s].n_layers;
    g.tried = malloc(n_tried + 1);
    g.seen = malloc(n_sites * (g.n_layers + 1) + 1);
    uint32_t *order = order_forwards(forwards);
    int r = g.tried && g.seen && order ? look_each_way(&g, order, n_tried) : -ENOMEM;
    drop_columns(&g);
    free(order);
    free(g.tried);
    free(g.seen);
    free(g.columns);
    free(g.found.at);
    free(g.doubtful.at);
    return r;
}
