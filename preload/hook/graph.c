/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wrappers: the driver's calls that make, change and end graphs. Kernels that the spec names are noted while a graph is
 * built (graph/order.h).
 */
#include "preload/function/functions.h"
#include "preload/graph/exec.h"
#include "preload/graph/order.h"
#include "preload/hook/wrapper.h"
#include "preload/nvtx/ranges.h"
#include "preload/trace/steps.h"

#include <stdlib.h>

/* ------------------------------------------------------------------------- building */

static void note_kernel(CUgraph graph, CUgraphNode node, CUfunction function, CUkernel kernel)
{
    const struct func *func = function ? functions_lookup(function, FUNC_UNKNOWN)
                              : kernel ? functions_lookup(kernel, FUNC_KERNEL)
                                       : &func_unmatched;
    struct ranges_pick pick;
    if (func == &func_unmatched)
        return;
    func = ranges_pick(func, true, &pick);
    if (func_concerns(func))
        order_note_kernel(graph, node, func);
}

/* @child: the graph that the application named; the driver puts the node's own in its place. */
static void note_params(CUgraph graph, CUgraphNode node, const CUgraphNodeParams *params,
                        CUgraph child)
{
    if (params->type == CU_GRAPH_NODE_TYPE_KERNEL)
        note_kernel(graph, node, params->kernel.func, params->kernel.kern);
    else if (params->type == CU_GRAPH_NODE_TYPE_GRAPH)
        order_note_child(graph, node, child);
    else if (params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
        order_note_conditional(graph, node, &params->conditional);
}

static CUgraph child_in(const CUgraphNodeParams *params)
{
    return params && params->type == CU_GRAPH_NODE_TYPE_GRAPH ? params->graph.graph : NULL;
}

NOTED(cuGraphAddKernelNode,
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *deps, size_t n_deps,
       const CUDA_KERNEL_NODE_PARAMS_v1 *params),
      (node, graph, deps, n_deps, params), note_kernel(graph, *node, params->func, NULL))
NOTED(cuGraphAddKernelNode_v2,
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *deps, size_t n_deps,
       const CUDA_KERNEL_NODE_PARAMS_v2 *params),
      (node, graph, deps, n_deps, params), note_kernel(graph, *node, params->func, params->kern))

EXPORT CUresult CUDAAPI cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
                                       size_t n_deps, CUgraphNodeParams *params)
{
    CUgraph child = child_in(params);
    CUresult r = REAL(cuGraphAddNode)(node, graph, deps, n_deps, params);
    AFTER_SUCCESS(r, note_params(graph, *node, params, child));
    return r;
}

EXPORT CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
                                          const CUgraphEdgeData *edges, size_t n_deps,
                                          CUgraphNodeParams *params)
{
    CUgraph child = child_in(params);
    CUresult r = REAL(cuGraphAddNode_v2)(node, graph, deps, edges, n_deps, params);
    AFTER_SUCCESS(r, note_params(graph, *node, params, child));
    return r;
}

NOTED(cuGraphAddChildGraphNode,
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *deps, size_t n_deps, CUgraph child),
      (node, graph, deps, n_deps, child), order_note_child(graph, *node, child))

/* A new graph: whatever is noted under its handle was of another, which ended where we could not see. */
NOTED(cuGraphCreate, (CUgraph * graph, unsigned flags), (graph, flags), order_forget(*graph))
NOTED(cuGraphConditionalHandleCreate,
      (CUgraphConditionalHandle * handle, CUgraph graph, CUcontext context, unsigned value,
       unsigned flags),
      (handle, graph, context, value, flags), order_note_condition(graph, *handle))

static void capture_begun(struct stream stream)
{
    CUgraph graph;
    if (stream_capture(stream, &graph, NULL))
        order_forget(graph);
}

static void begins_capture(CUresult r, struct stream stream)
{
    if (r == CUDA_SUCCESS)
        steps_capture_begins();
    AFTER_SUCCESS(r, capture_begun(stream));
}
FOLLOWED(cuStreamBeginCapture, (CUstream stream), (stream),
         begins_capture(r, (struct stream){ stream, false }))
