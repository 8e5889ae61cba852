/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wrappers of the driver's functions in hooks.def that make, change and end graphs. Kernels that the spec names
 * are noted while a graph is built (graphs.c).
 */
#include "core/atomic.h"
#include "preload/execs.h"
#include "preload/funcs.h"
#include "preload/graphs.h"
#include "preload/hooks.h"
#include "preload/launch.h"
#include "preload/process.h"

#include <errno.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

/* ------------------------------------------------------------------------- building */

static void note_kernel(CUgraph graph, CUgraphNode node, CUfunction function)
{
    if (!process_armed() || !function)
        return;
    int saved = errno;
    if (launch_lookup(function) != &func_unmatched)
        graphs_note(graph, node, false);
    errno = saved;
}

static void note_child(CUgraph graph, CUgraphNode node, CUgraph child)
{
    if (!process_armed())
        return;
    int saved = errno;
    graphs_note_child(graph, node, child);
    errno = saved;
}

/* @child: the graph that the host named; the driver puts the node's own in its place. */
static void note_params(CUgraph graph, CUgraphNode node, const CUgraphNodeParams *params,
                        CUgraph child)
{
    if (params->type == CU_GRAPH_NODE_TYPE_KERNEL)
        note_kernel(graph, node,
                    params->kernel.func ? params->kernel.func : (CUfunction)params->kernel.kern);
    else if (params->type == CU_GRAPH_NODE_TYPE_GRAPH)
        note_child(graph, node, child);
}

static CUgraph child_in(const CUgraphNodeParams *params)
{
    return params && params->type == CU_GRAPH_NODE_TYPE_GRAPH ? params->graph.graph : NULL;
}

EXPORT CUresult CUDAAPI cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph,
                                             const CUgraphNode *deps, size_t n_deps,
                                             const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    CUresult r = REAL(cuGraphAddKernelNode)(node, graph, deps, n_deps, params);
    if (r == CUDA_SUCCESS)
        note_kernel(graph, *node, params->func);
    return r;
}

EXPORT CUresult CUDAAPI cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph,
                                                const CUgraphNode *deps, size_t n_deps,
                                                const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
    CUresult r = REAL(cuGraphAddKernelNode_v2)(node, graph, deps, n_deps, params);
    if (r == CUDA_SUCCESS)
        note_kernel(graph, *node, params->func ? params->func : (CUfunction)params->kern);
    return r;
}

EXPORT CUresult CUDAAPI cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
                                       size_t n_deps, CUgraphNodeParams *params)
{
    CUgraph child = child_in(params);
    CUresult r = REAL(cuGraphAddNode)(node, graph, deps, n_deps, params);
    if (r == CUDA_SUCCESS)
        note_params(graph, *node, params, child);
    return r;
}

EXPORT CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
                                          const CUgraphEdgeData *edges, size_t n_deps,
                                          CUgraphNodeParams *params)
{
    CUgraph child = child_in(params);
    CUresult r = REAL(cuGraphAddNode_v2)(node, graph, deps, edges, n_deps, params);
    if (r == CUDA_SUCCESS)
        note_params(graph, *node, params, child);
    return r;
}

EXPORT CUresult CUDAAPI cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph,
                                                 const CUgraphNode *deps, size_t n_deps,
                                                 CUgraph child)
{
    CUresult r = REAL(cuGraphAddChildGraphNode)(node, graph, deps, n_deps, child);
    if (r == CUDA_SUCCESS)
        note_child(graph, *node, child);
    return r;
}

/* A new graph: whatever is noted under its handle was of another, which ended where we could not see. */
static void begun(CUgraph graph)
{
    if (!process_armed())
        return;
    int saved = errno;
    graphs_forget(graph);
    errno = saved;
}

EXPORT CUresult CUDAAPI cuGraphCreate(CUgraph *graph, unsigned flags)
{
    CUresult r = REAL(cuGraphCreate)(graph, flags);
    if (r == CUDA_SUCCESS)
        begun(*graph);
    return r;
}

