/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/graph/reduce.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "preload/base/driver.h"
#include "preload/base/kernel_node.h"
#include "preload/base/stream.h"

#include <dmi/ring.h>

#include <stdlib.h>

#define MANY 32 /* execs: before that the question costs more than it saves */

static int known; /* 1: yes, 2: no, 0: it was not asked */
static int n_execs;

/* ------------------------------------------------------------------------- what the driver goes by */

enum { NODES = 6 };

struct question {
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode nodes[NODES];
    CUDA_KERNEL_NODE_PARAMS_v2 params;
};

/* A chain of closes that is never launched, of which the third and the last are off. */
static bool ask_begins(struct question *q)
{
    bool good = driver_table.cuGraphCreate(&q->graph, 0) == CUDA_SUCCESS;
    for (int i = 0; i < NODES && good; i++)
        good = kernel_node_add(&q->nodes[i], q->graph, &q->nodes[i - !!i], !!i, &q->params) ==
               CUDA_SUCCESS;
    return good &&
           driver_table.cuGraphInstantiateWithFlags(&q->exec, q->graph, 0) == CUDA_SUCCESS &&
           driver_table.cuGraphNodeSetEnabled(q->exec, q->nodes[2], 0) == CUDA_SUCCESS &&
           driver_table.cuGraphNodeSetEnabled(q->exec, q->nodes[5], 0) == CUDA_SUCCESS;
}

static bool is_on(const struct question *q, int i, bool on)
{
    unsigned now = !on;
    return driver_table.cuGraphNodeGetEnabled(q->exec, q->nodes[i], &now) == CUDA_SUCCESS &&
           !now == !on;
}

/* With three nodes gone the others must be what they were, wherever the driver counts from; and they can be changed. */
static bool others_are_found(const struct question *q)
{
    static const int gone[] = { 0, 1, 3 };
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        if (driver_table.cuGraphDestroyNode(q->nodes[gone[i]]) != CUDA_SUCCESS)
            return false;
    return is_on(q, 2, false) && is_on(q, 4, true) && is_on(q, 5, false) &&
           kernel_node_set(q->exec, q->nodes[4], &q->params) == CUDA_SUCCESS &&
           driver_table.cuGraphNodeSetEnabled(q->exec, q->nodes[4], 0) == CUDA_SUCCESS &&
           driver_table.cuGraphNodeSetEnabled(q->exec, q->nodes[2], 1) == CUDA_SUCCESS &&
           is_on(q, 2, true) && is_on(q, 4, false) && is_on(q, 5, false);
}

static bool ask(const struct context *c)
{
    struct dmi_close close = { 0 };
    void *params[] = { &close };
    struct question q = { .params = { .func = c->kernels.close,
                                      .gridDimX = 1,
                                      .gridDimY = 1,
                                      .gridDimZ = 1,
                                      .blockDimX = 1,
                                      .blockDimY = 1,
                                      .blockDimZ = 1,
                                      .kernelParams = params } };
    if (!driver_table.cuGraphInstantiateWithFlags || !driver_table.cuGraphNodeSetEnabled ||
        !driver_table.cuGraphNodeGetEnabled)
        return false;
    struct stream_relaxed relaxed = stream_relax();
    bool found = ask_begins(&q) && others_are_found(&q);
    if (q.exec)
        driver_table.cuGraphExecDestroy(q.exec);
    if (q.graph)
        driver_table.cuGraphDestroy(q.graph);
    stream_unrelax(&relaxed);
    return found;
}

void reduce_ask(const struct context *c)
{
    if (!atomic_load_relaxed(&known) && atomic_add_relaxed(&n_execs, 1) == MANY)
        atomic_store_relaxed(&known, ask(c) ? 1 : 2);
}

bool reduce_may(void)
{
    return atomic_load_relaxed(&known) == 1;
}

/* ------------------------------------------------------------------------- clones */

/* Return: are nodes of ours left in @graph? */
static bool keep_ours(const struct graph_plan *plan, CUgraph graph)
{
    size_t n = 0;
    bool any = false;
    if (driver_table.cuGraphGetNodes(graph, NULL, &n) != CUDA_SUCCESS)
        return true;
    _cleanup_(freep) CUgraphNode *nodes = calloc(n + 1, sizeof *nodes);
    if (!nodes || driver_table.cuGraphGetNodes(graph, nodes, &n) != CUDA_SUCCESS)
        return true;
    for (size_t i = 0; i < n; i++) {
        CUgraphNodeType type;
        CUgraph inner;
        bool keep = driver_table.cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS;
        if (!keep && type == CU_GRAPH_NODE_TYPE_KERNEL)
            keep = graph_plan_is_ours(plan, nodes[i]);
        if (!keep && type == CU_GRAPH_NODE_TYPE_GRAPH)
            keep = driver_table.cuGraphChildGraphNodeGetGraph(nodes[i], &inner) != CUDA_SUCCESS ||
                   keep_ours(plan, inner);
        if (!keep)
            driver_table.cuGraphDestroyNode(nodes[i]);
        any = any || keep;
    }
    return any;
}

void reduce_clone(const struct graph_plan *plan)
{
    keep_ours(plan, plan->clone);
}
