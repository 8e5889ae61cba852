/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Salts: an edit below the last attention changes keys and values, and an engine that shares these between requests with one prompt
 * must not share them with requests without the edit. A salt is a number of all that edits do in a request. Pure.
 */
#include "policy/edit.h"

#include "policy/tree.h"

#include <string.h>
#include <xxhash.h>

/* What the request says under the name, as text; "" where it says nothing. */
static const char *tag_of(const struct tree *tags, const char *key)
{
    const struct tree_node *root = tags->root;
    for (size_t i = 0; root && root->kind == TREE_MAP && i + 1 < root->n_items; i += 2)
        if (root->items[i]->kind == TREE_SCALAR && !strcmp(root->items[i]->text, key) &&
            root->items[i + 1]->kind == TREE_SCALAR)
            return root->items[i + 1]->text;
    return "";
}

static uint64_t add(uint64_t hash, const void *data, size_t n)
{
    return XXH3_64bits_withSeed(data, n, hash);
}

static uint64_t add_coefficient(uint64_t hash, const struct edit_coefficient *c,
                                const struct tree *tags)
{
    if (c->from == EDIT_TAG) {
        const char *text = tag_of(tags, c->tag);
        return add(hash, text, strlen(text) + 1);
    }
    hash = add(hash, &c->number, sizeof c->number);
    for (uint32_t i = 0; i < c->n_points; i++) {
        hash = add(hash, &c->points[i].token, sizeof c->points[i].token);
        hash = add(hash, &c->points[i].value, sizeof c->points[i].value);
    }
    return hash;
}

/* All that the edit does, whatever its name. */
static uint64_t add_edit(uint64_t hash, const struct edit_use *use, const struct tree *tags)
{
    uint32_t index = (uint32_t)(use->edit - use->of->list);
    hash = add(hash, &use->of->hash, sizeof use->of->hash);
    hash = add(hash, &index, sizeof index);
    for (uint32_t k = 0; k < use->edit->n_ops; k++) {
        const struct edit_op *op = &use->edit->ops[k];
        hash = add_coefficient(hash, use->times && edit_op_has_times(op) ? use->times : &op->times,
                               tags);
    }
    return hash;
}

bool edit_is_constant(const struct edit *edit, const struct edits *of)
{
    if (edit->live || edit_saves(edit) || edit_takes(edit) || !select_is_default(&edit->who))
        return false;
    for (uint32_t k = 0; k < edit->n_ops; k++) {
        const struct edit_op *op = &edit->ops[k];
        if (op->times.from != EDIT_NUMBER ||
            (op->vector != EDIT_NO_VECTOR && edit_vector_rows(&of->vectors[op->vector]) > 1))
            return false;
    }
    return true;
}

/* @all: also those of which no salt knows. */
static uint64_t hash_of(const struct edit_use *uses, uint32_t n, const char *id, const char *tags,
                        bool all, const struct edit_sources *sources)
{
    struct tree tree = { 0 };
    struct tree_error error;
    uint64_t hash = 0;
    bool any = false;
    if (tags && tree_parse(tags, strlen(tags), &tree, &error))
        tree.root = NULL;
    for (uint32_t i = 0; i < n; i++)
        if (!uses[i].off && (all || (!uses[i].edit->any_cache && !uses[i].everywhere)) &&
            !edit_saves(uses[i].edit) && select_request(&uses[i].edit->who, id, tags)) {
            const char *takes = edit_takes(uses[i].edit);
            hash = add_edit(hash, &uses[i], &tree);
            if (takes && sources) {
                uint64_t source = sources->of(sources->arg, takes);
                hash = add(hash, &source, sizeof source);
            }
            any = true;
        }
    tree_deinit(&tree);
    return any ? hash | 1 : 0;
}

uint64_t edits_salt(const struct edit_use *uses, uint32_t n, const char *id, const char *tags,
                    const struct edit_sources *sources)
{
    return hash_of(uses, n, id, tags, false, sources);
}

uint64_t edits_effect(const struct edit_use *uses, uint32_t n, const char *id, const char *tags)
{
    return hash_of(uses, n, id, tags, true, NULL);
}
