/* SPDX-License-Identifier: Apache-2.0 */
/* shard: of a site: how the ranks of a command have parts of one tensor. Source: docs/hookspec.md. */
#include "policy/spec_load.h"

#include <stddef.h>
#include <string.h>

#define AXES WORDS("tp", "pp", "dp", "ep") /* enum dmi_axis */

static bool shard_dim(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    struct spec_site *site = into;
    int64_t dim = 0;
    uint32_t n_dims = site->about.tap ? SPEC_MAX_DIMS : site->n_dims - (site->n_row_dims - 1);
    if (n_dims < 2) {
        loader_complain(l, node,
                        "found a site with rows alone; expected another dimension that is divided: "
                        "rows are not joined");
        return false;
    }
    if (!value_integer(l, node, &dim, RANGE(1, (int64_t)n_dims - 1)))
        return false;
    site->about.shard = DMI_SHARD_DIM;
    site->about.shard_dim = (uint32_t)dim;
    return true;
}

static bool shard_of(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    struct spec_site *site = into;
    return value_word(l, node, &site->about.shard_axis, arg);
}

static bool shard_sum(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    struct spec_site *site = into;
    if (!value_word(l, node, &site->about.shard_axis, arg))
        return false;
    if (site->about.shard == DMI_SHARD_DIM) {
        loader_complain(l, node, "found \"sum\" beside \"dim\"; expected one of them");
        return false;
    }
    site->about.shard = DMI_SHARD_SUM;
    return true;
}

/* How much each rank has, in proportion; or that all have as much. */
static bool shard_parts(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    struct spec_parts *parts = &((struct spec_site *)into)->parts;
    bool equal = node->kind == TREE_SCALAR && !strcmp(node->text, "equal");
    bool list = node->kind == TREE_LIST && node->n_items > 1 && node->n_items <= SPEC_MAX_PARTS;
    parts->said = true;
    if (!equal && !list) {
        loader_complain(
            l, node,
            "found neither \"equal\" nor a list; expected \"parts: equal\", or the part "
            "of each rank, as [2, 1], of up to %d ranks",
            SPEC_MAX_PARTS);
        return false;
    }
    for (size_t i = 0; list && i < node->n_items; i++) {
        int64_t part = 0;
        if (!value_integer(l, node->items[i], &part, RANGE(1, SPEC_MAX_PART)))
            return false;
        parts->of[parts->n++] = (uint32_t)part;
    }
    return true;
}

bool site_shard(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    const struct key keys[] = {
        { "dim", false, shard_dim, 0, NULL },
        { "of", false, shard_of, 0, AXES },
        { "parts", false, shard_parts, 0, NULL },
        { "sum", false, shard_sum, 0, AXES },
    };
    (void)arg;
    struct spec_site *site = into;
    size_t before = l->report.n_lines;
    keys_read(l, node, "shard", keys, N_OF(keys), site);
    if (l->report.n_lines > before) /* also by a key that is none */
        return false;
    bool dim = keys_value(node, "dim"), of = keys_value(node, "of"), sum = keys_value(node, "sum");
    if (keys_value(node, "parts") && !dim) {
        loader_complain(
            l, node, "found \"parts\" without \"dim\"; expected them where a dimension is divided");
        return false;
    }
    if (dim == of && dim != sum)
        return true;
    loader_complain(
        l, node, "found neither \"dim: N, of: AXIS\" nor \"sum: AXIS\"; expected one of the two");
    return false;
}
