/* SPDX-License-Identifier: Apache-2.0 */
/* What edit_load.c, edit_ops.c, edit_source.c and edit_bank.c share; no other file includes it. */
#pragma once

#include "policy/edit.h"
#include "policy/spec_load.h"

/* What readers of edits know beside the loader. */
struct edit_loader {
    struct loader loader; /* first: a struct loader * is one of these */
    struct edits *edits;
    const struct spec *spec;
};

/* The loader of edits that @l is the first part of. */
static inline struct edit_loader *edit_loader_of(struct loader *l)
{
    return (struct edit_loader *)l;
}

/* A key_reader, in edit_ops.c: the list of an edit's operations. @into: the struct edit. */
key_reader edit_operations;

/* In edit_source.c. A key_reader: which rows of a run a vector is. @into: the struct edit_vector. */
key_reader edit_vector_tokens;
/* Is it a file, or rows of a run, and all said that it needs? */
bool edit_vector_check(struct loader *l, const struct tree_node *node,
                       const struct edit_vector *vector);
/* In edit_bank.c. Key readers of an operation: the name of what is saved; a vector, or what is saved. */
bool edit_bank_name(struct loader *l, const struct tree_node *node, struct edit_op *op);
bool edit_is_bank(const struct tree_node *node);
/* Does what the edit saves or takes agree with the rest of it, and with the HookSpec? */
bool edit_check_bank(struct loader *l, const struct tree_node *node, const struct edit *edit);
/* In edit_source.c. Has the edit a position for each row of its vectors? */
bool edit_check_rows(struct loader *l, const struct tree_node *node, const struct edit *edit);
