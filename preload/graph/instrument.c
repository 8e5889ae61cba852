/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/graph/instrument.h"

#include "core/cleanup.h"
#include "preload/base/driver.h"
#include "preload/graph/edges.h"
#include "preload/graph/kernel_node.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define OPEN_THREADS 256u

struct grid {
    uint32_t blocks, n, threads;
};

static const struct grid one_block = { 1, 1, OPEN_THREADS };

/* A kernel of ours as the driver wants it described; @params holds the one parameter's address. */
static CUDA_KERNEL_NODE_PARAMS_v2 kernel_params(CUfunction f, struct grid grid, void **params)
{
    return (CUDA_KERNEL_NODE_PARAMS_v2){
        .func = f,
        .gridDimX = grid.blocks,
        .gridDimY = grid.n,
        .gridDimZ = 1,
        .blockDimX = grid.threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .kernelParams = params,
    };
}

static CUresult set_params(CUgraphExec exec, CUgraphNode node, CUfunction f, struct grid grid,
                           void *param)
{
    void *params[] = { param };
    CUDA_KERNEL_NODE_PARAMS_v2 k = kernel_params(f, grid, params);
    return kernel_node_set(exec, node, &k);
}

static CUresult add_kernel(CUgraph graph, CUgraphNode *node, const CUgraphNode *deps, size_t n_deps,
                           CUfunction f, struct grid grid, void *param)
{
    void *params[] = { param };
    CUDA_KERNEL_NODE_PARAMS_v2 k = kernel_params(f, grid, params);
    return kernel_node_add(node, graph, deps, n_deps, &k);
}

static int refused(struct err *err, CUresult r)
{
    return r == CUDA_SUCCESS ? 0 : err_set(err, -EIO, "copies cannot be added (error %d)", (int)r);
}

/* Where a ticket lies in the exec's state. */
static CUdeviceptr ticket_at(const struct graph_plan *plan, uint32_t n)
{
    return plan->state + n * sizeof(struct dmi_ticket);
}

static CUdeviceptr mark_at(const struct graph_plan *plan, uint32_t number)
{
    return ticket_at(plan, plan->n_tickets) + number * sizeof(struct dmi_copy_mark);
}

/* ------------------------------------------------------------------------- actions */

void instrument_kernel(const struct graph_plan *plan, const struct graph_action *action,
                       struct action_kernel *out)
{
    struct action_place place = { .context = plan->context,
                                  .state = ticket_at(plan, action->number / DMI_TICKET_ACTIONS),
                                  .number = action->number % DMI_TICKET_ACTIONS,
                                  .mark = mark_at(plan, action->number) };
    action_node(&place, &action->operand, out);
}

/* What a node runs, of one action or of several copies. */
struct node_kernel {
    CUfunction function;
    struct grid grid;
    union {
        uint64_t one[ACTION_PARAM_BYTES / sizeof(uint64_t)];
        struct dmi_graph_copies copies;
        struct dmi_copies_alone alone;
    } param;
};

/* One copy more of the node. */
static void add_copy(struct node_kernel *node, struct dmi_graph_copies *copies,
                     const struct action_kernel *k, bool *packed)
{
    *packed = *packed && k->form == ACTION_NODE;
    memcpy(&copies->each[node->grid.n++], k->param, sizeof copies->each[0]);
    if (node->grid.blocks < k->blocks)
        node->grid.blocks = k->blocks;
    node->grid.threads = k->threads;
}

/* Does the node of number @lead one action? */
static bool does_one(const struct graph_plan *plan, uint32_t lead)
{
    return lead + 1 >= plan->n_nodes || graph_plan_lead(plan, lead + 1) != lead;
}

