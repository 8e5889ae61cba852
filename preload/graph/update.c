/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/graph/update.h"

#include "core/atomic.h"
#include "preload/base/current.h"
#include "preload/context/lifetime.h"
#include "preload/graph/instrument.h"
#include "preload/graph/order.h"

#include <errno.h>
#include <stdlib.h>

/* Positions of the exec's graph that an update is for. */
struct node_range {
    uint32_t first, n;  /* UINT32_MAX: all */
    CUgraphNode within; /* the application's child graph node, NULL: the whole graph */
};

static bool in_range(const struct node_range *range, const struct graph_kernel *kernel)
{
    return range->n == UINT32_MAX ||
           (kernel->position != PLAN_NONE && kernel->position - range->first < range->n);
}

static int no_memory(struct err *err)
{
    return err_set(err, -ENOMEM, "no memory for an update's copies");
}

/* ------------------------------------------------------------------------- places */

static struct graph_kernel *kernel_at(struct graph_plan *plan, uint32_t position)
{
    for (uint32_t i = 0; i < plan->n_kernels; i++)
        if (plan->kernels[i].position == position && plan->kernels[i].func != &func_unmatched &&
            !plan->kernels[i].is_tap && !plan->kernels[i].in_body)
            return &plan->kernels[i];
    return NULL;
}

/* The tap of @plan that lies where @old lies, whose positions are @by higher, and that has no number yet for its sites. */
static struct graph_kernel *tap_at(struct graph_plan *plan, const struct graph_kernel *old,
                                   uint32_t by)
{
    for (uint32_t i = 0; i < plan->n_kernels; i++) {
        struct graph_kernel *kernel = &plan->kernels[i];
        /* an exec that lost the tap by an earlier update knows its sites, and not its name */
        bool is_free = kernel->is_tap && kernel->tap &&
                       (kernel->func == old->func || old->func == &func_unmatched) &&
                       tap_place_same(old->tap, kernel->tap, by);
        for (EACH_ACTION(plan, kernel, c))
            is_free = is_free && plan->actions[c].number == PLAN_NONE;
        if (is_free)
            return kernel;
    }
    return NULL;
}

static struct graph_action *action_of_site(struct graph_plan *plan,
                                           const struct graph_kernel *kernel, uint32_t site)
{
    for (EACH_ACTION(plan, kernel, c))
        if (plan->actions[c].site == site)
            return &plan->actions[c];
    return NULL;
}

/* A kernel of the exec that is none of the spec's in the new graph: its actions stay, dead. */
static struct graph_kernel *add_place(struct err *err, struct graph_plan *to, uint32_t position,
                                      const struct graph_kernel *old)
{
    const struct node_pair *pair = node_map_at(&to->map, position);
    struct graph_kernel *kernel = NULL;
    if (!pair)
        err_set(err, -EINVAL, "the new graph has fewer nodes");
    else if (!(kernel =
                   graph_plan_add_kernel(to, (struct graph_kernel){ .app = pair->app,
                                                                    .node = pair->node,
                                                                    .graph = pair->graph,
                                                                    .position = position,
                                                                    .enabled = old->enabled,
                                                                    .ordered = true,
                                                                    .func = &func_unmatched,
                                                                    .context = old->context })))
        no_memory(err);
    return kernel;
}

/* The graph of the clone that the node at @position lies in, NULL: there is none. */
static CUgraph graph_at(const struct graph_plan *plan, uint32_t position)
{
    const struct node_pair *pair = node_map_at(&plan->map, position);
    return pair ? pair->graph : NULL;
}

