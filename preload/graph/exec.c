/* SPDX-License-Identifier: Apache-2.0 */
/* Which execs hold nodes of ours, and how they begin and end. */
#include "preload/graph/exec.h"

#include "core/atomic.h"
#include "preload/base/current.h"
#include "preload/base/driver.h"
#include "preload/base/handles.h"
#include "preload/context/device.h"
#include "preload/context/lifetime.h"
#include "preload/edit/places.h"
#include "preload/graph/instrument.h"
#include "preload/graph/order.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

static struct handles execs = HANDLES_INIT;

/* Held by a context that ends, which looks at the kernels of all execs, and by whatever takes these away: see exec_shapes_lock(). */
static pthread_mutex_t shapes = PTHREAD_MUTEX_INITIALIZER;

void exec_shapes_lock(void)
{
    pthread_mutex_lock(&shapes);
}

void exec_shapes_unlock(void)
{
    pthread_mutex_unlock(&shapes);
}

struct exec *exec_find(CUgraphExec handle)
{
    return handles_find(&execs, handle);
}

int exec_make_room(struct err *err, struct exec *x, uint32_t n_actions)
{
    if (n_actions <= x->scratch.n_room)
        return 0;
    struct admission *items = calloc(n_actions, sizeof *items);
    if (!items)
        return err_set(err, -ENOMEM, "no memory for its launches");
    free(x->scratch.items);
    x->scratch = (struct exec_scratch){ .n_room = n_actions, .items = items };
    return 0;
}

void exec_free(struct exec *x)
{
    if (x->orphan) {
        x->plan.clone =
            NULL; /* graphs outlive contexts no better than their kernels do: leave it be */
        x->state.memory = 0;
    }
    exec_state_give_back(x->plan.context, &x->state);
    graph_plan_deinit(&x->plan);
    free(x->scratch.items);
    repeat_deinit(&x->repeat);
    free(x);
}

/* ------------------------------------------------------------------------- before it is instantiated */

/* Stands for an exec of which nothing could be learned. */
static struct exec unknown;

static int build(struct err *err, struct exec *x, CUgraph graph)
{
    struct graph_plan *plan = &x->plan;
    int r = graph_plan_build(err, plan, graph, true);
    if (!r)
        r = exec_make_room(err, x, plan->n_actions);
    if (r || !plan->n_nodes)
        return r;
    r = graph_plan_room(err, plan);
    if (!r)
        r = exec_state_init(err, plan->context, plan->n_tickets, plan->n_nodes, &x->state);
    plan->state = x->state.memory;
    if (!r)
        r = instrument_actions(err, plan, NULL);
    if (!r)
        r = instrument_open_close(err, plan);
    return r;
}

/* An exec of @graph in @c; with @refused, a drop reason, one that is left alone. NULL: @err says why it cannot be. */
static struct exec *exec_new(struct err *err, struct context *c, CUgraph graph, int refused,
                             enum edges_mixed mixed)
{
    struct exec *x = calloc(1, sizeof *x);
    if (!x) {
        err_set(err, -ENOMEM, "no memory for it");
        return NULL;
    }
    x->template = graph;
    x->empty = true; /* instrument_open_close() gives it empty tickets */
    x->plan.context = c;
    x->plan.refused = refused;
    x->plan.mixed = mixed;
    x->plan.epoch = atomic_load_acquire(&session.memory_epoch); /* of session_memory_freed() */
    struct stream_relaxed relaxed = stream_relax();
    int r = build(err, x, graph);
    stream_unrelax(&relaxed);
    if (!r)
        return x;
    exec_free(x);
    return NULL;
}

static void report_left_alone(const struct graph_plan *plan, const char *why)
{
    for (uint32_t i = 0; i < plan->n_kernels; i++) {
        const struct func *func = plan->kernels[i].func;
        for (uint32_t s = 0; !plan->kernels[i].in_body && s < func->match.n_sites; s++)
            session_problem(func->match.sites[s], PROBLEM_UNSUPPORTED,
                            "kernel %s is in a graph that is left alone: %s", func->name, why);
    }
}

/* The graph is left alone: what it holds is counted. NULL: it could not be looked into. */
static struct exec *exec_left_alone(struct context *c, CUgraph graph, int refused, const char *why)
{
    struct err err = { 0 };
    struct exec *x = exec_new(&err, c, graph, refused, EDGES_MIXED_STAY);
    if (x)
        report_left_alone(&x->plan, why);
    return x;
}

