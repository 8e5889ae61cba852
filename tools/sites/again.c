/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/again.h"

#include "core/any.h"
#include "tools/sites/look.h"

#include <stdlib.h>

/* ------------------------------------------------------------------------- what is still to be found */

/* Has the reference a row of the forward? */
static bool is_needed(const struct probe *p, const struct forward *f, uint32_t site, int layer)
{
    return ANY(i, f->n_rows, activations_row(p->ref, site, layer, f->rows[i]));
}

static bool is_sighted(const struct sightings *all, uint32_t forward, uint32_t site, int layer)
{
    return ANY(i, all->n,
               all->at[i].forward == forward && all->at[i].site == site &&
                   all->at[i].layer == layer);
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

/* ------------------------------------------------------------------------- floats of 8 bits */

static int add_rows(struct look *look, const struct forward *f, uint32_t site, int layer)
{
    const struct activations *ref = look->probe->ref;
    int r = 0;
    for (uint32_t i = 0; !r && i < f->n_rows; i++) {
        const struct ref_tensor *t = activations_tensor(ref, site, layer, f->rows[i]);
        if (t)
            r = look_for(look, activations_row(ref, site, layer, f->rows[i]), t->width,
                         (uint32_t)(t - ref->tensors), f->rows[i]);
    }
    return r;
}

static int look_at_forward(struct look *look, const struct forward *f, const bool *open)
{
    const struct activations *ref = look->probe->ref;
    int r = 0;
    for (uint32_t s = 0; s < ref->n_sites; s++)
        for (int l = REF_NO_LAYER; open[s] && !r && l < ref->sites[s].n_layers; l++)
            r = add_rows(look, f, s, l);
    return r ? r : look_at(look, f->begin, f->end);
}

int again_small(const struct probe *probe, const struct forwards *forwards, const bool *open,
                struct sightings *sightings)
{
    struct look look = {
        .probe = probe, .types = VIEW_SMALL_FLOATS, .error = PROBE_ERROR, .most = LOOK_MOST
    };
    int r = 0;
    for (uint32_t f = 0; !r && f < forwards->n; f++)
        r = look_at_forward(&look, &forwards->at[f],
                            open + forwards->at[f].kind * probe->ref->n_sites);
    probe_sort(&look.hits);
    if (!r)
        r = sight_hits(probe, forwards, &look.hits, sightings);
    look_deinit(&look);
    return r;
}
