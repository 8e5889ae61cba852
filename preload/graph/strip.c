/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/graph/strip.h"

#include "core/cleanup.h"
#include "preload/base/driver.h"
#include "preload/graph/edges.h"
#include "preload/graph/order.h"

#include <stdlib.h>

/* Without its edges a node of ours may not go: it keeps others in order. */
static bool remove_node(CUgraph graph, CUgraphNode node)
{
    return edges_bridge(graph, node) == CUDA_SUCCESS &&
           driver_table.cuGraphDestroyNode(node) == CUDA_SUCCESS;
}

/*
 * @graph holds what @x does; NULL: an exec without actions. The last of ours goes first, so that each finds the edges that
 * it was put between. Return: false if nodes of ours stay, which do nothing.
 */
static bool strip(const struct exec *x, CUgraph graph)
{
    size_t n = 0;
    bool all = true;
    order_forget(graph); /* a new one */
    if (driver_table.cuGraphGetNodes(graph, NULL, &n) != CUDA_SUCCESS)
        return false;
    _cleanup_(freep) CUgraphNode *nodes = calloc(n + 1, sizeof *nodes);
    if (!nodes || driver_table.cuGraphGetNodes(graph, nodes, &n) != CUDA_SUCCESS)
        return false;
    for (size_t i = n; i-- > 0;) {
        CUgraphNodeType type;
        CUgraph inner;
        if (driver_table.cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS)
            all = false;
        else if (x && type == CU_GRAPH_NODE_TYPE_KERNEL && graph_plan_is_ours(&x->plan, nodes[i]))
            all = remove_node(graph, nodes[i]) && all;
        else if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
                 driver_table.cuGraphChildGraphNodeGetGraph(nodes[i], &inner) == CUDA_SUCCESS)
            all = strip(x, inner) && all;
    }
    return all;
}

CUgraphExec strip_exec(const struct exec *x)
{
    CUgraph copy;
    CUgraphExec stripped = NULL;
    cuuint64_t flags = 0;
    struct stream_relaxed relaxed = stream_relax();
    if (driver_table.cuGraphInstantiateWithFlags && x->plan.clone &&
        driver_table.cuGraphClone(&copy, x->plan.clone) == CUDA_SUCCESS) {
        if (driver_table.cuGraphExecGetFlags)
            driver_table.cuGraphExecGetFlags(x->handle, &flags);
        flags &=
            CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY; /* the one that updates are judged by */
        if (!strip(x, copy) ||
            driver_table.cuGraphInstantiateWithFlags(&stripped, copy, flags) != CUDA_SUCCESS)
            stripped = NULL;
        driver_table.cuGraphDestroy(copy);
    }
    stream_unrelax(&relaxed);
    return stripped;
}

/* ------------------------------------------------------------------------- embedded by a capture */

bool strip_embedded(const struct exec *x, struct stream stream)
{
    CUgraph graph, inner;
    CUgraphNode node;
    if (!stream_capture(stream, &graph, &node) || !node ||
        driver_table.cuGraphChildGraphNodeGetGraph(node, &inner) != CUDA_SUCCESS)
        return false;
    strip(x, inner);
    for (uint32_t i = 0; x && i < x->plan.n_actions; i++)
        if (!x->plan.actions[i].dead)
            session_problem(x->plan.actions[i].site, PROBLEM_UNSUPPORTED,
                            "a graph with it was launched into a capture: not captured there");
    return true;
}