/* What the node of @action runs: that, and what else it does. */
static void node_kernel(const struct graph_plan *plan, const struct graph_action *action,
                        struct node_kernel *out)
{
    struct action_kernel k;
    uint32_t lead = graph_plan_lead(plan, action->number);
    if (!plan->alone && does_one(plan, lead)) {
        instrument_kernel(plan, action, &k);
        *out = (struct node_kernel){ k.function, { k.blocks, 1, k.threads }, { { 0 } } };
        memcpy(out->param.one, k.param, sizeof k.param); /* of ACTION_NODES_ANY the first copy */
        return;
    }
    bool packed = true;
    *out = (struct node_kernel){ .grid.n = 0 };
    struct dmi_graph_copies *copies = plan->alone ? &out->param.alone.copies : &out->param.copies;
    if (plan->alone) {
        out->param.alone.used = plan->state + offsetof(struct dmi_ticket, seq);
        out->param.alone.retired = plan->state + offsetof(struct dmi_ticket, n_actions);
    }
    for (uint32_t c = 0; c < plan->n_actions; c++) {
        uint32_t number = plan->actions[c].number;
        if (number == PLAN_NONE || graph_plan_lead(plan, number) != lead)
            continue;
        instrument_kernel(plan, &plan->actions[c], &k);
        add_copy(out, copies, &k, &packed);
    }
    out->function = action_copies(plan->context, packed, plan->alone);
}

/* Those of a tap: of the first node that it comes after, or else before. */
static CUgraphNode neighbour(const struct graph_plan *plan, const struct graph_kernel *kernel)
{
    const struct node_pair *pair =
        kernel->node ? NULL : node_map_at(&plan->map, kernel->tap->at[0]);
    return kernel->node ? kernel->node : pair->node;
}

/* A node of ours has the priority of the node that it stands beside; where there is none it has none. */
static int priority_of(const struct graph_plan *plan, const struct graph_kernel *kernel)
{
    bool alone = kernel->is_tap && !(kernel->tap->n_after + kernel->tap->n_before);
    return alone ? 0 : kernel_node_priority(neighbour(plan, kernel));
}

/* The node of @action, in the graph of @kernel, after @n others. */
static CUresult add_node(struct graph_plan *plan, const struct graph_kernel *kernel,
                         const struct graph_action *action, const CUgraphNode *after, size_t n)
{
    struct node_kernel k;
    CUgraphNode *node = &plan->nodes[action->number].node;
    node_kernel(plan, action, &k);
    CUresult r = add_kernel(kernel->graph, node, after, n, k.function, k.grid, &k.param);
    int priority = r == CUDA_SUCCESS ? priority_of(plan, kernel) : 0;
    if (priority)
        kernel_node_set_priority(*node, priority);
    if (priority < plan->urgency) /* lower numbers come first */
        plan->urgency = priority;
    return r;
}

/* The clone's nodes at @n positions, with room for @n_more. Return: NULL where one is missing, or without memory; free() them. */
static CUgraphNode *nodes_at(const struct graph_plan *plan, const uint32_t *at, uint32_t n,
                             size_t n_more)
{
    _cleanup_(freep) CUgraphNode *nodes = calloc(n + n_more + 1, sizeof *nodes);
    for (uint32_t i = 0; i < n && nodes; i++) {
        const struct node_pair *pair = node_map_at(&plan->map, at[i]);
        if (!pair)
            return NULL;
        nodes[i] = pair->node;
    }
    return steal_ptr(nodes);
}

/* What is added under a number. */
struct numbered {
    struct graph_kernel *kernel; /* NULL: nothing is */
    const struct graph_action *action;
};

/*
 * All nodes of ours with one anchor, a kernel or the place of a tap, form a chain in the order of the spec: each one reads what
 * the one before it wrote, and no two race. They are added in the order of their numbers, which is that of the spec. A node
 * after a kernel comes after the latest one there. A node before a kernel comes after all that the kernel
 * depends on then, so after the earlier ones. A node at a tap follows the nodes of an earlier tap if the tap comes after all nodes of the application
 * that the earlier one came after: both may point at the same memory.
 */

/* The latest of ours after the kernel node @node; the node itself where there is none. */
static CUgraphNode latest_after(const struct graph_plan *plan, CUgraphNode node)
{
    for (uint32_t i = 0; i < plan->n_kernels; i++)
        if (!plan->kernels[i].is_tap && plan->kernels[i].node == node && plan->kernels[i].latest)
            return plan->kernels[i].latest;
    return node;
}

/* Does the action of tap @later have to come after that of @earlier? */
static bool follows(const struct graph_kernel *later, const struct graph_kernel *earlier)
{
    return earlier && earlier->is_tap && earlier->graph == later->graph &&
           tap_place_covers(later->tap, earlier->tap);
}

