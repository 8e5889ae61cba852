/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/action/edit.h"

#include "kernels/edit_host.h"

#include <dmi/dtype.h>
#include <dmi/edit.h>
#include <dmi/edit_account.h>

#include <assert.h>

static_assert(sizeof(struct dmi_edit) <= ACTION_PARAM_BYTES, "it is a parameter");

#define EDIT_MAX_BLOCKS 1024u

/* A block a row. */
static void size_grid(uint32_t n_rows, struct action_kernel *out)
{
    out->threads = DMI_EDIT_THREADS;
    out->blocks = n_rows > EDIT_MAX_BLOCKS ? EDIT_MAX_BLOCKS : n_rows ? n_rows : 1;
}

/* What does not depend on the launch. */
static struct dmi_edit edit_of(const struct context *c, const struct operand *operand)
{
    const struct tensor_view *g = &operand->view;
    return (struct dmi_edit){
        .plus = g->plus,
        .region = c->edits.region,
        .counters = c->edits.counters,
        .n_counters = DMI_EDIT_ACCOUNTS,
        .dtype = g->dtype,
        .row = view_shape(g),
        .scale = (float)session_site(operand->site)->about.scale,
        .bank = c->bank.at,
        .n_cells = c->bank.n_cells,
        .place = session_site(operand->site)->write.place,
    };
}

static void edit_eager(const struct action_launch *l, struct action_kernel *out)
{
    struct dmi_edit *edit = (struct dmi_edit *)out->param;
    *edit = edit_of(l->context, l->operand);
    edit->gather = l->operand->view.gather;
    edit->rows = l->rows;
    edit->n_rows = l->n_rows;
    edit->at = l->at;
    size_grid(l->n_rows, out);
}

static enum action_form edit_node(const struct action_place *place, const struct operand *operand,
                                  struct action_kernel *out)
{
    struct dmi_edit *edit = (struct dmi_edit *)out->param;
    *edit = edit_of(place->context, operand);
    edit->gather = action_node_gather(operand);
    edit->state = place->state;
    edit->lists = place->context->lists_device;
    edit->number = place->number;
    size_grid(operand->view.dims[0], out);
    return ACTION_NODE;
}

static void edit_here(const void *param)
{
    edit_host(param);
}

static void save_here(const void *param)
{
    edit_host_save(param);
}

const struct action action_edit = {
    .host = edit_here,
    .kernels = { [ACTION_EAGER] = "dmi_edit_eager", [ACTION_NODE] = "dmi_edit_graph" },
    .eager = edit_eager,
    .node = edit_node,
};

const struct action action_save = {
    .host = save_here,
    .kernels = { [ACTION_EAGER] = "dmi_save_eager", [ACTION_NODE] = "dmi_save_graph" },
    .eager = edit_eager,
    .node = edit_node,
};
