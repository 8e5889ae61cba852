/* SPDX-License-Identifier: Apache-2.0 */
/* The section `overload` of a HookSpec. Source: docs/pressure.md. */
#include "policy/spec_load.h"

#include "core/cleanup.h"

#include <errno.h>
#include <fnmatch.h>
#include <stddef.h>
#include <stdlib.h>

#define DEFAULT_WAIT_MS 100
#define MAX_WAIT_MS     60000
#define MAX_RATE        ((int64_t)1 << 46) /* bytes a second */

static bool wait_ms(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    int64_t ms;
    if (!value_integer(l, node, &ms, arg))
        return false;
    *(uint64_t *)into = (uint64_t)ms * 1000000;
    return true;
}

static bool share(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    char was[128];
    double v;
    if (!value_scale(l, node, &v, arg))
        return false;
    if (v <= 0 || v > 1) {
        loader_complain(l, node, "found %s; expected a share above 0 and at most 1, such as 0.25",
                        node_found(node, was, sizeof was));
        return false;
    }
    *(double *)into = v;
    return true;
}

static bool keep(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    struct overload *o = into;
    if (!keys_list(l, node, "patterns of requests", OVERLOAD_MAX_KEEP))
        return false;
    for (size_t i = 0; i < node->n_items; i++)
        if (!value_requests(l, node->items[i], &o->keep[o->n_keep++], NULL))
            return false;
    return true;
}

/* ------------------------------------------------------------------------- budgets */

/* A bucket for @sites, a scalar, or NULL for the process. */
static bool add_budget(struct loader *l, struct overload *o, const struct tree_node *sites,
                       const struct tree_node *rate)
{
    if (o->n_budgets == OVERLOAD_MAX_BUDGETS) {
        loader_complain(l, rate, "found more than %d budgets", OVERLOAD_MAX_BUDGETS);
        return false;
    }
    struct overload_budget *b = &o->budgets[o->n_budgets++];
    return (!sites || value_string(l, sites, &b->sites, NULL)) &&
           value_size(l, rate, &b->bytes_per_s, RANGE(1, MAX_RATE));
}

static bool process_budget(struct loader *l, const struct tree_node *node, void *into,
                           const void *arg)
{
    (void)arg;
    return add_budget(l, into, NULL, node);
}

static bool site_budgets(struct loader *l, const struct tree_node *node, void *into,
                         const void *arg)
{
    (void)arg;
    char was[128];
    if (node->kind != TREE_MAP || !node->n_items) {
        loader_complain(l, node,
                        "found %s; expected patterns of sites' names, each with bytes a second",
                        node_found(node, was, sizeof was));
        return false;
    }
    for (size_t i = 0; i < node->n_items; i += 2)
        if (!add_budget(l, into, node->items[i], node->items[i + 1]))
            return false;
    return true;
}

static const struct key budget_keys[] = {
    { "process", false, process_budget, 0, NULL },
    { "sites", false, site_budgets, 0, NULL },
};

static bool budget(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    return keys_read(l, node, "a budget", budget_keys, N_OF(budget_keys), into);
}

/* ------------------------------------------------------------------------- the section */

#define AT(field) offsetof(struct overload, field)

static const struct key overload_keys[] = {
    { "mode", true, value_word, AT(mode),
      WORDS([OVERLOAD_DROP] = "drop", [OVERLOAD_BEST_EFFORT] = "best-effort",
            [OVERLOAD_COMPLETE] = "complete") },
    { "wait_ms", false, wait_ms, AT(wait_ns), RANGE(0, MAX_WAIT_MS) },
    { "fallback", false, value_word, AT(fallback),
      WORDS([OVERLOAD_DROP] = "drop", [OVERLOAD_BEST_EFFORT] = "best-effort") },
    { "strategy", false, value_word, AT(strategy),
      WORDS([OVERLOAD_DROP_RECENT] = "drop-recent", [OVERLOAD_KEEP_BY_PATTERN] = "keep-by-pattern",
            [OVERLOAD_SAMPLE] = "sample") },
    { "keep", false, keep, 0, NULL },
    { "share", false, share, AT(share), NULL },
    { "budget", false, budget, 0, NULL },
};

