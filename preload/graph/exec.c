/* SPDX-License-Identifier: Apache-2.0 */
/* Which execs hold nodes of ours, how they begin and end, and what the application changes in them. */
#include "preload/graph/exec.h"

#include "core/atomic.h"
#include "core/log.h"
#include "preload/base/driver.h"
#include "preload/base/handles.h"
#include "preload/context/lifetime.h"
#include "preload/graph/instrument.h"
#include "preload/graph/order.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

static struct handles execs = HANDLES_INIT;

/* All of them, for those who destroy graphs and nodes that execs are named by. */
static struct exec *all;
static uint64_t n_ends;
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;

struct exec *exec_find(CUgraphExec handle)
{
    return handles_find(&execs, handle);
}

static void all_add(struct exec *x)
{
    pthread_mutex_lock(&all_lock);
    x->next = all;
    x->prev = &all;
    if (all)
        all->prev = &x->next;
    atomic_store_release(&all, x); /* to exec_any() */
    pthread_mutex_unlock(&all_lock);
}

static void all_remove(struct exec *x)
{
    pthread_mutex_lock(&all_lock);
    if (x->prev) {
        atomic_store_release(x->prev, x->next); /* to exec_any() */
        if (x->next)
            x->next->prev = x->prev;
    }
    x->prev = NULL;
    pthread_mutex_unlock(&all_lock);
}

bool exec_any(void)
{
    return atomic_load_acquire(&all) != NULL; /* of all_add(), all_remove() */
}

static void scratch_deinit(struct exec_scratch *s)
{
    free(s->items);
    free(s->pieces.sites);
    free(s->pieces.sizes);
    free(s->pieces.payloads);
}

static int scratch_init(struct err *err, struct exec *x)
{
    struct exec_scratch *s = &x->scratch;
    uint32_t n = x->plan.n_copies + 1;
    s->items = calloc(n, sizeof *s->items);
    s->pieces.sites = calloc(n, sizeof *s->pieces.sites);
    s->pieces.sizes = calloc(n, sizeof *s->pieces.sizes);
    s->pieces.payloads = calloc(n, sizeof *s->pieces.payloads);
    s->ticket.state = x->state.memory;
    x->empty = true; /* instrument_open_close() gave it an empty ticket */
    bool good = s->items && s->pieces.sites && s->pieces.sizes && s->pieces.payloads;
    return good ? 0 : err_set(err, -ENOMEM, "no memory for its launches");
}

static void exec_free(struct exec *x)
{
    exec_state_give_back(x->plan.context, &x->state);
    graph_plan_deinit(&x->plan);
    scratch_deinit(&x->scratch);
    free(x);
}

/* ------------------------------------------------------------------------- before it is instantiated */

static void report_sites(const struct func *func, const char *what, const char *why)
{
    for (uint32_t s = 0; s < func->match.n_sites; s++)
        session_problem(func->match.sites[s], PROBLEM_UNSUPPORTED, "kernel %s %s%s", func->name,
                        what, why);
}

static bool is_noted(CUgraphNode node, const struct order_item *items, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (items[i].node == node)
            return true;
    return false;
}

/*
 * Kernels of the spec that were not noted: their graph was created where we could not see, or they became sites
 * by new parameters. Their order among the others is unknown.
 */
static void report_unseen(CUgraph graph, const struct order_item *items, size_t n_items)
{
    size_t n = 0;
    if (driver_table.cuGraphGetNodes(graph, NULL, &n) != CUDA_SUCCESS)
        return;
    CUgraphNode *nodes = calloc(n + 1, sizeof *nodes);
    if (!nodes || driver_table.cuGraphGetNodes(graph, nodes, &n) != CUDA_SUCCESS)
        n = 0;
    for (size_t i = 0; i < n; i++) {
        CUDA_KERNEL_NODE_PARAMS_v2 k;
        const struct func *func =
            is_noted(nodes[i], items, n_items) ? NULL : graph_plan_func_of(nodes[i], &k);
        if (func)
            report_sites(func,
                         "came into its graph unseen (created before the library looked, or by new "
                         "parameters)",
                         ": not captured");
    }
    free(nodes);
}

