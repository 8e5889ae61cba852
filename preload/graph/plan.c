/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/graph/plan.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "preload/base/driver.h"
#include "preload/base/kernel_node.h"
#include "preload/capture/params.h"
#include "preload/graph/order.h"

#include <dmi/ring.h>

#include <errno.h>
#include <stdlib.h>

int graph_plan_clone(struct err *err, struct graph_plan *plan, CUgraph graph)
{
    CUresult r = driver_table.cuGraphClone(&plan->clone, graph);
    if (r != CUDA_SUCCESS) {
        plan->clone = NULL; /* graphs with memory nodes are such */
        return err_set(err, -ENOTSUP, "it cannot be cloned (error %d)", (int)r);
    }
    return node_map_build(err, &plan->map, graph, plan->clone);
}

const struct func *graph_plan_func(const CUDA_KERNEL_NODE_PARAMS_v2 *k)
{
    const struct func *func =
        k->func ? functions_lookup(k->func, FUNC_FUNCTION) : functions_lookup(k->kern, FUNC_KERNEL);
    return func == &func_unmatched ? NULL : func;
}

const struct func *graph_plan_func_of(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *k)
{
    CUgraphNodeType type;
    if (driver_table.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS ||
        type != CU_GRAPH_NODE_TYPE_KERNEL || kernel_node_get(node, k) != CUDA_SUCCESS)
        return NULL;
    return graph_plan_func(k);
}

/* ------------------------------------------------------------------------- copies */

static void plan_from_params(uint32_t site, const struct func *func,
                             const CUDA_KERNEL_NODE_PARAMS_v2 *k, struct site_plan *plan)
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
    plan_site(site, &env, plan);
}

void graph_plan_copy(struct graph_copy *copy, const struct func *func,
                     const CUDA_KERNEL_NODE_PARAMS_v2 *k)
{
    /* occurrences are known at launch only */
    if (plan_needs_occurrence(copy->site)) {
        session_problem(copy->site, PROBLEM_UNSUPPORTED,
                        "kernel %s is in a graph, where offsets and sizes may not use occ",
                        func->name);
        plan_refused(copy->site, DMI_DROP_UNSUPPORTED, &copy->plan);
    } else {
        plan_from_params(copy->site, func, k, &copy->plan);
    }
    copy->stale = false;
    copy->drop = plan_check_memory(&copy->plan, 0, &copy->range);
}

void graph_plan_check_memory(struct graph_plan *plan)
{
    uint64_t epoch = atomic_load_acquire(&session.memory_epoch); /* of session_memory_freed() */
    if (plan->epoch == epoch)
        return;
    for (uint32_t i = 0; i < plan->n_copies; i++) {
        struct graph_copy *c = &plan->copies[i];
        if (!c->dead)
            c->drop = c->stale ? DMI_DROP_COPY_FAILED : plan_check_memory(&c->plan, 0, &c->range);
    }
    plan->epoch = epoch;
}

/* ------------------------------------------------------------------------- kernels */

static int grow(struct err *err, struct graph_plan *plan, uint32_t n_copies)
{
    struct graph_kernel *kernels = realloc(plan->kernels, (plan->n_kernels + 1) * sizeof *kernels);
    if (kernels)
        plan->kernels = kernels;
    struct graph_copy *copies =
        realloc(plan->copies, (plan->n_copies + n_copies + 1) * sizeof *copies);
    if (copies)
        plan->copies = copies;
    if (!kernels || !copies)
        return err_set(err, -ENOMEM, "no memory for its copies");
    if (plan->n_copies + n_copies > DMI_GRAPH_COPIES)
        return err_set(err, -E2BIG, "it needs more than %d copies", DMI_GRAPH_COPIES);
    return 0;
}

static int add_kernel(struct err *err, struct graph_plan *plan, const struct node_pair *pair)
{
    CUDA_KERNEL_NODE_PARAMS_v2 k;
    CUresult cr = kernel_node_get(pair->app, &k);
    if (cr != CUDA_SUCCESS)
        return err_set(err, -EIO, "the parameters of a kernel cannot be read (error %d)", (int)cr);
    const struct func *func = graph_plan_func(&k);
    if (!func)
        return 0;
    int r = grow(err, plan, func->match.n_sites);
    if (r)
        return r;
    plan->kernels[plan->n_kernels++] = (struct graph_kernel){
        .app = pair->app,
        .node = pair->node,
        .graph = pair->graph,
        .position = pair->position,
        .enabled = true,
        .func = func,
        .first_copy = plan->n_copies,
        .n_copies = func->match.n_sites,
    };
    for (uint32_t s = 0; s < func->match.n_sites; s++) {
        struct graph_copy *copy = &plan->copies[plan->n_copies++];
        *copy = (struct graph_copy){ .site = func->match.sites[s] };
        graph_plan_copy(copy, func, &k);
    }
    return 0;
}

static int add_child(struct err *err, struct graph_plan *plan, const struct node_pair *pair)
{
    CUgraph inner;
    CUresult r = driver_table.cuGraphChildGraphNodeGetGraph(pair->app, &inner);
    if (r != CUDA_SUCCESS)
        return err_set(err, -EIO, "a child graph cannot be read (error %d)", (int)r);
    return graph_plan_kernels(err, plan, inner);
}

int graph_plan_kernels(struct err *err, struct graph_plan *plan, CUgraph graph)
{
    size_t n;
    _cleanup_(freep) struct order_item *items = order_items(graph, &n);
    int r = 0;
    for (size_t i = 0; i < n && !r; i++) {
        const struct node_pair *pair = node_map_find(&plan->map, items[i].node);
        if (!pair)
            continue; /* noted of a graph that ended unseen */
        if (items[i].is_child)
            r = add_child(err, plan, pair);
        else if (items[i].context != plan->context->handle)
            r = err_set(err, -ENOTSUP, "it holds a kernel of another context");
        else
            r = add_kernel(err, plan, pair);
    }
    return r;
}

void graph_plan_deinit(struct graph_plan *plan)
{
    if (plan->clone)
        driver_table.cuGraphDestroy(plan->clone);
    node_map_deinit(&plan->map);
    free(plan->kernels);
    free(plan->copies);
    *plan = (struct graph_plan){ 0 };
}
