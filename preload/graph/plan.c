/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/graph/plan.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/grow.h"
#include "preload/base/current.h"
#include "preload/base/driver.h"
#include "preload/capture/params.h"
#include "preload/context/lifetime.h"
#include "preload/function/variants.h"
#include "preload/graph/kernel_node.h"
#include "preload/graph/order.h"
#include "preload/graph/siblings.h"

#include <dmi/ring.h>

#include <errno.h>
#include <stdlib.h>

/* What the spec says of the kernel of a node, NULL: nothing. */
static const struct func *graph_plan_func(const CUDA_KERNEL_NODE_PARAMS_v2 *k)
{
    const struct func *func =
        k->func ? functions_lookup(k->func, FUNC_FUNCTION) : functions_lookup(k->kern, FUNC_KERNEL);
    return func_concerns(func) ? func : NULL;
}

const struct func *graph_plan_func_as(const CUDA_KERNEL_NODE_PARAMS_v2 *k, const struct func *was)
{
    const struct func *func = variants_like(k->func ? functions_lookup(k->func, FUNC_FUNCTION)
                                                    : functions_lookup(k->kern, FUNC_KERNEL),
                                            was ? was : &func_unmatched);
    return func_concerns(func) ? func : NULL;
}

/* As graph_plan_func() of a node of any type. @params is filled in where it is a kernel. */
static const struct func *graph_plan_func_of(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *k)
{
    CUgraphNodeType type;
    if (driver_table.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS ||
        type != CU_GRAPH_NODE_TYPE_KERNEL || kernel_node_get(node, k) != CUDA_SUCCESS)
        return NULL;
    return graph_plan_func(k);
}

/* ------------------------------------------------------------------------- what an action reads */

static void operand_from_params(uint32_t site, const struct func *func,
                                const CUDA_KERNEL_NODE_PARAMS_v2 *k, struct operand *operand)
{
    struct params params;
    uint32_t grid[3] = { k->gridDimX, k->gridDimY, k->gridDimZ };
    uint32_t block[3] = { k->blockDimX, k->blockDimY, k->blockDimZ };
    params_init(&params, functions_layout(func), k->kernelParams,
                k->kernelParams ? NULL : k->extra);
    struct expr_env env = { .grid = grid,
                            .block = block,
                            .shared_bytes = k->sharedMemBytes,
                            .param = params_read,
                            .param_ctx = &params };
    operand_of_site(site, &env, operand);
}

/* The device that copies; 0 without a context, where there are no sites. */
static int device_of(const struct graph_plan *plan)
{
    return plan->context ? plan->context->device : 0;
}

bool graph_plan_limit(const struct graph_plan *plan, struct graph_action *action)
{
    struct operand before = action->operand;
    operand_limit(&action->operand, device_of(plan), &action->ranges);
    return !operand_same(&before, &action->operand);
}

void graph_plan_check_memory(const struct graph_plan *plan, struct graph_action *action)
{
    action->drop =
        action->stale ? DMI_DROP_COPY_FAILED
                      : operand_check_memory(&action->operand, 0, device_of(plan), &action->ranges);
}

/* Before a launch: where the driver does not say it now, it is asked again then, and nothing is lost. */
static void check_early(const struct graph_plan *plan, struct graph_action *action)
{
    struct session_deferred problem;
    action->drop = DROP_NONE;
    if (plan->refused !=
        DROP_NONE) /* nothing is copied; a graph's own memory is there at its launches alone */
        return;
    session_defer(&problem);
    graph_plan_check_memory(plan, action);
    session_defer(NULL);
    if (action->drop != DMI_DROP_COPY_FAILED)
        session_report_deferred(&problem);
}

