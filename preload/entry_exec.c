/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wrappers of the driver's functions in hooks.def for executable graphs: what is instantiated is a clone with
 * copies (execs.c), whose nodes stand for the host's.
 */
#include "preload/execs.h"
#include "preload/hooks.h"
#include "preload/launch.h"
#include "preload/process.h"

#include <errno.h>

#define EXPORT __attribute__((visibility("default")))

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
    bool ours = execs_made(x, r == CUDA_SUCCESS ? *handle : NULL);
    errno = saved;
    return ours;
}

#define INSTANTIATE_LOG(name)                                                                      \
    EXPORT CUresult CUDAAPI name(CUgraphExec *handle, CUgraph graph, CUgraphNode *error_node,      \
                                 char *log, size_t n_log)                                          \
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

EXPORT CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *handle, CUgraph graph,
                                                    unsigned long long flags)
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
    EXPORT CUresult CUDAAPI name(CUgraphExec *handle, CUgraph graph,                               \
                                 CUDA_GRAPH_INSTANTIATE_PARAMS *params)                            \
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

static bool plain_captured(CUstream stream, bool per_thread)
{
    if (!process_armed())
        return false;
    int saved = errno;
    bool captured = launch_is_captured(stream, per_thread);
    errno = saved;
    return captured;
}

static void plain_embedded(CUstream stream, bool per_thread, CUresult r)
{
    int saved = errno;
    if (r == CUDA_SUCCESS)
        execs_embedded(NULL, stream, per_thread);
    errno = saved;
}

#define GRAPH_LAUNCH(name, ptsz)                                                                   \
    EXPORT CUresult CUDAAPI name(CUgraphExec handle, CUstream stream)                              \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        struct exec *x = execs_find(handle);                                                       \
        if (__builtin_expect(!x, 1)) {                                                             \
            bool captured = plain_captured(stream, ptsz);                                          \
            CUresult r = real(handle, stream);                                                     \
            if (captured)                                                                          \
                plain_embedded(stream, ptsz, r);                                                   \
            return r;                                                                              \
        }                                                                                          \
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

/* A clone of @graph with copies for the child graph of @node, NULL: none is needed, or it cannot be made. */
static struct exec *prepare_child(struct exec *x, CUgraphNode node, CUgraph graph)
{
    if (!x || !graph)
        return NULL;
    int saved = errno;
    struct exec *update = execs_prepare_child(x, node, graph);
    errno = saved;
    return update;
}

static void updated(struct exec *x, struct exec *update, CUresult r)
{
    int saved = errno;
    execs_updated(x, update, r == CUDA_SUCCESS);
    errno = saved;
}

EXPORT CUresult CUDAAPI cuGraphExecChildGraphNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                                           CUgraph child)
{
    __typeof__(cuGraphExecChildGraphNodeSetParams) *real = REAL(cuGraphExecChildGraphNodeSetParams);
    struct exec *x = execs_find(handle), *update = prepare_child(x, node, child);
    CUresult r = real(handle, execs_node(x, node), update ? execs_graph(update) : child);
    if (update)
        updated(x, update, r);
    return r;
}

