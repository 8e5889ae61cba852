/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wrappers of the driver's graph functions in hooks.def. Kernels that the spec names are noted
 * while a graph is built (graphs.c); an instantiated graph is a clone with copies (execs.c).
 */
#include "core/atomic.h"
#include "preload/execs.h"
#include "preload/funcs.h"
#include "preload/graphs.h"
#include "preload/hooks.h"
#include "preload/launch.h"
#include "preload/process.h"

#include <errno.h>

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

static void note_params(CUgraph graph, CUgraphNode node, const CUgraphNodeParams *params)
{
    if (params->type == CU_GRAPH_NODE_TYPE_KERNEL)
        note_kernel(graph, node, params->kernel.func ? params->kernel.func : (CUfunction)params->kernel.kern);
    else if (params->type == CU_GRAPH_NODE_TYPE_GRAPH)
        note_child(graph, node, params->graph.graph);
}

EXPORT CUresult CUDAAPI cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n_deps,
                                             const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    CUresult r = REAL(cuGraphAddKernelNode)(node, graph, deps, n_deps, params);
    if (r == CUDA_SUCCESS)
        note_kernel(graph, *node, params->func);
    return r;
}

EXPORT CUresult CUDAAPI cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n_deps,
                                                const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
    CUresult r = REAL(cuGraphAddKernelNode_v2)(node, graph, deps, n_deps, params);
    if (r == CUDA_SUCCESS)
        note_kernel(graph, *node, params->func ? params->func : (CUfunction)params->kern);
    return r;
}

EXPORT CUresult CUDAAPI cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n_deps,
                                       CUgraphNodeParams *params)
{
    CUresult r = REAL(cuGraphAddNode)(node, graph, deps, n_deps, params);
    if (r == CUDA_SUCCESS)
        note_params(graph, *node, params);
    return r;
}

EXPORT CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
                                          const CUgraphEdgeData *edges, size_t n_deps, CUgraphNodeParams *params)
{
    CUresult r = REAL(cuGraphAddNode_v2)(node, graph, deps, edges, n_deps, params);
    if (r == CUDA_SUCCESS)
        note_params(graph, *node, params);
    return r;
}

EXPORT CUresult CUDAAPI cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n_deps,
                                                 CUgraph child)
{
    CUresult r = REAL(cuGraphAddChildGraphNode)(node, graph, deps, n_deps, child);
    if (r == CUDA_SUCCESS)
        note_child(graph, *node, child);
    return r;
}

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

/* Before the real call: once it returns, another thread may be given the same handle. */
EXPORT CUresult CUDAAPI cuGraphDestroyNode(CUgraphNode node)
{
    __typeof__(cuGraphDestroyNode) *real = REAL(cuGraphDestroyNode);
    if (process_armed())
        graphs_forget_node(node);
    return real(node);
}

EXPORT CUresult CUDAAPI cuGraphDestroy(CUgraph graph)
{
    __typeof__(cuGraphDestroy) *real = REAL(cuGraphDestroy);
    if (process_armed())
        graphs_forget(graph);
    return real(graph);
}

/* ------------------------------------------------------------------------- instantiating */

/* A clone of ours to be instantiated in @graph's place, NULL: none. */
static struct exec *prepare(CUgraph graph, unsigned long long flags)
{
    if (!process_armed() || !graph || (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH))
        return NULL;
    int saved = errno;
    struct exec *x = execs_prepare(graph);
    errno = saved;
    return x;
}

/* Did ours work? If not, the host's own graph gives the answer. */
static bool made(struct exec *x, CUresult r, const CUgraphExec *handle)
{
    int saved = errno;
    execs_made(x, r == CUDA_SUCCESS ? *handle : NULL);
    errno = saved;
    return r == CUDA_SUCCESS;
}

#define INSTANTIATE_LOG(name)                                                                      \
    EXPORT CUresult CUDAAPI name(CUgraphExec *handle, CUgraph graph, CUgraphNode *error_node, char *log, size_t n_log) \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        struct exec *x = handle ? prepare(graph, 0) : NULL;                                        \
        if (x) {                                                                                   \
            CUresult r = real(handle, execs_graph(x), error_node, log, n_log);                     \
            if (made(x, r, handle))                                                                \
                return r;                                                                          \
        }                                                                                          \
        return real(handle, graph, error_node, log, n_log);                                        \
    }
INSTANTIATE_LOG(cuGraphInstantiate)
INSTANTIATE_LOG(cuGraphInstantiate_v2)

