/* SPDX-License-Identifier: Apache-2.0 */
/* What a HookSpec says of NVTX ranges. Source: docs/hookspec.md, "nvtx". */
#include "policy/spec_load.h"

#include "policy/nearest.h"

#include <stdlib.h>
#include <string.h>

#define N_MAX 0xffffffff

/* ------------------------------------------------------------------------- patterns */

/* The regular expression that a shell's pattern stands for, as it grows. */
struct translation {
    char text[2 * PATTERN_MAX_TEXT + 8];
    size_t n;
};

static void put(struct translation *t, const char *text, size_t n)
{
    if (n > sizeof t->text - 1 - t->n)
        n = sizeof t->text - 1 - t->n;
    memcpy(t->text + t->n, text, n);
    t->n += n;
    t->text[t->n] = 0;
}

static void put_literal(struct translation *t, char c)
{
    if (strchr("\\[](){}|.*+?^$", c))
        put(t, "\\", 1);
    put(t, &c, 1);
}

/* [abc], [!a-z]. Return: where it goes on; @p where it is no such list. */
static const char *put_list(struct translation *t, const char *p)
{
    bool negated = p[1] == '!' || p[1] == '^';
    const char *first = p + 1 + negated;
    const char *end = *first ? strchr(first + 1, ']') : NULL;
    if (!end)
        return p;
    put(t, negated ? "[^" : "[", 1u + negated);
    put(t, first, (size_t)(end + 1 - first));
    return end + 1;
}

/* A shell's pattern matches the whole name. */
static void translate(struct translation *t, const char *p)
{
    put(t, "^", 1);
    while (*p) {
        const char *after = *p == '[' ? put_list(t, p) : p;
        if (after != p) {
            p = after;
            continue;
        }
        if (*p == '*' || *p == '?')
            put(t, ".*", *p == '*' ? 2 : 1);
        else
            put_literal(t, *p == '\\' && p[1] ? *++p : *p);
        p++;
    }
    put(t, "$", 1);
}

/* /REGEX/ stands for itself. */
static bool is_regex(const struct tree_node *node)
{
    return node->n_text > 2 && node->text[0] == '/' && node->text[node->n_text - 1] == '/';
}

static bool make_room(struct loader *l)
{
    struct regexes *all = l->spec->regexes;
    if (!all->ranges)
        all->ranges = calloc(SPEC_MAX_SITES + SPEC_MAX_KINDS, sizeof *all->ranges);
    return all->ranges || loader_no_memory(l);
}

static bool read_pattern(struct loader *l, const struct tree_node *node, char **text,
                         uint16_t *number)
{
    struct translation t = { .n = 0 };
    if (!value_nonempty(l, node, "a shell's pattern, or /REGEX/, on the name of a range") ||
        !make_room(l))
        return false;
    if (is_regex(node))
        put(&t, node->text + 1, node->n_text - 2);
    else
        translate(&t, node->text);
    *text = strdup(node->text);
    struct regexes *all = l->spec->regexes;
    return *text ? regexes_take(l, node, t.text, is_regex(node) ? 1 : -1, all->ranges,
                                &all->n_ranges, number)
                 : loader_no_memory(l);
}

/* ------------------------------------------------------------------------- keys */

bool site_nvtx(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    struct spec_site *site = into;
    return read_pattern(l, node, &site->nvtx.pattern, &site->nvtx.number);
}

bool begin_nvtx(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    struct spec_kind *kind = into;
    if (!read_pattern(l, node, &kind->nvtx, &kind->nvtx_number))
        return false;
    for (const struct spec_kind *other = l->spec->kinds; other < kind; other++)
        if (other->nvtx && other->nvtx_number == kind->nvtx_number)
            loader_complain(l, node,
                            "found the pattern that begins \"%s\" again; expected another: one "
                            "range begins one kind of forward",
                            other->name ? other->name : "?");
    return true;
}

bool site_range_kernel(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    struct spec_nvtx *nvtx = &((struct spec_site *)into)->nvtx;
    char was[128];
    int64_t n = 0;
    bool word = node->kind == TREE_SCALAR;
    if (word && !strcmp(node->text, "last")) {
        loader_complain(
            l, node,
            "found \"last\"; expected first, all or a number from 0: which kernel is the "
            "last is known too late; \"kernel: PATTERN\" with a number names it");
        return false;
    } else if (word && (!strcmp(node->text, "first") ||
                        (parse_integer(node->text, &n) && n >= 0 && n <= N_MAX))) {
        nvtx->which = SPEC_RANGE_NTH;
        nvtx->n = (uint32_t)n;
    } else if (!word || strcmp(node->text, "all")) {
        loader_complain(l, node, "found %s; expected first, all or a number from 0",
                        node_found(node, was, sizeof was));
        return false;
    }
    return true;
}

