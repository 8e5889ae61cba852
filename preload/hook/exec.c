/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wrappers: the driver's calls on executable graphs. What is instantiated is a clone with nodes of ours
 * (graph/exec.h), whose nodes stand for the application's.
 */
#include "preload/base/kernel_node.h"
#include "preload/graph/exec.h"
#include "preload/graph/launch.h"
#include "preload/graph/strip.h"
#include "preload/graph/update.h"
#include "preload/hook/wrapper.h"

#include <stddef.h>

/* ------------------------------------------------------------------------- instantiating */

/* A clone to be instantiated in @graph's place, NULL: none. */
static struct exec *prepare(CUgraph graph, unsigned long long flags)
{
    struct session_call call;
    struct exec *x = NULL;
    if (!session_armed() || !graph || (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH))
        return NULL;
    if (session_enter(&call))
        x = exec_prepare(graph);
    session_leave(&call);
    return x;
}

/* Could the clone be instantiated? If not, the application's own graph gives the answer. */
static bool created(struct exec *x, CUresult r, const CUgraphExec *handle)
{
    struct session_call call;
    session_enter(&call);
    bool ours = exec_created(x, r == CUDA_SUCCESS ? *handle : NULL);
    session_leave(&call);
    return ours;
}

#define INSTANTIATE_LOG(name)                                                                      \
    EXPORT CUresult CUDAAPI name(CUgraphExec *handle, CUgraph graph, CUgraphNode *error_node,      \
                                 char *log, size_t n_log)                                          \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        struct exec *x = handle ? prepare(graph, 0) : NULL;                                        \
        if (x) {                                                                                   \
            CUresult r = real(handle, x->plan.clone, error_node, log, n_log);                      \
            if (created(x, r, handle))                                                             \
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
        CUresult r = real(handle, x->plan.clone, flags);
        if (created(x, r, handle))
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
            CUresult r = real(handle, x->plan.clone, &copy);                                       \
            if (created(x, r, handle)) {                                                           \
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
    struct session_call call;
    /* also when disarmed: an exec of ours must not be found again under a reused handle */
    if (!exec_find(handle))
        return real(handle);
    session_enter(&call);
    struct exec *x = exec_take(handle);
    session_pause(&call);
    CUresult r = real(handle);
    session_resume(&call);
    if (x)
        exec_destroyed(x);
    session_leave(&call);
    return r;
}

/* ------------------------------------------------------------------------- launching */

/* Without nodes of ours, but its graph becomes a child where the stream is being captured. */
static bool plain_is_embedded(struct stream stream)
{
    struct session_call call;
    if (!session_armed())
        return false;
    bool embedded = session_enter(&call) && stream_is_capturing(stream);
    session_leave(&call);
    return embedded;
}

#define GRAPH_LAUNCH(name, ptsz)                                                                   \
    EXPORT CUresult CUDAAPI name(CUgraphExec handle, CUstream cu_stream)                           \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        struct stream stream = { cu_stream, ptsz };                                                \
        struct session_call call;                                                                  \
        struct graph_job job;                                                                      \
        struct exec *x = exec_find(handle);                                                        \
        if (__builtin_expect(!x, 1)) {                                                             \
            bool embedded = plain_is_embedded(stream);                                             \
            CUresult r = real(handle, cu_stream);                                                  \
            if (embedded)                                                                          \
                AFTER_SUCCESS(r, strip_embedded(NULL, stream));                                    \
            return r;                                                                              \
        }                                                                                          \
        bool armed = session_enter(&call);                                                         \
        graph_before(x, stream, armed, &job);                                                      \
        session_pause(&call);                                                                      \
        CUresult r = real(handle, cu_stream);                                                      \
        session_resume(&call);                                                                     \
        graph_after(x, &job, r);                                                                   \
        session_leave(&call);                                                                      \
        return r;                                                                                  \
    }
GRAPH_LAUNCH(cuGraphLaunch, false)
GRAPH_LAUNCH(cuGraphLaunch_ptsz, true)

/* ------------------------------------------------------------------------- changing nodes */

static void follow_kernel(struct exec *x, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *k)
{
    struct session_call call;
    if (session_enter(&call))
        exec_kernel_changed(x, node, k);
    session_leave(&call);
}

EXPORT CUresult CUDAAPI cuGraphExecKernelNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                                       const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    struct exec *x = exec_find(handle);
    CUresult r = REAL(cuGraphExecKernelNodeSetParams)(handle, exec_node(x, node), params);
    if (x && r == CUDA_SUCCESS)
        follow_kernel(x, node, &KERNEL_NODE_PARAMS_V2(params, params->func));
    return r;
}