EXPORT CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *handle, CUgraph graph, unsigned long long flags)
{
    __typeof__(cuGraphInstantiateWithFlags) *real = REAL(cuGraphInstantiateWithFlags);
    struct exec *x = handle ? prepare(graph, flags) : NULL;
    if (x) {
        CUresult r = real(handle, execs_graph(x), flags);
        if (made(x, r, handle))
            return r;
    }
    return real(handle, graph, flags);
}

#define INSTANTIATE_PARAMS(name)                                                                   \
    EXPORT CUresult CUDAAPI name(CUgraphExec *handle, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        struct exec *x = handle && params ? prepare(graph, params->flags) : NULL;                  \
        if (x) {                                                                                   \
            CUDA_GRAPH_INSTANTIATE_PARAMS copy = *params;                                          \
            CUresult r = real(handle, execs_graph(x), &copy);                                      \
            if (made(x, r, handle)) {                                                              \
                *params = copy;                                                                    \
                return r;                                                                          \
            }                                                                                      \
        }                                                                                          \
        return real(handle, graph, params);                                                        \
    }
INSTANTIATE_PARAMS(cuGraphInstantiateWithParams)
INSTANTIATE_PARAMS(cuGraphInstantiateWithParams_ptsz)

EXPORT CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec handle)
{
    __typeof__(cuGraphExecDestroy) *real = REAL(cuGraphExecDestroy);
    /* also when disarmed: an exec of ours must not be found again under a reused handle */
    struct exec *x = execs_take(handle);
    CUresult r = real(handle);
    if (x) {
        int saved = errno;
        execs_destroyed(x);
        errno = saved;
    }
    return r;
}

/* ------------------------------------------------------------------------- launching */

#define GRAPH_LAUNCH(name, ptsz)                                                                   \
    EXPORT CUresult CUDAAPI name(CUgraphExec handle, CUstream stream)                              \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        struct exec *x = execs_find(handle);                                                       \
        if (__builtin_expect(!x, 1))                                                               \
            return real(handle, stream);                                                           \
        struct exec_job job;                                                                       \
        execs_launch_before(x, stream, ptsz, &job);                                                \
        CUresult r = real(handle, stream);                                                         \
        execs_launch_after(&job, r);                                                               \
        return r;                                                                                  \
    }
GRAPH_LAUNCH(cuGraphLaunch, false)
GRAPH_LAUNCH(cuGraphLaunch_ptsz, true)

/* ------------------------------------------------------------------------- changing nodes */

EXPORT CUresult CUDAAPI cuGraphExecKernelNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                                       const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    struct exec *x = execs_find(handle);
    CUresult r = REAL(cuGraphExecKernelNodeSetParams)(handle, execs_node(x, node), params);
    if (x && r == CUDA_SUCCESS && process_armed()) {
        CUDA_KERNEL_NODE_PARAMS_v2 k = {
            .func = params->func,
            .gridDimX = params->gridDimX,
            .gridDimY = params->gridDimY,
            .gridDimZ = params->gridDimZ,
            .blockDimX = params->blockDimX,
            .blockDimY = params->blockDimY,
            .blockDimZ = params->blockDimZ,
            .sharedMemBytes = params->sharedMemBytes,
            .kernelParams = params->kernelParams,
            .extra = params->extra,
        };
        execs_kernel_changed(x, node, &k);
    }
    return r;
}

EXPORT CUresult CUDAAPI cuGraphExecKernelNodeSetParams_v2(CUgraphExec handle, CUgraphNode node,
                                                          const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
    struct exec *x = execs_find(handle);
    CUresult r = REAL(cuGraphExecKernelNodeSetParams_v2)(handle, execs_node(x, node), params);
    if (x && r == CUDA_SUCCESS && process_armed())
        execs_kernel_changed(x, node, params);
    return r;
}

EXPORT CUresult CUDAAPI cuGraphExecNodeSetParams(CUgraphExec handle, CUgraphNode node, CUgraphNodeParams *params)
{
    struct exec *x = execs_find(handle);
    CUresult r = REAL(cuGraphExecNodeSetParams)(handle, execs_node(x, node), params);
    if (x && r == CUDA_SUCCESS && process_armed() && params->type == CU_GRAPH_NODE_TYPE_KERNEL) {
        const CUDA_KERNEL_NODE_PARAMS_v3 *p = &params->kernel;
        CUDA_KERNEL_NODE_PARAMS_v2 k = {
            .func = p->func ? p->func : (CUfunction)p->kern,
            .gridDimX = p->gridDimX,
            .gridDimY = p->gridDimY,
            .gridDimZ = p->gridDimZ,
            .blockDimX = p->blockDimX,
            .blockDimY = p->blockDimY,
            .blockDimZ = p->blockDimZ,
            .sharedMemBytes = p->sharedMemBytes,
            .kernelParams = p->kernelParams,
            .extra = p->extra,
        };
        execs_kernel_changed(x, node, &k);
    }
    return r;
}

