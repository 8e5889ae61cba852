/* SPDX-License-Identifier: Apache-2.0 */
/* Sites that are taps: their names, and of which layers they are captured. Source: docs/hookspec.md, "Taps". */
#include "core/comma.h"
#include "policy/nearest.h"
#include "policy/spec_load.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- names */

/* What a tap is called, if it can be. */
static bool is_tap_name(const char *name)
{
    size_t n = 0;
    while (is_name_character(name[n]))
        n++;
    return n && !name[n] && n <= NAME_MAX_BYTES;
}

static bool complain_of_name(struct loader *l, const struct tree_node *node)
{
    size_t n = 0;
    char hint[160], was[128];
    while (tap_names[n])
        n++;
    nearest_hint(node->text, node->n_text, tap_names, n, hint, sizeof hint);
    loader_complain(
        l, node,
        "found %s; expected a tap's name (letters, digits, _ - .; at most %d of them) or "
        "a pattern (* ? [...]) of names that are known%s",
        node_found(node, was, sizeof was), NAME_MAX_BYTES, hint);
    return false;
}

/* The value of tap: of an entry, as DMI-Lib calls it; NULL: it has none. */
static const char *tap_of(const struct tree_node *entry)
{
    const struct tree_node *node = entry->kind == TREE_MAP ? keys_value(entry, "tap") : NULL;
    return node && node->kind == TREE_SCALAR ? tap_canonical(node->text) : NULL;
}

/* Does an entry name the tap by itself? */
static bool is_named(const struct tree_node *list, const char *tap)
{
    for (size_t i = 0; i < list->n_items; i++) {
        const char *other = tap_of(list->items[i]);
        if (other && !strcmp(other, tap))
            return true;
    }
    return false;
}

bool taps_of(const struct tree_node *list, const struct tree_node *node,
             const char *names[TAP_NAMES_MAX], size_t *n)
{
    const char *tap = tap_of(node);
    bool known = false;
    *n = 0;
    if (!tap)
        return false;
    if (!tap_is_pattern(tap)) {
        names[(*n)++] = tap;
        return is_tap_name(tap);
    }
    /* a pattern of gradients ends as their names do: "resid_*" stands for none */
    const char *const *there = tap_is_gradient(tap) ? tap_gradient_names : tap_names;
    for (size_t i = 0; there[i]; i++) {
        bool matches = !fnmatch(tap, there[i], 0);
        known = known || matches;
        if (matches && !is_named(list, there[i]))
            names[(*n)++] = there[i];
    }
    return known;
}

bool site_tap(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    struct spec_site *site = into;
    (void)arg;
    if (!l->n_taps)
        return complain_of_name(l, node);
    site->about.tap = strdup(l->taps[l->tap]);
    site->about.has_layer = true;
    return site->about.tap || loader_no_memory(l);
}

bool site_name_of_tap(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    struct spec_site *site = into;
    if (l->n_taps > 1) {
        loader_complain(l, node,
                        "found a name for a pattern of %zu taps; expected none: each has its own",
                        l->n_taps);
        return false;
    }
    return value_layered_name(l, node, &site->about.name, arg);
}

/* ------------------------------------------------------------------------- layers */

bool layers_add_word(struct spec_layers *layers, const char *text, size_t n)
{
    struct layer_word word;
    if (!layer_word_parse(text, n, &word))
        return false;
    if (word.kind == LAYER_MIDDLE)
        layers->middle = true;
    else if (word.kind == LAYER_FROM_END)
        layers->from_end |= (2u << word.first) - (1u << word.last);
    else if (layers->n < SPEC_MAX_INTERVALS)
        layers->at[layers->n++] = (struct spec_interval){ word.first, word.last };
    else
        return false;
    return true;
}

bool value_layers(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    struct spec_layers *layers = into;
    (void)arg;
    if (!value_nonempty(l, node, "layers, as '3,7-12,last'"))
        return false;
    const char *word;
    size_t n;
    for (const char *at = node->text; comma_next(&at, &word, &n);) {
        char hint[96], what[256];
        if (layers_add_word(layers, word, n))
            continue;
        layer_word_hint(word, n, hint, sizeof hint);
        snprintf(what, sizeof what,
                 "found no layer; expected numbers, intervals as 3-9 or 3-last (at most 16), "
                 "last, last-N or middle, separated by commas%s",
                 hint);
        loader_complain_inside(l, node, (size_t)(word - node->text), what);
        return false;
    }
    return true;
}

bool site_layers(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    return value_layers(l, node, &((struct spec_site *)into)->layers, arg);
}

bool spec_takes_layer(const struct spec_layers *layers, int32_t layer, int32_t n_layers)
{
    if (layer < 0 || (!layers->n && !spec_needs_n_layers(layers)))
        return true;
    for (uint32_t i = 0; i < layers->n; i++)
        if (layer >= layers->at[i].first && layer <= layers->at[i].last)
            return true;
    if (n_layers <= 0 || layer >= n_layers)
        return false;
    int32_t back = n_layers - 1 - layer;
    return (back < 32 && (layers->from_end & 1u << back)) ||
           (layers->middle && layer == n_layers / 2);
}

/* ------------------------------------------------------------------------- matching */

bool spec_match_tap(const struct spec *spec, const char *name, struct spec_match *match)
{
    *match = (struct spec_match){ .kind = -1 };
    for (uint32_t i = 0; i < spec->n_sites && match->n_sites < SPEC_MAX_MATCHES; i++)
        if (spec->sites[i].about.tap && !strcmp(spec->sites[i].about.tap, name))
            match->sites[match->n_sites++] = i;
    return match->n_sites;
}