EXPORT CUresult CUDAAPI cuGraphExecKernelNodeSetParams_v2(CUgraphExec handle, CUgraphNode node,
                                                          const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
    struct exec *x = exec_find(handle);
    CUresult r = REAL(cuGraphExecKernelNodeSetParams_v2)(handle, exec_node(x, node), params);
    if (x && r == CUDA_SUCCESS)
        follow_kernel(x, node, params);
    return r;
}

/* A clone of @graph with nodes of ours for the child graph of @node, NULL: none is needed, or it cannot be. */
static struct graph_update *prepare_child(struct exec *x, CUgraphNode node, CUgraph graph)
{
    struct session_call call;
    if (!x || !graph)
        return NULL;
    session_enter(&call);
    struct graph_update *update = update_prepare_child(x, node, graph);
    session_leave(&call);
    return update;
}

static void updated(struct exec *x, struct graph_update *update, CUresult r)
{
    struct session_call call;
    session_enter(&call);
    update_done(x, update, r == CUDA_SUCCESS);
    session_leave(&call);
}

EXPORT CUresult CUDAAPI cuGraphExecChildGraphNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                                           CUgraph child)
{
    __typeof__(cuGraphExecChildGraphNodeSetParams) *real = REAL(cuGraphExecChildGraphNodeSetParams);
    struct exec *x = exec_find(handle);
    struct graph_update *update = prepare_child(x, node, child);
    CUresult r = real(handle, exec_node(x, node), update ? update->plan.clone : child);
    if (update)
        updated(x, update, r);
    return r;
}

EXPORT CUresult CUDAAPI cuGraphExecNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                                 CUgraphNodeParams *params)
{
    __typeof__(cuGraphExecNodeSetParams) *real = REAL(cuGraphExecNodeSetParams);
    CUgraph child = params && params->type == CU_GRAPH_NODE_TYPE_GRAPH ? params->graph.graph : NULL;
    struct exec *x = exec_find(handle);
    struct graph_update *update = prepare_child(x, node, child);
    if (update) {
        CUgraphNodeParams ours = *params;
        ours.graph.graph = update->plan.clone;
        CUresult r = real(handle, exec_node(x, node), &ours);
        updated(x, update, r);
        return r;
    }
    CUresult r = real(handle, exec_node(x, node), params);
    if (x && r == CUDA_SUCCESS && params->type == CU_GRAPH_NODE_TYPE_KERNEL) {
        const CUDA_KERNEL_NODE_PARAMS_v3 *p = &params->kernel;
        follow_kernel(x, node, &KERNEL_NODE_PARAMS_V2(p, p->func ? p->func : (CUfunction)p->kern));
    }
    return r;
}

EXPORT CUresult CUDAAPI cuGraphNodeSetEnabled(CUgraphExec handle, CUgraphNode node, unsigned on)
{
    struct exec *x = exec_find(handle);
    CUresult r = REAL(cuGraphNodeSetEnabled)(handle, exec_node(x, node), on);
    if (x && r == CUDA_SUCCESS)
        exec_node_enabled(x, node, on != 0);
    return r;
}

/* The driver knows the clone's nodes; these calls need nothing else. */
#define EXEC_NODE(name, declare, pass)                                                             \
    EXPORT CUresult CUDAAPI name declare                                                           \
    {                                                                                              \
        node = exec_node(exec_find(handle), node);                                                 \
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

static struct graph_update *prepare_update(struct exec *x, CUgraph graph)
{
    struct session_call call;
    struct graph_update *update = NULL;
    if (!graph || !(x || session_armed()))
        return NULL;
    bool armed = session_enter(&call);
    if (x)
        update = update_prepare(x, graph);
    else if (armed)
        update_report(graph);
    session_leave(&call);
    return update;
}

static CUgraphExec stripped(const struct exec *x)
{
    struct session_call call;
    session_enter(&call);
    CUgraphExec plain = strip_exec(x);
    session_leave(&call);
    return plain;
}

/* The application's call, in either form. */
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
 * An update that the driver refuses has its answer from the application's own graph and an exec without copies: which
 * node it complains of, and why, hangs on all nodes that are there.
 */
static CUresult update_exec(const struct update_call *c, CUgraphExec handle, CUgraph graph)
{
    struct exec *x = exec_find(handle);
    struct graph_update *update = prepare_update(x, graph);
    if (update) {
        CUresult r = call_update(c, handle, update->plan.clone);
        updated(x, update, r);
        if (r == CUDA_SUCCESS)
            return r;
    }
    CUgraphExec plain = x ? stripped(x) : NULL;
    if (plain) {
        CUresult r = call_update(c, plain, graph);
        driver_table.cuGraphExecDestroy(plain);
        if (r != CUDA_SUCCESS)
            return r;
        /* only with nodes of ours it cannot be updated: the driver reports another shape */
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
