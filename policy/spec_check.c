/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What no entry of a HookSpec shows alone: sites that collide, kernels with too many of them, tensors that are
 * absent and captured.
 */
#include "policy/spec_load.h"

#include <string.h>

#define CROWD_MAX_WORK 65536 /* searches that check_crowd() may do */

static bool same_text(const char *a, const char *b)
{
    return a && b && !strcmp(a, b);
}

bool spec_uses_occurrence(const struct spec_site *site)
{
    unsigned uses = site->offset ? expr_uses(site->offset) : 0;
    for (uint32_t i = 0; i < site->n_dims; i++) {
        const struct spec_dim *d = &site->dims[i];
        const struct expr *all[] = { d->count, d->stride, d->slots.block, d->slots.block_stride };
        for (size_t e = 0; e < sizeof all / sizeof *all; e++)
            uses |= all[e] ? expr_uses(all[e]) : 0;
    }
    return uses & EXPR_USES_OCC;
}

bool spec_counts_layers(const struct spec_site *site)
{
    return spec_uses_occurrence(site) || (site->layer && expr_uses(site->layer) & EXPR_USES_OCC);
}

bool spec_needs_occurrence(const struct spec_site *site, bool layer)
{
    return site->first_occurrence || site->last_occurrence != UINT32_MAX ||
           site->every_occurrence != 1 ||
           (layer ? spec_counts_layers(site) : spec_uses_occurrence(site));
}

/* Do they take the same kernels of the same ranges, or have nothing to do with ranges? */
static bool same_range(const struct spec_nvtx *a, const struct spec_nvtx *b)
{
    if (!a->pattern || !b->pattern)
        return a->pattern == b->pattern;
    return same_text(a->pattern, b->pattern) && a->which == b->which && a->n == b->n &&
           a->layer == b->layer;
}

bool same_kernels(const struct spec_site *a, const struct spec_site *b)
{
    bool any = !a->about.kernel && !b->about.kernel && a->nvtx.pattern;
    return (any || same_text(a->about.kernel, b->about.kernel)) && same_range(&a->nvtx, &b->nvtx);
}

bool layers_meet(const struct spec_layers *a, const struct spec_layers *b)
{
    for (uint32_t i = 0; i < a->n; i++)
        for (uint32_t k = 0; k < b->n; k++)
            if (a->at[i].first <= b->at[k].last && b->at[k].first <= a->at[i].last)
                return true;
    /* of lists with words nobody knows ahead, and one without an entry takes all */
    return spec_needs_n_layers(a) || spec_needs_n_layers(b) || !a->n || !b->n;
}

/* Is there an occurrence that both take? With different steps it is enough that one could be. */
static bool occurrences_meet(const struct spec_site *a, const struct spec_site *b)
{
    uint32_t common = a->every_occurrence, rest = b->every_occurrence;
    while (rest) {
        uint32_t next = common % rest;
        common = rest;
        rest = next;
    }
    return a->first_occurrence <= b->last_occurrence && b->first_occurrence <= a->last_occurrence &&
           a->first_occurrence % common == b->first_occurrence % common;
}

/* Would both store the same key for the same launch? */
static bool collide(const struct spec_site *a, const struct spec_site *b)
{
    const struct dmi_site *x = &a->about, *y = &b->about;
    if (a->action != b->action && (spec_is_place(a) || spec_is_place(b)))
        return false; /* a place stores nothing */
    if (!same_text(x->name, y->name) || (a->kind >= 0 && b->kind >= 0 && a->kind != b->kind))
        return false;
    if (same_text(x->tap, y->tap))
        return layers_meet(&a->layers, &b->layers);
    return same_kernels(a, b) && occurrences_meet(a, b) && expr_same(a->layer, b->layer);
}

void check_site_is_new(struct loader *l, const struct tree_node *node)
{
    const struct spec_site *sites = l->spec->sites, *site = &sites[l->spec->n_sites - 1];
    const struct spec_site *other = sites;
    while (other < site && !collide(other, site))
        other++;
    if (other < site)
        loader_complain(
            l, node,
            site->about.tap
                ? "found the site \"%s\" again for the same tap, forward and layers (first "
                  "at line %d); expected them or the name to differ"
                : "found the site \"%s\" again for the same kernel, forward "
                  "and occurrences (first at line %d); expected them, the "
                  "name or the layer to differ",
            site->about.name, other->line);
}

const struct tree_node *entry_of(const struct tree_node *list, const struct spec_site *site)
{
    size_t i = 0;
    while (i + 1 < list->n_items && (int)list->items[i]->line != site->line)
        i++;
    return list->items[i];
}

/*
 * A pattern and those that match its kernels. A pattern that is one name shows which others match it, too; of the
 * rest only equal ones are known to.
 */
static void check_pattern(struct loader *l, const struct tree_node *list,
                          const struct pattern *pattern, size_t *work)
{
    const struct spec *spec = l->spec;
    const struct regexes *all = spec->regexes;
    char name[PATTERN_MAX_TEXT + 1] = "";
    if (pattern->literal && *work < CROWD_MAX_WORK)
        memcpy(name, pattern->text + 1, strlen(pattern->text) - 2);
    uint32_t n = 0;
    for (uint32_t s = 0; s < spec->n_sites; s++) {
        if (!spec->sites[s].about.kernel || spec->sites[s].nvtx.pattern)
            continue;
        const struct pattern *other = &all->patterns[all->of_site[s]];
        *work += !other->literal && *name;
        if (other != pattern && (other->literal || !*name || !pattern_matches(other, name)))
            continue;
        if (++n == SPEC_MAX_MATCHES + 1)
            loader_complain(l, entry_of(list, &spec->sites[s]),
                            "found more than %d sites on the kernel \"%.100s\"; "
                            "expected fewer",
                            SPEC_MAX_MATCHES, pattern->text);
    }
}

void check_crowd(struct loader *l, const struct tree_node *list)
{
    const struct regexes *all = l->spec->regexes;
    size_t work = 0;
    for (size_t p = 0; p < all->n; p++)
        check_pattern(l, list, &all->patterns[p], &work);
}

void check_counted_layers(struct loader *l, const struct tree_node *list)
{
    const struct spec *spec = l->spec;
    for (uint32_t s = 0; s < spec->n_sites && !spec->n_kinds && !l->report.n_lines; s++) {
        const struct spec_site *site = &spec->sites[s];
        if (!spec_counts_layers(site))
            continue;
        loader_warn(l, entry_of(list, site),
                    "found the site \"%s\" with %s that is counted, and no \"forward\"; "
                    "expected one, unless the engine says its steps, which begin forwards then: "
                    "else all of the run is one, and layers go on beyond those of the model",
                    site->about.name, spec_uses_occurrence(site) ? "a place" : "a layer");
        return;
    }
}

void check_absent(struct loader *l, const struct tree_node *node, const struct spec_absent *absent)
{
    const struct spec *spec = l->spec;
    for (uint32_t s = 0; s < spec->n_sites; s++) {
        const struct spec_site *site = &spec->sites[s];
        if (!site->about.name || strcmp(site->about.name, absent->name) ||
            (absent->kind >= 0 && site->kind >= 0 && absent->kind != site->kind))
            continue;
        loader_complain(l, keys_value(node, "name"),
                        "found \"%s\" listed as absent, though the site at line %d captures it; "
                        "expected \"forward: KIND\" in both, or one of the two",
                        absent->name, site->line);
        return;
    }
}
