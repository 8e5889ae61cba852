/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/action/copy.h"

#include "kernels/copy_host.h"

#include <dmi/ring.h>

#include <assert.h>

static_assert(sizeof(struct dmi_copy) <= ACTION_PARAM_BYTES, "it is a parameter");
static_assert(sizeof(struct dmi_graph_copy) <= ACTION_PARAM_BYTES, "it is a parameter");

#define COPY_THREADS    256u
#define COPY_MAX_BLOCKS 1024u

/* Blocks of the copy kernel for @n_bytes moved @access bytes at a time. */
static uint32_t copy_blocks(uint64_t n_bytes, uint32_t access)
{
    uint64_t blocks = (n_bytes / access + COPY_THREADS - 1) / COPY_THREADS;
    return blocks > COPY_MAX_BLOCKS ? COPY_MAX_BLOCKS : blocks ? (uint32_t)blocks : 1;
}

static void copy_eager(const struct action_launch *l, struct action_kernel *out)
{
    const struct context *c = l->context;
    const struct tensor_view *g = &l->operand->view;
    struct dmi_copy *copy = (struct dmi_copy *)out->param;
    uint64_t at = l->slot & (c->ring.n_slots - 1);
    out->threads = COPY_THREADS;
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

static void copy_node(const struct action_place *place, const struct operand *operand,
                      struct action_kernel *out)
{
    const struct context *c = place->context;
    struct dmi_graph_copy *copy = (struct dmi_graph_copy *)out->param;
    *copy = (struct dmi_graph_copy){
        .gather = action_node_gather(operand),
        .state = place->state,
        .payload = c->payload,
        .desc = c->desc_device,
        .retired = c->retired,
        .lists = c->lists_device,
        .number = place->number,
        .site = operand->site,
        .n_rows = operand->view.dims[0],
        .row_bytes = operand->view.row_bytes,
    };
    out->threads = COPY_THREADS;
    out->blocks = copy_blocks(operand->view.n_bytes, copy->gather.access);
}

static void copy_here(const void *param)
{
    copy_host(param);
}

const struct action action_copy = {
    .host = copy_here,
    .kernels = { [ACTION_EAGER] = "dmi_copy_eager", [ACTION_NODE] = "dmi_copy_graph" },
    .eager = copy_eager,
    .node = copy_node,
};
