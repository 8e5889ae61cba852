/* SPDX-License-Identifier: Apache-2.0 */
/* What an edit does: its operations, their vectors, numbers and coefficients. Grammar: docs/edits.md, "Operations". */
#include "policy/edit_load.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "policy/nearest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- numbers */

static bool take_number(struct loader *l, const struct tree_node *node, float *out)
{
    double v;
    char was[128];
    if (node->kind == TREE_SCALAR && parse_decimal(node->text, &v) && fabs(v) <= 3e38) {
        *out = (float)v;
        return true;
    }
    loader_complain(l, node, "found %s; expected a decimal number",
                    node_found(node, was, sizeof was));
    return false;
}

/* {0: 2.0, 64: 0} */
static bool take_points(struct loader *l, const struct tree_node *node,
                        struct edit_coefficient *out)
{
    out->from = EDIT_POINTS;
    if (!node->n_items || node->n_items / 2 > EDIT_MAX_POINTS) {
        loader_complain(l, node, "found %zu points; expected 1 to %d", node->n_items / 2,
                        EDIT_MAX_POINTS);
        return false;
    }
    for (size_t i = 0; i < node->n_items; i += 2) {
        struct edit_point *p = &out->points[out->n_points];
        if (!value_integer(l, node->items[i], &p->token, RANGE(0, INT32_MAX)) ||
            !take_number(l, node->items[i + 1], &p->value))
            return false;
        if (out->n_points++ && p->token <= p[-1].token) {
            loader_complain(l, node->items[i],
                            "found generated token %lld after %lld; expected them to ascend",
                            (long long)p->token, (long long)p[-1].token);
            return false;
        }
    }
    return true;
}

#define TAG "tag:"

static bool take_times(struct loader *l, const struct tree_node *node, struct edit_coefficient *out)
{
    if (node->kind == TREE_MAP)
        return take_points(l, node, out);
    if (node->kind != TREE_SCALAR || strncmp(node->text, TAG, strlen(TAG))) {
        out->from = EDIT_NUMBER;
        return take_number(l, node, &out->number);
    }
    out->from = EDIT_TAG;
    if (!node->text[strlen(TAG)]) {
        loader_complain(l, node, "found a tag without a name; expected 'tag:NAME'");
        return false;
    }
    out->tag = strdup(node->text + strlen(TAG));
    return out->tag || loader_no_memory(l);
}

/* [low, high] */
static bool read_bounds(struct loader *l, const struct tree_node *node, struct edit_op *op)
{
    char was[128];
    if (node->kind != TREE_LIST || node->n_items != 2) {
        loader_complain(l, node, "found %s; expected two numbers, as [-1, 1]",
                        node_found(node, was, sizeof was));
        return false;
    }
    if (!take_number(l, node->items[0], &op->a) || !take_number(l, node->items[1], &op->b))
        return false;
    if (op->a <= op->b)
        return true;
    loader_complain(l, node,
                    "found bounds of which the first is the greater one; expected [low, "
                    "high]");
    return false;
}

/* ------------------------------------------------------------------------- operations */

static bool take_vector(struct loader *l, const struct tree_node *node, uint32_t *vector)
{
    const struct edits *edits = edit_loader_of(l)->edits;
    _cleanup_(freep) const char **names = calloc(edits->n_vectors + 1, sizeof *names);
    char was[128], all[256], hint[64];
    if (!names)
        return loader_no_memory(l);
    for (uint32_t i = 0; i < edits->n_vectors; i++) {
        names[i] = edits->vectors[i].name ? edits->vectors[i].name : "";
        if (node->kind == TREE_SCALAR && !strcmp(node->text, names[i])) {
            *vector = i;
            return true;
        }
    }
    names_join(names, edits->n_vectors, all, sizeof all);
    nearest_hint(node->kind == TREE_SCALAR ? node->text : "",
                 node->kind == TREE_SCALAR ? node->n_text : 0, names, edits->n_vectors, hint,
                 sizeof hint);
    loader_complain(l, node, "found %s; expected one of \"vectors\": %s%s",
                    node_found(node, was, sizeof was), edits->n_vectors ? all : "there are none",
                    hint);
    return false;
}

