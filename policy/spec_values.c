/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers of single values. Source: docs/hookspec.md.
 */
#include "core/any.h"
#include "policy/spec_load.h"

#include "policy/nearest.h"

#include <dmi/dtype.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX_BYTES 4096

/* Strings of the spec are char * in some structs and const char * in others. */
static bool keep_text(struct loader *l, const char *text, void *into)
{
    char *own = strdup(text);
    memcpy(into, &own, sizeof own);
    return own || loader_no_memory(l);
}

bool value_nonempty(struct loader *l, const struct tree_node *node, const char *what)
{
    char was[128];
    if (node->kind == TREE_SCALAR && !node_is_nothing(node) && node->n_text)
        return true;
    loader_complain(l, node, "found %s; expected %s", node_found(node, was, sizeof was), what);
    return false;
}

/* -------------------------------------------------------------------------------------- numbers */

bool value_integer(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    const struct value_bounds *range = arg;
    char was[128];
    int64_t v;
    if (node->kind == TREE_SCALAR && parse_integer(node->text, &v) &&
        (!range || (v >= range->min && v <= range->max))) {
        *(int64_t *)into = v;
        return true;
    }
    node_found(node, was, sizeof was);
    if (range)
        loader_complain(l, node, "found %s; expected an integer from %lld to %lld", was,
                        (long long)range->min, (long long)range->max);
    else
        loader_complain(l, node, "found %s; expected an integer of 64 bits, decimal or 0x...", was);
    return false;
}

bool value_size(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    const struct value_bounds *range = arg;
    char was[128];
    uint64_t v;
    if (node->kind == TREE_SCALAR && parse_size(node->text, node->n_text, &v) &&
        v >= (uint64_t)range->min && v <= (uint64_t)range->max) {
        *(uint64_t *)into = v;
        return true;
    }
    loader_complain(l, node,
                    "found %s; expected a number from %lld to %lld, K, M or G (1024, "
                    "1024^2, 1024^3) may follow it",
                    node_found(node, was, sizeof was), (long long)range->min,
                    (long long)range->max);
    return false;
}

bool value_scale(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    char was[128];
    double v;
    if (node->kind == TREE_SCALAR && parse_decimal(node->text, &v) && v != 0) {
        *(double *)into = v;
        return true;
    }
    loader_complain(l, node, "found %s; expected a decimal number that is finite and not 0",
                    node_found(node, was, sizeof was));
    return false;
}

/* ---------------------------------------------------------------------------------------- words */

bool value_bool(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    char was[128];
    bool yes = node->kind == TREE_SCALAR && !strcmp(node->text, "true");
    if (yes || (node->kind == TREE_SCALAR && !strcmp(node->text, "false"))) {
        *(bool *)into = yes;
        return true;
    }
    loader_complain(l, node, "found %s; expected true or false", node_found(node, was, sizeof was));
    return false;
}

/* One of a few words. Return: its index, or -1 (reported). */
static int take_word(struct loader *l, const struct tree_node *node, const char *const *words,
                     size_t n)
{
    char was[128], all[256], hint[64] = "";
    if (node->kind == TREE_SCALAR) {
        for (size_t i = 0; i < n; i++)
            if (!strcmp(node->text, words[i]))
                return (int)i;
        nearest_hint(node->text, node->n_text, words, n, hint, sizeof hint);
    }
    names_join(words, n, all, sizeof all);
    loader_complain(l, node, "found %s; expected one of %s%s", node_found(node, was, sizeof was),
                    all, hint);
    return -1;
}

/* The same, and its index goes into @into, a uint32_t. */
static bool take_index(struct loader *l, const struct tree_node *node, const char *const *words,
                       size_t n, void *into)
{
    int i = take_word(l, node, words, n);
    if (i >= 0)
        *(uint32_t *)into = (uint32_t)i;
    return i >= 0;
}

bool value_word(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    static_assert(sizeof(enum spec_when) == sizeof(uint32_t), "an enum is read as its integer");
    const struct words *words = arg;
    size_t n = 0;
    while (n < WORDS_MAX && words->names[n])
        n++;
    return take_index(l, node, words->names, n, into);
}

bool value_action(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    const char *names[SPEC_MAX_ACTIONS];
    uint32_t actions[SPEC_MAX_ACTIONS], n = 0, index;
    for (uint32_t i = 0; i < spec_n_actions; i++)
        if (!spec_actions[i]
                 .edits) { /* a place for edits is one by `write`, and is captured besides */
            names[n] = spec_actions[i].word;
            actions[n++] = i;
        }
    bool good = take_index(l, node, names, n, &index);
    if (good)
        *(uint32_t *)into = actions[index];
    return good;
}

bool value_row(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    const char *names[DMI_ROW_COUNT];
    for (uint32_t row = 0; row < DMI_ROW_COUNT; row++)
        names[row] = dmi_row_name(row);
    return take_index(l, node, names, DMI_ROW_COUNT, into);
}

/* What other programs call a dtype, beside PyTorch's word; never accepted, so that specs look alike. */
static const struct {
    const char *other;
    uint32_t dtype;
} other_spellings[] = {
    { "float", DMI_DTYPE_F32 },  { "fp32", DMI_DTYPE_F32 },       { "half", DMI_DTYPE_F16 },
    { "fp16", DMI_DTYPE_F16 },   { "double", DMI_DTYPE_F64 },     { "fp64", DMI_DTYPE_F64 },
    { "int", DMI_DTYPE_I32 },    { "long", DMI_DTYPE_I64 },       { "boolean", DMI_DTYPE_BOOL },
    { "fp8", DMI_DTYPE_F8E4M3 }, { "f8_e4m3", DMI_DTYPE_F8E4M3 }, { "f8_e5m2", DMI_DTYPE_F8E5M2 },
};