void graph_plan_action(const struct graph_plan *plan, struct graph_action *action,
                       const struct func *func, const CUDA_KERNEL_NODE_PARAMS_v2 *k)
{
    action->kernel = func->name;
    session_about(func->name);
    /* occurrences are known at launch only */
    if (operand_needs_occurrence(action->site)) {
        session_problem(action->site, PROBLEM_UNSUPPORTED,
                        "kernel %s is in a graph, where offsets and sizes may not use occ",
                        func->name);
        operand_refused(action->site, DMI_DROP_UNSUPPORTED, &action->operand);
    } else {
        operand_from_params(action->site, func, k, &action->operand);
    }
    action->stale = false;
    graph_plan_limit(plan, action);
    check_early(plan, action);
    session_about(NULL);
}

/* ------------------------------------------------------------------------- kernels and actions */

struct graph_kernel *graph_plan_add_kernel(struct graph_plan *plan, struct graph_kernel kernel)
{
    if (ONE_MORE(plan->kernels, plan->n_kernels))
        return NULL;
    plan->kernels[plan->n_kernels] = kernel;
    tap_place_hold(kernel.tap);
    plan->kernels[plan->n_kernels].first_action = PLAN_NONE;
    return &plan->kernels[plan->n_kernels++];
}

struct graph_action *graph_plan_add_action(struct graph_plan *plan, struct graph_kernel *kernel,
                                           uint32_t site)
{
    if (ONE_MORE(plan->actions, plan->n_actions))
        return NULL;
    struct graph_action *actions = plan->actions;
    uint32_t *link = &kernel->first_action;
    while (*link != PLAN_NONE)
        link = &actions[*link].next;
    *link = plan->n_actions;
    actions[plan->n_actions] = (struct graph_action){
        .number = PLAN_NONE, .next = PLAN_NONE, .site = site, .left = DMI_DROP_UNSUPPORTED
    };
    return &actions[plan->n_actions++];
}

/* Which occurrences the actions of @site are is unknown. */
static void leave_site(struct graph_plan *plan, uint32_t site)
{
    for (uint32_t i = 0; i < plan->n_actions; i++)
        if (plan->actions[i].site == site && plan->actions[i].left == DROP_NONE)
            plan->actions[i].left = DMI_DROP_UNSUPPORTED;
}

/* A kernel without a place among the others: all occurrences of its sites in this graph are in doubt. */
static void leave_those_of(struct graph_plan *plan, const struct graph_kernel *kernel)
{
    for (EACH_ACTION(plan, kernel, c))
        if (!plan->actions[c].dead)
            leave_site(plan, plan->actions[c].site);
    for (uint32_t s = 0; s < session.spec->n_sites && kernel->func->match.kind >= 0; s++)
        leave_site(plan, s); /* it begins forwards */
}

void graph_plan_settle(struct graph_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_actions; i++) {
        struct graph_action *c = &plan->actions[i];
        c->left = plan->refused != DROP_NONE ? plan->refused
                  : c->number == PLAN_NONE   ? DMI_DROP_UNSUPPORTED
                                             : DROP_NONE;
        if (c->drop == DMI_DROP_COPY_FAILED)
            plan->epoch = 0; /* what the driver did not say is asked again before the next launch */
    }
    plan->has_sites = plan->has_bodies = false;
    for (uint32_t i = 0; i < plan->n_kernels; i++) {
        plan->has_sites = plan->has_sites || plan->kernels[i].func != &func_unmatched;
        plan->has_bodies = plan->has_bodies || plan->kernels[i].in_body;
        if (!plan->kernels[i].ordered)
            leave_those_of(plan, &plan->kernels[i]);
    }
}

int graph_plan_room(struct err *err, struct graph_plan *plan)
{
    plan->n_tickets = (plan->n_nodes + DMI_TICKET_ACTIONS - 1) / DMI_TICKET_ACTIONS;
    plan->nodes = calloc(plan->n_nodes + 1, sizeof *plan->nodes);
    plan->opens = calloc(plan->n_tickets + 1, sizeof *plan->opens);
    plan->leads = calloc(plan->n_nodes + 1, sizeof *plan->leads);
    return plan->nodes && plan->opens && plan->leads
               ? 0
               : err_set(err, -ENOMEM, "no memory for its copies");
}