EXPORT CUresult CUDAAPI cuGraphExecNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                                 CUgraphNodeParams *params)
{
    __typeof__(cuGraphExecNodeSetParams) *real = REAL(cuGraphExecNodeSetParams);
    CUgraph child = params && params->type == CU_GRAPH_NODE_TYPE_GRAPH ? params->graph.graph : NULL;
    struct exec *x = execs_find(handle), *update = prepare_child(x, node, child);
    if (update) {
        CUgraphNodeParams ours = *params;
        ours.graph.graph = execs_graph(update);
        CUresult r = real(handle, execs_node(x, node), &ours);
        updated(x, update, r);
        return r;
    }
    CUresult r = real(handle, execs_node(x, node), params);
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
EXEC_NODE(cuGraphNodeGetEnabled, (CUgraphExec handle, CUgraphNode node, unsigned *on),
          (handle, node, on))
EXEC_NODE(cuGraphExecMemcpyNodeSetParams,
          (CUgraphExec handle, CUgraphNode node, const CUDA_MEMCPY3D *params, CUcontext context),
          (handle, node, params, context))
EXEC_NODE(cuGraphExecMemsetNodeSetParams,
          (CUgraphExec handle, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params,
           CUcontext context),
          (handle, node, params, context))
EXEC_NODE(cuGraphExecHostNodeSetParams,
          (CUgraphExec handle, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *params),
          (handle, node, params))
EXEC_NODE(cuGraphExecEventRecordNodeSetEvent, (CUgraphExec handle, CUgraphNode node, CUevent event),
          (handle, node, event))
EXEC_NODE(cuGraphExecEventWaitNodeSetEvent, (CUgraphExec handle, CUgraphNode node, CUevent event),
          (handle, node, event))
EXEC_NODE(cuGraphExecExternalSemaphoresSignalNodeSetParams,
          (CUgraphExec handle, CUgraphNode node, const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS *params),
          (handle, node, params))
EXEC_NODE(cuGraphExecExternalSemaphoresWaitNodeSetParams,
          (CUgraphExec handle, CUgraphNode node, const CUDA_EXT_SEM_WAIT_NODE_PARAMS *params),
          (handle, node, params))
EXEC_NODE(cuGraphExecBatchMemOpNodeSetParams,
          (CUgraphExec handle, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *params),
          (handle, node, params))

/* ------------------------------------------------------------------------- updating */

static struct exec *prepare_update(struct exec *x, CUgraph graph)
{
    int saved = errno;
    struct exec *update = x && graph ? execs_prepare_update(x, graph) : NULL;
    if (!x && graph && process_armed())
        execs_tell_update(graph);
    errno = saved;
    return update;
}

/* The host's call, in either form. */
struct update_call {
    __typeof__(cuGraphExecUpdate) *real;
    CUgraphNode *error_node;
    CUgraphExecUpdateResult *result;
    __typeof__(cuGraphExecUpdate_v2) *real_v2;
    CUgraphExecUpdateResultInfo *info;
};

static CUresult call_update(const struct update_call *c, CUgraphExec exec, CUgraph graph)
{
    return c->real_v2 ? c->real_v2(exec, graph, c->info)
                      : c->real(exec, graph, c->error_node, c->result);
}

/*
 * An update that the driver refuses has its answer from the host's own graph and an exec without copies: which
 * node it complains of, and why, hangs on all nodes that are there.
 */
static CUresult update_exec(const struct update_call *c, CUgraphExec handle, CUgraph graph)
{
    struct exec *x = execs_find(handle), *update = prepare_update(x, graph);
    if (update) {
        CUresult r = call_update(c, handle, execs_graph(update));
        updated(x, update, r);
        if (r == CUDA_SUCCESS)
            return r;
    }
    CUgraphExec plain = x ? execs_plain(x) : NULL;
    if (plain) {
        CUresult r = call_update(c, plain, graph);
        driver_table.cuGraphExecDestroy(plain);
        if (r != CUDA_SUCCESS)
            return r;
        /* it is ours alone that cannot be updated: the driver finds another shape */
    }
    return call_update(c, handle, graph);
}

EXPORT CUresult CUDAAPI cuGraphExecUpdate(CUgraphExec handle, CUgraph graph,
                                          CUgraphNode *error_node, CUgraphExecUpdateResult *result)
{
    struct update_call call = { .real = REAL(cuGraphExecUpdate),
                                .error_node = error_node,
                                .result = result };
    return update_exec(&call, handle, graph);
}

EXPORT CUresult CUDAAPI cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph graph,
                                             CUgraphExecUpdateResultInfo *info)
{
    struct update_call call = { .real_v2 = REAL(cuGraphExecUpdate_v2), .info = info };
    return update_exec(&call, handle, graph);
}