static void capture_begun(CUstream stream, bool per_thread, CUresult r)
{
    if (r != CUDA_SUCCESS || !process_armed())
        return;
    int saved = errno;
    CUgraph graph;
    if (launch_captured(stream, per_thread, &graph, NULL))
        graphs_forget(graph);
    errno = saved;
}

#define BEGIN_CAPTURE(name, ptsz)                                                                  \
    EXPORT CUresult CUDAAPI name(CUstream stream)                                                  \
    {                                                                                              \
        CUresult r = REAL(name)(stream);                                                           \
        capture_begun(stream, ptsz, r);                                                            \
        return r;                                                                                  \
    }
BEGIN_CAPTURE(cuStreamBeginCapture, false)
BEGIN_CAPTURE(cuStreamBeginCapture_ptsz, true)

#define BEGIN_CAPTURE_V2(name, ptsz)                                                               \
    EXPORT CUresult CUDAAPI name(CUstream stream, CUstreamCaptureMode mode)                        \
    {                                                                                              \
        CUresult r = REAL(name)(stream, mode);                                                     \
        capture_begun(stream, ptsz, r);                                                            \
        return r;                                                                                  \
    }
BEGIN_CAPTURE_V2(cuStreamBeginCapture_v2, false)
BEGIN_CAPTURE_V2(cuStreamBeginCapture_v2_ptsz, true)

EXPORT CUresult CUDAAPI cuGraphClone(CUgraph *clone, CUgraph graph)
{
    CUresult r = REAL(cuGraphClone)(clone, graph);
    if (r == CUDA_SUCCESS && process_armed()) {
        int saved = errno;
        graphs_note_clone(graph, *clone);
        errno = saved;
    }
    return r;
}

/* What ends is forgotten before the real call: once it returns, another thread may be given the same handles. */
struct ending {
    bool begun;
    struct graphs_end graphs;
    uint64_t execs;
};

/* @node or @graph, the other is NULL */
static void end_begins(struct ending *e, CUgraphNode node, CUgraph graph)
{
    e->begun = process_armed() || execs_any();
    if (!e->begun)
        return;
    int saved = errno;
    struct graphs_nested inside = node ? graphs_nested_in(node) : graphs_nested(graph);
    if (node)
        graphs_end_node(&e->graphs, node, &inside);
    else
        graphs_end_graphs(&e->graphs, &inside);
    e->execs = execs_end(node, inside.graphs, inside.n);
    free(inside.graphs);
    errno = saved;
}

static void ended(struct ending *e, CUresult r)
{
    if (!e->begun)
        return;
    int saved = errno;
    graphs_ended(&e->graphs, r == CUDA_SUCCESS);
    execs_ended(e->execs, r == CUDA_SUCCESS);
    errno = saved;
}

EXPORT CUresult CUDAAPI cuGraphDestroyNode(CUgraphNode node)
{
    __typeof__(cuGraphDestroyNode) *real = REAL(cuGraphDestroyNode);
    struct ending e;
    end_begins(&e, node, NULL);
    CUresult r = real(node);
    ended(&e, r);
    return r;
}

EXPORT CUresult CUDAAPI cuGraphDestroy(CUgraph graph)
{
    __typeof__(cuGraphDestroy) *real = REAL(cuGraphDestroy);
    struct ending e;
    end_begins(&e, NULL, graph);
    CUresult r = real(graph);
    ended(&e, r);
    return r;
}

EXPORT CUresult CUDAAPI cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count,
                                                unsigned flags)
{
    CUresult r = REAL(cuGraphRetainUserObject)(graph, object, count, flags);
    if (r == CUDA_SUCCESS && process_armed())
        graphs_note_user(graph, object, (int)count);
    return r;
}

EXPORT CUresult CUDAAPI cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned count)
{
    CUresult r = REAL(cuGraphReleaseUserObject)(graph, object, count);
    if (r == CUDA_SUCCESS && process_armed())
        graphs_note_user(graph, object, -(int)count);
    return r;
}