/* The dtype that another program calls so, DMI_DTYPE_NONE: none. */
static uint32_t meant_by(const char *other)
{
    for (uint32_t d = 1; d < DMI_DTYPE_COUNT; d++) {
        const struct dmi_dtype_info *info = dmi_dtype_info(d);
        if (strcmp(info->torch, info->name) && !strcasecmp(info->torch, other))
            return d;
    }
    return FIRST(i, N_OF(other_spellings), !strcasecmp(other_spellings[i].other, other),
                 other_spellings[i].dtype, DMI_DTYPE_NONE);
}

bool value_dtype(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    const char *names[DMI_DTYPE_COUNT];
    size_t n = 0;
    for (uint32_t d = 1; d < DMI_DTYPE_COUNT; d++)
        names[n++] = dmi_dtype_info(d)->name;
    uint32_t meant = node->kind == TREE_SCALAR ? meant_by(node->text) : DMI_DTYPE_NONE;
    if (meant) {
        char all[256];
        names_join(names, n, all, sizeof all);
        loader_complain(l, node, "found \"%s\"; expected one of %s; did you mean \"%s\"?",
                        node->text, all, dmi_dtype_info(meant)->name);
        return false;
    }
    int i = take_word(l, node, names, n);
    *(uint32_t *)into = (uint32_t)(i + 1);
    return i >= 0;
}

bool value_kind(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    const struct spec *spec = l->spec;
    const char *names[SPEC_MAX_KINDS];
    size_t n = 0;
    for (uint32_t i = 0; i < spec->n_kinds; i++)
        if (spec->kinds[i].name)
            names[n++] = spec->kinds[i].name;
    char was[128];
    if (!n && spec->n_kinds == 0)
        loader_complain(l, node, "found %s, but no forward: section; expected one that declares it",
                        node_found(node, was, sizeof was));
    if (!n || take_word(l, node, names, n) < 0)
        return false; /* where no kind has a name that was reported already */
    for (uint32_t i = 0; i < spec->n_kinds; i++)
        if (spec->kinds[i].name && !strcmp(spec->kinds[i].name, node->text))
            *(int *)into = (int)i;
    return true;
}

/* ---------------------------------------------------------------------------------------- texts */

bool value_string(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    if (!value_nonempty(l, node, "a text"))
        return false;
    if (node->n_text <= TEXT_MAX_BYTES)
        return keep_text(l, node->text, into);
    loader_complain(l, node, "found %zu bytes; expected at most %d", node->n_text, TEXT_MAX_BYTES);
    return false;
}

bool is_name_character(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

/* The first character that no name holds, or NULL; @layers: "{layer}" may stand in it, once. */
static const char *bad_character(const char *name, bool layers)
{
    for (const char *p = name; *p; p++) {
        if (layers && !strncmp(p, "{layer}", 7)) {
            layers = false;
            p += 6;
        } else if (!is_name_character(*p)) {
            return p;
        }
    }
    return NULL;
}

static bool take_name(struct loader *l, const struct tree_node *node, bool layers, void *into)
{
    if (!value_nonempty(l, node, "a name"))
        return false;
    if (node->n_text > NAME_MAX_BYTES) {
        loader_complain(l, node, "found a name of %zu bytes; expected at most %d", node->n_text,
                        NAME_MAX_BYTES);
        return false;
    }
    const char *bad = bad_character(node->text, layers);
    if (!bad)
        return keep_text(l, node->text, into);
    char what[160], is[16];
    snprintf(is, sizeof is, *bad >= ' ' && *bad < 127 ? "'%c'" : "byte 0x%02x",
             (unsigned char)*bad);
    snprintf(what, sizeof what, "found %s in a name; expected letters, digits, _ - .%s", is,
             layers ? " or \"{layer}\", once" : "");
    loader_complain_inside(l, node, (size_t)(bad - node->text), what);
    return false;
}

bool value_name(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    return take_name(l, node, false, into);
}

bool value_layered_name(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    return take_name(l, node, true, into);
}

/* --------------------------------------------------------------------------------- expressions */

/* What an expression's parser found. Return: true if nothing was wrong. */
static bool parsed(struct loader *l, const struct tree_node *node, int rc,
                   const struct expr_error *error)
{
    if (rc == EXPR_E_SYNTAX)
        loader_complain_inside(l, node, error->offset, error->msg);
    else if (rc)
        loader_no_memory(l);
    return !rc;
}

bool value_expr(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    const struct value_bounds *range = arg;
    struct expr_error error;
    struct expr **e = into;
    if (!value_nonempty(l, node, "an expression") ||
        !parsed(l, node, expr_parse(node->text, node->n_text, l->vars, l->n_vars, &error, e),
                &error))
        return false;
    int64_t v = expr_constant(*e);
    if (!range || !expr_is_constant(*e) || (v >= range->min && v <= range->max))
        return true;
    loader_complain(l, node, "found the value %lld; expected %lld to %lld", (long long)v,
                    (long long)range->min, (long long)range->max);
    return false;
}

bool value_place(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    struct expr_error error;
    return value_nonempty(l, node, "arg[INDEX], arg[INDEX][OFFSET] or param[OFFSET]") &&
           parsed(l, node,
                  expr_parse_ref(node->text, node->n_text, l->vars, l->n_vars, &error, into),
                  &error);
}
