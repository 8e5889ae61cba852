/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wrappers: the driver's calls on executable graphs. What is instantiated is a clone with nodes of ours
 * (graph/exec.h), whose nodes stand for the application's.
 */
#include "preload/capture/forward.h"
#include "preload/capture/regions.h"
#include "preload/graph/exec.h"
#include "preload/graph/kernel_node.h"
#include "preload/graph/launch.h"
#include "preload/graph/strip.h"
#include "preload/graph/update.h"
#include "preload/hook/wrapper.h"
#include "preload/recording/nodes.h"
#include "preload/trace/graphs.h"
#include "preload/trace/leaves.h"
#include "preload/trace/range_ring.h"
#include "preload/trace/steps.h"

#include <stddef.h>

/* ------------------------------------------------------------------------- instantiating */

static struct exec *prepare(CUgraphExec *handle, CUgraph graph, unsigned long long flags)
{
    if (!session_does(SESSION_SITES) || !handle || !graph)
        return NULL;
    return IN_SESSION(exec_prepare(graph, flags), NULL);
}

/* Is the driver to be asked again? Where a clone could not be instantiated, the application's own graph answers. */
static bool refused(struct exec **x, CUresult r, const CUgraphExec *handle)
{
    struct session_call call;
    if (!*x)
        return false;
    session_enter(&call);
    bool again = exec_created(x, r == CUDA_SUCCESS ? *handle : NULL);
    session_leave(&call);
    return again;
}

/* CUPTI may know it by another id from here on. @graph: it was instantiated from this; NULL: it was updated, so its nodes are as many, and as they were. */
static void trace_made(CUgraphExec handle, CUgraph graph)
{
    struct session_call call;
    if (!session_does(SESSION_TRACE))
        return;
    if (session_enter_for(&call, SESSION_TRACE))
        graphs_made(handle, exec_find(handle));
    if (graph && session_does(SESSION_TRACE))
        leaves_made(handle, graph);
    session_leave(&call);
}

/* While everything is recorded, what is instantiated is the application's own graph. */
static void note_created(CUresult r, const CUgraphExec *handle, CUgraph graph)
{
    if (r == CUDA_SUCCESS)
        trace_made(*handle, graph);
    if (session_does(SESSION_RECORDING))
        AFTER_SUCCESS(r, nodes_created(*handle, graph));
}

#define INSTANTIATE_LOG(name)                                                                      \
    EXPORT CUresult CUDAAPI name(CUgraphExec *handle, CUgraph graph, CUgraphNode *error_node,      \
                                 char *log, size_t n_log)                                          \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        struct exec *x = prepare(handle, graph, 0);                                                \
        CUresult r;                                                                                \
        do                                                                                         \
            r = real(handle, exec_graph(x, graph), error_node, log, n_log);                        \
        while (refused(&x, r, handle));                                                            \
        note_created(r, handle, graph);                                                            \
        return r;                                                                                  \
    }
INSTANTIATE_LOG(cuGraphInstantiate)
INSTANTIATE_LOG(cuGraphInstantiate_v2)

EXPORT CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *handle, CUgraph graph,
                                                    unsigned long long flags)
{
    __typeof__(cuGraphInstantiateWithFlags) *real = REAL(cuGraphInstantiateWithFlags);
    struct exec *x = prepare(handle, graph, flags);
    CUresult r;
    do
        r = real(handle, exec_graph(x, graph), flags);
    while (refused(&x, r, handle));
    note_created(r, handle, graph);
    return r;
}

/* What the driver says in @params of a clone that it refuses is not for the application. */
#define INSTANTIATE_PARAMS(name)                                                                   \
    EXPORT CUresult CUDAAPI name(CUgraphExec *handle, CUgraph graph,                               \
                                 CUDA_GRAPH_INSTANTIATE_PARAMS *params)                            \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        struct exec *x = params ? prepare(handle, graph, params->flags) : NULL;                    \
        if (!x) {                                                                                  \
            CUresult plain = real(handle, graph, params);                                          \
            note_created(plain, handle, graph);                                                    \
            return plain;                                                                          \
        }                                                                                          \
        CUDA_GRAPH_INSTANTIATE_PARAMS given;                                                       \
        CUresult r;                                                                                \
        do {                                                                                       \
            given = *params;                                                                       \
            r = real(handle, exec_graph(x, graph), &given);                                        \
        } while (refused(&x, r, handle));                                                          \
        *params = given;                                                                           \
        note_created(r, handle, graph);                                                            \
        return r;                                                                                  \
    }
INSTANTIATE_PARAMS(cuGraphInstantiateWithParams)
INSTANTIATE_PARAMS(cuGraphInstantiateWithParams_ptsz)

