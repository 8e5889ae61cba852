/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan: a clone of a graph of the application's, its kernels that the spec names, and the nodes of ours that
 * the clone gets for them. One is instantiated in the graph's place; an update of an exec makes another, with nodes
 * in the same places.
 *
 *     open -> every root;  site -> action -> action -> whatever depends on the site;  every leaf -> close
 *
 * Where all of its actions are copies that one node makes, that node does what open and close do, and there are none.
 *
 * Thread: the one that instantiates or updates, entered; one at a time per plan.
 */
#pragma once

#include "core/err.h"
#include "preload/capture/operand.h"
#include "preload/context/context.h"
#include "preload/function/functions.h"
#include "preload/graph/edges.h"
#include "preload/graph/node_map.h"
#include "preload/graph/tap.h"

#include <stdbool.h>
#include <stdint.h>

#define PLAN_NONE UINT32_MAX

/* A node of ours in the clone, or in the exec. */
struct graph_node {
    CUgraphNode node;
    bool off;    /* it is disabled */
    bool wanted; /* by graph/launch.c: some of what it does is on */
};

/* One site of one kernel node: a node of ours acts there, or its records are counted drops. */
struct graph_action {
    uint32_t
        number; /* of its node among the plan's, and its place in the ticket; PLAN_NONE: it has none */
    uint32_t next; /* of the same kernel; PLAN_NONE: the last */
    uint32_t site;
    const char *kernel;          /* that its problems are about; NULL: it is of a tap. Borrowed */
    struct operand operand;      /* replaced as a whole when the kernel's parameters change */
    struct memory_ranges ranges; /* that it lies in */
    int left; /* drop reason of all of its records, whatever it reads; DROP_NONE */
    int drop; /* why it cannot be read now, DROP_NONE */
    bool
        stale; /* the exec's node has not the parameters that @operand asks for: the driver refused them */
    bool dead; /* there is no site here any more */
};

/*
 * A kernel node that the spec names, a tap, or a child graph node. In the order in which occurrences are counted.
 */
struct graph_kernel {
    CUgraphNode app, node; /* the application's; the clone's. NULL: a tap, which is no node */
    CUgraph graph;         /* that it lies in, of the clone's */
    struct tap_place *tap; /* where its action belongs; NULL: it is no tap, or lies nowhere */
    bool is_tap;
    bool
        in_body; /* of the conditional node at @position: it runs as often as kernels say, and has no actions */
    uint32_t position; /* as node_map.h has it, of a tap one of its place; PLAN_NONE: unknown */
    bool enabled;
    bool ordered;            /* its place among the others is known */
    const struct func *func; /* of a child graph &func_unmatched */
    struct context *context; /* whose occurrences it counts; NULL: none, or one that is gone */
    uint32_t first_action;   /* PLAN_NONE: it has none */
    CUgraphNode
        latest; /* the latest node of ours after it; NULL: there is none, or it is a tap. By graph/instrument.c */
};

struct graph_plan {
    struct context *context; /* NULL: there are no sites */
    CUdeviceptr state;       /* of the exec: its tickets, then marks of the actions */
    int refused;             /* drop reason of everything: it has no clone; DROP_NONE */
    CUgraph clone;
    enum edges_mixed mixed;
    bool has_edge_data; /* edges beside nodes of ours; by graph/instrument.c */
    int urgency; /* the most urgent priority that nodes of ours have; by graph/instrument.c */
    struct node_map map;
    struct graph_kernel *kernels;
    uint32_t n_kernels;
    bool has_sites;  /* among the kernels; by graph_plan_settle() */
    bool has_bodies; /* some kernels are in bodies; likewise */
    struct graph_action *actions;
    uint32_t n_actions;
    struct graph_node *nodes; /* of actions, by number; one that does several has the first one's */
    uint32_t *leads;          /* by number: that of the node which does it; NULL: each its own */
    uint32_t n_nodes, n_leads; /* numbers, and nodes for them */
    bool alone; /* the first node is the only one, and there are no opens and no close */
    struct graph_node *opens; /* one a ticket */
    uint32_t n_tickets;
    struct graph_node close;
    uint64_t epoch; /* session.memory_epoch when pointers were last checked */
};