/* Does an action between those of number @m and @n, which follows the first, come before the second? */
static bool is_between(const struct numbered *all, uint32_t m, uint32_t n)
{
    for (uint32_t k = m + 1; k < n; k++)
        if (follows(all[n].kernel, all[k].kernel) && follows(all[k].kernel, all[m].kernel))
            return true;
    return false;
}

/*
 * What the action of number @n, a tap's, comes after: the nodes that the tap came after, with ours after them, and the last actions of taps before
 * it. Where one of those has the same place it comes after the nodes. @after has the nodes, and room for @n more.
 */
static size_t tap_dependencies(const struct graph_plan *plan, const struct numbered *all,
                               uint32_t n, CUgraphNode *after)
{
    const struct tap_place *place = all[n].kernel->tap;
    CUgraphNode *ours = after + place->n_after;
    size_t n_ours = 0;
    bool same = false;
    for (size_t i = 0; i < place->n_after; i++)
        after[i] = latest_after(plan, after[i]);
    for (uint32_t m = n; m-- > 0 && !same;) {
        if (!follows(all[n].kernel, all[m].kernel) || is_between(all, m, n))
            continue;
        ours[n_ours++] = plan->nodes[graph_plan_lead(plan, m)].node;
        same = tap_place_covers(all[m].kernel->tap, place); /* so it follows all the others */
    }
    if (same)
        memmove(after, ours, n_ours * sizeof *ours);
    return same ? n_ours : place->n_after + n_ours;
}

/*
 * Before the @n nodes of @before. Where ours comes after @anchor alone, on which one node depends besides, it takes the place of that edge.
 * Other edges stay: @anchor's would be in another order.
 */
static CUresult put_before(struct graph_plan *plan, CUgraph graph, CUgraphNode node,
                           CUgraphNode anchor, const CUgraphNode *before, size_t n)
{
    struct edges out;
    if (!anchor || n != 1)
        return edges_add_before(graph, node, before, n);
    if (!edges_out(anchor, &out))
        return CUDA_ERROR_UNKNOWN;
    plan->has_edge_data = plan->has_edge_data || edges_have_data(&out);
    /* ours is the latest */
    bool between = out.n == 2 && out.nodes[0] == before[0] && out.nodes[1] == node;
    out.n = 1;
    CUresult r = between ? edges_put_before(graph, node, anchor, &out, plan->mixed)
                         : edges_add_before(graph, node, before, n);
    edges_free(&out);
    return r;
}

/* After all that the tap came after, before all that came after the tap. */
static int add_at_tap(struct err *err, struct graph_plan *plan, const struct numbered *all,
                      uint32_t n)
{
    const struct graph_kernel *kernel = all[n].kernel;
    const struct tap_place *place = kernel->tap;
    CUgraphNode *node = &plan->nodes[n].node;
    _cleanup_(freep) CUgraphNode *after = nodes_at(plan, place->at, place->n_after, n);
    _cleanup_(freep) CUgraphNode *before =
        nodes_at(plan, place->at + place->n_after, place->n_before, 0);
    if (!after || !before)
        return err_set(err, -EIO, "the place of a tap is not there");
    size_t n_after = tap_dependencies(plan, all, n, after);
    CUresult r = add_node(plan, kernel, all[n].action, after, n_after);
    if (r == CUDA_SUCCESS)
        r = put_before(plan, kernel->graph, *node, n_after == 1 ? after[0] : NULL, before,
                       place->n_before);
    return refused(err, r);
}

/* Before its kernel, after all that the kernel depends on. */
static int add_before(struct err *err, struct graph_plan *plan, const struct graph_kernel *kernel,
                      const struct graph_action *action)
{
    CUgraphNode *node = &plan->nodes[action->number].node;
    struct edges in;
    if (!edges_in(kernel->node, &in))
        return err_set(err, -EIO, "the edges of a kernel cannot be read");
    plan->has_edge_data = plan->has_edge_data || edges_have_data(&in);
    CUresult r = add_node(plan, kernel, action, in.nodes, in.n);
    if (r == CUDA_SUCCESS)
        r = edges_put_after(kernel->graph, &in, *node, kernel->node, plan->mixed);
    edges_free(&in);
    return refused(err, r);
}

