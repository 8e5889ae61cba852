/* SPDX-License-Identifier: Apache-2.0 */
/* The text of edits, checked. Its grammar: docs/edits.md. */
#include "policy/edit_load.h"

#include "core/cleanup.h"
#include "policy/nearest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NUMERAL_(n) #n
#define NUMERAL(n)  NUMERAL_(n)

/* ------------------------------------------------------------------------- one edit */

static bool edit_site(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    const struct spec *spec = edit_loader_of(l)->spec;
    struct edit *edit = into;
    const char *names[SPEC_MAX_PLACES];
    uint32_t n = 0;
    char was[128], all[256], hint[64];
    if (!value_string(l, node, &edit->site, NULL))
        return false;
    for (uint32_t i = 0; i < spec->n_sites; i++) {
        const struct spec_site *site = &spec->sites[i];
        if (site->action != SPEC_EDIT || !site->about.name)
            continue;
        if (!strcmp(site->about.name, edit->site))
            return true;
        if (n < SPEC_MAX_PLACES)
            names[n++] = site->about.name;
    }
    names_join(names, n, all, sizeof all);
    nearest_hint(edit->site, strlen(edit->site), names, n, hint, sizeof hint);
    loader_complain(l, node, "found %s; expected a site of the HookSpec with \"write\": %s%s",
                    node_found(node, was, sizeof was), n ? all : "it has none", hint);
    return false;
}

static bool edit_layers(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    struct edit *edit = into;
    if (node->kind == TREE_SCALAR && !strcmp(node->text, "all"))
        return true;
    if (!value_layers(l, node, &edit->layers, arg))
        return false;
    bool by_word = spec_needs_n_layers(&edit->layers);
    for (uint32_t i = 0; i < edit->layers.n; i++)
        by_word |= edit->layers.at[i].last == INT32_MAX; /* "3-last" */
    if (by_word) {
        loader_complain(l, node,
                        "found a layer by a word; expected numbers, intervals or all: "
                        "kernels do not say how many layers there are");
        return false;
    }
    for (uint32_t i = 0; i < edit->layers.n; i++)
        if (edit->layers.at[i].last > SPEC_MAX_PLACE_LAYER) {
            loader_complain(l, node, "found layer %d; expected 0 to %d", edit->layers.at[i].last,
                            SPEC_MAX_PLACE_LAYER);
            return false;
        }
    return true;
}

static bool edit_requests(struct loader *l, const struct tree_node *node, void *into,
                          const void *arg)
{
    struct select *who = into;
    if (node->kind == TREE_SCALAR && !strcmp(node->text, "*"))
        return true; /* all, also where the engine names none */
    return value_requests(l, node, who, arg);
}

static bool edit_tokens(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    if (node->kind == TREE_SCALAR && !strcmp(node->text, "all"))
        return true;
    return value_tokens(l, node, into, arg);
}

/* '3,7' and '0:64', or a number. Return: whether it is such a list; *@n of the numbers stand in @out. */
static bool parse_columns(const char *text, uint32_t *out, uint32_t *n)
{
    for (*n = 0;;) {
        char *end;
        unsigned long first = strtoul(text, &end, 10), last = first + 1;
        if (end == text || *text == '-' || *text == '+' || *text == ' ' || first > UINT32_MAX - 1)
            return false;
        if (*end == ':') {
            text = end + 1;
            last = strtoul(text, &end, 10);
            if (end == text || last <= first)
                return false;
        }
        if (last - first > EDIT_MAX_COLUMNS - *n)
            return false;
        while (first < last)
            out[(*n)++] = (uint32_t)first++;
        if (!*end)
            return *n > 0;
        if (*end != ',')
            return false;
        text = end + 1 + strspn(end + 1, " ");
    }
}

static bool take_columns(struct loader *l, const struct tree_node *node, struct edit *edit,
                         bool heads)
{
    char was[128];
    _cleanup_(freep) uint32_t *list = calloc(EDIT_MAX_COLUMNS, sizeof *list);
    uint32_t n;
    if (!list)
        return loader_no_memory(l);
    if (edit->columns) {
        loader_complain(l, node, "found columns and heads; expected one of them");
        return false;
    }
    if (node->kind != TREE_SCALAR || !parse_columns(node->text, list, &n)) {
        loader_complain(l, node,
                        "found %s; expected numbers and ranges of them, as '3,7,16:64', "
                        "at most %d",
                        node_found(node, was, sizeof was), EDIT_MAX_COLUMNS);
        return false;
    }
    for (uint32_t i = 1; i < n; i++)
        if (list[i] <= list[i - 1]) {
            loader_complain(l, node, "found %u after %u; expected them to ascend", list[i],
                            list[i - 1]);
            return false;
        }
    edit->n_columns = n;
    edit->of_heads = heads;
    edit->columns = steal_ptr(list);
    return true;
}

static bool edit_columns(struct loader *l, const struct tree_node *node, void *into,
                         const void *arg)
{
    (void)arg;
    return take_columns(l, node, into, false);
}