EXPORT CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec handle)
{
    __typeof__(cuGraphExecDestroy) *real = REAL(cuGraphExecDestroy);
    struct session_call call;
    if (session_does(SESSION_RECORDING))
        AFTER_SUCCESS(CUDA_SUCCESS, nodes_destroyed(handle));
    session_enter(&call);
    graphs_ends(handle);
    leaves_ends(handle);
    /* also when disarmed: an exec of ours must not be found again under a reused handle */
    struct exec *x = exec_take(handle);
    session_pause(&call);
    CUresult r = real(handle);
    session_resume(&call);
    if (x)
        exec_free(x);
    session_leave(&call);
    AFTER_SUCCESS(r, regions_unsure()); /* memory of its memory nodes may end with it */
    return r;
}

/* ------------------------------------------------------------------------- launching */

/* Without nodes of ours, but its graph becomes a child where the stream is being captured. */
static bool plain_is_embedded(struct stream stream)
{
    return session_does(SESSION_SITES) && IN_SESSION(stream_is_capturing(stream), false);
}

/* Kernel by kernel where everything is recorded. Return: false: as it is. */
static bool recorded(CUgraphExec handle, struct stream stream, CUresult *r)
{
    return session_does(SESSION_RECORDING) && IN_SESSION(nodes_launch(handle, stream, r), false);
}

/* Kernels of ours in the graph. */
static uint64_t own_kernels(const struct graph_plan *plan)
{
    return plan->n_nodes ? (uint64_t)plan->n_leads + plan->n_tickets + 1 : 0;
}

/* CUPTI's id of what is launched, where launches are counted by it. */
static uint32_t graph_id(const struct trace_thread *traced, CUgraphExec handle)
{
    return traced && atomic_load_relaxed(&trace_by_stream) ? leaves_id(handle, graphs_id(handle))
                                                           : 0;
}

/* The driver's own launch, of its function @name. @traced: NULL: no trace looks at it. */
static CUresult launch(__typeof__(cuGraphLaunch) *real, CUgraphExec handle, CUstream stream,
                       const struct trace_thread *traced, const char *name)
{
    uint64_t begin_ns = traced ? clock_mono_ns() : 0;
    CUresult r = real(handle, stream);
    if (begin_ns)
        range_ring_call(name, begin_ns, clock_mono_ns());
    return r;
}