static bool read_vector_op(struct loader *l, const struct tree_node *node, struct edit_op *op)
{
    return take_vector(l, node, &op->vector);
}

/* A vector, or rows that an edit saves. */
static bool read_patch(struct loader *l, const struct tree_node *node, struct edit_op *op)
{
    return edit_is_bank(node) ? edit_bank_name(l, node, op) : take_vector(l, node, &op->vector);
}

static bool read_keep(struct loader *l, const struct tree_node *node, struct edit_op *op)
{
    return value_bool(l, node, &op->keep, NULL);
}

static bool read_scale(struct loader *l, const struct tree_node *node, struct edit_op *op)
{
    return take_times(l, node, &op->times);
}

static bool read_set(struct loader *l, const struct tree_node *node, struct edit_op *op)
{
    double v;
    if (node->kind == TREE_SCALAR && node->plain && parse_decimal(node->text, &v))
        return take_number(l, node, &op->a);
    return take_vector(l, node, &op->vector);
}

static bool read_to(struct loader *l, const struct tree_node *node, struct edit_op *op)
{
    return take_number(l, node, &op->a);
}

static bool read_target(struct loader *l, const struct tree_node *node, struct edit_op *op)
{
    return take_times(l, node, &op->times);
}

static bool read_encoder(struct loader *l, const struct tree_node *node, struct edit_op *op)
{
    return take_vector(l, node, &op->encoder);
}

static bool read_threshold(struct loader *l, const struct tree_node *node, struct edit_op *op)
{
    return take_number(l, node, &op->b);
}

typedef bool op_reader(struct loader *l, const struct tree_node *node, struct edit_op *op);

/* A key beside the operation's word, and how its value looks. */
struct other_key {
    const char *word;
    op_reader *read;
    const char *as;
    bool needed;
};

#define MAX_OTHERS 4

/* What an operation's value is, and which keys stand beside its word. */
struct grammar {
    op_reader *read; /* NULL: a word alone */
    struct other_key others[MAX_OTHERS];
};

#define TIMES                                                                                      \
    {                                                                                              \
        "times", read_target, "NUMBER", false                                                      \
    }
static const struct grammar of_add = { read_vector_op, { TIMES } };
static const struct grammar of_scale = { read_scale, { { 0 } } };
static const struct grammar of_set = { read_set, { { 0 } } };
static const struct grammar of_zero = { NULL, { { 0 } } };
static const struct grammar of_clamp = { read_bounds, { { 0 } } };
static const struct grammar of_project_out = { read_vector_op, { TIMES } };
static const struct grammar of_adjust_rs = { read_vector_op,
                                             { { "to", read_to, "NUMBER", true } } };
static const struct grammar of_limit_along = {
    read_vector_op, { TIMES, { "between", read_bounds, "[LOW, HIGH]", true } }
};
static const struct grammar of_keep_norm = { NULL, { { 0 } } };
static const struct grammar of_patch = { read_patch, { TIMES } };
static const struct grammar of_feature = { read_vector_op,
                                           { { "encoder", read_encoder, "VECTOR", true },
                                             { "to", read_target, "NUMBER", true },
                                             { "bias", read_to, "NUMBER", false },
                                             { "threshold", read_threshold, "NUMBER", false } } };
static const struct grammar of_save = { edit_bank_name, { { "keep", read_keep, "true", false } } };
#undef TIMES

static const struct operation {
    const char *word;
    const struct grammar *grammar;
} operations[] = {
#define OP(NAME, word, traits) { #word, &of_##word },
    DMI_EDIT_OPS(OP)
#undef OP
};

static const struct operation *operation_of(const char *word)
{
    return FIRST(i, N_OF(operations), !strcmp(operations[i].word, word), &operations[i], NULL);
}

static bool no_operation(struct loader *l, const struct tree_node *node)
{
    const char *names[N_OF(operations)];
    char was[128], all[256], hint[64];
    const char *text = node->kind == TREE_SCALAR ? node->text : "";
    for (size_t i = 0; i < N_OF(operations); i++)
        names[i] = operations[i].word;
    names_join(names, N_OF(names), all, sizeof all);
    nearest_hint(text, strlen(text), names, N_OF(names), hint, sizeof hint);
    loader_complain(l, node, "found %s; expected an operation: %s%s",
                    node_found(node, was, sizeof was), all, hint);
    return false;
}