static bool edit_heads(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    return take_columns(l, node, into, true);
}

static bool edit_name(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    struct edits *edits = edit_loader_of(l)->edits;
    struct edit *edit = into;
    if (!value_name(l, node, &edit->name, arg))
        return false;
    if (strlen(edit->name) > EDIT_MAX_NAME) {
        loader_complain(l, node, "found a name of %zu characters; expected at most %d",
                        strlen(edit->name), EDIT_MAX_NAME);
        return false;
    }
    for (uint32_t i = 0; &edits->list[i] < edit; i++)
        if (edits->list[i].name && !strcmp(edits->list[i].name, edit->name)) {
            loader_complain(l, node, "found the edit \"%s\" a second time; expected it once",
                            edit->name);
            return false;
        }
    return true;
}

/* Which pass of a layer is the last is known only after it: there is no word for it. */
static bool edit_pass(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    char was[128];
    int64_t pass;
    if (node->kind == TREE_SCALAR && parse_integer(node->text, &pass) && pass >= 0 &&
        pass <= DMI_EDIT_MAX_PASS) {
        *(uint32_t *)into = DMI_EDIT_PASS(pass);
        return true;
    }
    loader_complain(l, node,
                    "found %s; expected how often the layer has run before in the forward, 0 to %d",
                    node_found(node, was, sizeof was), DMI_EDIT_MAX_PASS);
    return false;
}

static bool edit_word(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    uint32_t index;
    bool good = value_word(l, node, &index, arg);
    if (good)
        *(bool *)into = index;
    return good;
}

static const struct key edit_keys[] = {
    { "name", true, edit_name, 0, NULL },
    { "site", true, edit_site, 0, NULL },
    { "layers", false, edit_layers, 0, NULL },
    { "do", true, edit_operations, 0, NULL },
    { "requests", false, edit_requests, offsetof(struct edit, who), NULL },
    { "tokens", false, edit_tokens, offsetof(struct edit, who), NULL },
    { "pass", false, edit_pass, offsetof(struct edit, pass), NULL },
    { "columns", false, edit_columns, 0, NULL },
    { "heads", false, edit_heads, 0, NULL },
    { "cache", false, edit_word, offsetof(struct edit, any_cache), WORDS("salted", "ignore") },
    { "live", false, value_bool, offsetof(struct edit, live), NULL },
    { "on_miss", false, edit_word, offsetof(struct edit, aborts), WORDS("mark", "abort") },
    { "partial", false, edit_word, offsetof(struct edit, partial), WORDS("refuse", "allow") },
};

/* ------------------------------------------------------------------------- the text */

static const struct key vector_keys[] = {
    { "file", false, value_string, offsetof(struct edit_vector, file), NULL },
    { "tensor", false, value_string, offsetof(struct edit_vector, tensor), NULL },
    { "layer_is", false, value_string, offsetof(struct edit_vector, layer_is), NULL },
    { "norm", false, edit_word, offsetof(struct edit_vector, unit), WORDS("as_is", "unit") },
    { "run", false, value_string, offsetof(struct edit_vector, run), NULL },
    { "request", false, value_string, offsetof(struct edit_vector, request), NULL },
    { "site", false, value_string, offsetof(struct edit_vector, site), NULL },
    { "tokens", false, edit_vector_tokens, 0, NULL },
};

static bool vector_name(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    const struct edits *edits = edit_loader_of(l)->edits;
    char **name = into;
    if (!value_name(l, node, name, arg))
        return false;
    for (uint32_t i = 0; i + 1 < edits->n_vectors; i++)
        if (edits->vectors[i].name && !strcmp(edits->vectors[i].name, *name)) {
            loader_complain(l, node, "found the vector \"%s\" a second time; expected it once",
                            *name);
            return false;
        }
    return true;
}

static bool section_vectors(struct loader *l, const struct tree_node *node, void *into,
                            const void *arg)
{
    struct edits *edits = into;
    char was[128];
    if (node->kind != TREE_MAP || node->n_items / 2 > EDITS_MAX_VECTORS) {
        loader_complain(l, node, "found %s; expected a mapping of at most %d names to {file: PATH}",
                        node_found(node, was, sizeof was), EDITS_MAX_VECTORS);
        return false;
    }
    edits->vectors = calloc(node->n_items / 2 + 1, sizeof *edits->vectors);
    if (!edits->vectors)
        return loader_no_memory(l);
    bool good = true;
    for (size_t i = 0; i < node->n_items; i += 2) {
        struct edit_vector *v = &edits->vectors[edits->n_vectors++];
        v->line = node->items[i]->line;
        good = vector_name(l, node->items[i], &v->name, arg) &&
               keys_read(l, node->items[i + 1], "a vector", vector_keys, N_OF(vector_keys), v) &&
               edit_vector_check(l, node->items[i + 1], v) && good;
    }
    return good;
}

