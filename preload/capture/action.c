/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/capture/action.h"

#include <assert.h>

/* Our kernels that actions launch, as kernels/ exports them. */
enum { KERNEL_COPY_EAGER, KERNEL_COPY_GRAPH, N_KERNELS };
static const char *const kernel_names[N_KERNELS] = {
    [KERNEL_COPY_EAGER] = "dmi_copy_eager",
    [KERNEL_COPY_GRAPH] = "dmi_copy_graph",
};
static_assert(N_KERNELS <= CONTEXT_KERNELS, "struct context_kernels has room for them");

const char *const *action_kernels(uint32_t *n)
{
    *n = N_KERNELS;
    return kernel_names;
}

#define COPY_THREADS    256u
#define COPY_MAX_BLOCKS 1024u

/* ------------------------------------------------------------------------- capture: kernels/copy.cu */

/* Blocks of the copy kernel for @n_bytes moved @access bytes at a time. */
static uint32_t copy_blocks(uint64_t n_bytes, uint32_t access)
{
    uint64_t blocks = (n_bytes / access + COPY_THREADS - 1) / COPY_THREADS;
    return blocks > COPY_MAX_BLOCKS ? COPY_MAX_BLOCKS : blocks ? (uint32_t)blocks : 1;
}

static void capture_eager(const struct action_launch *l, struct action_kernel *out)
{
    const struct context *c = l->context;
    const struct gather_plan *g = &l->plan->gather;
    uint64_t at = l->slot & (c->ring.n_slots - 1);
    out->function = c->kernels.actions[KERNEL_COPY_EAGER];
    out->threads = COPY_THREADS;
    uint64_t n_bytes = (uint64_t)l->n_rows * g->row_bytes;
    out->blocks = copy_blocks(n_bytes, g->gather.access);
    out->param.copy = (struct dmi_copy){
        .gather = g->gather,
        .record =
            {
                .ready = l->number,
                .payload = l->payload,
                .n_bytes = n_bytes,
                .site = l->plan->site,
                .n_rows = l->n_rows,
                .occurrence = l->occurrence,
                .src = g->gather.src,
            },
        .payload = c->payload,
        .desc = c->desc_device + at * sizeof(struct dmi_desc),
        .retired = c->retired + at * sizeof(uint32_t),
        .rows = l->rows ? l->rows + l->first_row * sizeof(uint32_t) : 0,
    };
    if (l->rows)
        return;
    if (g->gather.slot_bytes)
        out->param.copy.gather.slots += (uint64_t)l->first_row * g->gather.slot_bytes;
    else
        out->param.copy.gather.src += (uint64_t)((int64_t)l->first_row * g->gather.stride[0]);
}

static void capture_node(const struct action_place *place, const struct site_plan *plan,
                         struct action_kernel *out)
{
    const struct context *c = place->context;
    struct dmi_graph_copy *copy = &out->param.graph_copy;
    *copy = (struct dmi_graph_copy){
        .gather = plan->gather.gather,
        .state = place->state,
        .payload = c->payload,
        .desc = c->desc_device,
        .retired = c->retired,
        .lists = c->row_lists.device,
        .number = place->number,
        .site = plan->site,
        .n_rows = plan->gather.dims[0],
        .row_bytes = plan->gather.row_bytes,
    };
    if (!copy->gather.access)
        copy->gather = (struct dmi_gather){ .count = { 1, 1, 1, 1 }, .run_bytes = 1, .access = 1 };
    out->function = c->kernels.actions[KERNEL_COPY_GRAPH];
    out->threads = COPY_THREADS;
    out->blocks = copy_blocks(plan->gather.n_bytes, copy->gather.access);
}

/* ------------------------------------------------------------------------- the table */

static const struct action actions[] = {
    [SPEC_CAPTURE] = { .name = "capture",
                       .needs_slot = true,
                       .eager = capture_eager,
                       .node = capture_node },
};

const struct action *action_of(uint32_t site)
{
    return &actions[session_site(site)->action];
}