/* After its kernel and those of ours there, before all that depends on it. */
static int add_after(struct err *err, struct graph_plan *plan, struct graph_kernel *kernel,
                     const struct graph_action *action)
{
    CUgraphNode *node = &plan->nodes[action->number].node;
    CUgraphNode anchor = kernel->latest ? kernel->latest : kernel->node;
    struct edges out;
    if (!edges_out(anchor, &out))
        return err_set(err, -EIO, "the edges of a kernel cannot be read");
    plan->has_edge_data = plan->has_edge_data || edges_have_data(&out);
    CUresult r = add_node(plan, kernel, action, &anchor, 1);
    if (r == CUDA_SUCCESS)
        r = edges_put_before(kernel->graph, *node, anchor, &out, plan->mixed);
    edges_free(&out);
    kernel->latest = *node;
    return refused(err, r);
}

static int add_action(struct err *err, struct graph_plan *plan, const struct numbered *all,
                      uint32_t n)
{
    struct graph_kernel *kernel = all[n].kernel;
    const struct graph_action *action = all[n].action;
    if (kernel->is_tap)
        return add_at_tap(err, plan, all, n);
    return session_site(action->site)->when == SPEC_BEFORE ? add_before(err, plan, kernel, action)
                                                           : add_after(err, plan, kernel, action);
}

/* Are the actions of number @n and of the one before it copies of one place, with nothing between them? */
static bool joins(const struct numbered *all, uint32_t n)
{
    const struct numbered *a = &all[n - 1], *b = &all[n];
    if (!a->action || !b->action)
        return false;
    const struct spec_site *before = session_site(a->action->site),
                           *site = session_site(b->action->site);
    if (before->action != SPEC_CAPTURE || site->action != SPEC_CAPTURE)
        return false;
    if (a->kernel->is_tap || b->kernel->is_tap)
        return a->kernel->is_tap && b->kernel->is_tap && a->kernel->graph == b->kernel->graph &&
               tap_place_same(a->kernel->tap, b->kernel->tap, 0);
    return a->kernel == b->kernel && before->when == site->when;
}

static void find_leads(struct graph_plan *plan, const struct numbered *all, const uint32_t *leads)
{
    for (uint32_t n = 0; n < plan->n_nodes; n++) {
        bool join = !leads && n && joins(all, n) && n - plan->leads[n - 1] < DMI_COPIES;
        plan->leads[n] = leads ? leads[n] : join ? plan->leads[n - 1] : n;
        plan->n_leads += plan->leads[n] == n;
    }
}

/* In the order of numbers: an update's clone has its nodes in the order in which the exec's came, as drivers pair them. */
int instrument_actions(struct err *err, struct graph_plan *plan, const uint32_t *leads)
{
    _cleanup_(freep) struct numbered *by_number = calloc(plan->n_nodes + 1, sizeof *by_number);
    if (!by_number)
        return err_set(err, -ENOMEM, "no memory for its copies");
    for (uint32_t i = 0; i < plan->n_kernels; i++)
        for (EACH_ACTION(plan, &plan->kernels[i], c))
            if (plan->actions[c].number != PLAN_NONE)
                by_number[plan->actions[c].number] =
                    (struct numbered){ &plan->kernels[i], &plan->actions[c] };
    int r = 0;
    find_leads(plan, by_number, leads);
    if (!leads)
        plan->alone = plan->n_leads == 1 && by_number[0].action &&
                      session_site(by_number[0].action->site)->action == SPEC_CAPTURE;
    for (uint32_t n = 0; n < plan->n_nodes && !r; n++)
        if (by_number[n].action && plan->leads[n] == n)
            r = add_action(err, plan, by_number, n);
    return r;
}

CUresult instrument_refresh(CUgraphExec exec, const struct graph_plan *plan,
                            const struct graph_action *action)
{
    struct node_kernel k;
    node_kernel(plan, action, &k);
    return set_params(exec, plan->nodes[graph_plan_lead(plan, action->number)].node, k.function,
                      k.grid, &k.param);
}

/* ------------------------------------------------------------------------- open and close */

