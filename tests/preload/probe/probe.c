/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library with one action more, `probe`, which writes into the tensor and publishes no record: the tables of actions here take the
 * place of policy/spec_actions.c and preload/action/table.c.
 */
#include "tests/preload/probe/probe.h"

#include "preload/action/copy.h"
#include "preload/action/edit.h"

#define ROW(...) __VA_ARGS__,
const struct spec_action_row spec_actions[] = { SPEC_ACTIONS(ROW){ "probe", false, false } };
const uint32_t spec_n_actions = sizeof spec_actions / sizeof *spec_actions;

static void probe_eager(const struct action_launch *l, struct action_kernel *out)
{
    struct probe *p = (struct probe *)out->param;
    *p = (struct probe){ .n_rows = l->n_rows };
    p->gather = action_gather(l, &p->rows);
    out->threads = 32;
    out->blocks = 2;
}

static enum action_form probe_node(const struct action_place *place, const struct operand *operand,
                                   struct action_kernel *out)
{
    struct probe *p = (struct probe *)out->param;
    *p = (struct probe){ .gather = action_node_gather(operand),
                         .state = place->state,
                         .lists = place->context->lists_device,
                         .number = place->number,
                         .n_rows = operand->view.dims[0] };
    out->threads = 32;
    out->blocks = 2;
    return ACTION_NODE;
}

static const struct action action_probe = {
    .kernels = { [ACTION_EAGER] = "probe_eager", [ACTION_NODE] = "probe_node" },
    .eager = probe_eager,
    .node = probe_node,
};
const struct action *const action_table[] = { [SPEC_CAPTURE] = &action_copy,
                                              [SPEC_EDIT] = &action_edit,
                                              [SPEC_SAVE] = &action_save,
                                              &action_probe };
