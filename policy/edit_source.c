/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors that are rows of a recorded run, and which edits may have more than one of them. Grammar: docs/edits.md, "Vectors". */
#include "policy/edit_load.h"
#include "policy/interval.h"

#include <string.h>

#define MAX_ROWS 65536

/* Positions: '5', '2:7', '-1' (the last of the prompt), '-3:'. Their number is known from the words alone. */
bool edit_vector_tokens(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    struct edit_vector *v = into;
    struct slice s;
    char was[128];
    bool good = node->kind == TREE_SCALAR && slice_parse(node->text, node->n_text, &s);
    if (good && s.first < 0 && s.end == INT64_MAX)
        s.end = 0; /* that of the prompt */
    if (good && (s.first < 0) == (s.end <= 0) && s.end > s.first && s.end - s.first <= MAX_ROWS) {
        v->first = s.first;
        v->n_rows = (uint32_t)(s.end - s.first);
        return true;
    }
    loader_complain(l, node,
                    "found %s; expected positions of the donor, as '5', '2:7', '-1' or '-3:'",
                    node_found(node, was, sizeof was));
    return false;
}

bool edit_vector_check(struct loader *l, const struct tree_node *node, const struct edit_vector *v)
{
    if (v->file && !v->run && !v->request && !v->site && !v->n_rows)
        return true;
    if (!v->file && v->run && v->request && v->site && v->n_rows && !v->tensor)
        return true;
    loader_complain(
        l, node,
        "found a vector that is neither a file nor rows of a run; expected {file: PATH}, "
        "or {run: DIR, request: ID, site: NAME, tokens: '5'}");
    return false;
}

static uint32_t rows_of(const struct edits *edits, uint32_t vector)
{
    return vector == EDIT_NO_VECTOR ? 1 : edit_vector_rows(&edits->vectors[vector]);
}

bool edit_check_rows(struct loader *l, const struct tree_node *node, const struct edit *edit)
{
    const struct edits *edits = edit_loader_of(l)->edits;
    const struct select *who = &edit->who;
    for (uint32_t k = 0; k < edit->n_ops; k++) {
        uint32_t n = rows_of(edits, edit->ops[k].vector);
        uint32_t n_encoder = rows_of(edits, edit->ops[k].encoder);
        bool as_many = who->tokens == SELECT_RANGE && (who->first < 0) == (who->end <= 0) &&
                       who->end - who->first == n;
        if (n_encoder == 1 && (n == 1 || (edit->ops[k].kind == DMI_EDIT_PATCH && as_many)))
            continue;
        n = n_encoder > 1 ? n_encoder : n;
        loader_complain(l, node,
                        "found a vector of %u rows; expected it in \"patch\", of an edit whose "
                        "\"tokens\" are as many positions, as '0:%u'",
                        n, n);
        return false;
    }
    return true;
}