/* A tap of the exec that the new graph has not: its actions stay, dead. */
static struct graph_kernel *add_tap_place(struct err *err, struct graph_plan *to,
                                          const struct graph_kernel *old, uint32_t by)
{
    struct tap_place *place = tap_place_within(old->tap, -(int64_t)by, &to->map);
    uint32_t anchor = place ? tap_place_anchor(place) : PLAN_NONE;
    struct graph_kernel *kernel = NULL;
    CUgraph graph = anchor == PLAN_NONE ? to->clone : graph_at(to, anchor);
    if (!graph)
        err_set(err, -EINVAL, "the new graph has fewer nodes");
    else if (!place || !(kernel = graph_plan_add_kernel(
                             to, (struct graph_kernel){ .graph = graph,
                                                        .tap = place,
                                                        .is_tap = true,
                                                        .position = anchor,
                                                        .enabled = true,
                                                        .ordered = true,
                                                        .func = &func_unmatched,
                                                        .context = old->context })))
        no_memory(err);
    tap_place_release(place);
    return kernel;
}

/* The numbered actions of @old, a kernel of @from whose positions are @by higher, get the same numbers in @to. */
static int take_numbers(struct err *err, struct graph_plan *to, const struct graph_plan *from,
                        const struct graph_kernel *old, uint32_t by)
{
    uint32_t position = old->position - by;
    struct graph_kernel *kernel = !old->is_tap ? kernel_at(to, position)
                                  : old->tap   ? tap_at(to, old, by)
                                               : NULL;
    for (EACH_ACTION(from, old, c)) {
        const struct graph_action *before = &from->actions[c];
        if (before->number == PLAN_NONE)
            continue;
        if (!kernel && !(kernel = old->is_tap ? add_tap_place(err, to, old, by)
                                              : add_place(err, to, position, old)))
            return err->code;
        struct graph_action *action = action_of_site(to, kernel, before->site);
        bool dead = !action;
        if (dead && !(action = graph_plan_add_action(to, kernel, before->site)))
            return no_memory(err);
        action->number = before->number;
        action->dead = dead;
        if (dead)
            operand_refused(action->site, DMI_DROP_UNSUPPORTED, &action->operand);
    }
    return 0;
}

/* Graphs of another shape are the driver's to refuse. */
static int fit(struct err *err, struct graph_plan *to, const struct graph_plan *from,
               const struct node_range *range)
{
    int r = 0;
    for (uint32_t i = 0; i < from->n_kernels && !r; i++)
        if (in_range(range, &from->kernels[i]))
            r = take_numbers(err, to, from, &from->kernels[i], range->first);
    to->n_nodes = from->n_nodes;
    to->n_tickets = from->n_tickets;
    to->alone = from->alone;
    return r;
}

/* ------------------------------------------------------------------------- what the exec's plan becomes */

static int push(struct err *err, struct graph_plan *to, const struct graph_plan *from,
                struct graph_kernel kernel)
{
    uint32_t first = kernel.first_action;
    struct graph_kernel *added = graph_plan_add_kernel(to, kernel);
    for (uint32_t c = first; added && c != PLAN_NONE; c = from->actions[c].next) {
        struct graph_action *action = graph_plan_add_action(to, added, from->actions[c].site);
        if (!action)
            return no_memory(err);
        *action = from->actions[c];
        action->next = PLAN_NONE;
    }
    return added ? 0 : no_memory(err);
}

static void report_stranger(const struct graph_update *u, const struct graph_kernel *kernel)
{
    for (EACH_ACTION(&u->plan, kernel, c))
        if (u->plan.actions[c].number == PLAN_NONE)
            session_problem(u->plan.actions[c].site, PROBLEM_UNSUPPORTED,
                            "kernel %s came into a graph after it was instantiated: not captured",
                            kernel->func->name);
}

/* A tap of the new graph, in its place of the exec's. */
static int push_tap(struct err *err, struct graph_update *u, struct graph_kernel kernel,
                    const struct node_range *range, bool ordered)
{
    struct tap_place *place = kernel.tap ? tap_place_moved(kernel.tap, range->first) : NULL;
    if (kernel.tap && !place)
        return no_memory(err);
    kernel.tap = place;
    kernel.position = place ? tap_place_anchor(place) : PLAN_NONE;
    kernel.ordered = kernel.ordered && ordered;
    int r = push(err, &u->next, &u->plan, kernel);
    tap_place_release(place);
    return r;
}

