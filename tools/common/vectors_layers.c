/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/vectors_layers.h"

#include "core/any.h"
#include "policy/tap_names.h"

#include <string.h>

static bool takes(const struct edit *edit, uint32_t vector)
{
    return ANY(k, edit->n_ops, edit->ops[k].vector == vector || edit->ops[k].encoder == vector);
}

bool layers_wanted(const struct edits *edits, uint32_t vector, int32_t layer)
{
    bool any = false;
    for (uint32_t i = 0; i < edits->n; i++) {
        const struct edit *edit = &edits->list[i];
        if (!takes(edit, vector))
            continue;
        any = true;
        if (layer == EDIT_ANY_LAYER || !edit->layers.n || spec_takes_layer(&edit->layers, layer, 0))
            return true;
    }
    return !any; /* a vector that no edit takes is checked like others */
}

bool layers_shift(const struct edits *edits, uint32_t vector, int32_t *shift)
{
    const char *layer_is = edits->vectors[vector].layer_is;
    bool post = false, other = false;
    *shift = 0;
    if (!layer_is || strcmp(tap_canonical(layer_is), "resid_pre"))
        return true;
    for (uint32_t i = 0; i < edits->n; i++)
        if (takes(&edits->list[i], vector)) {
            bool is = !strcmp(tap_canonical(edits->list[i].site), "resid_post");
            post = post || is;
            other = other || !is;
        }
    *shift = post ? -1 : 0;
    return !post || !other;
}
