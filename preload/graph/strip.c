/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/graph/strip.h"

#include "core/cleanup.h"
#include "preload/base/driver.h"
#include "preload/base/kernel_node.h"
#include "preload/graph/order.h"

#include <stdlib.h>

static CUresult remove_node(CUgraphNode node, CUgraph copy)
{
    CUgraphNode twin;
    CUresult r = driver_table.cuGraphNodeFindInClone(&twin, node, copy);
    return r == CUDA_SUCCESS ? driver_table.cuGraphDestroyNode(twin) : r;
}

/* The application's edges were left in when copies were put between. */
static CUresult remove_ours(const struct exec *x, CUgraph copy)
{
    CUresult r = remove_node(x->plan.close.node, copy);
    for (uint32_t i = 0; i < x->plan.n_tickets && r == CUDA_SUCCESS; i++)
        r = remove_node(x->plan.opens[i].node, copy);
    for (uint32_t i = 0; i < x->plan.n_nodes && r == CUDA_SUCCESS; i++)
        r = remove_node(x->plan.nodes[i].node, copy);
    return r;
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
        if (remove_ours(x, copy) != CUDA_SUCCESS ||
            driver_table.cuGraphInstantiateWithFlags(&stripped, copy, flags) != CUDA_SUCCESS)
            stripped = NULL;
        driver_table.cuGraphDestroy(copy);
    }
    stream_unrelax(&relaxed);
    return stripped;
}

/* ------------------------------------------------------------------------- embedded by a capture */

static bool is_ours(const struct exec *x, CUgraphNode node)
{
    CUDA_KERNEL_NODE_PARAMS_v2 k;
    return kernel_node_get(node, &k) == CUDA_SUCCESS && k.func &&
           context_has_kernel(x->plan.context, k.func);
}

/* @graph is what the driver made of @x; NULL: of an exec without copies. */
static void strip(const struct exec *x, CUgraph graph)
{
    size_t n = 0;
    order_forget(graph); /* a new one */
    if (driver_table.cuGraphGetNodes(graph, NULL, &n) != CUDA_SUCCESS)
        return;
    _cleanup_(freep) CUgraphNode *nodes = calloc(n + 1, sizeof *nodes);
    if (!nodes || driver_table.cuGraphGetNodes(graph, nodes, &n) != CUDA_SUCCESS)
        return;
    for (size_t i = 0; i < n; i++) {
        CUgraphNodeType type;
        CUgraph inner;
        if (driver_table.cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS)
            continue;
        if (x && type == CU_GRAPH_NODE_TYPE_KERNEL && is_ours(x, nodes[i]))
            driver_table.cuGraphDestroyNode(nodes[i]);
        if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
            driver_table.cuGraphChildGraphNodeGetGraph(nodes[i], &inner) == CUDA_SUCCESS)
            strip(x, inner);
    }
}

bool strip_embedded(const struct exec *x, struct stream stream)
{
    CUgraph graph, inner;
    CUgraphNode node;
    if (!stream_capture(stream, &graph, &node) || !node ||
        driver_table.cuGraphChildGraphNodeGetGraph(node, &inner) != CUDA_SUCCESS)
        return false;
    strip(x, inner);
    for (uint32_t i = 0; x && i < x->plan.n_copies; i++)
        if (!x->plan.copies[i].dead)
            session_problem(x->plan.copies[i].site, PROBLEM_UNSUPPORTED,
                            "a graph with it was launched into a capture: not captured there");
    return true;
}
