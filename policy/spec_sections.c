/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sections of a HookSpec but its sites: vars, convention, ring, forward, absent.
 * Source: docs/hookspec.md.
 */
#include "policy/spec_load.h"

#include "policy/nearest.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAIRS_MAX 64

/* ----------------------------------------------------------------------------------------- vars */

static bool is_variable_name(const struct tree_node *node)
{
    bool good = node->kind == TREE_SCALAR && node->n_text && node->n_text <= NAME_MAX_BYTES &&
                !(node->text[0] >= '0' && node->text[0] <= '9');
    for (size_t i = 0; good && i < node->n_text; i++)
        good = is_name_character(node->text[i]) && node->text[i] != '-' && node->text[i] != '.';
    return good;
}

/* Index of a variable, l->n_vars if there is none. */
static size_t find_var(const struct loader *l, const char *name, size_t n)
{
    size_t i = 0;
    while (i < l->n_vars && (strlen(l->vars[i].name) != n || memcmp(l->vars[i].name, name, n)))
        i++;
    return i;
}

static void declare_var(struct loader *l, const struct tree_node *key,
                        const struct tree_node *value)
{
    char was[128];
    if (!is_variable_name(key)) {
        loader_complain(l, key,
                        "found %s as a variable's name; expected letters, digits and _, no digit "
                        "first",
                        node_found(key, was, sizeof was));
    } else if (expr_is_reserved(key->text)) {
        loader_complain(l, key,
                        "found the variable \"%s\"; expected another name: it means something in "
                        "expressions",
                        key->text);
    } else if (find_var(l, key->text, key->n_text) < l->n_vars) {
        loader_complain(l, key, "found the variable \"%s\" a second time; expected it once",
                        key->text);
    } else {
        /* declared even if its value is wrong, so that its uses are no errors of their own */
        struct expr_var *var = &l->vars[l->n_vars++];
        *var = (struct expr_var){ .name = key->text, .value = 1 };
        value_integer(l, value, &var->value, NULL);
    }
}

static void declare_vars(struct loader *l, const struct tree_node *node)
{
    char was[128];
    if (node->kind != TREE_MAP) {
        loader_complain(l, node,
                        "found %s; expected a mapping of names to integers, as {max_context: 512}",
                        node_found(node, was, sizeof was));
        return;
    }
    if (node->n_items / 2 > SPEC_MAX_VARS) {
        loader_complain(l, node, "found %zu variables; expected at most %d", node->n_items / 2,
                        SPEC_MAX_VARS);
        return;
    }
    for (size_t i = 0; i < node->n_items; i += 2)
        declare_var(l, node->items[i], node->items[i + 1]);
}

/* Nothing was declared by the name of @n characters that @assignment begins with. */
static void complain_undeclared(struct loader *l, const char *assignment, size_t n, const char *was)
{
    char all[256], hint[64];
    const char *names[SPEC_MAX_VARS];
    for (size_t k = 0; k < l->n_vars; k++)
        names[k] = l->vars[k].name;
    names_join(names, l->n_vars, all, sizeof all);
    nearest_hint(assignment, n, names, l->n_vars, hint, sizeof hint);
    report_add(&l->report, 0, 0,
               "found %s, set from outside (-D, DMI_VARS), of which vars: says "
               "nothing; expected %s%s",
               was, l->n_vars ? all : "no variables: the spec declares none", hint);
}

static void override_var(struct loader *l, const char *assignment)
{
    char was[128];
    const char *equals = strchr(assignment, '=');
    size_t n = equals ? (size_t)(equals - assignment) : strlen(assignment);
    size_t i = find_var(l, assignment, n);
    report_quote(assignment, strlen(assignment), was, sizeof was);
    if (!equals || !n)
        report_add(&l->report, 0, 0,
                   "found %s among the variables that are set from outside "
                   "(-D, DMI_VARS); expected NAME=INTEGER",
                   was);
    else if (i == l->n_vars)
        complain_undeclared(l, assignment, n, was);
    else if (!parse_integer(equals + 1, &l->vars[i].value))
        report_add(&l->report, 0, 0,
                   "found %s, set from outside (-D, DMI_VARS); expected an integer "
                   "of 64 bits, decimal or 0x..., after \"=\"",
                   was);
}

