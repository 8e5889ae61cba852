/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump export: what goes along with the rows. */
#include "tools/dump/export.h"

#include "core/grow.h"
#include "read/value.h"
#include "storage/map.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- positions */

static int add_pair(struct position_list *l, int64_t first, uint64_t n)
{
    struct position_pair *last = l->n ? &l->pairs[l->n - 1] : NULL;
    bool goes_on =
        last &&
        (first < 0 ? last->first < 0 : last->first >= 0 && last->first + (int64_t)last->n == first);
    if (goes_on) {
        last->n += n;
        return 0;
    }
    return PUSH(l->pairs, l->n, l->room, 2, (struct position_pair){ first < 0 ? -1 : first, n });
}

static int list_of(const struct tensor *t, struct position_list *out)
{
    int r = 0;
    for (size_t p = 0; !r && p < t->n_stretches; p++)
        if (t->stretches[p].n_rows)
            r = add_pair(out, t->stretches[p].position, t->stretches[p].n_rows);
    return r;
}

/* Gives a target its list, which is new unless another target has the same. */
static int collect(struct exporter *x, struct map *known, struct target *target)
{
    static const char empty[] = "";
    struct position_list *l = &x->positions[x->n_positions];
    int r = list_of(target->tensor, l);
    size_t *index =
        r ? NULL : map_at(known, l->n ? (const void *)l->pairs : empty, l->n * sizeof *l->pairs);
    if (!index) {
        free(l->pairs);
        *l = (struct position_list){ 0 };
        return -ENOMEM;
    }
    if (*index == MAP_NONE) {
        *index = x->n_positions++;
    } else {
        free(l->pairs);
        *l = (struct position_list){ 0 };
    }
    target->positions = *index;
    return 0;
}

int export_collect_positions(struct exporter *x)
{
    struct map known = { 0 };
    x->positions = calloc(x->n_targets + 1, sizeof *x->positions);
    int r = x->positions ? 0 : -ENOMEM;
    for (size_t i = 0; !r && i < x->n_targets; i++)
        r = collect(x, &known, &x->targets[i]);
    map_deinit(&known);
    return r;
}

void export_drop_positions(struct exporter *x)
{
    for (size_t i = 0; i < x->n_positions; i++)
        free(x->positions[i].pairs);
    free(x->positions);
    x->positions = NULL;
    x->n_positions = 0;
}

void export_add_position_list(struct text *to, const struct position_list *list)
{
    text_printf(to, "[");
    for (size_t k = 0; k < list->n; k++)
        text_printf(to, "%s[%" PRId64 ", %" PRIu64 "]", k ? ", " : "", list->pairs[k].first,
                    list->pairs[k].n);
    text_printf(to, "]");
}

void export_add_positions(struct text *to, const struct exporter *x)
{
    text_printf(to, "[");
    for (size_t i = 0; i < x->n_positions; i++) {
        text_printf(to, i ? ", " : "");
        export_add_position_list(to, &x->positions[i]);
    }
    text_printf(to, "]");
}

/* ------------------------------------------------------------------------- a tensor */

/* Rows with a flag, [[index, rows], ...]; NULL: there are none. */
static json_t *flagged(const struct tensor *t, uint32_t flag)
{
    json_t *list = NULL;
    uint64_t at = 0;
    for (size_t p = 0; p < t->n_stretches; at += t->stretches[p++].n_rows) {
        if (!(t->stretches[p].flags & flag))
            continue;
        list = list ? list : json_array();
        json_array_append_new(
            list, json_pack("[o, o]", value_u64(at), value_u64(t->stretches[p].n_rows)));
    }
    return list;
}

json_t *export_facts(const struct exporter *x, const struct target *target)
{
    const struct tensor *t = target->tensor;
    json_t *shape = json_array();
    for (uint32_t d = 0; d < t->n_tail; d++)
        json_array_append_new(shape, json_integer(t->tail[d]));
    json_t *rejected = flagged(t, STRETCH_REJECTED), *superseded = flagged(t, STRETCH_SUPERSEDED);
    json_t *facts = VALUE_OBJECT(
        { "site", value_text(t->site->name) }, { "layer", value_layer(t->layer) },
        { "request", t->request ? value_bytes(t->request, t->n_request) : json_null() },
        { "row", value_text(dmi_row_name(t->site->row)) },
        { "scale", value_double(t->site->scale) }, { "shape", shape },
        { "note", value_text(t->site->note) }, { "positions", value_u64(target->positions) });
    if (rejected && facts)
        json_object_set(facts, "rejected", rejected);
    if (superseded && facts)
        json_object_set(facts, "superseded", superseded);
    json_decref(rejected);
    json_decref(superseded);
    json_t *donors = export_donors(x, t);
    if (donors && facts)
        json_object_set(facts, "filled", donors);
    json_decref(donors);
    json_t *edits = export_edits(x, t), *own = export_edited_by(x, t);
    if (edits && facts)
        json_object_set(facts, "edits", edits);
    if (own && facts)
        json_object_set(facts, "edited_by", own);
    json_decref(edits);
    json_decref(own);
    return facts;
}

void export_add_tokens(struct text *to, const struct selection *select)
{
    static const char *const words[] = { [TOKENS_ALL] = "all",
                                         [TOKENS_RANGE] = "",
                                         [TOKENS_PROMPT] = "prompt",
                                         [TOKENS_GENERATED] = "response",
                                         [TOKENS_LAST] = "last" };
    for (size_t i = 0; i < select->n_tokens; i++) {
        const struct token_word *w = &select->tokens[i];
        bool is_range = w->kind == TOKENS_RANGE;
        bool has_slice = is_range || w->slice.first || w->slice.end < INT64_MAX;
        text_printf(to, "%s%s%s", i ? "," : "", words[w->kind], has_slice && !is_range ? "[" : "");
        if (has_slice)
            text_printf(to, "%" PRId64 ":", w->slice.first);
        if (has_slice && w->slice.end < INT64_MAX)
            text_printf(to, "%" PRId64, w->slice.end);
        text_printf(to, "%s", has_slice && !is_range ? "]" : "");
    }
    if (!select->n_tokens)
        text_printf(to, "all");
}

json_t *export_tokens(const struct selection *select)
{
    struct text t = { 0 };
    export_add_tokens(&t, select);
    json_t *value = t.failed ? NULL : value_text(t.data);
    text_deinit(&t);
    return value;
}