static const struct other_key *other_of(const struct grammar *g, const char *word)
{
    for (size_t i = 0; i < MAX_OTHERS && g->others[i].word; i++)
        if (!strcmp(g->others[i].word, word))
            return &g->others[i];
    return NULL;
}

/* The keys beside the operation's word, each where it is there. */
static bool read_others(struct loader *l, const struct tree_node *node, const struct operation *o,
                        struct edit_op *op)
{
    const struct other_key *others = o->grammar->others;
    for (size_t i = 0; i < MAX_OTHERS && others[i].word; i++) {
        const struct other_key *key = &others[i];
        const struct tree_node *value = keys_value(node, key->word);
        if (!value && key->needed) {
            loader_complain(l, node, "found \"%s\" without \"%s\"; expected {%s: VECTOR, %s: %s}",
                            o->word, key->word, o->word, key->word, key->as);
            return false;
        }
        if (value && !key->read(l, value, op))
            return false;
    }
    return true;
}

/* Are all keys of the mapping, but @word, ones that the operation knows, and each there once? */
static bool keys_fit(struct loader *l, const struct tree_node *node, const struct tree_node *word,
                     const struct operation *o)
{
    const char *names[MAX_OTHERS];
    char was[128], all[128];
    size_t n = 0;
    bool good = true;
    while (n < MAX_OTHERS && o->grammar->others[n].word) {
        names[n] = o->grammar->others[n].word;
        n++;
    }
    names_join(names, n, all, sizeof all);
    for (size_t i = 0; i < node->n_items; i += 2) {
        const struct tree_node *key = node->items[i];
        const char *text = key->kind == TREE_SCALAR ? key->text : "";
        bool known = other_of(o->grammar, text);
        bool again = known && keys_value(node, text) != node->items[i + 1];
        if (key == word || (known && !again))
            continue;
        good = false;
        if (again)
            loader_complain(l, key, "found \"%s\" a second time; expected it once", text);
        else
            loader_complain(l, key, "found %s beside \"%s\"; expected %s",
                            node_found(key, was, sizeof was), o->word, n ? all : "nothing");
    }
    return good;
}

/* The node that says the operation: a word alone, or one of the keys. Return: another node where none does. */
static const struct tree_node *find_word(const struct tree_node *node)
{
    if (node->kind != TREE_MAP || !node->n_items)
        return node;
    for (size_t i = 0; i < node->n_items; i += 2)
        if (node->items[i]->kind == TREE_SCALAR && operation_of(node->items[i]->text))
            return node->items[i];
    return node->items[0];
}

static bool read_op(struct loader *l, const struct tree_node *node, struct edit_op *op)
{
    bool alone = node->kind == TREE_SCALAR;
    const struct tree_node *word = find_word(node);
    const struct operation *o = word->kind == TREE_SCALAR ? operation_of(word->text) : NULL;
    *op = (struct edit_op){ .vector = EDIT_NO_VECTOR,
                            .encoder = EDIT_NO_VECTOR,
                            .times = { .number = 1 } };
    if (!o)
        return no_operation(l, word);
    op->kind = (uint32_t)(o - operations); /* both are in the order of the list */
    if (alone != !o->grammar->read) {
        loader_complain(l, node,
                        alone ? "found \"%s\" alone; expected {%s: ...}"
                              : "found a value of \"%s\"; expected the word alone: %s",
                        o->word, o->word);
        return false;
    }
    if (alone)
        return true;
    return keys_fit(l, node, word, o) && o->grammar->read(l, keys_value(node, o->word), op) &&
           read_others(l, node, o, op);
}

bool edit_operations(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    struct edit *edit = into;
    if (!keys_list(l, node, "a list of operations, as [{add: VECTOR, times: 2}]", DMI_EDIT_MAX_OPS))
        return false;
    if (!node->n_items)
        loader_complain(l, node, "found no operation; expected one or more");
    bool good = node->n_items > 0;
    for (size_t i = 0; good && i < node->n_items; i++)
        good = read_op(l, node->items[i], &edit->ops[edit->n_ops++]);
    return good;
}