#define GRAPH_LAUNCH(name, ptsz)                                                                   \
    static inline CUresult name##_captured(__typeof__(name) *real, CUgraphExec handle,             \
                                           CUstream cu_stream)                                     \
    {                                                                                              \
        struct stream stream = { cu_stream, ptsz };                                                \
        struct session_call call;                                                                  \
        struct graph_job job;                                                                      \
        struct exec *x = exec_find(handle);                                                        \
        struct trace_thread *traced = trace_graph_begins(stream);                                  \
        if (__builtin_expect(!exec_concerns_us(x), 1)) {                                           \
            CUresult r;                                                                            \
            if (recorded(handle, stream, &r))                                                      \
                return r;                                                                          \
            bool embedded = plain_is_embedded(stream);                                             \
            r = launch(real, handle, cu_stream, traced, #name);                                    \
            trace_graph_launched(traced, stream, r, graph_id(traced, handle), 0);                  \
            if (embedded)                                                                          \
                AFTER_SUCCESS(r, strip_embedded(NULL, stream));                                    \
            return r;                                                                              \
        }                                                                                          \
        bool armed = session_enter(&call);                                                         \
        graph_before(x, stream, armed, &job);                                                      \
        if (forward_take_begun() && traced)                                                        \
            steps_begins(DMI_STEP_FORWARD, stream);                                                \
        if (traced && atomic_load_relaxed(&trace_by_stream))                                       \
            graphs_launches(x, job.counted);                                                       \
        session_pause(&call);                                                                      \
        CUresult r = launch(real, handle, cu_stream, traced, #name);                               \
        session_resume(&call);                                                                     \
        graph_after(x, &job, r);                                                                   \
        trace_graph_launched(traced, stream, r, graph_id(traced, handle), own_kernels(&x->plan));  \
        session_leave(&call);                                                                      \
        return r;                                                                                  \
    }                                                                                              \
    EXPORT CUresult CUDAAPI name(CUgraphExec handle, CUstream cu_stream)                           \
    {                                                                                              \
        PASS_ON(name, name##_captured, handle, cu_stream);                                         \
    }
GRAPH_LAUNCH(cuGraphLaunch, false)
GRAPH_LAUNCH(cuGraphLaunch_ptsz, true)

/* ------------------------------------------------------------------------- changing nodes */

static void follow_kernel(CUresult r, CUgraphExec handle, CUgraphNode node,
                          const CUDA_KERNEL_NODE_PARAMS_v2 *k)
{
    if (session_does(SESSION_RECORDING))
        AFTER_SUCCESS(r, nodes_changed(handle, node, k));
    else
        AFTER_SUCCESS(r, exec_kernel_changed(exec_find(handle), node, k));
}

EXPORT CUresult CUDAAPI cuGraphExecKernelNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                                       const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    struct exec *x = exec_find(handle);
    CUresult r = REAL(cuGraphExecKernelNodeSetParams)(handle, exec_node(x, node), params);
    if (r == CUDA_SUCCESS)
        follow_kernel(r, handle, node, &KERNEL_NODE_PARAMS_V2(params, params->func));
    return r;
}

EXPORT CUresult CUDAAPI cuGraphExecKernelNodeSetParams_v2(CUgraphExec handle, CUgraphNode node,
                                                          const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
    struct exec *x = exec_find(handle);
    CUresult r = REAL(cuGraphExecKernelNodeSetParams_v2)(handle, exec_node(x, node), params);
    follow_kernel(r, handle, node, params);
    return r;
}

/* An update of an exec, or of a child graph of it, under way; NULL: nothing of ours is concerned. */
static struct graph_update *prepare_update(CUgraphExec handle, CUgraphNode within, CUgraph graph)
{
    struct session_call call;
    struct graph_update *update = NULL;
    if (!graph || !(session_does(SESSION_SITES) || exec_find(handle)))
        return NULL;
    struct exec *x = exec_find(handle);
    if (session_enter(&call) || x)
        update = within ? update_prepare_child(x, within, graph) : update_prepare(x, graph);
    session_leave(&call);
    return update;
}

static void updated(CUgraphExec handle, struct graph_update *update, CUresult r)
{
    struct session_call call;
    if (session_does(SESSION_RECORDING))
        AFTER_SUCCESS(r, nodes_lost(handle, "it was updated from another graph"));
    if (update) {
        session_enter(&call);
        update_done(exec_find(handle), update, r == CUDA_SUCCESS);
        session_leave(&call);
    }
    if (r == CUDA_SUCCESS)
        trace_made(handle, NULL);
}

EXPORT CUresult CUDAAPI cuGraphExecChildGraphNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                                           CUgraph child)
{
    __typeof__(cuGraphExecChildGraphNodeSetParams) *real = REAL(cuGraphExecChildGraphNodeSetParams);
    CUgraphNode named = exec_node(exec_find(handle), node);
    struct graph_update *update = prepare_update(handle, node, child);
    CUresult r = real(handle, named, update_graph(update, child));
    updated(handle, update, r);
    return r;
}

EXPORT CUresult CUDAAPI cuGraphExecNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                                 CUgraphNodeParams *params)
{
    __typeof__(cuGraphExecNodeSetParams) *real = REAL(cuGraphExecNodeSetParams);
    CUgraph child = params && params->type == CU_GRAPH_NODE_TYPE_GRAPH ? params->graph.graph : NULL;
    CUgraphNode named = exec_node(exec_find(handle), node);
    struct graph_update *update = child ? prepare_update(handle, node, child) : NULL;
    if (update) {
        CUgraphNodeParams ours = *params;
        ours.graph.graph = update_graph(update, child);
        CUresult r = real(handle, named, &ours);
        updated(handle, update, r);
        return r;
    }
    CUresult r = real(handle, named, params);
    if (child)
        updated(handle, NULL, r);
    if (r == CUDA_SUCCESS && params->type == CU_GRAPH_NODE_TYPE_KERNEL) {
        const CUDA_KERNEL_NODE_PARAMS_v3 *p = &params->kernel;
        follow_kernel(r, handle, node,
                      &KERNEL_NODE_PARAMS_V2(p, p->func ? p->func : (CUfunction)p->kern));
    }
    return r;
}

EXPORT CUresult CUDAAPI cuGraphNodeSetEnabled(CUgraphExec handle, CUgraphNode node, unsigned on)
{
    struct exec *x = exec_find(handle);
    unsigned was = on;
    if (session_does(SESSION_TRACE))
        driver_table.cuGraphNodeGetEnabled(handle, exec_node(x, node), &was);
    CUresult r = REAL(cuGraphNodeSetEnabled)(handle, exec_node(x, node), on);
    if (r == CUDA_SUCCESS && !was != !on)
        leaves_switched(handle, on != 0);
    if (x && r == CUDA_SUCCESS)
        exec_node_enabled(x, node, on != 0);
    if (session_does(SESSION_RECORDING))
        AFTER_SUCCESS(r, nodes_switched(handle, node, on != 0));
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
    struct graph_update *update = prepare_update(handle, NULL, graph);
    CUgraph given = update_graph(update, graph);
    CUresult r = call_update(c, handle, given);
    updated(handle, update, r);
    struct exec *x = exec_find(handle);
    if (r == CUDA_SUCCESS || !x || !x->plan.clone)
        return r;
    CUgraphExec plain = stripped(x);
    if (plain) {
        CUresult own = call_update(c, plain, graph);
        driver_table.cuGraphExecDestroy(plain);
        if (own != CUDA_SUCCESS)
            return own;
        /* only with nodes of ours it cannot be updated: the driver reports another shape */
    } else if (given == graph) {
        return r;
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