/* What became of the variables, for manifests. */
static void keep_vars(struct loader *l)
{
    struct spec *spec = l->spec;
    spec->vars = calloc(l->n_vars + 1, sizeof *spec->vars);
    if (!spec->vars) {
        loader_no_memory(l);
        return;
    }
    for (size_t i = 0; i < l->n_vars; i++) {
        struct spec_pair *pair = &spec->vars[spec->n_vars++];
        char value[32];
        snprintf(value, sizeof value, "%lld", (long long)l->vars[i].value);
        pair->key = strdup(l->vars[i].name);
        pair->value = strdup(value);
        if (!pair->key || !pair->value)
            loader_no_memory(l);
    }
}

void section_vars(struct loader *l, const struct tree_node *node, const char *const *vars,
                  size_t n_vars)
{
    if (node)
        declare_vars(l, node);
    for (size_t i = 0; i < n_vars; i++)
        override_var(l, vars[i]);
    keep_vars(l);
}

/* ----------------------------------------------------------------------------------- convention */

static void add_convention(struct loader *l, const struct tree_node *key,
                           const struct tree_node *value)
{
    struct spec *spec = l->spec;
    struct spec_pair *pair = &spec->conventions[spec->n_conventions++];
    int64_t base;
    if (!value_name(l, key, &pair->key, NULL))
        return;
    for (size_t k = 0; k + 1 < spec->n_conventions; k++)
        if (spec->conventions[k].key && !strcmp(spec->conventions[k].key, pair->key))
            loader_complain(l, key, "found the key \"%s\" a second time; expected it once",
                            pair->key);
    if (!strcmp(pair->key, "layer_base") && !value_integer(l, value, &base, RANGE(0, 1000000)))
        return;
    value_string(l, value, &pair->value, NULL);
}

bool section_convention(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    struct spec *spec = into;
    char was[128];
    if (node->kind != TREE_MAP) {
        loader_complain(l, node,
                        "found %s; expected a mapping of words to texts, as {layer_base: 0}",
                        node_found(node, was, sizeof was));
        return false;
    }
    if (node->n_items / 2 > PAIRS_MAX) {
        loader_complain(l, node, "found %zu entries; expected at most %d", node->n_items / 2,
                        PAIRS_MAX);
        return false;
    }
    spec->conventions = calloc(node->n_items / 2 + 1, sizeof *spec->conventions);
    if (!spec->conventions)
        return loader_no_memory(l);
    for (size_t i = 0; i < node->n_items; i += 2)
        add_convention(l, node->items[i], node->items[i + 1]);
    return true;
}

/* ----------------------------------------------------------------------------------------- ring */

static bool ring_bytes(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    char was[128];
    uint64_t *bytes = into;
    if (!value_size(l, node, bytes, arg))
        return false;
    if (*bytes % 16)
        loader_complain(l, node, "found %s; expected a multiple of 16",
                        node_found(node, was, sizeof was));
    return !(*bytes % 16);
}

static bool ring_slots(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    char was[128];
    uint64_t n;
    if (!value_size(l, node, &n, arg))
        return false;
    if (n & (n - 1))
        loader_complain(l, node, "found %s; expected a power of two",
                        node_found(node, was, sizeof was));
    *(uint32_t *)into = (uint32_t)n;
    return !(n & (n - 1));
}

static bool keep_free(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    struct spec *spec = into;
    spec->keep_free_said = value_size(l, node, &spec->keep_free, arg);
    return spec->keep_free_said;
}

static const struct key ring_keys[] = {
    { "bytes", false, ring_bytes, offsetof(struct spec, ring_bytes),
      RANGE(4096, (int64_t)1 << 40) },
    { "slots", false, ring_slots, offsetof(struct spec, ring_slots), RANGE(2, 1 << 24) },
    { "keep_free", false, keep_free, 0, RANGE(0, (int64_t)1 << 46) },
};

bool section_ring(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    return keys_read(l, node, "ring", ring_keys, N_OF(ring_keys), into);
}

/* ---------------------------------------------------------------------------------------- edits */

static const struct key edits_keys[] = {
    { "bytes", false, value_size, offsetof(struct spec, edit_bytes), RANGE(1 << 16, 1ll << 32) },
    { "bank", false, value_size, offsetof(struct spec, bank_bytes), RANGE(1 << 16, 1ll << 36) },
};

bool section_edits(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    return keys_read(l, node, "edits", edits_keys, N_OF(edits_keys), into);
}

/* -------------------------------------------------------------------------------------- forward */

