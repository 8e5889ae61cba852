/* SPDX-License-Identifier: Apache-2.0 */
/* What a command leaves of a HookSpec: some of the sites that it captures, in some layers. */
#include "core/cleanup.h"
#include "core/comma.h"
#include "core/err.h"
#include "policy/nearest.h"
#include "policy/spec_load.h"
#include "policy/tap_names.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS_TRIED 4096 /* occurrences whose layers are computed beforehand */

/* ------------------------------------------------------------------------- names */

static bool fits(const char *word, const struct spec_site *site)
{
    return spec_publishes(site) && !fnmatch(tap_canonical(word), site->about.name, 0);
}

/* Marks the sites that @word names. Return: 0; -EINVAL, -ENOMEM with a sentence. */
static int take_word(struct err *err, const struct spec *spec, const char *word, bool *keep)
{
    const char *known[SPEC_MAX_SITES];
    char hint[128], names[300] = "";
    uint32_t n_known = 0, n_taken = 0;
    for (uint32_t i = 0; i < spec->n_sites; i++) {
        const struct spec_site *site = &spec->sites[i];
        uint32_t k = 0;
        while (k < n_known && strcmp(known[k], site->about.name))
            k++;
        if (k == n_known && spec_publishes(site))
            known[n_known++] = site->about.name;
        n_taken += fits(word, site);
        keep[i] |= fits(word, site);
    }
    if (n_taken)
        return 0;
    if (!n_known)
        return err_set(err, -EINVAL,
                       "found \"%s\", and the HookSpec captures no site; places for edits stay as "
                       "they are",
                       word);
    for (uint32_t k = 0; k < n_known; k++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", k ? ", " : "",
                 known[k]);
    nearest_hint(word, strlen(word), known, n_known, hint, sizeof hint);
    return err_set(err, -EINVAL,
                   "found \"%s\", and no site that is captured is called so%s; expected some of %s",
                   word, hint, names);
}

static int take_names(struct err *err, const struct spec *spec, const char *list, bool *keep)
{
    const char *word;
    size_t n;
    for (uint32_t i = 0; !list && i < spec->n_sites; i++)
        keep[i] = spec_publishes(&spec->sites[i]);
    for (const char *at = list; comma_next(&at, &word, &n);) {
        _cleanup_(freep) char *own = strndup(word, n);
        if (!own)
            return err_set(err, -ENOMEM, "no memory");
        TRY(take_word(err, spec, own, keep));
    }
    return 0;
}

/* ------------------------------------------------------------------------- layers */

static int read_layers(struct err *err, const char *list, struct spec_layers *out)
{
    const char *word;
    size_t n;
    *out = (struct spec_layers){ 0 };
    for (const char *at = list; comma_next(&at, &word, &n);) {
        char hint[96];
        if (layers_add_word(out, word, n))
            continue;
        layer_word_hint(word, n, hint, sizeof hint);
        return err_set(
            err, -EINVAL,
            "found \"%.*s\" among the layers; expected numbers, intervals as 3-9 (at most "
            "16), last or middle, separated by commas%s",
            (int)n, word, hint);
    }
    return 0;
}

/* Can the site have one of the layers? Where that is not known it can. */
static bool may_have(const struct spec_site *site, const struct spec_layers *layers)
{
    static const uint32_t zero[3];
    if (site->about.tap || site->nvtx.layer)
        return true;
    uint64_t end = site->last_occurrence, n = 0;
    for (uint64_t occ = site->first_occurrence; occ <= end; occ += site->every_occurrence) {
        struct expr_env env = { .grid = zero, .block = zero, .occ = (int64_t)occ };
        int64_t layer;
        if (n++ == LAYERS_TRIED || expr_eval(site->layer, &env, &layer) ||
            spec_takes_layer(layers, (int32_t)layer, 0))
            return true;
        if (expr_is_constant(site->layer))
            return false;
    }
    return false;
}

static int take_layers(struct err *err, struct spec *spec, const char *list, const bool *keep)
{
    struct spec_layers layers;
    bool any = false;
    TRY(read_layers(err, list, &layers));
    for (uint32_t i = 0; i < spec->n_sites; i++) {
        struct spec_site *site = &spec->sites[i];
        if (!keep[i] || !site->about.has_layer)
            continue;
        if (!site->about.tap && spec_needs_n_layers(&layers))
            return err_set(err, -EINVAL,
                           "found \"%s\", and the site \"%s\" is a kernel's; expected numbers of "
                           "layers: kernels do not say how many there are",
                           list, site->about.name);
        any |= may_have(site, &layers);
        site->only = layers;
    }
    return any ? 0
               : err_set(err, -EINVAL,
                         "found the layers \"%s\", which no site that is captured has", list);
}

/* ------------------------------------------------------------------------- leaving out */

/* The places of an entry say its problems from now on. */
static void leave_entry(struct spec *spec, const struct spec_site *site)
{
    for (uint32_t i = 0; i < spec->n_sites; i++)
        if (spec->sites[i].line == site->line &&
            !strcmp(spec->sites[i].about.name, site->about.name))
            spec->sites[i].write.captured = SPEC_CAPTURED_NONE;
}

static void leave_others(struct spec *spec, const bool *keep)
{
    struct regexes *all = spec->regexes;
    uint32_t n = 0;
    spec->has_kernels = spec->has_taps = false;
    for (uint32_t i = 0; i < spec->n_sites; i++)
        if (spec_publishes(&spec->sites[i]) && !keep[i])
            leave_entry(spec, &spec->sites[i]);
    for (uint32_t i = 0; i < spec->n_sites; i++) {
        struct spec_site *site = &spec->sites[i];
        if (spec_publishes(site) && !keep[i]) {
            spec_site_deinit(site);
            continue;
        }
        all->of_site[n] = all->of_site[i];
        spec->sites[n] = *site;
        spec->sites[n].about.id = n;
        spec->has_taps |= site->about.tap != NULL;
        spec->has_kernels |= !site->about.tap;
        n++;
    }
    spec->n_sites = n;
}

int spec_narrow(struct err *err, struct spec *spec, const char *sites, const char *layers)
{
    _cleanup_(freep) bool *keep = calloc(spec->n_sites + 1, sizeof *keep);
    if (!keep)
        return err_set(err, -ENOMEM, "no memory");
    TRY(take_names(err, spec, sites, keep));
    if (layers)
        TRY(take_layers(err, spec, layers, keep));
    leave_others(spec, keep);
    return 0;
}
