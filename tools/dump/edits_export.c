/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dmi-dump edits --export: what is in force in the end, as a file that puts the same in force again. An edit's text is its own, with the
 * coefficient that it was given since; numbers of vectors are those that the process had, in one safetensors file beside it.
 */
#include "tools/dump/edits.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/grow.h"
#include "policy/tree.h"
#include "read/safetensors.h"
#include "storage/file.h"
#include "read/edit_packs.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A vector that an exported edit has. */
struct vector {
    const struct edits *of;
    uint32_t number;
    char name[160]; /* in the new file */
};

struct edits_export {
    struct edit_packs packs;
    struct vector *vectors;
    size_t n_vectors, room;
    struct text conventions, vectors_text, edits_text;
    struct text keys; /* of conventions so far, each with a zero byte */
    struct text numbers;
    struct st_header header;
    char *file; /* of the vectors, without its folder */
};

static void exporting_deinit(struct edits_export *x)
{
    edit_packs_close(&x->packs);
    free(x->vectors);
    text_deinit(&x->conventions);
    text_deinit(&x->vectors_text);
    text_deinit(&x->edits_text);
    text_deinit(&x->keys);
    text_deinit(&x->numbers);
    text_deinit(&x->header.text);
    free(x->file);
}

/* ------------------------------------------------------------------------- vectors */

static bool is_taken(const struct edits_export *x, const char *name)
{
    return ANY(i, x->n_vectors, !strcmp(x->vectors[i].name, name));
}

/* One tensor a layer, or one for all. */
static void add_numbers(struct edits_export *x, const struct vector *v)
{
    bool by_layer = false;
    for (uint32_t i = 0; i < v->of->n_tensors; i++) {
        const struct edit_numbers *t = &v->of->tensors[i];
        _cleanup_(text_deinit) struct text key = { 0 };
        if (t->vector != v->number)
            continue;
        by_layer = t->layer != EDIT_ANY_LAYER;
        text_printf(&key, "%s/", v->name);
        by_layer ? text_printf(&key, "%d", t->layer) : text_printf(&key, "all");
        safetensors_add_dims(&x->header, key.data ? key.data : "", DMI_DTYPE_F32, &t->n, 1,
                             t->n * sizeof(float));
        text_add(&x->numbers, (const char *)(v->of->numbers + t->first), t->n * sizeof(float));
        x->numbers.failed |= key.failed;
    }
    text_printf(&x->vectors_text, "  %s: {file: ", v->name);
    text_json(&x->vectors_text, x->file);
    text_printf(&x->vectors_text, ", tensor: \"%s/%s\"}\n", v->name, by_layer ? "{layer}" : "all");
}

/* What the new file calls the vector; NULL without memory. */
static const char *vector_name(struct edits_export *x, const struct edits *of, uint32_t number)
{
    for (size_t i = 0; i < x->n_vectors; i++)
        if (x->vectors[i].of == of && x->vectors[i].number == number)
            return x->vectors[i].name;
    if (GROW(x->vectors, x->n_vectors, x->room))
        return NULL;
    struct vector v = { .of = of, .number = number };
    snprintf(v.name, sizeof v.name, "%.128s", of->vectors[number].name);
    for (unsigned n = 2; is_taken(x, v.name); n++)
        snprintf(v.name, sizeof v.name, "%.128s-%u", of->vectors[number].name, n);
    x->vectors[x->n_vectors] = v;
    add_numbers(x, &v);
    return x->vectors[x->n_vectors++].name;
}

/* ------------------------------------------------------------------------- text */

static void add_scalar(struct text *to, const struct tree_node *node)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+-";
    if (node->plain && node->n_text && strspn(node->text, plain) == node->n_text)
        text_add(to, node->text, node->n_text);
    else
        text_json_n(to, node->text, node->n_text);
}

/* As it was written, on one line. */
static void add_node(struct text *to, const struct tree_node *node)
{
    bool map = node->kind == TREE_MAP;
    if (node->kind == TREE_SCALAR) {
        add_scalar(to, node);
        return;
    }
    text_printf(to, map ? "{" : "[");
    for (size_t i = 0; i < node->n_items; i++) {
        text_printf(to, "%s", !i ? "" : map && i % 2 ? ": " : ", ");
        add_node(to, node->items[i]);
    }
    text_printf(to, map ? "}" : "]");
}

