/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of ours without what is ours in them: for the host's eyes, and for the driver's answers. */
#include "preload/exec_private.h"

#include "core/cleanup.h"
#include "preload/graphs.h"
#include "preload/hooks.h"
#include "preload/process.h"

#include <errno.h>
#include <stdlib.h>

static CUresult remove_node(CUgraphNode node, CUgraph copy)
{
    CUgraphNode twin;
    CUresult r = driver_table.cuGraphNodeFindInClone(&twin, node, copy);
    return r == CUDA_SUCCESS ? driver_table.cuGraphDestroyNode(twin) : r;
}

/* The host's edges were left in when copies were put between. */
static CUresult remove_ours(const struct exec *x, CUgraph copy)
{
    CUresult r = remove_node(x->open, copy);
    if (r == CUDA_SUCCESS)
        r = remove_node(x->close, copy);
    for (uint32_t i = 0; i < x->n_copies && r == CUDA_SUCCESS; i++)
        r = remove_node(x->copies[i].node, copy);
    return r;
}

CUgraphExec execs_plain(const struct exec *x)
{
    int saved = errno;
    CUgraph copy;
    CUgraphExec plain = NULL;
    cuuint64_t flags = 0;
    struct exec_relaxed relaxed = exec_relax();
    if (driver_table.cuGraphInstantiateWithFlags &&
        driver_table.cuGraphClone(&copy, x->clone) == CUDA_SUCCESS) {
        if (driver_table.cuGraphExecGetFlags)
            driver_table.cuGraphExecGetFlags(x->handle, &flags);
        flags &=
            CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY; /* the one that updates are judged by */
        if (remove_ours(x, copy) != CUDA_SUCCESS ||
            driver_table.cuGraphInstantiateWithFlags(&plain, copy, flags) != CUDA_SUCCESS)
            plain = NULL;
        driver_table.cuGraphDestroy(copy);
    }
    exec_unrelax(&relaxed);
    errno = saved;
    return plain;
}

/* ------------------------------------------------------------------------- embedded by a capture */

static bool is_ours(const struct exec *x, CUgraphNode node)
{
    CUDA_KERNEL_NODE_PARAMS_v2 k;
    const struct arena *a = x->arena;
    return driver_table.cuGraphKernelNodeGetParams_v2(node, &k) == CUDA_SUCCESS && k.func &&
           (k.func == a->copy_graph || k.func == a->open || k.func == a->close);
}

/* @graph is what the driver made of @x; NULL: of an exec without copies. */
static void strip(const struct exec *x, CUgraph graph)
{
    size_t n = 0;
    graphs_forget(graph); /* a new one */
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

void execs_embedded(const struct exec *x, CUstream stream, bool per_thread)
{
    CUgraph graph, inner;
    CUgraphNode node;
    if (!launch_captured(stream, per_thread, &graph, &node) || !node ||
        driver_table.cuGraphChildGraphNodeGetGraph(node, &inner) != CUDA_SUCCESS)
        return;
    strip(x, inner);
    for (uint32_t i = 0; x && i < x->n_copies && process_armed(); i++)
        if (!x->copies[i].dead)
            process_problem(x->copies[i].want.site, PROBLEM_UNSUPPORTED,
                            "a graph with it was launched into a capture: not captured there");
}