/* All nodes of @graph, or its roots; free() them. */
static CUgraphNode *list_nodes(struct err *err, CUgraph graph, bool roots, size_t *n)
{
    __typeof__(cuGraphGetNodes) *ask =
        roots ? driver_table.cuGraphGetRootNodes : driver_table.cuGraphGetNodes;
    *n = 0;
    CUresult r = ask(graph, NULL, n);
    _cleanup_(freep) CUgraphNode *nodes = calloc(*n + 1, sizeof *nodes);
    if (r == CUDA_SUCCESS && nodes)
        r = ask(graph, nodes, n);
    if (r != CUDA_SUCCESS || !nodes) {
        err_set(err, r != CUDA_SUCCESS ? -EIO : -ENOMEM, "its nodes cannot be listed");
        return NULL;
    }
    return steal_ptr(nodes);
}

static CUresult add_opens(struct graph_plan *plan)
{
    CUresult r = CUDA_SUCCESS;
    for (uint32_t i = 0; i < plan->n_tickets && r == CUDA_SUCCESS; i++) {
        struct dmi_open empty = { .state = ticket_at(plan, i) };
        r = add_kernel(plan->clone, &plan->opens[i].node, &plan->opens[i - !!i].node, !!i,
                       plan->context->kernels.open, one_block, &empty);
        if (r == CUDA_SUCCESS) /* all that follows waits for it */
            kernel_node_set_priority(plan->opens[i].node, plan->urgency);
    }
    return r;
}

static int add_open(struct err *err, struct graph_plan *plan)
{
    size_t n;
    _cleanup_(freep) CUgraphNode *roots = list_nodes(err, plan->clone, true, &n);
    if (!roots)
        return err->code;
    struct edges to = { .nodes = roots, .n = n };
    CUresult r = add_opens(plan);
    if (r == CUDA_SUCCESS)
        r = edges_put_before(plan->clone, plan->opens[plan->n_tickets - 1].node, NULL, &to,
                             EDGES_MIXED_STAY);
    return refused(err, r);
}

static int add_close(struct err *err, struct graph_plan *plan)
{
    size_t n, n_leaves = 0;
    _cleanup_(freep) CUgraphNode *nodes = list_nodes(err, plan->clone, false, &n);
    if (!nodes)
        return err->code;
    for (size_t i = 0; i < n; i++) {
        bool leaf;
        if (!edges_is_leaf(nodes[i],
                           &leaf)) /* a leaf that the close does not wait for would run after it */
            return err_set(err, -EIO, "the edges of a node cannot be read");
        if (leaf)
            nodes[n_leaves++] = nodes[i];
    }
    struct dmi_close param = { .state = plan->state,
                               .marks = mark_at(plan, 0),
                               .desc = plan->context->desc_device,
                               .n_tickets = plan->n_tickets,
                               .n_slots = plan->context->ring.n_slots };
    CUresult r =
        add_kernel(plan->clone, &plan->close.node, nodes, n_leaves, plan->context->kernels.close,
                   (struct grid){ 1, 1, DMI_CLOSE_THREADS }, &param);
    if (r == CUDA_SUCCESS)
        kernel_node_set_priority(plan->close.node, plan->urgency);
    return refused(err, r);
}

int instrument_open_close(struct err *err, struct graph_plan *plan)
{
    if (plan->alone)
        return 0;
    int r = add_open(err, plan);
    return r ? r : add_close(err, plan);
}

CUresult instrument_set_alone(CUgraphExec exec, const struct graph_plan *plan,
                              const struct dmi_alone *launch)
{
    struct node_kernel k;
    uint32_t c = 0;
    while (plan->actions[c].number == PLAN_NONE)
        c++;
    node_kernel(plan, &plan->actions[c], &k);
    k.param.alone.launch = *launch;
    return set_params(exec, plan->nodes[0].node, k.function, k.grid, &k.param);
}

CUresult instrument_set_again(CUgraphExec exec, const struct graph_plan *plan, uint32_t n,
                              struct dmi_reopen *again)
{
    again->state = ticket_at(plan, n);
    return set_params(exec, plan->opens[n].node, plan->context->kernels.reopen,
                      (struct grid){ 1, 1, 1 }, again);
}

CUresult instrument_set_ticket(CUgraphExec exec, const struct graph_plan *plan, uint32_t n,
                               const struct dmi_ticket *ticket)
{
    struct dmi_open open = { .state = ticket_at(plan, n), .ticket = *ticket };
    return set_params(exec, plan->opens[n].node, plan->context->kernels.open, one_block, &open);
}