EXPORT CUresult CUDAAPI cuGraphNodeSetEnabled(CUgraphExec handle, CUgraphNode node, unsigned on)
{
    struct exec *x = execs_find(handle);
    CUresult r = REAL(cuGraphNodeSetEnabled)(handle, execs_node(x, node), on);
    if (x && r == CUDA_SUCCESS)
        execs_node_enabled(x, node, on != 0);
    return r;
}

/* The driver knows the clone's nodes; nothing else is ours here. */
#define EXEC_NODE(name, declare, pass)                                                             \
    EXPORT CUresult CUDAAPI name declare                                                           \
    {                                                                                              \
        node = execs_node(execs_find(handle), node);                                               \
        return REAL(name) pass;                                                                    \
    }
EXEC_NODE(cuGraphNodeGetEnabled, (CUgraphExec handle, CUgraphNode node, unsigned *on), (handle, node, on))
EXEC_NODE(cuGraphExecMemcpyNodeSetParams,
          (CUgraphExec handle, CUgraphNode node, const CUDA_MEMCPY3D *params, CUcontext context),
          (handle, node, params, context))
EXEC_NODE(cuGraphExecMemsetNodeSetParams,
          (CUgraphExec handle, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context),
          (handle, node, params, context))
EXEC_NODE(cuGraphExecHostNodeSetParams,
          (CUgraphExec handle, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *params), (handle, node, params))
EXEC_NODE(cuGraphExecChildGraphNodeSetParams, (CUgraphExec handle, CUgraphNode node, CUgraph child),
          (handle, node, child))
EXEC_NODE(cuGraphExecEventRecordNodeSetEvent, (CUgraphExec handle, CUgraphNode node, CUevent event),
          (handle, node, event))
EXEC_NODE(cuGraphExecEventWaitNodeSetEvent, (CUgraphExec handle, CUgraphNode node, CUevent event),
          (handle, node, event))
EXEC_NODE(cuGraphExecExternalSemaphoresSignalNodeSetParams,
          (CUgraphExec handle, CUgraphNode node, const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS *params), (handle, node, params))
EXEC_NODE(cuGraphExecExternalSemaphoresWaitNodeSetParams,
          (CUgraphExec handle, CUgraphNode node, const CUDA_EXT_SEM_WAIT_NODE_PARAMS *params), (handle, node, params))
EXEC_NODE(cuGraphExecBatchMemOpNodeSetParams,
          (CUgraphExec handle, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *params), (handle, node, params))

/* ------------------------------------------------------------------------- updating */

static void updated(struct exec *x, struct exec *update, CUresult r)
{
    int saved = errno;
    execs_updated(x, update, r == CUDA_SUCCESS);
    errno = saved;
}

static struct exec *prepare_update(struct exec *x, CUgraph graph)
{
    int saved = errno;
    struct exec *update = x ? execs_prepare_update(x, graph) : NULL;
    errno = saved;
    return update;
}

EXPORT CUresult CUDAAPI cuGraphExecUpdate(CUgraphExec handle, CUgraph graph, CUgraphNode *error_node,
                                          CUgraphExecUpdateResult *result)
{
    __typeof__(cuGraphExecUpdate) *real = REAL(cuGraphExecUpdate);
    struct exec *x = execs_find(handle), *update = prepare_update(x, graph);
    if (!update)
        return real(handle, graph, error_node, result);
    CUresult r = real(handle, execs_graph(update), error_node, result);
    if (error_node && *error_node)
        *error_node = execs_host_node(update, *error_node);
    updated(x, update, r);
    return r;
}

EXPORT CUresult CUDAAPI cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    __typeof__(cuGraphExecUpdate_v2) *real = REAL(cuGraphExecUpdate_v2);
    struct exec *x = execs_find(handle), *update = prepare_update(x, graph);
    if (!update)
        return real(handle, graph, info);
    CUresult r = real(handle, execs_graph(update), info);
    if (info && info->errorNode)
        info->errorNode = execs_host_node(update, info->errorNode);
    if (info && info->errorFromNode)
        info->errorFromNode = execs_host_node(update, info->errorFromNode);
    updated(x, update, r);
    return r;
}