void graph_plan_without_actions(struct graph_plan *plan, enum dmi_drop reason)
{
    if (plan->clone)
        driver_table.cuGraphDestroy(plan->clone);
    plan->clone = NULL;
    plan->refused = (int)reason;
    plan->state = 0;
    plan->n_nodes = plan->n_tickets = 0;
    node_map_without_clone(&plan->map);
    for (uint32_t i = 0; i < plan->n_actions; i++)
        plan->actions[i].number = PLAN_NONE;
    graph_plan_settle(plan);
}

bool graph_plan_is_ours(const struct graph_plan *plan, CUgraphNode node)
{
    CUDA_KERNEL_NODE_PARAMS_v2 k;
    return kernel_node_get(node, &k) == CUDA_SUCCESS && k.func &&
           context_has_kernel(plan->context, k.func);
}

void graph_plan_give_up(const struct graph_plan *plan, const char *why)
{
    for (uint32_t i = 0; i < plan->n_kernels; i++)
        functions_give_up(plan->kernels[i].func, why);
}

/* ------------------------------------------------------------------------- from the application's graph */

static int no_memory(struct err *err)
{
    return err_set(err, -ENOMEM, "no memory for its copies");
}

/* The capture context of @handle, which need not be current. */
static struct context *context_of(CUcontext handle)
{
    struct context *c = context_find(handle);
    if (c || !current_push(handle))
        return c;
    c = context_current();
    current_pop();
    return c;
}

/* Whose occurrences a kernel counts that runs in @handle (NULL: the graph's own context). */
static struct context *context_counting(const struct graph_plan *plan, CUcontext handle,
                                        const struct func *func)
{
    if (!handle || !plan->context || handle == context_handle(plan->context))
        return plan->context;
    for (uint32_t s = 0; s < func->match.n_sites; s++)
        session_problem(func->match.sites[s], PROBLEM_UNSUPPORTED,
                        "kernel %s belongs to another context than the one in which its graph was "
                        "instantiated: not captured",
                        func->name);
    struct context *c = context_of(handle);
    if (c)
        return c;
    functions_give_up(func, "belongs to a context that cannot be followed");
    return plan->context;
}

/* The kernel of @pair, if it is one of the spec. @noted: with the node; @number: its actions are to have nodes. */
static int add_node(struct err *err, struct graph_plan *plan, const struct node_pair *pair,
                    CUcontext handle, const struct func *noted, bool ordered, bool number)
{
    CUDA_KERNEL_NODE_PARAMS_v2 k;
    CUresult r = kernel_node_get(pair->app, &k);
    if (r != CUDA_SUCCESS)
        return err_set(err, -EIO, "the parameters of a kernel cannot be read (error %d)", (int)r);
    const struct func *func = graph_plan_func_as(&k, noted);
    if (!func)
        return 0;
    if (plan->refused != DROP_NONE && node_is_updatable(pair->app))
        functions_give_up(func, "may be changed by other kernels while its graph runs");
    struct graph_kernel *kernel = graph_plan_add_kernel(
        plan, (struct graph_kernel){ .app = pair->app,
                                     .node = pair->node,
                                     .graph = pair->graph,
                                     .position = pair->position,
                                     .enabled = true,
                                     .ordered = ordered,
                                     .func = func,
                                     .context = context_counting(plan, handle, func) });
    for (uint32_t s = 0; kernel && s < func->match.n_sites; s++) {
        struct graph_action *action = graph_plan_add_action(plan, kernel, func->match.sites[s]);
        if (!action)
            return no_memory(err);
        if (number && kernel->context == plan->context &&
            siblings_allow(func->match.sites[s], func,
                           pair->graph == plan->clone ? plan->clone : NULL, pair->node))
            action->number = plan->n_nodes++;
        graph_plan_action(plan, action, func, &k);
    }
    return kernel ? 0 : no_memory(err);
}

/* The graph of the clone that stands for the application's @graph, which @pair's child graph node holds; NULL: none does. */
static CUgraph clone_of(const struct graph_plan *plan, const struct node_pair *pair)
{
    CUgraph inner;
    if (!pair)
        return plan->clone;
    return plan->clone &&
                   driver_table.cuGraphChildGraphNodeGetGraph(pair->node, &inner) == CUDA_SUCCESS
               ? inner
               : NULL;
}