/* What each strategy needs, and what only it reads. */
static void check_strategy(struct loader *l, const struct tree_node *node, const struct overload *o)
{
    bool by_pattern = o->strategy == OVERLOAD_KEEP_BY_PATTERN,
         samples = o->strategy == OVERLOAD_SAMPLE;
    if (by_pattern != (o->n_keep != 0))
        loader_complain(l, node, "found %s; expected both or neither",
                        by_pattern ? "strategy: keep-by-pattern without \"keep\""
                                   : "\"keep\" without strategy: keep-by-pattern");
    if (samples != (o->share > 0))
        loader_complain(l, node, "found %s; expected both or neither",
                        samples ? "strategy: sample without \"share\""
                                : "\"share\" without strategy: sample");
}

/* Return: whether there is one. */
static bool find_sites(const struct spec *spec, struct overload *o, uint32_t budget)
{
    const char *pattern = o->budgets[budget].sites;
    bool any = !pattern;
    for (uint32_t i = 0; i < spec->n_sites; i++)
        if (!pattern || !fnmatch(pattern, spec->sites[i].about.name, 0)) {
            o->of_site[i] |= 1u << budget;
            any = true;
        }
    return any;
}

static const struct tree_node *value_at(const struct tree_node *node, const char *name)
{
    return node && node->kind == TREE_MAP ? keys_value(node, name) : NULL;
}

void overload_settle(struct loader *l, const struct tree_node *node)
{
    struct overload *o = &l->spec->overload;
    const struct tree_node *sites = value_at(value_at(node, "budget"), "sites");
    o->of_site = calloc(l->spec->n_sites + 1u, sizeof *o->of_site);
    o->n_sites = o->of_site ? l->spec->n_sites : 0;
    if (!o->of_site)
        loader_no_memory(l);
    for (uint32_t i = 0, named = 0; o->of_site && i < o->n_budgets; i++) {
        const struct tree_node *pattern =
            sites && o->budgets[i].sites ? sites->items[2 * named++] : NULL;
        if (!find_sites(l->spec, o, i) && pattern)
            loader_complain(l, pattern,
                            "found \"%s\"; expected a pattern that the name of a site matches",
                            o->budgets[i].sites);
    }
}

void overload_init(struct overload *o)
{
    *o = (struct overload){ .wait_ns = DEFAULT_WAIT_MS * (uint64_t)1000000 };
}

void overload_deinit(struct overload *o)
{
    for (uint32_t i = 0; i < o->n_keep; i++)
        select_deinit(&o->keep[i]);
    for (uint32_t i = 0; i < o->n_budgets; i++)
        free(o->budgets[i].sites);
    free(o->of_site);
    overload_init(o);
}

bool section_overload(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    struct overload *o = &((struct spec *)into)->overload;
    if (!keys_read(l, node, "overload", overload_keys, N_OF(overload_keys), o))
        return false;
    check_strategy(l, node, o);
    return true;
}

/* ------------------------------------------------------------------------- one alone */

/* Reads @root to the overload of l->spec, whose sites are another's. */
static void read_alone(struct loader *l, const struct tree_node *root, const void *arg)
{
    (void)arg;
    if (section_overload(l, root, l->spec, NULL))
        overload_settle(l, root);
}

int overload_parse(const char *name, const char *text, size_t n_text, const struct spec *spec,
                   struct spec_errors *errors, struct overload **out)
{
    *errors = (struct spec_errors){ 0 };
    _cleanup_(freep) struct loader *l = calloc(1, sizeof *l);
    _cleanup_(freep) struct spec *alone = calloc(1, sizeof *alone);
    _cleanup_(freep) struct overload *o = calloc(1, sizeof *o);
    if (!l || !alone || !o)
        return -ENOMEM;
    alone->sites = spec->sites;
    alone->n_sites = spec->n_sites;
    overload_init(&alone->overload);
    l->spec = alone;
    l->report.path = name;
    int r = loader_read(l, text, n_text, "found nothing; expected a mapping such as {mode: drop}",
                        read_alone, NULL, errors);
    if (r) {
        overload_deinit(&alone->overload);
        return r;
    }
    *o = alone->overload;
    *out = steal_ptr(o);
    return 0;
}

void overload_free(struct overload *overload)
{
    if (!overload)
        return;
    overload_deinit(overload);
    free(overload);
}