static struct exec *prepare_with_sites(struct context *c, CUgraph graph, unsigned long long flags)
{
    struct err err = { 0 };
    int refusal = context_refusal(c);
    if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
        return exec_left_alone(c, graph, DMI_DROP_UNSUPPORTED, "kernels may launch it");
    if (refusal != DROP_NONE)
        return exec_left_alone(c, graph, refusal, "this context has no ring");
    if (order_lacks_conditional(graph))
        return exec_left_alone(c, graph, DMI_DROP_UNSUPPORTED,
                               "it has a handle that no conditional node goes by");
    if (order_is_moved(graph))
        return exec_left_alone(c, graph, DMI_DROP_UNSUPPORTED, "it was moved into a node");
    if (order_has_users(graph) && !order_users_are_copied())
        return exec_left_alone(c, graph, DMI_DROP_UNSUPPORTED,
                               "it holds user objects, whose references a clone would share");
    struct exec *x = exec_new(&err, c, graph, DROP_NONE, EDGES_MIXED_STAY);
    if (!x)
        return exec_left_alone(c, graph, DMI_DROP_UNSUPPORTED, err.msg);
    if (!x->plan.n_nodes)
        graph_plan_without_actions(&x->plan, DMI_DROP_UNSUPPORTED);
    return x;
}

static struct exec *prepare(CUgraph graph, unsigned long long flags)
{
    struct err err = { 0 };
    struct exec *x = NULL;
    if (!order_has_sites(graph)) {
        x = exec_new(&err, NULL, graph, DMI_DROP_UNSUPPORTED, EDGES_MIXED_STAY);
        if (!x || !x->plan.has_sites)
            return x ? x : &unknown;
        exec_free(x); /* they came unseen */
    }
    struct context *c = context_prepare();
    if (!c && !session_run())
        return NULL;
    if (c && context_use(c)) {
        x = prepare_with_sites(c, graph, flags);
        context_unuse(c);
    } else {
        x = exec_left_alone(NULL, graph, DMI_DROP_UNSUPPORTED,
                            "it is not known which context it runs in, or there are too many");
    }
    if (x)
        x->for_device = flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH;
    return x ? x : &unknown;
}

struct exec *exec_prepare(CUgraph graph, unsigned long long flags)
{
    struct current_visit visit = current_visit(graph_plan_home(graph));
    struct exec *x = prepare(graph, flags);
    current_leave(&visit);
    return x;
}

CUgraph exec_graph(const struct exec *x, CUgraph graph)
{
    return x && x->plan.clone ? x->plan.clone : graph;
}

/* ------------------------------------------------------------------------- birth and end */

/* The exec holds references of its own to the user objects of its graphs; those of the clone are one too many. */
static bool release_users(struct exec *x)
{
    bool released = order_release_users(x->template, x->plan.clone);
    for (size_t i = 0; i < x->plan.map.n && released; i++) {
        const struct node_pair *p = &x->plan.map.pairs[i];
        CUgraph inner, clone;
        if (p->type == CU_GRAPH_NODE_TYPE_GRAPH &&
            driver_table.cuGraphChildGraphNodeGetGraph(p->app, &inner) == CUDA_SUCCESS &&
            driver_table.cuGraphChildGraphNodeGetGraph(p->node, &clone) == CUDA_SUCCESS)
            released = order_release_users(inner, clone);
    }
    return released;
}

/* The application's own graph is to be instantiated after all. */
static void drop_actions(struct exec *x, const char *why)
{
    report_left_alone(&x->plan, why);
    exec_state_give_back(x->plan.context, &x->state);
    x->state = (struct exec_state){ 0 };
    graph_plan_without_actions(&x->plan, DMI_DROP_UNSUPPORTED);
}

/* A place for edits that its kernels have. Kernels of bodies have no actions. Return: can edits write there? */
static bool has_open_place(const struct graph_plan *plan, uint32_t site, bool *found)
{
    bool open = true;
    for (uint32_t i = 0; i < plan->n_kernels; i++) {
        const struct graph_kernel *kernel = &plan->kernels[i];
        for (uint32_t s = 0; kernel->in_body && s < kernel->func->match.n_sites; s++)
            if (kernel->func->match.sites[s] == site)
                *found = true, open = false;
        for (EACH_ACTION(plan, kernel, c)) {
            const struct graph_action *action = &plan->actions[c];
            if (action->site != site || action->dead)
                continue;
            *found = true;
            open = open && action->number != PLAN_NONE && action->left == DROP_NONE &&
                   action->drop == DROP_NONE;
        }
    }
    return open;
}