/*
 * Where a tap lies in @graph, which @within holds (NULL: the whole). One that no node of a child graph comes before or after
 * has no place there: in which of an exec's graphs its action is, an update could not tell. NULL: nowhere.
 */
static struct tap_place *place_of(const struct graph_plan *plan, const struct graph_tap *tap,
                                  CUgraph graph, const struct node_pair *within)
{
    struct tap_place *place = tap_place_find(tap, graph, &plan->map);
    if (!within || !place || tap_place_anchor(place) != PLAN_NONE)
        return place;
    for (uint32_t s = 0; s < tap->func->match.n_sites; s++)
        session_problem(tap->func->match.sites[s], PROBLEM_UNSUPPORTED,
                        "tap %s stands alone in a child graph: not captured", tap->func->name);
    tap_place_release(place);
    return NULL;
}

/* A tap of the graph that @within holds (NULL: of the whole). @number: its actions are to have nodes. */
static int add_tap(struct err *err, struct graph_plan *plan, CUgraph graph,
                   const struct node_pair *within, const struct order_item *item, bool number)
{
    const struct graph_tap *tap = item->tap;
    const struct func *func = tap->func;
    struct tap_place *place = place_of(plan, tap, graph, within);
    struct graph_kernel *kernel = graph_plan_add_kernel(
        plan, (struct graph_kernel){ .graph = clone_of(plan, within),
                                     .tap = place,
                                     .is_tap = true,
                                     .position = place ? tap_place_anchor(place) : PLAN_NONE,
                                     .enabled = true,
                                     .ordered = true,
                                     .func = func,
                                     .context = context_counting(plan, item->context, func) });
    tap_place_release(place);
    number = number && place && kernel && kernel->graph && kernel->context == plan->context;
    for (uint32_t s = 0; kernel && s < func->match.n_sites; s++) {
        uint32_t site = func->match.sites[s];
        if (!spec_site_takes_layer(session_site(site), tap->tap.layer, tap->tap.n_layers))
            continue;
        struct graph_action *action = graph_plan_add_action(plan, kernel, site);
        if (!action)
            return no_memory(err);
        if (number)
            action->number = plan->n_nodes++;
        operand_of_tap(site, &tap->tap, &action->operand);
        check_early(plan, action);
    }
    return kernel ? 0 : no_memory(err);
}

static int add_noted(struct err *err, struct graph_plan *plan, CUgraph graph,
                     const struct node_pair *within, bool number);

/* A child graph, whose kernels follow: an update may bring some where there are none now. */
static int add_child(struct err *err, struct graph_plan *plan, const struct node_pair *pair,
                     bool number)
{
    CUgraph inner;
    CUresult r = driver_table.cuGraphChildGraphNodeGetGraph(pair->app, &inner);
    if (r != CUDA_SUCCESS)
        return err_set(err, -EIO, "a child graph cannot be read (error %d)", (int)r);
    if (!graph_plan_add_kernel(plan, (struct graph_kernel){ .app = pair->app,
                                                            .node = pair->node,
                                                            .graph = pair->graph,
                                                            .position = pair->position,
                                                            .enabled = true,
                                                            .ordered = true,
                                                            .func = &func_unmatched,
                                                            .context = plan->context }))
        return no_memory(err);
    return add_noted(err, plan, inner, pair, number);
}

/* ------------------------------------------------------------------------- in bodies */

void graph_plan_report_body(const struct func *func)
{
    for (uint32_t s = 0; s < func->match.n_sites; s++)
        session_problem(func->match.sites[s], PROBLEM_UNCOUNTED,
                        "kernel %s is in the body of a conditional node, which runs as often as "
                        "kernels say: its launches there are neither captured nor counted",
                        func->name);
}

