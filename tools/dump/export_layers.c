/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/export_layers.h"

#include "core/grow.h"
#include "read/missing.h"

#include <inttypes.h>

static int no_memory_for(struct err *err)
{
    return err_set_errno(err, ENOMEM, "cannot choose layers");
}

void export_layers_add_name(struct text *to, int32_t layer)
{
    layer == EXPORT_LAST ? text_printf(to, "last") : text_printf(to, "%" PRId32, layer);
}

/* layers_add() sorts when it grows; here the order is the user's. */
static int append(struct err *err, struct layers *out, int32_t layer)
{
    for (size_t i = 0; i < out->n; i++)
        if (out->all[i] == layer)
            return err_set(err, -EINVAL, "--layers: a layer is in the list twice");
    if (PUSH(out->all, out->n, out->room, 64, layer))
        return no_memory_for(err);
    return 0;
}

static int append_last(struct err *err, const struct export_stock *stock, struct layers *out)
{
    if (stock->has_last)
        return append(err, out, EXPORT_LAST);
    return err_set(err, -ENODATA,
                   "--layers: 'last' is what enters the last norm, and no site %s was captured",
                   stock->last);
}

static int append_word(struct err *err, const struct layer_word *word,
                       const struct export_stock *stock, struct layers *out)
{
    const struct layers *have = &stock->layers;
    int32_t n_layers = have->n ? have->all[have->n - 1] + 1 : 0;
    size_t before = out->n;
    int r = 0;
    if (stock->last && word->kind == LAYER_FROM_END && !word->first)
        return append_last(err, stock, out);
    for (size_t i = 0; !r && i < have->n; i++)
        if (layer_word_has(word, have->all[i], n_layers))
            r = append(err, out, have->all[i]);
    return r || out->n > before ? r : missing_layer(err, stock->site, word, have);
}

static int all_of(struct err *err, const struct export_stock *stock, struct layers *out)
{
    int r = 0;
    for (size_t i = 0; !r && i < stock->layers.n; i++)
        r = append(err, out, stock->layers.all[i]);
    return !r && stock->has_last ? append(err, out, EXPORT_LAST) : r;
}

int export_layers_choose(struct err *err, const struct selection *select,
                         const struct export_stock *stock, struct layers *out)
{
    int r = 0;
    for (size_t i = 0; !r && i < select->n_layers; i++)
        r = append_word(err, &select->layers[i], stock, out);
    return r || select->n_layers ? r : all_of(err, stock, out);
}