/* The number of the node that does the action of number @n. */
static inline uint32_t graph_plan_lead(const struct graph_plan *plan, uint32_t n)
{
    return plan->leads ? plan->leads[n] : n;
}

/* @c: index in plan->actions, one of @kernel's after the other. */
#define EACH_ACTION(plan, kernel, c)                                                               \
    uint32_t c = (kernel)->first_action;                                                           \
    c != PLAN_NONE;                                                                                \
    c = (plan)->actions[c].next

/**
 * graph_plan_build() - kernels and actions of @graph, in the order of their sites
 * Where plan->refused is DROP_NONE the plan gets a clone, and actions get numbers if @number; no node is added yet.
 * @plan: context, state, refused and epoch are set. Return: 0 or -errno; the plan is to be freed in any case.
 */
int graph_plan_build(struct err *err, struct graph_plan *plan, CUgraph graph, bool number);

/* Room for what the numbered actions need: their nodes and tickets. Return: 0 or -ENOMEM. */
int graph_plan_room(struct err *err, struct graph_plan *plan);

/* One kernel more, without actions; its place of a tap is held by the plan. Return: NULL without memory. */
struct graph_kernel *graph_plan_add_kernel(struct graph_plan *plan, struct graph_kernel kernel);

/* One action more of the kernel, without a number: its records are counted drops. Return: NULL without memory. */
struct graph_action *graph_plan_add_action(struct graph_plan *plan, struct graph_kernel *kernel,
                                           uint32_t site);

/* After kernels or actions came or went: what cannot be copied, as its occurrence is unknown. */
void graph_plan_settle(struct graph_plan *plan);

/* Its actions have no nodes any more: all of their records are drops for @reason. */
void graph_plan_without_actions(struct graph_plan *plan, enum dmi_drop reason);

/* What the action reads, as the kernel's parameters say: operand and drop reason are set anew. */
void graph_plan_action(const struct graph_plan *plan, struct graph_action *action,
                       const struct func *func, const CUDA_KERNEL_NODE_PARAMS_v2 *params);

/* How many slots of a paged cache there are may have changed with the memory. Return: whether the action's node needs other parameters. */
bool graph_plan_limit(const struct graph_plan *plan, struct graph_action *action);

/* Memory may have changed since pointers were checked: an action of what is gone would fault in the application's graph. */
void graph_plan_check_memory(const struct graph_plan *plan, struct graph_action *action);

/* The same within the ranges that it was added in: @was is what was noted of the node, or what its kernel was before. */
const struct func *graph_plan_func_as(const CUDA_KERNEL_NODE_PARAMS_v2 *params,
                                      const struct func *was);
/* Is the kernel node @node, of the clone or of what drivers derive from it, one of ours? */
bool graph_plan_is_ours(const struct graph_plan *plan, CUgraphNode node);

/* The sites of all its kernels are switched off, and @why is said. */
void graph_plan_give_up(const struct graph_plan *plan, const char *why);

/* Whether, and how often, @func runs in the body of a conditional node is decided on the device: it is said. */
void graph_plan_report_body(const struct func *func);

/*
 * Where no context is current: the one that the kernels of @graph run in, as far as their nodes say; else NULL. Work on the graph
 * is done with it for the time (base/current.h).
 */
CUcontext graph_plan_home(CUgraph graph);

/* The plan had no context; its kernels without one are counted in @context from here on. */
void graph_plan_count_in(struct graph_plan *plan, struct context *context);

/* @context is gone, which is not the plan's: its kernels in the graph count nothing any more. */
void graph_plan_forget_context(struct graph_plan *plan, const struct context *context);

/* The clone and all memory of the plan. */
void graph_plan_deinit(struct graph_plan *plan);