static const struct tree_node *value_of(const struct tree_node *map, const char *key)
{
    for (size_t i = 0; map && map->kind == TREE_MAP && i + 1 < map->n_items; i += 2)
        if (map->items[i]->kind == TREE_SCALAR && !strcmp(map->items[i]->text, key))
            return map->items[i + 1];
    return NULL;
}

/* @times: a number in place of its coefficient; NULL: as it is. Return: 0 or -ENOMEM. */
static int add_op(struct edits_export *x, const struct edits *of, const struct edit_op *op,
                  const struct tree_node *node, const json_t *times)
{
    struct text *to = &x->edits_text;
    if (node->kind != TREE_MAP || node->n_items < 2) {
        add_node(to, node);
        return 0;
    }
    const char *vector = op->vector == EDIT_NO_VECTOR ? NULL : vector_name(x, of, op->vector);
    if (op->vector != EDIT_NO_VECTOR && !vector)
        return -ENOMEM;
    times = times && edit_op_has_times(op) ? times : NULL;
    bool scales = op->kind == DMI_EDIT_SCALE; /* its coefficient is its value */
    text_printf(to, "{%s: ", node->items[0]->text);
    if (vector)
        text_json(to, vector);
    else if (times && scales)
        text_json_double(to, json_number_value(times));
    else
        add_node(to, node->items[1]);
    for (size_t i = 2; i + 1 < node->n_items; i += 2) {
        if (times && !strcmp(node->items[i]->text, "times"))
            continue;
        text_printf(to, ", %s: ", node->items[i]->text);
        add_node(to, node->items[i + 1]);
    }
    if (times && !scales) {
        text_printf(to, ", times: ");
        text_json_double(to, json_number_value(times));
    }
    text_printf(to, "}");
    return 0;
}

static bool has_key(const struct text *keys, const char *key)
{
    for (size_t at = 0; at < keys->n; at += strlen(keys->data + at) + 1)
        if (!strcmp(keys->data + at, key))
            return true;
    return false;
}

/* Conventions of all files say the same of one key, as the HookSpec does. */
static void add_conventions(struct edits_export *x, const struct tree_node *map)
{
    for (size_t i = 0; map && i + 1 < map->n_items; i += 2) {
        const char *key = map->items[i]->text;
        size_t n = strlen(key) + 1;
        if (has_key(&x->keys, key))
            continue;
        text_printf(&x->conventions, "%s", x->keys.n ? ", " : "");
        text_add(&x->keys, key, n);
        add_node(&x->conventions, map->items[i]);
        text_printf(&x->conventions, ": ");
        add_node(&x->conventions, map->items[i + 1]);
    }
}

static int add_edit_node(struct edits_export *x, const struct edits *of, const struct edit *edit,
                         const struct tree_node *node, const json_t *times)
{
    struct text *to = &x->edits_text;
    int r = 0;
    text_printf(to, "  - {");
    for (size_t i = 0; !r && i + 1 < node->n_items; i += 2) {
        const struct tree_node *value = node->items[i + 1];
        text_printf(to, "%s%s: ", i ? ", " : "", node->items[i]->text);
        if (strcmp(node->items[i]->text, "do")) {
            add_node(to, value);
            continue;
        }
        text_printf(to, "[");
        for (size_t k = 0; !r && k < value->n_items && k < edit->n_ops; k++) {
            text_printf(to, "%s", k ? ", " : "");
            r = add_op(x, of, &edit->ops[k], value->items[k], times);
        }
        text_printf(to, "]");
    }
    text_printf(to, "}\n");
    return r;
}

