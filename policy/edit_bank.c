/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of requests that are being served, which one edit saves and another takes. Grammar: docs/edits.md, "Rows of another request". */
#include "core/any.h"
#include "policy/edit_load.h"

#include <string.h>

#define BANK "bank:"

static const char *name_of(const struct edit *edit, uint32_t trait)
{
    return FIRST(k, edit->n_ops, dmi_edit_traits(edit->ops[k].kind) & trait && edit->ops[k].bank,
                 edit->ops[k].bank, NULL);
}

const char *edit_saves(const struct edit *edit)
{
    return name_of(edit, DMI_EDIT_SAVES);
}

const char *edit_takes(const struct edit *edit)
{
    return name_of(edit, DMI_EDIT_BANK);
}

bool edit_is_bank(const struct tree_node *node)
{
    return node->kind == TREE_SCALAR && !strncmp(node->text, BANK, strlen(BANK));
}

bool edit_bank_name(struct loader *l, const struct tree_node *node, struct edit_op *op)
{
    struct tree_node name = *node;
    if (dmi_edit_traits(op->kind) & DMI_EDIT_BANK) {
        name.text += strlen(BANK);
        name.n_text -= strlen(BANK);
    }
    return value_name(l, &name, &op->bank, NULL);
}

/* Does another edit of the file save rows under the name, too? */
static bool is_saved_twice(const struct edits *edits, const struct edit *edit, const char *name)
{
    for (const struct edit *e = edits->list; e < edit; e++) {
        const char *other = edit_saves(e);
        if (other && !strcmp(other, name))
            return true;
    }
    return false;
}

bool edit_check_bank(struct loader *l, const struct tree_node *node, const struct edit *edit)
{
    const char *saves = edit_saves(edit), *takes = edit_takes(edit);
    if (!saves && !takes)
        return true;
    for (uint32_t k = 0; takes && k < edit->n_ops; k++)
        if (edit->ops[k].bank && strcmp(edit->ops[k].bank, takes)) {
            loader_complain(l, node, "found rows of \"%s\" and of \"%s\"; expected those of one",
                            takes, edit->ops[k].bank);
            return false;
        }
    if (!edit_loader_of(l)->spec->bank_bytes)
        loader_complain(l, node,
                        "found \"%s\" without a bank; expected \"edits: {bank: 64M}\" in the "
                        "HookSpec: device memory in which rows wait",
                        saves ? "save" : "patch");
    else if (saves && (edit->n_ops > 1 || edit->columns))
        loader_complain(l, node,
                        "found \"save\" beside other operations, columns or heads; expected it "
                        "alone: whole rows are saved, as they are before edits");
    else if (saves && is_saved_twice(edit_loader_of(l)->edits, edit, saves))
        loader_complain(l, node, "found rows saved as \"%s\" a second time; expected it once",
                        saves);
    else
        return true;
    return false;
}