static void count_places(const struct graph_plan *plan)
{
    for (uint32_t s = 0; session.spec->n_places && s < session.spec->n_sites; s++) {
        bool found = false;
        bool open = session_site(s)->action == SPEC_EDIT && has_open_place(plan, s, &found);
        if (found)
            places_in_graph(s, open);
    }
}

/* It is found by its handle from here on. Return: false without memory. */
static bool exec_register(struct exec *x, CUgraphExec handle)
{
    x->handle = handle;
    count_places(&x->plan);
    struct exec *before = handles_set(&execs, handle, x);
    if (before == x)
        return false;
    if (before && before->orphan) /* its handle came back */
        exec_free(before);
    exec_named(x);
    return true;
}

/* Actions in graphs cost device memory that the application may have meant to use. */
static bool leaves_room(const struct exec *x)
{
    uint64_t keep = x->plan.context->keep_free;
    return !keep || device_free_bytes() >= keep;
}

/* Nobody knows which sites it has. @handle NULL: it could not be instantiated, and will not be launched. */
static void unknown_created(CUgraphExec handle)
{
    if (handle)
        session_give_up_all("a graph could not be looked into");
}

/* Why the exec of the clone cannot stay, NULL: it can. */
static const char *objection(struct exec *x, CUgraphExec handle)
{
    if (!handle)
        return "it could not be instantiated with our copies";
    if (!leaves_room(x))
        return "with our copies less device memory would be free than keep_free says";
    if (!release_users(x))
        return "its user objects would be held longer than by the application";
    return NULL;
}

/* Of the application's own graph. Return: false: it is to be followed no longer. */
static bool created_plain(struct exec *x, CUgraphExec handle)
{
    if (handle && exec_register(x, handle)) {
        if (x->for_device)
            graph_plan_give_up(&x->plan,
                               "is in a graph that kernels may launch, which nobody sees");
        return true;
    }
    if (handle)
        graph_plan_give_up(&x->plan, "is in a graph exec that there is no memory for");
    return false;
}

/*
 * The driver refused edges with data beside edges without, it may be: once more without such neighbours. Return: NULL where there
 * are none, or it was that.
 */
static struct exec *without_mixed_edges(const struct exec *x)
{
    struct err err = { 0 };
    if (!x->plan.clone || x->plan.mixed == EDGES_MIXED_MOVE || !x->plan.has_edge_data)
        return NULL;
    return exec_new(&err, x->plan.context, x->template, DROP_NONE, EDGES_MIXED_MOVE);
}

static bool created(struct exec **exec, CUgraphExec handle)
{
    struct exec *x = *exec;
    struct exec *other = handle || x == &unknown ? NULL : without_mixed_edges(x);
    if (other) {
        exec_free(x);
        *exec = other;
        return true;
    }
    bool cloned = x->plan.clone != NULL;
    const char *why = cloned ? objection(x, handle) : NULL;
    *exec = NULL;
    if (x == &unknown)
        unknown_created(handle);
    else if (!cloned && !created_plain(x, handle))
        exec_free(x);
    if (!cloned || (!why && exec_register(x, handle)))
        return false;
    if (handle)
        driver_table.cuGraphExecDestroy(handle);
    drop_actions(x, why ? why : "there is no memory for its exec");
    *exec = x;
    return true;
}

bool exec_created(struct exec **exec, CUgraphExec handle)
{
    const struct context *c = (*exec)->plan.context;
    struct current_visit visit = current_visit(c ? context_handle(c) : NULL);
    bool again = created(exec, handle);
    current_leave(&visit);
    return again;
}

struct exec *exec_take(CUgraphExec handle)
{
    if (!exec_find(handle))
        return NULL;
    exec_shapes_lock();
    struct exec *x = handles_set(&execs, handle, NULL);
    exec_shapes_unlock();
    if (x)
        exec_unnamed(x);
    return x;
}

/* Under the lock of shapes. A thread may be at it: it stays until the application destroys it, or its handle comes back. */
static void forget_if_of(const void *handle, void *value, void *context)
{
    struct exec *x = value;
    (void)handle;
    if (x->plan.context != context) {
        graph_plan_forget_context(&x->plan, context);
        return;
    }
    exec_unnamed(x);
    atomic_store_relaxed(&x->orphan, true);
}

void exec_forget_context(const struct context *context)
{
    exec_shapes_lock();
    handles_each(&execs, forget_if_of, (void *)context);
    exec_shapes_unlock();
    exec_state_forget_context(context);
}

void exec_reset(void)
{
    struct handles fresh = HANDLES_INIT;
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    execs = fresh;
    shapes = unlocked;
    exec_reset_names();
    exec_state_reset();
}
