/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/action/copy.h"

#include "kernels/copy_host.h"
#include "kernels/gather.h"

#include <dmi/ring.h>

#include <assert.h>

static_assert(sizeof(struct dmi_copy) <= ACTION_PARAM_BYTES, "it is a parameter");
static_assert(sizeof(struct dmi_graph_copy) <= ACTION_PARAM_BYTES, "it is a parameter");

/* Blocks of the copy kernel for @n_bytes moved @access bytes at a time. */
static uint32_t copy_blocks(uint64_t n_bytes, uint32_t access)
{
    uint64_t blocks = (n_bytes / access + DMI_COPY_THREADS - 1) / DMI_COPY_THREADS;
    return blocks > DMI_COPY_MAX_BLOCKS ? DMI_COPY_MAX_BLOCKS : blocks ? (uint32_t)blocks : 1;
}

static void copy_eager(const struct action_launch *l, struct action_kernel *out)
{
    const struct context *c = l->context;
    const struct tensor_view *g = &l->operand->view;
    struct dmi_copy *copy = (struct dmi_copy *)out->param;
    uint64_t at = l->slot & (c->ring.n_slots - 1);
    out->threads = DMI_COPY_THREADS;
    uint64_t n_bytes = (uint64_t)l->n_rows * g->row_bytes;
    out->blocks = copy_blocks(n_bytes, g->gather.access);
    *copy = (struct dmi_copy){
        .record =
            {
                .ready = l->number,
                .payload = l->payload,
                .n_bytes = n_bytes,
                .site = l->operand->site,
                .n_rows = l->n_rows,
                .occurrence = l->occurrence,
                .src = g->gather.src,
            },
        .payload = c->payload,
        .desc = c->desc_device + at * sizeof(struct dmi_desc),
        .retired = c->retired + at * sizeof(uint32_t),
    };
    copy->gather = action_gather(l, &copy->rows);
}

/* Which kernel gathers it: the smallest that can. */
static enum action_form form_of(const struct dmi_gather *g)
{
    uint32_t units = g->run_bytes / 16;
    if (!gather_is_runs(g))
        return ACTION_NODES_ANY;
    return g->access == 16 && units > 1 && units <= DMI_INVERSE_MAX_D ? ACTION_NODE
                                                                      : ACTION_NODE_ROWS;
}

static enum action_form copy_node(const struct action_place *place, const struct operand *operand,
                                  struct action_kernel *out)
{
    const struct context *c = place->context;
    struct dmi_graph_copy *copy = (struct dmi_graph_copy *)out->param;
    *copy = (struct dmi_graph_copy){
        .gather = action_node_gather(operand),
        .state = place->state,
        .mark = place->mark,
        .lists = c->lists_device,
        .number = place->number,
        .site = operand->site,
        .n_rows = operand->view.dims[0],
        .row_bytes = operand->view.row_bytes,
    };
    enum action_form form = form_of(&copy->gather);
    if (form == ACTION_NODE)
        copy->inverse = DMI_INVERSE(copy->gather.run_bytes / 16);
    out->threads = DMI_COPY_THREADS;
    out->blocks = copy_blocks(operand->view.n_bytes, copy->gather.access);
    return form;
}

static void copy_here(const void *param)
{
    copy_host(param);
}

const struct action action_copy = {
    .host = copy_here,
    .kernels = { [ACTION_EAGER] = "dmi_copy_eager",
                 [ACTION_NODE] = "dmi_copy_graph_packed",
                 [ACTION_NODE_ROWS] = "dmi_copy_graph_rows",
                 [ACTION_NODES] = "dmi_copies_graph_packed",
                 [ACTION_NODES_ANY] = "dmi_copies_graph_any",
                 [ACTION_ALONE] = "dmi_copies_alone_packed",
                 [ACTION_ALONE_ANY] = "dmi_copies_alone_any" },
    .eager = copy_eager,
    .node = copy_node,
};
