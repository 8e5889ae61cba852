/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sites that are places for edits. An entry with `write` is several sites, next to each other: one whose rows the bank keeps, if
 * there is a bank, one that edits write into, and one that is captured. Their order is that of their actions. Source: docs/edits.md, "Places".
 */
#include "policy/spec_load.h"

#include <dmi/dtype.h>

#include <stdlib.h>
#include <string.h>

static bool write_reach(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    struct spec_write *write = into;
    bool good = keys_list(l, node, "a list of names of sites", SPEC_MAX_REACH);
    for (size_t i = 0; good && i < node->n_items; i++)
        good = value_layered_name(l, node->items[i], &write->reach[write->n_reach++], arg);
    return good;
}

static const struct key write_keys[] = { { "reach", false, write_reach, 0, NULL } };

bool site_write(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    struct spec_write *write = &((struct spec_site *)into)->write;
    (void)arg;
    write->is = true;
    return keys_read(l, node, "write", write_keys, N_OF(write_keys), write);
}

bool site_plus(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    struct spec_write *write = &((struct spec_site *)into)->write;
    write->has_plus = true;
    return value_place(l, node, &write->plus, arg);
}

bool site_capture(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    return value_word(l, node, &((struct spec_site *)into)->write.captured,
                      WORDS([SPEC_CAPTURED_AFTER] = "after", [SPEC_CAPTURED_BEFORE] = "before",
                            [SPEC_CAPTURED_NONE] = "none"));
}

/* What the entry says of `capture`, whether or not it can be. */
static bool says_capture(const struct tree_node *node, const char *word)
{
    const struct tree_node *value = keys_value(node, "capture");
    return value && value->kind == TREE_SCALAR && !strcmp(value->text, word);
}

size_t write_readings(const struct spec *spec, const struct tree_node *node,
                      uint32_t as[WRITE_READINGS])
{
    bool writes = node->kind == TREE_MAP && keys_value(node, "write");
    bool before = writes && says_capture(node, "before");
    size_t n = 0;
    if (!writes || before)
        as[n++] = SPEC_CAPTURE;
    if (writes && spec->bank_bytes)
        as[n++] = SPEC_SAVE;
    if (writes)
        as[n++] = SPEC_EDIT;
    if (writes && !before && !says_capture(node, "none"))
        as[n++] = SPEC_CAPTURE;
    return n;
}

bool spec_edits_dtype(uint32_t dtype)
{
    uint32_t n_bytes = dmi_dtype_bytes(dtype);
    return dmi_dtype_is_float(dtype) && (n_bytes == 2 || n_bytes == 4);
}

/* Why edits cannot write into such a site, NULL: they can. @key: of the entry, that the sentence is about. */
static const char *objection(const struct spec_site *site, const char **key)
{
    uint32_t dtype = site->about.dtype;
    *key = "dtype";
    if (dtype && !spec_edits_dtype(dtype))
        return "found a place for edits of another type; expected f32, f16 or bf16";
    *key = "row";
    if (site->about.row != DMI_ROW_TOKEN)
        return "found a place for edits whose rows are no tokens; expected row: token, as edits "
               "choose rows by request and token";
    *key = "plus";
    if (site->write.has_plus && site->dims[0].slots.dtype)
        return "found \"plus\" at a tensor in slots; expected rows that lie where the rows of the "
               "second tensor do";
    *key = "shard";
    if (site->about.shard == DMI_SHARD_DIM && !site->parts.said)
        return "found a place for edits that ranks divide, without \"parts\"; expected \"parts: "
               "equal\", or the part of each rank, as [2, 1]: vectors, columns and heads are cut "
               "by them";
    *key = "shared_memory";
    if (site->shared_memory == SPEC_SHARED_ALLOW)
        return "found shared_memory: allow at a place for edits; expected none: others "
               "may read the tensor before an edit has written it";
    return NULL;
}

static void complain_without_write(struct loader *l, const struct tree_node *node)
{
    static const char *const keys[] = { "plus", "capture" };
    for (size_t i = 0; i < N_OF(keys); i++)
        if (node->kind == TREE_MAP && keys_value(node, keys[i]))
            loader_complain(l, keys_value(node, keys[i]),
                            "found \"%s\" without \"write\"; expected \"write: {}\" too, which "
                            "makes the site a place for edits",
                            keys[i]);
}

void write_settle(struct loader *l, const struct tree_node *node, struct spec_site *site)
{
    const char *key, *why;
    if (!site->write.is) {
        complain_without_write(l, node);
        return;
    }
    why = objection(site, &key);
    if (why) {
        const struct tree_node *at = keys_value(node, key);
        loader_complain(l, at ? at : node, "%s", why);
    }
    if (l->reading == SPEC_CAPTURE)
        return;
    site->action = l->reading;
    site->about.writes = true;
    site->about.saves = l->reading == SPEC_SAVE;
    site->select = SPEC_NO_SELECT; /* whose rows an edit writes, the edit says */
    site->steps.every = 1;
    site->write.place = l->spec->n_places;
    l->spec->n_places += l->reading == SPEC_EDIT; /* the entry's last reading as a place */
    if (site->write.place == SPEC_MAX_PLACES)
        loader_complain(l, node, "found more than %d places for edits", SPEC_MAX_PLACES);
}

static bool is_site(const struct spec *spec, const char *name)
{
    uint32_t i = 0;
    while (i < spec->n_sites &&
           !(spec->sites[i].about.name && !strcmp(spec->sites[i].about.name, name)))
        i++;
    return i < spec->n_sites;
}

void write_check(struct loader *l, const struct tree_node *list)
{
    const struct spec *spec = l->spec;
    for (uint32_t i = 0; i < spec->n_sites; i++) {
        const struct spec_write *write = &spec->sites[i].write;
        for (uint32_t k = 0; k < write->n_reach && spec->sites[i].action == SPEC_EDIT; k++)
            if (write->reach[k] && !is_site(spec, write->reach[k]))
                report_add(&l->report, (uint32_t)spec->sites[i].line, list->column,
                           "found \"%s\" in \"reach\"; expected names of sites of this HookSpec",
                           write->reach[k]);
    }
}

void write_deinit(struct spec_write *write)
{
    for (uint32_t i = 0; i < write->n_reach; i++)
        free(write->reach[i]);
    *write = (struct spec_write){ 0 };
}
