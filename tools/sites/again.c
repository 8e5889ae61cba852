/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/again.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <stdlib.h>

/* Ways to look, each with types of its own. */
enum look { LOOK_SMALL, N_LOOKS };

#define BIT(dtype) (1u << (dtype))
static const uint32_t types[N_LOOKS] = {
    [LOOK_SMALL] = BIT(DMI_DTYPE_F8E4M3) | BIT(DMI_DTYPE_F8E5M2),
};

struct again {
    const struct probe *probe;
    const struct forwards *forwards;
    const bool *open;
    struct index index[N_LOOKS]; /* rows of the forward under way */
    struct hits hits[N_LOOKS];
};

/* ------------------------------------------------------------------------- what is still to be found */

/* Has the reference a row of the forward? */
static bool is_needed(const struct probe *p, const struct forward *f, uint32_t site, int layer)
{
    for (uint32_t i = 0; i < f->n_rows; i++)
        if (activations_row(p->ref, site, layer, f->rows[i]))
            return true;
    return false;
}

static bool is_sighted(const struct sightings *all, uint32_t forward, uint32_t site, int layer)
{
    for (size_t i = 0; i < all->n; i++)
        if (all->at[i].forward == forward && all->at[i].site == site && all->at[i].layer == layer)
            return true;
    return false;
}

/* Are less than half of the forwards and layers seen? What few show are likenesses. */
static bool is_open(const struct probe *p, const struct forwards *all,
                    const struct sightings *sightings, uint32_t kind, uint32_t site)
{
    uint32_t wanted = 0, seen = 0;
    for (uint32_t f = 0; f < all->n; f++)
        for (int l = REF_NO_LAYER; all->at[f].kind == kind && l < p->ref->sites[site].n_layers; l++)
            if (is_needed(p, &all->at[f], site, l)) {
                wanted++;
                seen += is_sighted(sightings, f, site, l);
            }
    return 2 * seen < wanted;
}

bool *again_open(const struct probe *p, const struct forwards *forwards, const struct kinds *kinds,
                 const struct sightings *sightings)
{
    size_t n_sites = p->ref->n_sites;
    bool *open = calloc(kinds->n * n_sites + 1, sizeof *open);
    for (uint32_t k = 0; open && k < kinds->n; k++)
        for (uint32_t s = 0; s < n_sites; s++)
            open[k * n_sites + s] = !p->ref->sites[s].whole &&
                                    p->ref->sites[s].width >= PROBE_FEWEST &&
                                    is_open(p, forwards, sightings, k, s);
    return open;
}

/* ------------------------------------------------------------------------- what is looked for */

static int add_row(struct again *a, enum look look, uint32_t site, int layer, uint32_t row)
{
    const struct activations *ref = a->probe->ref;
    const struct ref_tensor *t = activations_tensor(ref, site, layer, row);
    if (!t)
        return 0;
    struct pattern p = { .values = activations_row(ref, site, layer, row),
                         .tensor = (uint32_t)(t - ref->tensors),
                         .number = row };
    p.n = (uint16_t)(t->width < PROBE_VALUES ? t->width : PROBE_VALUES);
    return index_add(&a->index[look], &p);
}

static int add_site(struct again *a, const struct forward *f, uint32_t site)
{
    int r = 0;
    if (!a->open[f->kind * a->probe->ref->n_sites + site])
        return 0;
    for (int l = REF_NO_LAYER; l < a->probe->ref->sites[site].n_layers; l++)
        for (uint32_t i = 0; !r && i < f->n_rows; i++)
            r = add_row(a, LOOK_SMALL, site, l, f->rows[i]);
    return r;
}

static void drop_index(struct again *a)
{
    for (int k = 0; k < N_LOOKS; k++)
        index_deinit(&a->index[k]);
}

static int build_index(struct again *a, const struct forward *f)
{
    int r = 0;
    for (uint32_t s = 0; !r && s < a->probe->ref->n_sites; s++)
        r = add_site(a, f, s);
    for (int k = 0; !r && k < N_LOOKS; k++)
        r = index_build(&a->index[k], 1);
    return r;
}

/* ------------------------------------------------------------------------- looking */

static int scan(struct again *a, enum look look, uint32_t launch, const struct view *v)
{
    const struct index *index = &a->index[look];
    float limit = PROBE_ERROR + view_rounding(v->dtype);
    for (size_t i = 0; i < v->n; i++) {
        struct index_span near = { 0, 0 };
        if (v->fresh[i])
            near = index_near(index, v->values[i], v->dtype);
        for (uint32_t k = near.from; k < near.to; k++)
            if (probe_may_be(v, i, &index->patterns[k], limit) &&
                probe_pattern(v, i, &index->patterns[k], 1, limit, launch, &a->hits[look]))
                return -ENOMEM;
    }
    return 0;
}

static bool uses(const struct again *a, enum look look, uint32_t dtype)
{
    return a->index[look].n && types[look] & BIT(dtype);
}

static int scan_as(struct again *a, uint32_t launch, const struct rec_run *run,
                   const uint8_t *changed, uint32_t dtype)
{
    struct view v = { 0 };
    int r = 0;
    for (int k = 0; !r && k < N_LOOKS; k++) {
        if (!uses(a, k, dtype))
            continue;
        r = v.values ? 0 : view_open(run, changed, dtype, &v);
        if (!r)
            r = scan(a, k, launch, &v);
    }
    view_deinit(&v);
    return r;
}

static int look_at_launch(struct again *a, uint32_t launch)
{
    const struct rec_launch *l = &a->probe->rec->launches[launch];
    int r = 0;
    for (size_t i = 0; !r && i < l->n_runs; i++) {
        const struct rec_run *run = &a->probe->rec->runs[l->first_run + i];
        uint8_t *changed = view_changes(a->probe->memory, run);
        r = changed ? 0 : -ENOMEM;
        for (uint32_t d = 1; !r && d < DMI_DTYPE_COUNT; d++)
            r = scan_as(a, launch, run, changed, d);
        free(changed);
    }
    return r;
}

static int look_at_forward(struct again *a, uint32_t forward)
{
    const struct forward *f = &a->forwards->at[forward];
    bool any = false;
    int r = build_index(a, f);
    for (int k = 0; k < N_LOOKS; k++)
        any = any || a->index[k].n;
    for (uint32_t l = f->begin; any && !r && l < f->end; l++)
        r = look_at_launch(a, l);
    drop_index(a);
    return r;
}

int again_look(const struct probe *probe, const struct forwards *forwards, const bool *open,
               struct sightings *sightings)
{
    struct again a = { .probe = probe, .forwards = forwards, .open = open };
    int r = 0;
    for (uint32_t f = 0; !r && f < forwards->n; f++)
        r = look_at_forward(&a, f);
    probe_sort(&a.hits[LOOK_SMALL]);
    if (!r)
        r = sight_hits(probe, forwards, &a.hits[LOOK_SMALL], sightings);
    for (int k = 0; k < N_LOOKS; k++)
        free(a.hits[k].at);
    return r;
}
