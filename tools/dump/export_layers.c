/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/export_layers.h"

#include "core/cleanup.h"
#include "core/grow.h"
#include "tools/common/choice.h"

#include <inttypes.h>
#include <string.h>

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
    if (grow((void **)&out->all, out->n, &out->room, sizeof *out->all, 64))
        return no_memory_for(err);
    out->all[out->n++] = layer;
    return 0;
}

static int not_captured(struct err *err, const char *word, const struct export_stock *stock)
{
    _cleanup_(text_deinit) struct text have = { 0 };
    layers_add_text(&have, &stock->layers);
    return err_set(err, -ENODATA, "--layers: '%s': %s was captured in layers %s%s", word,
                   stock->site, have.data ? have.data : "(none)",
                   stock->has_last ? ", and what enters the last norm is 'last'" : "");
}

static int append_last(struct err *err, const struct export_stock *stock, struct layers *out)
{
    if (stock->last && stock->has_last)
        return append(err, out, EXPORT_LAST);
    if (stock->last)
        return err_set(err, -ENODATA,
                       "--layers: 'last' is what enters the last norm, and no site %s was captured",
                       stock->last);
    return append(err, out, stock->layers.all[stock->layers.n - 1]);
}

static int append_word(struct err *err, const char *word, const struct export_stock *stock,
                       struct layers *out)
{
    struct range range;
    size_t before = out->n;
    if (!strcmp(word, "last"))
        return append_last(err, stock, out);
    if (!choice_parse_range(word, &range))
        return err_set(err, -EINVAL,
                       "--layers: '%s' is neither a number, nor a range A:B, nor last", word);
    int r = 0;
    for (size_t i = 0; !r && i < stock->layers.n; i++)
        if (range_has(&range, stock->layers.all[i]))
            r = append(err, out, stock->layers.all[i]);
    return r || out->n > before ? r : not_captured(err, word, stock);
}

static int all_of(struct err *err, const struct export_stock *stock, struct layers *out)
{
    int r = 0;
    for (size_t i = 0; !r && i < stock->layers.n; i++)
        r = append(err, out, stock->layers.all[i]);
    return !r && stock->has_last ? append(err, out, EXPORT_LAST) : r;
}

int export_layers_choose(struct err *err, const char *text, const struct export_stock *stock,
                         struct layers *out)
{
    if (!text)
        return all_of(err, stock, out);
    _cleanup_(freep) char *words = strdup(text);
    char *rest = words;
    int r = words ? 0 : no_memory_for(err);
    for (char *word; !r && (word = strsep(&rest, ","));)
        r = append_word(err, word, stock, out);
    return r;
}