/* The kernels of the new graph, named as the application names the exec's nodes: by its first graph. */
static int push_new(struct err *err, struct exec *x, struct graph_update *u,
                    const struct node_range *range, bool ordered)
{
    int r = 0;
    for (uint32_t i = 0; i < u->plan.n_kernels && !r; i++) {
        struct graph_kernel kernel = u->plan.kernels[i];
        uint32_t position = kernel.position + range->first;
        struct node_pair pair;
        bool known = exec_pair_at(x, position, &pair);
        report_stranger(u, &kernel);
        if (kernel.is_tap) {
            r = push_tap(err, u, kernel, range, ordered);
            continue;
        }
        kernel.enabled = !pair.off;
        kernel.app = kernel.in_body ? NULL : pair.app;
        kernel.node = kernel.in_body ? NULL : pair.node;
        kernel.graph = pair.graph;
        kernel.position = known ? position : PLAN_NONE;
        kernel.ordered = kernel.ordered && ordered;
        r = push(err, &u->next, &u->plan, kernel);
    }
    return r;
}

/* What is out of the range stays; what is in it comes from the new graph, to the place of its child graph node. */
static int merge(struct err *err, struct exec *x, struct graph_update *u,
                 const struct node_range *range)
{
    bool pushed = false;
    int r = 0;
    u->next.refused = x->plan.refused;
    for (uint32_t i = 0; i < x->plan.n_kernels && !r; i++) {
        const struct graph_kernel *kernel = &x->plan.kernels[i];
        if (!in_range(range, kernel))
            r = push(err, &u->next, &x->plan, *kernel);
        if (r || pushed || !range->within || kernel->app != range->within)
            continue;
        r = push_new(err, x, u, range, true);
        pushed = true;
    }
    if (!r && !pushed)
        r = push_new(err, x, u, range, !range->within);
    graph_plan_settle(&u->next);
    return r;
}

/* ------------------------------------------------------------------------- updates */

static void update_free(struct graph_update *u)
{
    graph_plan_deinit(&u->plan);
    graph_plan_deinit(&u->next);
    free(u);
}

static int instrument(struct err *err, struct graph_update *u, const struct exec *x)
{
    int r = graph_plan_room(err, &u->plan);
    if (!r)
        r = instrument_actions(err, &u->plan, x->plan.leads);
    return !r && u->complete ? instrument_open_close(err, &u->plan) : r;
}

static int build(struct err *err, struct graph_update *u, struct exec *x, CUgraph graph,
                 const struct node_range *range)
{
    int r = graph_plan_build(err, &u->plan, graph, false);
    /* the first sites of an exec are counted in the context that is current; NULL: where it is launched */
    if (!r && u->plan.has_sites && !u->plan.context)
        graph_plan_count_in(&u->plan, context_current());
    if (!r)
        r = fit(err, &u->plan, &x->plan, range);
    if (!r)
        r = merge(err, x, u, range);
    if (!r)
        r = exec_make_room(err, x, u->next.n_actions);
    if (!r && u->plan.clone)
        r = instrument(err, u, x);
    return r;
}

static bool has_nodes(const struct exec *x, const struct node_range *range)
{
    bool any = false;
    for (uint32_t i = 0; i < x->plan.n_kernels && !any; i++)
        for (EACH_ACTION(&x->plan, &x->plan.kernels[i], c))
            any = any ||
                  (in_range(range, &x->plan.kernels[i]) && x->plan.actions[c].number != PLAN_NONE);
    return any;
}

/* Stands for an update of which nothing could be learned. */
static struct graph_update unknown;

