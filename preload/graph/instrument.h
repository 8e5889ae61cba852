/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes of ours in the clone of a plan, and in its exec. Thread: as graph/plan.h. */
#pragma once

#include "core/err.h"
#include "preload/action/action.h"
#include "preload/graph/plan.h"

#include <dmi/ring.h>

/*
 * Each action stands between its site and whatever is ordered against the site; copies of one place, with nothing between them, are one node. @leads: which are,
 * as the exec has it that the plan is an update of, which plan->alone is of, too; NULL: it is none. Return: 0 or -errno.
 */
int instrument_actions(struct err *err, struct graph_plan *plan, const uint32_t *leads);

/* The opens, one after the other, before every root that was there, close after every leaf; none where a node is alone. Return: 0 or -errno. */
int instrument_open_close(struct err *err, struct graph_plan *plan);

/* What the node of @action is to run. */
void instrument_kernel(const struct graph_plan *plan, const struct graph_action *action,
                       struct action_kernel *out);

/* New parameters for the node of an action in the exec: what its operand asks for, and those of the others that the node does. */
CUresult instrument_refresh(CUgraphExec exec, const struct graph_plan *plan,
                            const struct graph_action *action);

/* As instrument_set_ticket(), of a launch that repeats the last one; its state is filled in. */
CUresult instrument_set_again(CUgraphExec exec, const struct graph_plan *plan, uint32_t n,
                              struct dmi_reopen *again);

/* What the next launch says to the node that is alone. */
CUresult instrument_set_alone(CUgraphExec exec, const struct graph_plan *plan,
                              const struct dmi_alone *launch);

/* The next launch's ticket number @n, for the exec's open. */
CUresult instrument_set_ticket(CUgraphExec exec, const struct graph_plan *plan, uint32_t n,
                               const struct dmi_ticket *ticket);
