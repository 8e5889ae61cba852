/* SPDX-License-Identifier: Apache-2.0 */
/* shard: of a site: how the ranks of a command have parts of one tensor. Source: docs/hookspec.md. */
#include "policy/spec_load.h"

#include <stddef.h>

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

bool site_shard(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    const struct key keys[] = {
        { "dim", false, shard_dim, 0, NULL },
        { "of", false, shard_of, 0, AXES },
        { "sum", false, shard_sum, 0, AXES },
    };
    (void)arg;
    struct spec_site *site = into;
    size_t before = l->report.n_lines;
    keys_read(l, node, "shard", keys, N_OF(keys), site);
    if (l->report.n_lines > before) /* also by a key that is none */
        return false;
    bool dim = keys_value(node, "dim"), of = keys_value(node, "of"), sum = keys_value(node, "sum");
    if (dim == of && dim != sum)
        return true;
    loader_complain(
        l, node, "found neither \"dim: N, of: AXIS\" nor \"sum: AXIS\"; expected one of the two");
    return false;
}