static int add_in_body(struct err *err, struct graph_plan *plan, const struct node_pair *holder,
                       CUcontext handle, const struct func *func)
{
    graph_plan_report_body(func);
    return graph_plan_add_kernel(
               plan, (struct graph_kernel){ .position = holder->position,
                                            .in_body = true,
                                            .enabled = true,
                                            .ordered = true,
                                            .func = func,
                                            .context = context_counting(plan, handle, func) })
               ? 0
               : no_memory(err);
}

static const struct order_item *item_of(const struct order_item *items, size_t n, CUgraphNode node)
{
    return FIRST(i, n, items[i].node == node, &items[i], NULL);
}

static int add_body(struct err *err, struct graph_plan *plan, const struct node_pair *holder,
                    CUgraph body);

/* A node in a body. @item: what is noted of it, NULL: nothing. */
static int add_node_in_body(struct err *err, struct graph_plan *plan,
                            const struct node_pair *holder, CUgraphNode node,
                            const struct order_item *item)
{
    CUDA_KERNEL_NODE_PARAMS_v2 k;
    CUgraphNodeType type;
    CUgraph inner;
    CUresult r = driver_table.cuGraphNodeGetType(node, &type);
    if (r == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_GRAPH) {
        r = driver_table.cuGraphChildGraphNodeGetGraph(node, &inner);
        if (r == CUDA_SUCCESS)
            return add_body(err, plan, holder, inner);
    } else if (r == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_KERNEL) {
        r = kernel_node_get(node, &k);
        const struct func *func =
            r == CUDA_SUCCESS ? graph_plan_func_as(&k, item ? item->func : NULL) : NULL;
        if (func)
            return add_in_body(err, plan, holder, item ? item->context : NULL, func);
    }
    return r == CUDA_SUCCESS
               ? 0
               : err_set(err, -EIO, "the body of a conditional node cannot be read (error %d)",
                         (int)r);
}

/* Every node of the body, as the driver lists them. Only taps and inner bodies are known by what is noted. */
static int add_body(struct err *err, struct graph_plan *plan, const struct node_pair *holder,
                    CUgraph body)
{
    size_t n = 0, n_items;
    int r = 0;
    if (driver_table.cuGraphGetNodes(body, NULL, &n) != CUDA_SUCCESS)
        return err_set(err, -EIO, "the body of a conditional node cannot be read");
    _cleanup_(freep) struct order_item *items = order_items(body, &n_items);
    _cleanup_(freep) CUgraphNode *nodes = calloc(n + 1, sizeof *nodes);
    if (!nodes)
        return no_memory(err);
    if (driver_table.cuGraphGetNodes(body, nodes, &n) != CUDA_SUCCESS)
        return err_set(err, -EIO, "the body of a conditional node cannot be read");
    for (size_t i = 0; i < n && !r; i++)
        r = add_node_in_body(err, plan, holder, nodes[i], item_of(items, n_items, nodes[i]));
    for (size_t i = 0; i < n_items && !r; i++) {
        if (items[i].tap)
            r = add_in_body(err, plan, holder, items[i].context, items[i].tap->func);
        else if (items[i].body)
            r = add_body(err, plan, holder, items[i].body);
    }
    return r;
}

/* ------------------------------------------------------------------------- all of it */

/* Kernels and taps of the graph, which @within holds (NULL: the whole), and of its child graphs, whose order is known. */
static int add_noted(struct err *err, struct graph_plan *plan, CUgraph graph,
                     const struct node_pair *within, bool number)
{
    size_t n;
    _cleanup_(freep) struct order_item *items = order_items(graph, &n);
    int r = 0;
    for (size_t i = 0; i < n && !r; i++) {
        if (items[i].tap) {
            r = add_tap(err, plan, graph, within, &items[i], number);
            continue;
        }
        struct node_pair *pair = node_map_find(&plan->map, items[i].node);
        if (!pair)
            continue; /* noted of a graph that ended unseen */
        pair->noted = true;
        if (items[i].body)
            r = add_body(err, plan, pair, items[i].body);
        else
            r = items[i].is_child
                    ? add_child(err, plan, pair, number)
                    : add_node(err, plan, pair, items[i].context, items[i].func, true, number);
    }
    return r;
}