bool nvtx_layer(const struct tree_node *node, struct spec_site *site)
{
    site->nvtx.layer = node->kind == TREE_SCALAR && !strcmp(node->text, "range");
    return site->nvtx.layer;
}

/* ------------------------------------------------------------------------- what must fit together */

/* A key that is nearly @name was reported as such. */
static bool has_nearly(const struct tree_node *node, const char *name)
{
    for (size_t i = 0; node->kind == TREE_MAP && i < node->n_items; i += 2) {
        const struct tree_node *key = node->items[i];
        if (key->kind == TREE_SCALAR && !nearest_word(key->text, key->n_text, &name, 1))
            return true;
    }
    return false;
}

/* Of a site with a range. */
static void settle_ranged(struct loader *l, const struct tree_node *node)
{
    if (!keys_value(node, "kernel") && !keys_value(node, "range_kernel") &&
        !has_nearly(node, "kernel") && !has_nearly(node, "range_kernel"))
        loader_complain(l, node,
                        "found neither \"kernel\" nor \"range_kernel\" in a site with \"nvtx\"; "
                        "expected one of them: a range holds many kernels");
}

void nvtx_settle(struct loader *l, const struct tree_node *node, const struct spec_site *site)
{
    const struct tree_node *which = keys_value(node, "range_kernel");
    if (keys_value(node, "tap"))
        return;
    if (keys_value(node, "nvtx")) {
        settle_ranged(l, node);
        return;
    }
    if (!keys_value(node, "kernel") && node->kind == TREE_MAP && !has_nearly(node, "kernel") &&
        !has_nearly(node, "nvtx"))
        loader_complain(l, node, "found no \"kernel\" in a site; expected \"kernel: ...\"");
    if (which)
        loader_complain(l, which,
                        "found \"range_kernel\" at a site without \"nvtx\"; expected \"nvtx: "
                        "PATTERN\" too");
    if (site->nvtx.layer)
        loader_complain(l, keys_value(node, "layer"),
                        "found the layer \"range\" at a site without \"nvtx\"; expected \"nvtx: "
                        "PATTERN\" too");
}

bool nvtx_settle_begin(struct loader *l, const struct tree_node *node)
{
    bool kernel = keys_value(node, "kernel"), range = keys_value(node, "nvtx");
    if (kernel != range || has_nearly(node, "kernel") != has_nearly(node, "nvtx"))
        return true;
    loader_complain(l, node, "found %s; expected one of \"kernel: PATTERN\", \"nvtx: PATTERN\"",
                    kernel ? "both a kernel and a range in begin" : "no \"kernel\" in begin");
    return false;
}

void nvtx_free(struct spec *spec)
{
    struct regexes *all = spec->regexes;
    for (size_t i = 0; all && i < all->n_ranges; i++)
        pattern_deinit(&all->ranges[i]);
    if (all)
        free(all->ranges);
    for (uint32_t i = 0; i < spec->n_sites; i++)
        free(spec->sites[i].nvtx.pattern);
    for (uint32_t i = 0; i < spec->n_kinds; i++)
        free(spec->kinds[i].nvtx);
}

/* ------------------------------------------------------------------------- matching */

bool spec_has_nvtx(const struct spec *spec)
{
    return ((const struct regexes *)spec->regexes)->n_ranges != 0;
}

bool spec_match_range(const struct spec *spec, const char *name, struct spec_range_match *match)
{
    const struct regexes *all = spec->regexes;
    bool hit[SPEC_MAX_SITES + SPEC_MAX_KINDS];
    for (size_t i = 0; i < all->n_ranges; i++)
        hit[i] = pattern_matches(&all->ranges[i], name);
    match->kind = -1;
    match->n_sites = 0;
    for (uint32_t i = 0; i < spec->n_kinds && match->kind < 0; i++)
        if (spec->kinds[i].nvtx && hit[spec->kinds[i].nvtx_number])
            match->kind = (int)i;
    for (uint32_t i = 0; i < spec->n_sites; i++)
        if (spec->sites[i].nvtx.pattern && hit[spec->sites[i].nvtx.number])
            match->sites[match->n_sites++] = (uint16_t)i;
    return match->kind >= 0 || match->n_sites;
}
