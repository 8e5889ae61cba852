/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mappings by a table of their keys, and complaints about what does not fit.
 */
#include "policy/spec_load.h"

#include "policy/nearest.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ----------------------------------------------------------------------------------- complaints */

void loader_complain(struct loader *l, const struct tree_node *node, const char *fmt, ...)
{
    char what[900];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    report_add(&l->report, node->line, node->column, "%s", what);
}

void loader_warn(struct loader *l, const struct tree_node *node, const char *fmt, ...)
{
    char what[900];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    report_add(&l->warnings, node->line, node->column, "warning: %s", what);
}

void loader_complain_inside(struct loader *l, const struct tree_node *node, size_t offset,
                            const char *what)
{
    uint32_t column = node->column, n_before = 0;
    char place[48] = "";
    for (size_t i = 0; i < offset && i < node->n_text; i++)
        n_before += ((unsigned char)node->text[i] & 0xc0) != 0x80; /* characters, not bytes */
    if (node->text_column)
        column = node->text_column + n_before;
    else
        snprintf(place, sizeof place, "at character %u of the text: ", n_before + 1);
    report_add(&l->report, node->line, column, "%s%s", place, what);
}

bool loader_no_memory(struct loader *l)
{
    l->no_memory = true;
    return false;
}

int loader_read(struct loader *l, const char *text, size_t n_text, const char *wanted,
                root_reader *read, const void *arg, struct spec_errors *errors)
{
    struct tree tree;
    struct tree_error error;
    int rc = tree_parse(text, n_text, &tree, &error);
    if (rc == TREE_E_SYNTAX)
        report_add(&l->report, error.line, error.column, "%s", error.msg);
    else if (rc)
        loader_no_memory(l);
    else if (!tree.root)
        report_add(&l->report, 1, 1, "%s", wanted);
    else
        read(l, tree.root, arg);
    tree_deinit(&tree);
    rc = report_finish(&l->report, &errors->lines, &errors->n_lines);
    if (rc || l->no_memory)
        return -ENOMEM;
    return errors->n_lines ? SPEC_E_INVALID : 0;
}

bool node_is_nothing(const struct tree_node *node)
{
    return node->kind == TREE_SCALAR && node->plain &&
           (!node->n_text || !strcmp(node->text, "~") || !strcmp(node->text, "null"));
}

const char *node_found(const struct tree_node *node, char *buffer, size_t n)
{
    if (node->kind == TREE_LIST)
        snprintf(buffer, n, "a list");
    else if (node->kind == TREE_MAP)
        snprintf(buffer, n, "a mapping");
    else if (node_is_nothing(node))
        snprintf(buffer, n, "nothing");
    else
        report_quote(node->text, node->n_text, buffer, n);
    return buffer;
}

void names_join(const char *const *names, size_t n, char *buffer, size_t n_buffer)
{
    size_t used = 0;
    buffer[0] = 0;
    for (size_t i = 0; i < n && used < n_buffer; i++)
        used += (size_t)snprintf(buffer + used, n_buffer - used, "%s%s", i ? ", " : "", names[i]);
}

/* ----------------------------------------------------------------------------------------- keys */

/* A mapping while it is read: what of its table was seen. */
struct mapping {
    const char *what;
    const struct key *keys;
    size_t n_keys;
    const char *names[KEYS_MAX]; /* of keys */
    const struct tree_node *seen[KEYS_MAX], *values[KEYS_MAX];
    bool misspelt[KEYS_MAX]; /* reported once, so not as missing too */
};

static void complain_unknown(struct loader *l, const struct tree_node *key, struct mapping *m)
{
    if (l->report.n_lines >= REPORT_MAX) {
        l->report.n_more++;
        return;
    }
    char was[128], all[256], hint[64];
    names_join(m->names, m->n_keys, all, sizeof all);
    nearest_hint(key->text, key->n_text, m->names, m->n_keys, hint, sizeof hint);
    loader_complain(l, key, "found the unknown key %s in %s; expected %s%s",
                    report_quote(key->text, key->n_text, was, sizeof was), m->what, all, hint);
    int meant = nearest_word(key->text, key->n_text, m->names, m->n_keys);
    if (meant >= 0)
        m->misspelt[meant] = true;
}

static void see_key(struct loader *l, const struct tree_node *key, const struct tree_node *value,
                    struct mapping *m)
{
    char was[128];
    if (key->kind != TREE_SCALAR) {
        loader_complain(l, key, "found %s as a key of %s; expected a word",
                        node_found(key, was, sizeof was), m->what);
        return;
    }
    size_t k = 0;
    while (k < m->n_keys && strcmp(m->names[k], key->text))
        k++;
    if (k == m->n_keys) {
        complain_unknown(l, key, m);
    } else if (m->seen[k]) {
        loader_complain(l, key,
                        "found the key \"%s\" a second time in %s; expected it once (first at "
                        "%u:%u)",
                        m->names[k], m->what, m->seen[k]->line, m->seen[k]->column);
    } else {
        m->seen[k] = key;
        m->values[k] = value;
    }
}

/* Return: true if no required key is missing. */
static bool check_required(struct loader *l, const struct tree_node *node, const struct mapping *m)
{
    bool good = true;
    for (size_t k = 0; k < m->n_keys; k++) {
        if (!m->keys[k].required || m->seen[k])
            continue;
        good = false;
        if (!m->misspelt[k])
            loader_complain(l, node, "found no \"%s\" in %s; expected \"%s: ...\"", m->names[k],
                            m->what, m->names[k]);
    }
    return good;
}

bool keys_read(struct loader *l, const struct tree_node *node, const char *what,
               const struct key *keys, size_t n_keys, void *object)
{
    struct mapping m = { .what = what, .keys = keys, .n_keys = n_keys };
    for (size_t k = 0; k < n_keys; k++)
        m.names[k] = keys[k].name;
    if (node->kind != TREE_MAP) {
        char was[128], all[256];
        names_join(m.names, n_keys, all, sizeof all);
        loader_complain(l, node, "found %s; expected %s: a mapping with the keys %s",
                        node_found(node, was, sizeof was), what, all);
        return false;
    }
    for (size_t i = 0; i < node->n_items; i += 2)
        see_key(l, node->items[i], node->items[i + 1], &m);
    bool good = check_required(l, node, &m);
    for (size_t k = 0; k < n_keys; k++)
        if (m.values[k] && keys[k].read)
            good = keys[k].read(l, m.values[k], (char *)object + keys[k].at, keys[k].arg) && good;
    return good;
}

const struct tree_node *keys_value(const struct tree_node *node, const char *name)
{
    for (size_t i = 0; node->kind == TREE_MAP && i < node->n_items; i += 2)
        if (node->items[i]->kind == TREE_SCALAR && !strcmp(node->items[i]->text, name))
            return node->items[i + 1];
    return NULL;
}

bool keys_list(struct loader *l, const struct tree_node *node, const char *what, size_t max)
{
    char was[128];
    if (node->kind != TREE_LIST)
        loader_complain(l, node, "found %s; expected %s", node_found(node, was, sizeof was), what);
    else if (node->n_items > max)
        loader_complain(l, node, "found %zu entries; expected at most %zu", node->n_items, max);
    else
        return true;
    return false;
}