FOLLOWED(cuStreamBeginCapture_ptsz, (CUstream stream), (stream),
         begins_capture(r, (struct stream){ stream, true }))
FOLLOWED(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), (stream, mode),
         begins_capture(r, (struct stream){ stream, false }))
FOLLOWED(cuStreamBeginCapture_v2_ptsz, (CUstream stream, CUstreamCaptureMode mode), (stream, mode),
         begins_capture(r, (struct stream){ stream, true }))

/* Into a graph that has nodes already. */
#define BEGIN_CAPTURE_TO_GRAPH(name)                                                               \
    FOLLOWED(name,                                                                                 \
             (CUstream stream, CUgraph graph, const CUgraphNode *deps,                             \
              const CUgraphEdgeData *edges, size_t n, CUstreamCaptureMode mode),                   \
             (stream, graph, deps, edges, n, mode),                                                \
             r == CUDA_SUCCESS ? steps_capture_begins() : (void)0)
BEGIN_CAPTURE_TO_GRAPH(cuStreamBeginCaptureToGraph)
BEGIN_CAPTURE_TO_GRAPH(cuStreamBeginCaptureToGraph_ptsz)

/* A capture that was invalidated ends with that error. */
static void ends_capture(CUresult r)
{
    if (r == CUDA_SUCCESS || r == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        steps_capture_ends();
}
FOLLOWED(cuStreamEndCapture, (CUstream stream, CUgraph *graph), (stream, graph), ends_capture(r))
FOLLOWED(cuStreamEndCapture_ptsz, (CUstream stream, CUgraph *graph), (stream, graph),
         ends_capture(r))
NOTED(cuGraphClone, (CUgraph * clone, CUgraph graph), (clone, graph),
      order_note_clone(graph, *clone))
NOTED(cuGraphRetainUserObject, (CUgraph graph, CUuserObject object, unsigned count, unsigned flags),
      (graph, object, count, flags), order_note_user(graph, object, (int)count))
NOTED(cuGraphReleaseUserObject, (CUgraph graph, CUuserObject object, unsigned count),
      (graph, object, count), order_note_user(graph, object, -(int)count))

/* ------------------------------------------------------------------------- ending */

/* What ends is forgotten before the driver's call: once it returns, another thread may be given the same handles. */
struct graph_ending {
    struct order_end order;
    uint64_t nodes;
};

/* @node or @graph, the other is NULL */
static void end_begins(struct graph_ending *e, CUgraphNode node, CUgraph graph)
{
    struct order_nested inside = node ? order_nested_in(node) : order_nested(graph);
    if (node)
        order_end_node(&e->order, node, &inside);
    else
        order_end_graphs(&e->order, &inside);
    e->nodes = exec_nodes_end(node, inside.graphs, inside.n);
    free(inside.graphs);
}

static void ended(struct graph_ending *e, CUresult r)
{
    order_ended(&e->order, r == CUDA_SUCCESS);
    exec_nodes_ended(e->nodes, r == CUDA_SUCCESS);
}

/* Also after the last flush: an exec of ours must not go by a handle that is reused. */
static inline bool nothing_to_end(void)
{
    return !session_armed() && !exec_any();
}

#define ENDS(name, type, node, graph)                                                              \
    EXPORT CUresult CUDAAPI name(type it)                                                          \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        struct session_call call;                                                                  \
        struct graph_ending ending;                                                                \
        if (nothing_to_end())                                                                      \
            return real(it);                                                                       \
        session_enter(&call);                                                                      \
        end_begins(&ending, node, graph);                                                          \
        session_pause(&call);                                                                      \
        CUresult r = real(it);                                                                     \
        session_resume(&call);                                                                     \
        ended(&ending, r);                                                                         \
        session_leave(&call);                                                                      \
        return r;                                                                                  \
    }
ENDS(cuGraphDestroyNode, CUgraphNode, it, NULL)
ENDS(cuGraphDestroy, CUgraph, NULL, it)