static void report_left_alone(const struct order_item *items, size_t n, const char *why)
{
    for (size_t i = 0; i < n; i++) {
        CUDA_KERNEL_NODE_PARAMS_v2 k;
        const struct func *func = items[i].is_child ? NULL : graph_plan_func_of(items[i].node, &k);
        if (func)
            report_sites(func, "is in a graph that is left alone: ", why);
    }
}

static int build(struct err *err, struct exec *x, CUgraph graph)
{
    struct graph_plan *plan = &x->plan;
    int r = graph_plan_clone(err, plan, graph);
    node_map_sort(&plan->map);
    if (!r)
        r = exec_state_init(err, plan->context, &x->state);
    plan->state = x->state.memory;
    if (!r)
        r = graph_plan_kernels(err, plan, graph);
    if (!r)
        r = instrument_copies(err, plan);
    if (!r)
        r = instrument_open_close(err, plan);
    return r ? r : scratch_init(err, x);
}

/* An exec of @graph in @c; NULL: it has no sites, or @err says why it cannot be. */
static struct exec *exec_new(struct err *err, struct context *c, CUgraph graph)
{
    struct exec *x = calloc(1, sizeof *x);
    if (!x) {
        err_set(err, -ENOMEM, "no memory for it");
        return NULL;
    }
    x->template = graph;
    x->plan.context = c;
    x->plan.epoch = atomic_load_acquire(&session.memory_epoch); /* of session_memory_freed() */
    struct stream_relaxed relaxed = stream_relax();
    int r = build(err, x, graph);
    stream_unrelax(&relaxed);
    if (!r && x->plan.n_kernels)
        return x;
    exec_free(x);
    return NULL;
}

struct exec *exec_prepare(CUgraph graph)
{
    size_t n;
    struct err err = { 0 };
    struct exec *x = NULL;
    struct order_item *items = order_items(graph, &n);
    report_unseen(graph, items, n);
    if (order_has_sites(graph)) {
        struct context *c = context_current();
        if (c && context_refusal(c) == DROP_NONE)
            x = exec_new(&err, c, graph);
        else
            err_set(&err, -ENODEV, "this context has no ring");
    }
    if (err.code)
        report_left_alone(items, n, err.msg);
    free(items);
    return x;
}

/* ------------------------------------------------------------------------- birth and end */

/* The exec holds references of its own to the user objects of its graphs; those of the clone are one too many. */
static void release_users(struct exec *x)
{
    order_release_users(x->template, x->plan.clone);
    for (size_t i = 0; i < x->plan.map.n; i++) {
        const struct node_pair *p = &x->plan.map.pairs[i];
        CUgraph inner, clone;
        if (p->is_graph &&
            driver_table.cuGraphChildGraphNodeGetGraph(p->app, &inner) == CUDA_SUCCESS &&
            driver_table.cuGraphChildGraphNodeGetGraph(p->node, &clone) == CUDA_SUCCESS)
            order_release_users(inner, clone);
    }
}

bool exec_created(struct exec *x, CUgraphExec handle)
{
    if (!handle) {
        for (uint32_t i = 0; i < x->plan.n_copies; i++)
            session_problem(x->plan.copies[i].site, PROBLEM_UNSUPPORTED,
                            "its graph could not be instantiated with our copies: not captured");
        exec_free(x);
        return false;
    }
    x->handle = handle;
    if (handles_set(&execs, handle, x) == x) {
        log_line("too many graph execs: the sites of this one are not captured");
        driver_table.cuGraphExecDestroy(handle);
        exec_free(x);
        return false;
    }
    release_users(x);
    all_add(x);
    return true;
}

struct exec *exec_take(CUgraphExec handle)
{
    struct exec *x = exec_find(handle) ? handles_set(&execs, handle, NULL) : NULL;
    if (x)
        all_remove(x);
    return x;
}

void exec_destroyed(struct exec *x)
{
    exec_free(x);
}

static void forget_if_of(const void *handle, void *value, void *context)
{
    struct exec *x = value;
    if (x->plan.context != context)
        return;
    handles_set(&execs, handle, NULL);
    all_remove(x);
    x->plan.clone = NULL; /* graphs outlive contexts no better than their kernels do: leave it be */
    x->state.memory = 0;
    exec_free(x);
}