/* An entry of what is in force; the files are looked at for the first one. Return: 0 or -errno with a sentence. */
static int add_edit(struct err *err, struct edits_export *x, const struct reader_run *run,
                    const json_t *entry)
{
    if (!x->packs.spec && edit_packs_open(err, run, &x->packs))
        return err->code;
    const struct edits *of = edit_packs_find(err, &x->packs, edit_text(entry, "hash"));
    json_int_t number = json_integer_value(json_object_get(entry, "number"));
    struct tree tree = { 0 };
    struct tree_error error;
    if (!of)
        return err->code;
    int r = tree_parse(of->text, of->n_text, &tree, &error) ? -ENOMEM : 0;
    const struct tree_node *list = value_of(tree.root, "edits");
    if (!r && (number < 0 || number >= of->n || !list || (size_t)number >= list->n_items))
        r = err_set(err, -EBADMSG, "the note of a change names edit %lld of a file that has %u",
                    (long long)number, of->n);
    if (!r) {
        add_conventions(x, value_of(tree.root, "convention"));
        r = add_edit_node(x, of, &of->list[number], list->items[number],
                          json_object_get(entry, "times"));
    }
    tree_deinit(&tree);
    return r && !err->code ? err_set_errno(err, -r, "cannot export edits") : r;
}

/* ------------------------------------------------------------------------- files */

/* With another ending. */
static char *vectors_path(const char *path)
{
    const char *slash = strrchr(path, '/'), *dot = strrchr(slash ? slash : path, '.');
    char *out = NULL;
    int n = dot && dot != path ? (int)(dot - path) : (int)strlen(path);
    return asprintf(&out, "%.*s.safetensors", n, path) < 0 ? NULL : out;
}

static int refuse(struct err *err, const char *path, bool force)
{
    return !force && !access(path, F_OK)
               ? err_set(err, -EEXIST, "%s is there already; --force replaces it", path)
               : 0;
}

static int write_vectors(struct err *err, struct edits_export *x, const char *path)
{
    _cleanup_(text_deinit) struct text all = { 0 };
    int r = safetensors_end(&x->header);
    uint64_t n = x->header.text.n;
    text_add(&all, (const char *)&n, sizeof n);
    text_add(&all, x->header.text.data ? x->header.text.data : "", n);
    text_add(&all, x->numbers.data ? x->numbers.data : "", x->numbers.n);
    if (!r)
        r = all.failed || x->numbers.failed ? -ENOMEM : file_replace(path, all.data, all.n, 0);
    return r ? err_set_errno(err, -r, "cannot write %s", path) : 0;
}

static int write_edits(struct err *err, const struct edits_export *x, const char *path)
{
    _cleanup_(text_deinit) struct text all = { 0 };
    text_printf(&all, "editspec: 1\n");
    if (x->conventions.n)
        text_printf(&all, "convention: {%s}\n", x->conventions.data);
    if (x->vectors_text.n)
        text_printf(&all, "vectors:\n%s", x->vectors_text.data);
    text_printf(&all, x->edits_text.n ? "edits:\n%s" : "edits: []\n", x->edits_text.data);
    bool failed = all.failed || x->conventions.failed || x->keys.failed || x->vectors_text.failed ||
                  x->edits_text.failed;
    int r = failed ? -ENOMEM : file_replace(path, all.data, all.n, 0);
    return r ? err_set_errno(err, -r, "cannot write %s", path) : 0;
}

int edits_export(struct err *err, const struct reader_run *run, const struct edit_history *h,
                 const char *path, bool force)
{
    _cleanup_(exporting_deinit) struct edits_export x = { 0 };
    _cleanup_(freep) char *beside = vectors_path(path);
    const json_t *in_force = h->n ? h->changes[h->n - 1].in_force : NULL;
    json_t *metadata = json_pack("{s:s}", "made_by", "dmi-dump edits --export");
    const char *slash = beside ? strrchr(beside, '/') : NULL;
    x.file = beside ? strdup(slash ? slash + 1 : beside) : NULL;
    int r = x.file && metadata ? 0 : err_set(err, -ENOMEM, "no memory");
    if (!r && run->n_runs > 1)
        r = err_set(err, -ENOTUNIQ,
                    "%s holds the runs of %zu ranks, which have the same edits: name one of them",
                    run->path, run->n_runs);
    if (!r)
        safetensors_begin(&x.header, metadata);
    json_decref(metadata);
    r = r ? r : refuse(err, path, force);
    for (size_t i = 0; !r && i < json_array_size(in_force); i++)
        if (!edit_is_off(json_array_get(in_force, i)))
            r = add_edit(err, &x, run, json_array_get(in_force, i));
    if (!r && x.n_vectors)
        r = refuse(err, beside, force);
    if (!r && x.n_vectors)
        r = write_vectors(err, &x, beside);
    return r ? r : write_edits(err, &x, path);
}
