/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/graph/update.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "preload/base/driver.h"
#include "preload/graph/instrument.h"
#include "preload/graph/order.h"

#include <errno.h>
#include <stdlib.h>

/* ------------------------------------------------------------------------- places */

/* @kernel is at @pair in the new graph: its copies read what the kernel there gets. */
static void fit_kernel(struct graph_plan *to, const struct graph_plan *from,
                       struct graph_kernel *kernel, const struct node_pair *pair)
{
    CUDA_KERNEL_NODE_PARAMS_v2 k;
    const struct func *func = graph_plan_func_of(pair->app, &k);
    kernel->node = pair->node;
    kernel->graph = pair->graph;
    kernel->func = func ? func : &func_unmatched;
    for (uint32_t c = kernel->first_copy; c < kernel->first_copy + kernel->n_copies; c++) {
        struct graph_copy *copy = &to->copies[c];
        *copy = (struct graph_copy){ .site = from->copies[c].site, .dead = true };
        for (uint32_t s = 0; func && s < func->match.n_sites && copy->dead; s++)
            copy->dead = func->match.sites[s] != copy->site;
        if (copy->dead)
            plan_refused(copy->site, DMI_DROP_UNSUPPORTED, &copy->plan);
        else
            graph_plan_copy(copy, func, &k);
    }
    exec_report_new_sites(from, kernel, func);
}

/*
 * The kernels of @from at the @n positions from @first on get places in @to, whose pairs are in the order of positions;
 * the others have no copies there. Graphs of another shape are the driver's to refuse.
 */
static int fit_kernels(struct err *err, struct graph_plan *to, const struct graph_plan *from,
                       uint32_t first, uint32_t n)
{
    to->kernels = calloc(from->n_kernels + 1, sizeof *to->kernels);
    to->copies = calloc(from->n_copies + 1, sizeof *to->copies);
    if (!to->kernels || !to->copies)
        return err_set(err, -ENOMEM, "no memory for an update's copies");
    to->n_kernels = from->n_kernels;
    to->n_copies = from->n_copies;
    for (uint32_t i = 0; i < from->n_kernels; i++) {
        uint32_t at = from->kernels[i].position - first;
        to->kernels[i] = from->kernels[i];
        if (at >= n)
            to->kernels[i].n_copies = 0;
        else if (at >= to->map.n)
            return err_set(err, -EINVAL, "the new graph has fewer nodes");
        else
            fit_kernel(to, from, &to->kernels[i], &to->map.pairs[at]);
    }
    return 0;
}

/* ------------------------------------------------------------------------- kernels without a place */

/* Has the plan a kernel at the place that @pair has in the new graph, counted from @first? */
static bool has_kernel_at(const struct graph_plan *plan, const struct node_pair *pair,
                          uint32_t first)
{
    for (uint32_t i = 0; plan && pair && i < plan->n_kernels; i++)
        if (plan->kernels[i].position - first == pair->position)
            return true;
    return false;
}

/* Sites of @graph at places where @plan (NULL: it holds nothing of ours) has no copies. */
static void report_strangers(const struct graph_plan *plan, const struct node_map *map,
                             CUgraph graph, uint32_t first)
{
    size_t n;
    _cleanup_(freep) struct order_item *items = order_items(graph, &n);
    for (size_t i = 0; i < n; i++) {
        const struct node_pair *pair = map ? node_map_find(map, items[i].node) : NULL;
        CUgraph inner;
        CUDA_KERNEL_NODE_PARAMS_v2 k;
        if (!items[i].is_child && !has_kernel_at(plan, pair, first))
            exec_report_new_sites(plan, NULL, graph_plan_func_of(items[i].node, &k));
        else if (items[i].is_child &&
                 driver_table.cuGraphChildGraphNodeGetGraph(items[i].node, &inner) == CUDA_SUCCESS)
            report_strangers(plan, map, inner, first);
    }
}

void update_report(CUgraph graph)
{
    report_strangers(NULL, NULL, graph, 0);
}

/* ------------------------------------------------------------------------- updates */

static void update_free(struct graph_update *u)
{
    graph_plan_deinit(&u->plan);
    free(u);
}

static int build(struct err *err, struct graph_update *u, const struct graph_plan *from,
                 CUgraph graph, uint32_t first, uint32_t n)
{
    int r = graph_plan_clone(err, &u->plan, graph);
    if (!r)
        r = fit_kernels(err, &u->plan, from, first, n);
    if (!r)
        r = instrument_copies(err, &u->plan);
    if (!r && u->complete)
        r = instrument_open_close(err, &u->plan);
    node_map_sort(&u->plan.map);
    return r;
}

/* The positions [first, first + n) of @x are to become as @graph is. */
static struct graph_update *prepare(struct exec *x, CUgraph graph, uint32_t first, uint32_t n,
                                    bool complete)
{
    struct err err = { 0 };
    struct graph_update *u = calloc(1, sizeof *u);
    if (!u)
        return NULL;
    u->plan.context = x->plan.context;
    u->plan.state = x->plan.state;
    u->plan.epoch = atomic_load_acquire(&session.memory_epoch); /* of session_memory_freed() */
    u->complete = complete;
    struct stream_relaxed relaxed = stream_relax();
    int r = build(&err, u, &x->plan, graph, first, n);
    if (!r)
        report_strangers(&x->plan, &u->plan.map, graph, first);
    stream_unrelax(&relaxed);
    if (!r)
        return u;
    update_free(u);
    return NULL;
}

struct graph_update *update_prepare(struct exec *x, CUgraph graph)
{
    return prepare(x, graph, 0, UINT32_MAX, true);
}

struct graph_update *update_prepare_child(struct exec *x, CUgraphNode app, CUgraph graph)
{
    const struct node_pair *p = node_map_find(&x->plan.map, app);
    bool any = false;
    for (uint32_t i = 0; p && i < x->plan.n_kernels && !any; i++)
        any = x->plan.kernels[i].position - p->first < p->n;
    if (any)
        return prepare(x, graph, p->first, p->n, false);
    update_report(graph);
    return NULL;
}

/* The exec goes on with the nodes that it was created from. */
static void take_over(struct graph_copy *to, const struct graph_copy *from, bool check_memory)
{
    CUgraphNode node = to->node;
    bool off = to->off;
    *to = *from;
    to->node = node;
    to->off = off;
    if (check_memory && !to->dead)
        to->drop = plan_check_memory(&to->plan, 0, &to->range);
}

void update_done(struct exec *x, struct graph_update *u, bool success)
{
    for (uint32_t i = 0; i < x->plan.n_kernels && success; i++) {
        struct graph_kernel *kernel = &x->plan.kernels[i];
        const struct graph_kernel *now = &u->plan.kernels[i];
        if (!now->n_copies)
            continue;
        kernel->func = now->func;
        for (uint32_t c = kernel->first_copy; c < kernel->first_copy + kernel->n_copies; c++)
            take_over(&x->plan.copies[c], &u->plan.copies[c], x->plan.epoch != u->plan.epoch);
    }
    if (success && u->complete) {
        x->plan.epoch = u->plan.epoch;
        x->empty = true; /* the update's open came with the empty ticket */
    }
    update_free(u);
}