void exec_forget_context(const struct context *context)
{
    handles_each(&execs, forget_if_of, (void *)context);
    exec_state_forget_context(context);
}

void exec_reset(void)
{
    struct handles fresh = HANDLES_INIT;
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    execs = fresh;
    all = NULL;
    all_lock = unlocked;
    exec_state_reset();
}

/* ------------------------------------------------------------------------- nodes */

CUgraphNode exec_node(const struct exec *x, CUgraphNode app)
{
    const struct node_pair *p = x ? node_map_find(&x->plan.map, app) : NULL;
    return p ? p->node : app;
}

uint64_t exec_nodes_end(CUgraphNode node, const CUgraph *graphs, size_t n)
{
    uint64_t end = 0;
    pthread_mutex_lock(&all_lock);
    if (all)
        end = ++n_ends;
    for (struct exec *x = all; x; x = x->next) {
        if (node)
            node_map_end(&x->plan.map, node, end);
        for (size_t i = 0; i < n && !x->plan.map.gone; i++)
            if (x->template == graphs[i])
                x->plan.map.gone = end;
    }
    pthread_mutex_unlock(&all_lock);
    return end;
}

void exec_nodes_ended(uint64_t end, bool success)
{
    if (!end || success)
        return;
    pthread_mutex_lock(&all_lock);
    for (struct exec *x = all; x; x = x->next)
        node_map_undo_end(&x->plan.map, end);
    pthread_mutex_unlock(&all_lock);
}

/* ------------------------------------------------------------------------- changes by the application */

static struct graph_kernel *kernel_of(struct exec *x, CUgraphNode app)
{
    for (uint32_t i = 0; i < x->plan.n_kernels; i++)
        if (x->plan.kernels[i].app == app)
            return &x->plan.kernels[i];
    return NULL;
}

static bool matches_site(const struct func *func, uint32_t site)
{
    for (uint32_t i = 0; func && i < func->match.n_sites; i++)
        if (func->match.sites[i] == site)
            return true;
    return false;
}

static bool has_copy(const struct graph_plan *plan, const struct graph_kernel *kernel,
                     uint32_t site)
{
    for (uint32_t c = 0; kernel && c < kernel->n_copies; c++)
        if (plan->copies[kernel->first_copy + c].site == site)
            return true;
    return false;
}

void exec_report_new_sites(const struct graph_plan *plan, const struct graph_kernel *kernel,
                           const struct func *func)
{
    for (uint32_t i = 0; func && i < func->match.n_sites; i++)
        if (!has_copy(plan, kernel, func->match.sites[i]))
            session_problem(func->match.sites[i], PROBLEM_UNSUPPORTED,
                            "kernel %s came into a graph after it was instantiated: not captured",
                            func->name);
}

/* The copy's kernel has new parameters: it must read what they say, or nothing. */
static void copy_changed(struct exec *x, struct graph_copy *c, const struct func *func,
                         const CUDA_KERNEL_NODE_PARAMS_v2 *k)
{
    struct site_plan before = c->plan;
    bool stale = c->stale;
    c->dead = !matches_site(func, c->site);
    if (c->dead)
        return;
    graph_plan_copy(c, func, k);
    if (!stale && plan_same(&before, &c->plan))
        return;
    if (instrument_refresh(x->handle, &x->plan, c) == CUDA_SUCCESS || !plan_has_records(&c->plan))
        return;
    c->stale = true;
    if (c->drop == DROP_NONE)
        c->drop = DMI_DROP_COPY_FAILED;
}

void exec_kernel_changed(struct exec *x, CUgraphNode app, const CUDA_KERNEL_NODE_PARAMS_v2 *k)
{
    struct graph_kernel *kernel = kernel_of(x, app);
    const struct func *func = graph_plan_func(k);
    if (!kernel || func != kernel->func)
        exec_report_new_sites(&x->plan, kernel, func);
    for (uint32_t i = 0; kernel && i < kernel->n_copies; i++)
        copy_changed(x, &x->plan.copies[kernel->first_copy + i], func, k);
    if (kernel)
        kernel->func = func ? func : &func_unmatched;
}

void exec_node_enabled(struct exec *x, CUgraphNode app, bool on)
{
    struct graph_kernel *kernel = kernel_of(x, app);
    if (kernel)
        kernel->enabled = on;
}