static bool section_list(struct loader *l, const struct tree_node *node, void *into,
                         const void *arg)
{
    (void)arg;
    struct edits *edits = into;
    if (!keys_list(l, node, "a list of edits", EDITS_MAX))
        return false;
    edits->list = calloc(node->n_items + 1, sizeof *edits->list);
    if (!edits->list)
        return loader_no_memory(l);
    bool good = true;
    for (size_t i = 0; i < node->n_items; i++) {
        struct edit *edit = &edits->list[edits->n++];
        edit->line = node->items[i]->line;
        good = keys_read(l, node->items[i], "an edit", edit_keys, N_OF(edit_keys), edit) &&
               edit_check_rows(l, node->items[i], edit) &&
               edit_check_bank(l, node->items[i], edit) && good;
    }
    return good;
}

/* What the edits take for granted must be what the HookSpec says. */
static bool section_conventions(struct loader *l, const struct tree_node *node, void *into,
                                const void *arg)
{
    (void)into, (void)arg;
    char was[128];
    if (node->kind != TREE_MAP) {
        loader_complain(l, node, "found %s; expected a mapping, as {layer_base: 0}",
                        node_found(node, was, sizeof was));
        return false;
    }
    bool good = true;
    for (size_t i = 0; i < node->n_items; i += 2) {
        const struct tree_node *key = node->items[i], *value = node->items[i + 1];
        const char *says =
            key->kind == TREE_SCALAR ? spec_convention(edit_loader_of(l)->spec, key->text) : NULL;
        if (says && value->kind == TREE_SCALAR && !strcmp(says, value->text))
            continue;
        good = false;
        loader_complain(l, value, "found the convention %s; expected what the HookSpec says: %s",
                        node_found(value, was, sizeof was), says ? says : "nothing of it");
    }
    return good;
}

static const struct key text_keys[] = {
    { "editspec", true, NULL, 0, NULL }, /* check_version() */
    { "convention", false, section_conventions, 0, NULL },
    { "vectors", false, section_vectors, 0, NULL },
    { "edits", true, section_list, 0, NULL },
};

static bool check_version(struct loader *l, const struct tree_node *root)
{
    char was[128];
    int64_t version;
    const struct tree_node *value = keys_value(root, "editspec");
    if (!value || (value->kind == TREE_SCALAR && parse_integer(value->text, &version) &&
                   version == EDITS_VERSION))
        return true; /* keys_read() reports that it is missing */
    loader_complain(l, value, "found version %s; expected %d, the one that this build reads",
                    node_found(value, was, sizeof was), EDITS_VERSION);
    return false;
}

static void read_root(struct loader *l, const struct tree_node *root, const void *arg)
{
    (void)arg;
    if (check_version(l, root))
        keys_read(l, root, "edits", text_keys, N_OF(text_keys), edit_loader_of(l)->edits);
}

/* ------------------------------------------------------------------------- reading and freeing */

void edits_free(struct edits *edits)
{
    if (!edits)
        return;
    for (uint32_t i = 0; i < edits->n; i++) {
        struct edit *e = &edits->list[i];
        for (uint32_t k = 0; k < e->n_ops; k++) {
            free(e->ops[k].times.tag);
            free(e->ops[k].bank);
        }
        select_deinit(&e->who);
        free(e->name);
        free(e->site);
        free(e->columns);
    }
    for (uint32_t i = 0; i < edits->n_vectors; i++) {
        free(edits->vectors[i].name);
        free(edits->vectors[i].file);
        free(edits->vectors[i].tensor);
        free(edits->vectors[i].layer_is);
        free(edits->vectors[i].run);
        free(edits->vectors[i].request);
        free(edits->vectors[i].site);
    }
    free(edits->list);
    free(edits->vectors);
    free(edits->tensors);
    free(edits->numbers);
    free(edits->path);
    free(edits->text);
    free(edits);
}

static void edits_freep(struct edits **edits)
{
    edits_free(*edits);
}

int edits_parse(const char *path, const char *text, size_t n_text, const struct spec *spec,
                struct spec_errors *errors, struct edits **out)
{
    *errors = (struct spec_errors){ 0 };
    _cleanup_(edits_freep) struct edits *edits = calloc(1, sizeof *edits);
    _cleanup_(freep) struct edit_loader *l = calloc(1, sizeof *l);
    if (!edits || !l)
        return -ENOMEM;
    edits->path = strdup(path);
    edits->text = malloc(n_text + 1);
    if (!edits->path || !edits->text)
        return -ENOMEM;
    memcpy(edits->text, text, n_text);
    edits->text[n_text] = 0;
    edits->n_text = n_text;
    l->edits = edits;
    l->spec = spec;
    l->loader.report.path = edits->path;
    int r = loader_read(&l->loader, edits->text, n_text,
                        "found an empty file; expected \"editspec: " NUMERAL(EDITS_VERSION) "\"",
                        read_root, NULL, errors);
    if (!r)
        *out = steal_ptr(edits);
    return r;
}