static bool begin_with_step(struct loader *l, const struct tree_node *node, uint32_t index)
{
    struct regexes *all = l->spec->regexes;
    char was[128];
    if (strcmp(node->text, "step")) {
        loader_complain(l, node, "found %s; expected step or {kernel: PATTERN}",
                        node_found(node, was, sizeof was));
        return false;
    }
    for (uint32_t i = 0; i < index; i++)
        if (all->of_kind[i] == BEGINS_WITH_STEP)
            loader_complain(l, node,
                            "found a second forward that begins with a step; expected one: "
                            "dmi_step_begin() cannot tell them apart");
    all->of_kind[index] = BEGINS_WITH_STEP;
    return true;
}

static bool begin_kernel(struct loader *l, const struct tree_node *node, void *into,
                         const void *arg)
{
    (void)arg;
    struct spec *spec = l->spec;
    struct regexes *all = spec->regexes;
    struct spec_kind *kind = into;
    uint32_t index = (uint32_t)(kind - spec->kinds);
    if (!regexes_add(l, node, &kind->kernel, &all->of_kind[index]))
        return false;
    for (uint32_t i = 0; i < index; i++)
        if (all->of_kind[i] == all->of_kind[index])
            loader_complain(l, node,
                            "found the pattern that begins \"%s\" again; expected another: one "
                            "kernel begins one kind of forward",
                            spec->kinds[i].name ? spec->kinds[i].name : "?");
    return true;
}

static const struct key begin_keys[] = {
    { "kernel", false, begin_kernel, 0, NULL },
    { "nvtx", false, begin_nvtx, 0, NULL },
};

static bool forward_begin(struct loader *l, const struct tree_node *node, void *into,
                          const void *arg)
{
    (void)arg;
    struct spec_kind *kind = into;
    if (node->kind == TREE_SCALAR)
        return begin_with_step(l, node, (uint32_t)(kind - l->spec->kinds));
    return keys_read(l, node, "begin", begin_keys, N_OF(begin_keys), kind) &&
           nvtx_settle_begin(l, node);
}

static bool forward_kind(struct loader *l, const struct tree_node *node, void *into,
                         const void *arg)
{
    struct spec_kind *kind = into;
    if (!value_name(l, node, &kind->name, arg))
        return false;
    for (const struct spec_kind *other = l->spec->kinds; other < kind; other++)
        if (other->name && !strcmp(other->name, kind->name))
            loader_complain(l, node,
                            "found the kind \"%s\" a second time; expected it once: one "
                            "pattern may name several kernels, as '^(a|b)$'",
                            kind->name);
    return true;
}

static const struct key forward_keys[] = {
    { "kind", true, forward_kind, 0, NULL },
    { "begin", true, forward_begin, 0, NULL },
};

bool section_forward(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    struct spec *spec = into;
    if (!keys_list(l, node, "a list of {kind: NAME, begin: ...}", SPEC_MAX_KINDS))
        return false;
    for (size_t i = 0; i < node->n_items; i++) {
        uint32_t index = spec->n_kinds++;
        ((struct regexes *)spec->regexes)->of_kind[index] = NO_PATTERN;
        keys_read(l, node->items[i], "a forward", forward_keys, N_OF(forward_keys),
                  &spec->kinds[index]);
    }
    return true;
}

/* --------------------------------------------------------------------------------------- absent */

static const struct key absent_keys[] = {
    { "name", true, value_name, offsetof(struct spec_absent, name), NULL },
    { "why", true, value_string, offsetof(struct spec_absent, why), NULL },
    { "forward", false, value_kind, offsetof(struct spec_absent, kind), NULL },
};

bool section_absent(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    struct spec *spec = into;
    if (!keys_list(l, node, "a list of {name: NAME, why: TEXT}", SPEC_MAX_SITES))
        return false;
    spec->absent = calloc(node->n_items + 1, sizeof *spec->absent);
    if (!spec->absent)
        return loader_no_memory(l);
    for (size_t i = 0; i < node->n_items; i++) {
        const struct tree_node *item = node->items[i];
        struct spec_absent *absent = &spec->absent[spec->n_absent++];
        absent->kind = -1;
        keys_read(l, item, "an absent tensor", absent_keys, N_OF(absent_keys), absent);
        if (absent->name && (absent->kind >= 0 || !keys_value(item, "forward")))
            check_absent(l, item, absent);
    }
    return true;
}
