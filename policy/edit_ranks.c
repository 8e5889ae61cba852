/* SPDX-License-Identifier: Apache-2.0 */
/* What each rank does of an edit where ranks divide its place. Rules: docs/edits.md, "Several ranks". */
#include "core/any.h"
#include "policy/edit.h"

#include <dmi/dmi.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct edit_ranks edit_ranks_of(const struct dmi_step *step)
{
    return (struct edit_ranks){
        .rank = { [DMI_AXIS_TP] = step->tp_rank,
                  [DMI_AXIS_PP] = step->pp_rank,
                  [DMI_AXIS_DP] = step->dp_rank,
                  [DMI_AXIS_EP] = step->ep_rank },
        .size = { [DMI_AXIS_TP] = step->tp_size,
                  [DMI_AXIS_PP] = step->pp_size,
                  [DMI_AXIS_DP] = step->dp_size,
                  [DMI_AXIS_EP] = step->ep_size },
    };
}

/* Why an edit cannot be done; nothing where @at is NULL. */
struct reason {
    char *at;
    size_t n;
};

__attribute__((format(printf, 2, 3))) static enum edit_by_rank cannot(const struct reason *why,
                                                                      const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (why->at)
        vsnprintf(why->at, why->n, fmt, args);
    va_end(args);
    return EDIT_RANK_CANNOT;
}

/* ------------------------------------------------------------------------- how the place is divided */

static bool same_parts(const struct spec_site *a, const struct spec_site *b)
{
    return spec_same_shard(&a->about, &b->about) && a->parts.n == b->parts.n &&
           !memcmp(a->parts.of, b->parts.of, a->parts.n * sizeof *a->parts.of);
}

/* Does the engine say that it is one process in every respect? */
static bool is_alone(const struct edit_ranks *ranks)
{
    return !ANY(axis, DMI_AXIS_COUNT, ranks->size[axis] > 1);
}

static bool is_divided(const struct spec_site *site, const struct edit_ranks *ranks)
{
    return site->about.shard != DMI_SHARD_NONE &&
           (!ranks || ranks->size[site->about.shard_axis] > 1);
}

/* A place of the edit's name that ranks divide. *@alike: all places of the name are divided as it is. Return: NULL: there is none. */
static const struct spec_site *divided_place(const struct spec *spec, const char *name,
                                             const struct edit_ranks *ranks, bool *alike)
{
    const struct spec_site *found = NULL, *first = NULL;
    *alike = true;
    for (uint32_t i = 0; i < spec->n_sites; i++) {
        const struct spec_site *site = &spec->sites[i];
        if (site->action != SPEC_EDIT || !site->about.name || strcmp(site->about.name, name))
            continue;
        first = first ? first : site;
        *alike = *alike && same_parts(first, site);
        if (!found && is_divided(site, ranks))
            found = site;
    }
    return found;
}

/* ------------------------------------------------------------------------- parts and summands */

static struct dmi_edit_cut cut_of(const struct spec_parts *parts, uint32_t rank, uint32_t size)
{
    struct dmi_edit_cut cut = { rank, 1, size };
    if (!parts->n)
        return cut;
    cut = (struct dmi_edit_cut){ 0, parts->of[rank], 0 };
    for (uint32_t i = 0; i < parts->n; i++) {
        cut.first += i < rank ? parts->of[i] : 0;
        cut.all += parts->of[i];
    }
    return cut;
}

static enum edit_by_rank by_part(const struct spec_site *site, const struct edit_ranks *ranks,
                                 struct dmi_edit_cut *cut, const struct reason *why)
{
    const char *axis = dmi_axis_name(site->about.shard_axis);
    uint32_t size = (uint32_t)ranks->size[site->about.shard_axis];
    if (site->about.shard_dim != 1)
        return cannot(why,
                      "ranks of %s divide dimension %u of %s, and edits are cut along the first "
                      "one after the rows alone",
                      axis, site->about.shard_dim, site->about.name);
    if (site->parts.n && site->parts.n != size)
        return cannot(why,
                      "\"parts\" of %s are of %u ranks, and %s has %u: say the part of each "
                      "rank in the HookSpec",
                      site->about.name, site->parts.n, axis, size);
    *cut = cut_of(&site->parts, (uint32_t)ranks->rank[site->about.shard_axis], size);
    return EDIT_RANK_WRITES;
}

/* A sum grows by what one summand grows by, and by nothing else that edits do. */
static enum edit_by_rank by_summand(const struct edit *edit, const struct spec_site *site,
                                    const struct edit_ranks *ranks, const struct reason *why)
{
    for (uint32_t k = 0; k < edit->n_ops; k++)
        if (!(dmi_edit_traits(edit->ops[k].kind) & DMI_EDIT_ADDS))
            return cannot(why,
                          "each rank of %s has a summand of %s, where nothing but add is possible: "
                          "write at a place that has the sum",
                          dmi_axis_name(site->about.shard_axis), site->about.name);
    return ranks->rank[site->about.shard_axis] ? EDIT_RANK_LEAVES : EDIT_RANK_WRITES;
}

enum edit_by_rank edit_by_rank(const struct edit *edit, const struct spec *spec,
                               const struct edit_ranks *ranks, struct dmi_edit_cut *cut, char *at,
                               size_t n)
{
    const struct reason why = { at, n };
    bool alike;
    *cut = EDIT_WHOLE;
    if (ranks && is_alone(ranks))
        return EDIT_RANK_WRITES;
    const struct spec_site *site = divided_place(spec, edit->site, ranks, &alike);
    if (!site)
        return EDIT_RANK_WRITES;
    if (!ranks)
        return cannot(&why,
                      "ranks may divide %s, and the engine does not say which one this is: it says "
                      "so with each step, or the HookSpec has no \"shard\" there",
                      edit->site);
    if (!alike)
        return cannot(&why, "ranks divide places of the name %s in several ways: give each a name",
                      edit->site);
    return site->about.shard == DMI_SHARD_SUM ? by_summand(edit, site, ranks, &why)
                                              : by_part(site, ranks, cut, &why);
}