/* Return: NULL if it cannot be. */
static struct graph_update *try_prepare(struct exec *x, CUgraph graph,
                                        const struct node_range *range)
{
    struct err err = { 0 };
    struct graph_update *u = calloc(1, sizeof *u);
    if (!u)
        return NULL;
    u->plan.context = x->plan.context;
    /* a child graph in which nothing of ours stands is the application's own */
    u->plan.refused =
        range->within && !has_nodes(x, range) ? DMI_DROP_UNSUPPORTED : x->plan.refused;
    u->plan.state = x->plan.state;
    u->plan.mixed = x->plan.mixed;
    u->plan.epoch = atomic_load_acquire(&session.memory_epoch); /* of session_memory_freed() */
    u->complete = !range->within;
    struct current_visit visit =
        current_visit(x->plan.context ? context_handle(x->plan.context) : graph_plan_home(graph));
    struct stream_relaxed relaxed = stream_relax();
    int r = build(&err, u, x, graph, range);
    stream_unrelax(&relaxed);
    current_leave(&visit);
    if (!r)
        return u;
    update_free(u);
    return NULL;
}

/*
 * Twice: an exec with actions cannot be updated by a graph without, which the driver calls another shape. So what failed
 * for a moment would be seen by the application.
 */
static struct graph_update *prepare(struct exec *x, CUgraph graph, const struct node_range *range)
{
    struct graph_update *u = try_prepare(x, graph, range);
    if (!u)
        u = try_prepare(x, graph, range);
    return u ? u : &unknown;
}

/* An exec of which nothing is known: is the update any better? */
static struct graph_update *prepare_unknown(CUgraph graph)
{
    return order_has_sites(graph) ? &unknown : NULL;
}

struct graph_update *update_prepare(struct exec *x, CUgraph graph)
{
    struct node_range all = { .n = UINT32_MAX };
    if (order_is_moved(graph))
        return &unknown; /* drivers refuse it, and its clone they would take */
    return x ? prepare(x, graph, &all) : prepare_unknown(graph);
}

struct graph_update *update_prepare_child(struct exec *x, CUgraphNode app, CUgraph graph)
{
    struct node_pair pair;
    bool known = x && exec_pair(x, app, &pair);
    struct node_range range = { .first = known ? pair.first : 0,
                                .n = known ? pair.n : 0,
                                .within = app };
    return x ? prepare(x, graph, &range) : prepare_unknown(graph);
}

CUgraph update_graph(const struct graph_update *u, CUgraph graph)
{
    return u && u->plan.clone ? u->plan.clone : graph;
}

/* The exec goes on with the nodes that it was created from. */
static void take_over(struct exec *x, struct graph_update *u)
{
    repeat_deinit(&x->repeat);
    exec_shapes_lock();
    struct graph_kernel *kernels = x->plan.kernels;
    struct graph_action *actions = x->plan.actions;
    uint32_t n_kernels = x->plan.n_kernels;
    x->plan.kernels = u->next.kernels;
    x->plan.n_kernels = u->next.n_kernels;
    x->plan.actions = u->next.actions;
    x->plan.n_actions = u->next.n_actions;
    x->plan.has_sites = u->next.has_sites;
    x->plan.context = u->plan.context;
    u->next.kernels = kernels;
    u->next.n_kernels = n_kernels;
    u->next.actions = actions;
    exec_shapes_unlock();
    x->plan.epoch =
        0; /* actions of both were checked at different times: the next launch checks all */
    if (u->complete)
        x->empty = true; /* the update's opens came with empty tickets, or a node alone with none */
}

/* The exec is updated, and what it holds now could not be found out. */
static void give_up(const struct exec *x)
{
    if (x)
        graph_plan_give_up(&x->plan, "is in a graph exec whose update could not be followed");
    session_give_up_all("an update of a graph exec could not be followed");
}

void update_done(struct exec *x, struct graph_update *u, bool success)
{
    if (success && u == &unknown)
        give_up(x);
    else if (success)
        take_over(x, u);
    if (u != &unknown)
        update_free(u);
}