/*
 * Kernels of the spec that were not noted: their graph was created where we could not see, or they became sites
 * by new parameters. Their order among the others is unknown.
 */
static int add_unseen(struct err *err, struct graph_plan *plan)
{
    int r = 0;
    for (size_t i = 0; i < plan->map.n && !r; i++) {
        const struct node_pair *pair = &plan->map.pairs[i];
        CUDA_KERNEL_NODE_PARAMS_v2 k;
        const struct func *func = pair->type == CU_GRAPH_NODE_TYPE_KERNEL && !pair->noted
                                      ? graph_plan_func_of(pair->app, &k)
                                      : NULL;
        if (!func)
            continue;
        for (uint32_t s = 0; s < func->match.n_sites; s++)
            session_problem(func->match.sites[s], PROBLEM_UNSUPPORTED,
                            "kernel %s came into its graph unseen (created before the library "
                            "looked, or by new parameters): not captured",
                            func->name);
        r = add_node(err, plan, pair, k.ctx, NULL, false, false);
    }
    return r;
}

int graph_plan_build(struct err *err, struct graph_plan *plan, CUgraph graph, bool number)
{
    CUresult cloned = CUDA_SUCCESS;
    if (plan->refused == DROP_NONE)
        cloned = driver_table.cuGraphClone(&plan->clone, graph);
    if (cloned != CUDA_SUCCESS) {
        const char *why = node_map_unfit(graph);
        plan->clone = NULL;
        return why ? err_set(err, -ENOTSUP, "%s", why)
                   : err_set(err, -ENOTSUP, "it cannot be cloned (error %d)", (int)cloned);
    }
    int r = node_map_build(err, &plan->map, graph, plan->clone);
    node_map_sort(&plan->map);
    if (!r)
        r = add_noted(err, plan, graph, NULL, number && plan->clone);
    if (!r)
        r = add_unseen(err, plan);
    graph_plan_settle(plan);
    return r;
}

/* Of a kernel of @graph, or of one that it nests. NULL: nothing says it. */
static CUcontext noted_context(CUgraph graph)
{
    size_t n;
    CUcontext context = NULL;
    _cleanup_(freep) struct order_item *items = order_items(graph, &n);
    for (size_t i = 0; i < n && !context; i++) {
        CUDA_KERNEL_NODE_PARAMS_v2 k;
        CUgraph inner = items[i].body;
        context = items[i].context;
        if (items[i].is_child)
            driver_table.cuGraphChildGraphNodeGetGraph(items[i].node, &inner);
        if (inner)
            context = noted_context(inner);
        else if (!context && items[i].node && kernel_node_get(items[i].node, &k) == CUDA_SUCCESS)
            context = k.ctx;
    }
    return context;
}

CUcontext graph_plan_home(CUgraph graph)
{
    return current_context() ? NULL : noted_context(graph);
}

void graph_plan_count_in(struct graph_plan *plan, struct context *context)
{
    plan->context = context;
    for (uint32_t i = 0; i < plan->n_kernels; i++)
        if (!plan->kernels[i].context)
            plan->kernels[i].context = context;
}

void graph_plan_forget_context(struct graph_plan *plan, const struct context *context)
{
    for (uint32_t i = 0; i < plan->n_kernels; i++)
        if (plan->kernels[i].context == context)
            atomic_store_relaxed(&plan->kernels[i].context, (struct context *)NULL);
}

void graph_plan_deinit(struct graph_plan *plan)
{
    if (plan->clone)
        driver_table.cuGraphDestroy(plan->clone);
    node_map_deinit(&plan->map);
    for (uint32_t i = 0; i < plan->n_kernels; i++)
        tap_place_release(plan->kernels[i].tap);
    free(plan->kernels);
    free(plan->actions);
    free(plan->nodes);
    free(plan->opens);
    free(plan->leads);
    *plan = (struct graph_plan){ 0 };
}
