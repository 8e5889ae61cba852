/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph.c - building graphs and asking them about themselves
 */
#include "graph.h"
#include "impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t n_uids;
static unsigned long long n_graphs;

/* ---- structure ---- */

struct graph *graph_new(void)
{
    struct graph *graph = object_new(OBJECT_GRAPH, sizeof(*graph));

    if (graph)
        graph->id = ++n_graphs;
    return graph;
}

bool graph_is(CUgraph handle)
{
    return object_is(handle, OBJECT_GRAPH);
}

static bool node_is(CUgraphNode handle)
{
    return object_is(handle, OBJECT_NODE);
}

static void list_remove(struct edge_list *list, size_t i)
{
    memmove(list->edges + i, list->edges + i + 1, (list->n - i - 1) * sizeof(*list->edges));
    list->n--;
}

static void list_drop(struct edge_list *list, const struct graph_node *node)
{
    for (size_t i = list->n; i-- > 0;) {
        if (list->edges[i].node == node)
            list_remove(list, i);
    }
}

static bool list_add(struct edge_list *list, struct graph_node *node, const CUgraphEdgeData *data)
{
    static const CUgraphEdgeData plain;

    if (list->n == list->cap) {
        size_t cap = list->cap ? 2 * list->cap : 4;
        struct graph_edge *grown = realloc(list->edges, cap * sizeof(*grown));

        if (!grown)
            return false;
        list->edges = grown;
        list->cap = cap;
    }
    list->edges[list->n++] = (struct graph_edge){ node, data ? *data : plain };
    return true;
}

static bool edge_equal(const CUgraphEdgeData *a, const CUgraphEdgeData *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

static CUresult edge_check(const struct graph_node *from, const struct graph_node *to,
                           const CUgraphEdgeData *data)
{
    static const unsigned char zero[sizeof(data->reserved)];

    if (!data)
        return CUDA_SUCCESS;
    if (data->to_port || memcmp(data->reserved, zero, sizeof(zero)) != 0 || data->type > 1 ||
        data->from_port > 2)
        return CUDA_ERROR_INVALID_VALUE;
    if (data->type ? !data->from_port : data->from_port == CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC)
        return CUDA_ERROR_INVALID_VALUE;
    if ((data->from_port || data->type) && (from->type != CU_GRAPH_NODE_TYPE_KERNEL ||
                                            (data->type && to->type != CU_GRAPH_NODE_TYPE_KERNEL)))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult graph_connect(struct graph_node *from, struct graph_node *to, const CUgraphEdgeData *data)
{
    CUresult res;

    if (from == to || from->graph != to->graph)
        return CUDA_ERROR_INVALID_VALUE;
    res = edge_check(from, to, data);
    if (res != CUDA_SUCCESS)
        return res;
    for (size_t i = 0; i < to->in.n; i++) {
        if (to->in.edges[i].node == from)
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (!list_add(&to->in, from, data) || !list_add(&from->out, to, data))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

static void node_free(struct graph_node *node)
{
    struct graph *graph = node->graph;

    for (size_t i = 0; i < node->in.n; i++)
        list_drop(&node->in.edges[i].node->out, node);
    for (size_t i = 0; i < node->out.n; i++)
        list_drop(&node->out.edges[i].node->in, node);
    if (node->prev)
        node->prev->next = node->next;
    else
        graph->first = node->next;
    if (node->next)
        node->next->prev = node->prev;
    else
        graph->last = node->prev;
    graph->n_nodes--;
    free(node->in.edges);
    free(node->out.edges);
    work_unref(node->work);
    if (node->child)
        graph_free(node->child);
    cond_node_free(node->cond);
    object_free(node);
}

void graph_free(struct graph *graph)
{
    while (graph->first)
        node_free(graph->first);
    users_drop(graph->users);
    conditions_free(graph->conditions);
    object_free(graph);
}

CUresult graph_add(struct graph *graph, CUgraphNodeType type, struct work *work,
                   struct graph_node *const *deps, const CUgraphEdgeData *data, size_t n_deps,
                   struct graph_node **out)
{
    struct graph_node *node;
    CUresult res = CUDA_SUCCESS;

    if (n_deps && !deps) {
        work_unref(work);
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < n_deps; i++) {
        if (!node_is((CUgraphNode)deps[i]) || deps[i]->graph != graph) {
            work_unref(work);
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        res = graph_memory_own(graph, work);
    node = res == CUDA_SUCCESS ? object_new(OBJECT_NODE, sizeof(*node)) : NULL;
    if (!node) {
        work_unref(work);
        return res != CUDA_SUCCESS ? res : CUDA_ERROR_OUT_OF_MEMORY;
    }
    node->graph = graph;
    node->uid = ++n_uids;
    node->type = type;
    node->work = work;
    node->prev = graph->last;
    if (graph->last)
        graph->last->next = node;
    else
        graph->first = node;
    graph->last = node;
    graph->n_nodes++;
    for (size_t i = 0; i < n_deps && res == CUDA_SUCCESS; i++)
        res = graph_connect(deps[i], node, data ? &data[i] : NULL);
    if (res != CUDA_SUCCESS) {
        node_free(node);
        return res;
    }
    *out = node;
    return CUDA_SUCCESS;
}

struct graph *graph_clone(struct graph *graph)
{
    struct graph *clone = graph_new();
    struct graph_node **nodes = calloc(graph->n_nodes + 1, sizeof(*nodes));
    size_t i = 0;
    CUresult res = clone && nodes ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

    for (struct graph_node *node = graph->first; node && res == CUDA_SUCCESS;
         node = node->next, i++) {
        node->index = i;
        res = graph_add(clone, node->type, work_ref(node->work), NULL, NULL, 0, &nodes[i]);
        if (res != CUDA_SUCCESS)
            break;
        nodes[i]->origin = node->uid;
        if (node->child) {
            nodes[i]->child = graph_clone(node->child);
            if (!nodes[i]->child)
                res = CUDA_ERROR_OUT_OF_MEMORY;
            else
                nodes[i]->child->owner = nodes[i];
        }
    }
    for (struct graph_node *node = graph->first; node && res == CUDA_SUCCESS; node = node->next) {
        for (size_t j = 0; j < node->in.n && res == CUDA_SUCCESS; j++)
            res = graph_connect(nodes[node->in.edges[j].node->index], nodes[node->index],
                                &node->in.edges[j].data);
    }
    if (res == CUDA_SUCCESS)
        res = users_copy(graph->users, &clone->users);
    free(nodes);
    if (res != CUDA_SUCCESS && clone) {
        graph_free(clone);
        clone = NULL;
    }
    return clone;
}

CUgraphNodeType graph_work_type(const struct work *work)
{
    switch (work->kind) {
    case WORK_KERNEL: return CU_GRAPH_NODE_TYPE_KERNEL;
    case WORK_COPY: return CU_GRAPH_NODE_TYPE_MEMCPY;
    case WORK_SET: return CU_GRAPH_NODE_TYPE_MEMSET;
    case WORK_HOST: return CU_GRAPH_NODE_TYPE_HOST;
    case WORK_EVENT_RECORD: return CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    case WORK_EVENT_WAIT: return CU_GRAPH_NODE_TYPE_WAIT_EVENT;
    case WORK_ALLOC: return CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    case WORK_ALLOC_FREE: return CU_GRAPH_NODE_TYPE_MEM_FREE;
    case WORK_WRITE_VALUE:
    case WORK_WAIT_VALUE: return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    default: return CU_GRAPH_NODE_TYPE_EMPTY;
    }
}

/* ---- entries: graphs ---- */

CUresult impl_cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
    struct graph *graph;
    DRIVER_LOCKED;

    if (!phGraph || flags)
        return CUDA_ERROR_INVALID_VALUE;
    graph = graph_new();
    if (!graph)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *phGraph = (CUgraph)graph;
    return CUDA_SUCCESS;
}

CUresult impl_cuGraphDestroy(CUgraph hGraph)
{
    struct graph *graph = (struct graph *)hGraph;
    DRIVER_LOCKED;

    if (!graph_is(hGraph) || graph->owner)
        return CUDA_ERROR_INVALID_VALUE;
    if (graph->captured)
        return CUDA_ERROR_ILLEGAL_STATE;
    graph_free(graph);
    return CUDA_SUCCESS;
}

CUresult impl_cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph)
{
    struct graph *clone;
    DRIVER_LOCKED;

    if (!phGraphClone || !graph_is(originalGraph))
        return CUDA_ERROR_INVALID_VALUE;
    if (graph_has_memory((struct graph *)originalGraph) ||
        graph_has_conditional((struct graph *)originalGraph))
        return CUDA_ERROR_NOT_SUPPORTED;
    clone = graph_clone((struct graph *)originalGraph);
    if (!clone)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *phGraphClone = (CUgraph)clone;
    return CUDA_SUCCESS;
}

static struct graph_node *find_origin(struct graph *graph, uint64_t uid)
{
    for (struct graph_node *node = graph->first; node; node = node->next) {
        struct graph_node *inner;

        if (node->origin == uid)
            return node;
        inner = node->child ? find_origin(node->child, uid) : NULL;
        if (inner)
            return inner;
    }
    return NULL;
}

CUresult impl_cuGraphNodeFindInClone(CUgraphNode *phNode, CUgraphNode hOriginalNode,
                                     CUgraph hClonedGraph)
{
    struct graph_node *found;
    DRIVER_LOCKED;

    if (!phNode || !node_is(hOriginalNode) || !graph_is(hClonedGraph))
        return CUDA_ERROR_INVALID_VALUE;
    found = find_origin((struct graph *)hClonedGraph, ((struct graph_node *)hOriginalNode)->uid);
    if (!found)
        return CUDA_ERROR_INVALID_VALUE;
    *phNode = (CUgraphNode)found;
    return CUDA_SUCCESS;
}

/* ---- entries: adding and removing ---- */

CUresult graph_add_entry(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
                         const CUgraphEdgeData *data, size_t n, CUgraphNodeType type,
                         struct work *work)
{
    struct graph_node *node;
    CUresult res;

    if (!out || !graph_is(graph)) {
        work_unref(work);
        return CUDA_ERROR_INVALID_VALUE;
    }
    res = graph_add((struct graph *)graph, type, work, (struct graph_node *const *)deps, data, n,
                    &node);
    if (res == CUDA_SUCCESS) {
        *out = (CUgraphNode)node;
        log_detail("\"graph\":%llu,\"node\":%llu,\"type\":%d", ((struct graph *)graph)->id,
                   (unsigned long long)node->uid, (int)type);
    }
    return res;
}

CUresult impl_cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                                      const CUgraphNode *dependencies, size_t numDependencies,
                                      const CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams)
{
    struct work *work;
    CUresult res;
    DRIVER_LOCKED;

    res = node_work_kernel(nodeParams, true, &work);
    return res != CUDA_SUCCESS ? res
                               : graph_add_entry(phGraphNode, hGraph, dependencies, NULL,
                                                 numDependencies, CU_GRAPH_NODE_TYPE_KERNEL, work);
}

/* The first version lacks the last two members. */
static CUDA_KERNEL_NODE_PARAMS_v2 kernel_v2(const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    CUDA_KERNEL_NODE_PARAMS_v2 v2 = { 0 };

    memcpy(&v2, params, sizeof(*params));
    return v2;
}

CUresult impl_cuGraphAddKernelNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                   const CUgraphNode *dependencies, size_t numDependencies,
                                   const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    CUDA_KERNEL_NODE_PARAMS_v2 params;

    if (!nodeParams)
        return CUDA_ERROR_INVALID_VALUE;
    params = kernel_v2(nodeParams);
    return impl_cuGraphAddKernelNode_v2(phGraphNode, hGraph, dependencies, numDependencies,
                                        &params);
}

CUresult impl_cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                   const CUgraphNode *dependencies, size_t numDependencies,
                                   const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
    struct work *work;
    CUresult res;
    DRIVER_LOCKED;

    res = node_work_copy(copyParams, ctx, &work);
    return res != CUDA_SUCCESS ? res
                               : graph_add_entry(phGraphNode, hGraph, dependencies, NULL,
                                                 numDependencies, CU_GRAPH_NODE_TYPE_MEMCPY, work);
}

CUresult impl_cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                   const CUgraphNode *dependencies, size_t numDependencies,
                                   const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
    struct work *work;
    CUresult res;
    DRIVER_LOCKED;

    res = node_work_set(memsetParams, ctx, &work);
    return res != CUDA_SUCCESS ? res
                               : graph_add_entry(phGraphNode, hGraph, dependencies, NULL,
                                                 numDependencies, CU_GRAPH_NODE_TYPE_MEMSET, work);
}

CUresult impl_cuGraphAddHostNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                 const CUgraphNode *dependencies, size_t numDependencies,
                                 const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    struct work *work;
    CUresult res;
    DRIVER_LOCKED;

    if (!nodeParams)
        return CUDA_ERROR_INVALID_VALUE;
    res = node_work_host(nodeParams->fn, nodeParams->userData, &work);
    return res != CUDA_SUCCESS ? res
                               : graph_add_entry(phGraphNode, hGraph, dependencies, NULL,
                                                 numDependencies, CU_GRAPH_NODE_TYPE_HOST, work);
}

CUresult impl_cuGraphAddEmptyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                  const CUgraphNode *dependencies, size_t numDependencies)
{
    DRIVER_LOCKED;

    return graph_add_entry(phGraphNode, hGraph, dependencies, NULL, numDependencies,
                           CU_GRAPH_NODE_TYPE_EMPTY, NULL);
}

CUresult impl_cuGraphAddEventRecordNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                        const CUgraphNode *dependencies, size_t numDependencies,
                                        CUevent event)
{
    struct work *work;
    CUresult res;
    DRIVER_LOCKED;

    res = node_work_event(event, true, &work);
    return res != CUDA_SUCCESS
               ? res
               : graph_add_entry(phGraphNode, hGraph, dependencies, NULL, numDependencies,
                                 CU_GRAPH_NODE_TYPE_EVENT_RECORD, work);
}

CUresult impl_cuGraphAddEventWaitNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                      const CUgraphNode *dependencies, size_t numDependencies,
                                      CUevent event)
{
    struct work *work;
    CUresult res;
    DRIVER_LOCKED;

    res = node_work_event(event, false, &work);
    return res != CUDA_SUCCESS
               ? res
               : graph_add_entry(phGraphNode, hGraph, dependencies, NULL, numDependencies,
                                 CU_GRAPH_NODE_TYPE_WAIT_EVENT, work);
}

/* @graph lies in @in, at any depth. */
static bool lies_in(const struct graph *graph, const struct graph *in)
{
    while (graph && graph != in)
        graph = graph->owner ? graph->owner->graph : NULL;
    return graph != NULL;
}

/* The child is cloned, or (@move) becomes the node's own, and may hold memory nodes then. */
static CUresult add_child(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
                          const CUgraphEdgeData *data, size_t n, CUgraph handle, bool move)
{
    struct graph *child = (struct graph *)handle, *inner;
    CUresult res;

    if (!graph_is(handle) || handle == graph || child->moved)
        return CUDA_ERROR_INVALID_VALUE;
    if (move && (child->owner || child->captured || lies_in((struct graph *)graph, child)))
        return CUDA_ERROR_INVALID_VALUE;
    if (!move && (graph_has_memory(child) || graph_has_conditional(child)))
        return CUDA_ERROR_NOT_SUPPORTED;
    inner = move ? child : graph_clone(child);
    if (!inner)
        return CUDA_ERROR_OUT_OF_MEMORY;
    res = graph_add_entry(out, graph, deps, data, n, CU_GRAPH_NODE_TYPE_GRAPH, NULL);
    if (res != CUDA_SUCCESS) {
        if (!move)
            graph_free(inner);
        return res;
    }
    inner->owner = (struct graph_node *)*out;
    inner->owner->child = inner;
    inner->moved = move;
    return CUDA_SUCCESS;
}

CUresult impl_cuGraphAddChildGraphNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                       const CUgraphNode *dependencies, size_t numDependencies,
                                       CUgraph childGraph)
{
    DRIVER_LOCKED;

    return add_child(phGraphNode, hGraph, dependencies, NULL, numDependencies, childGraph, false);
}

/** node_params_work() - the union of cuGraphAddNode() and cuGraphNodeSetParams() as work */
static CUresult node_params_work(const CUgraphNodeParams *params, struct work **work)
{
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return node_work_kernel((const CUDA_KERNEL_NODE_PARAMS_v2 *)&params->kernel, true, work);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return node_work_copy(&params->memcpy.copyParams, params->memcpy.copyCtx, work);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return node_work_set((const CUDA_MEMSET_NODE_PARAMS *)&params->memset, params->memset.ctx,
                             work);
    case CU_GRAPH_NODE_TYPE_HOST:
        return node_work_host(params->host.fn, params->host.userData, work);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return node_work_event(params->eventRecord.event, true, work);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return node_work_event(params->eventWait.event, false, work);
    case CU_GRAPH_NODE_TYPE_EMPTY: *work = NULL; return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult impl_cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                                const CUgraphNode *dependencies,
                                const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                CUgraphNodeParams *nodeParams)
{
    struct work *work;
    CUresult res;
    DRIVER_LOCKED;

    if (!nodeParams)
        return CUDA_ERROR_INVALID_VALUE;
    if (nodeParams->type == CU_GRAPH_NODE_TYPE_GRAPH) {
        if ((unsigned)nodeParams->graph.ownership > CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE)
            return CUDA_ERROR_INVALID_VALUE;
        res = add_child(phGraphNode, hGraph, dependencies, dependencyData, numDependencies,
                        nodeParams->graph.graph,
                        nodeParams->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE);
        if (res == CUDA_SUCCESS)
            nodeParams->graph.graph = (CUgraph)((struct graph_node *)*phGraphNode)->child;
        return res;
    }
    if (nodeParams->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
        return graph_add_conditional(phGraphNode, hGraph, dependencies, dependencyData,
                                     numDependencies, &nodeParams->conditional);
    if (nodeParams->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return graph_memory_add(phGraphNode, hGraph, dependencies, dependencyData, numDependencies,
                                (CUDA_MEM_ALLOC_NODE_PARAMS *)&nodeParams->alloc);
    if (nodeParams->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        return graph_memory_add_free(phGraphNode, hGraph, dependencies, dependencyData,
                                     numDependencies, nodeParams->free.dptr);
    res = node_params_work(nodeParams, &work);
    return res != CUDA_SUCCESS ? res
                               : graph_add_entry(phGraphNode, hGraph, dependencies, dependencyData,
                                                 numDependencies, nodeParams->type, work);
}

CUresult impl_cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                             const CUgraphNode *dependencies, size_t numDependencies,
                             CUgraphNodeParams *nodeParams)
{
    return impl_cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, NULL, numDependencies,
                                  nodeParams);
}

/* Of child graphs too: "Changes to the graph will be reflected in the node" (cuGraphChildGraphNodeGetGraph()). */
CUresult impl_cuGraphDestroyNode(CUgraphNode hNode)
{
    DRIVER_LOCKED;

    if (!node_is(hNode))
        return CUDA_ERROR_INVALID_VALUE;
    if (graph_has_memory(((struct graph_node *)hNode)->graph))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (((struct graph_node *)hNode)->graph->captured)
        return CUDA_ERROR_ILLEGAL_STATE;
    node_free((struct graph_node *)hNode);
    return CUDA_SUCCESS;
}

CUresult impl_cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode *from,
                                        const CUgraphNode *to, const CUgraphEdgeData *edgeData,
                                        size_t numDependencies)
{
    CUresult res = CUDA_SUCCESS;
    DRIVER_LOCKED;

    if (!graph_is(hGraph) || (numDependencies && (!from || !to)))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < numDependencies; i++) {
        if (!node_is(from[i]) || !node_is(to[i]) ||
            (CUgraph)((struct graph_node *)from[i])->graph != hGraph)
            return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < numDependencies && res == CUDA_SUCCESS; i++)
        res = graph_connect((struct graph_node *)from[i], (struct graph_node *)to[i],
                            edgeData ? &edgeData[i] : NULL);
    return res;
}

CUresult impl_cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                     size_t numDependencies)
{
    return impl_cuGraphAddDependencies_v2(hGraph, from, to, NULL, numDependencies);
}

static struct graph_edge *find_edge(struct edge_list *list, const struct graph_node *node)
{
    for (size_t i = 0; i < list->n; i++) {
        if (list->edges[i].node == node)
            return &list->edges[i];
    }
    return NULL;
}

/* All or nothing: an edge that does not exist, or holds data that was not named, changes nothing. */
CUresult impl_cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode *from,
                                           const CUgraphNode *to, const CUgraphEdgeData *edgeData,
                                           size_t numDependencies)
{
    static const CUgraphEdgeData plain;
    DRIVER_LOCKED;

    if (!graph_is(hGraph) || (numDependencies && (!from || !to)))
        return CUDA_ERROR_INVALID_VALUE;
    if (numDependencies && graph_has_memory((struct graph *)hGraph))
        return CUDA_ERROR_NOT_SUPPORTED;
    for (size_t i = 0; i < numDependencies; i++) {
        struct graph_edge *edge;

        if (!node_is(from[i]) || !node_is(to[i]) ||
            (CUgraph)((struct graph_node *)to[i])->graph != hGraph)
            return CUDA_ERROR_INVALID_VALUE;
        edge = find_edge(&((struct graph_node *)to[i])->in, (struct graph_node *)from[i]);
        if (!edge)
            return CUDA_ERROR_INVALID_VALUE;
        if (!edge_equal(&edge->data, edgeData ? &edgeData[i] : &plain))
            return edgeData ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_LOSSY_QUERY;
    }
    for (size_t i = 0; i < numDependencies; i++) {
        list_drop(&((struct graph_node *)to[i])->in, (struct graph_node *)from[i]);
        list_drop(&((struct graph_node *)from[i])->out, (struct graph_node *)to[i]);
    }
    return CUDA_SUCCESS;
}

CUresult impl_cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode *from,
                                        const CUgraphNode *to, size_t numDependencies)
{
    return impl_cuGraphRemoveDependencies_v2(hGraph, from, to, NULL, numDependencies);
}

/*
 * ---- entries: queries. Without an array the count alone. What an array has too much is poison, where cuda.h
 * promises NULL: the count is what a caller may go by ----
 */

static void poison_data(CUgraphEdgeData *data, size_t first, size_t n)
{
    if (data && n > first)
        memset(data + first, driver.config.handles == HANDLES_LENIENT ? 0 : 0xdb,
               (n - first) * sizeof(*data));
}

static CUresult put_nodes(struct graph *graph, bool roots, CUgraphNode *nodes, size_t *count)
{
    size_t n = 0, room = nodes ? *count : 0;

    for (struct graph_node *node = graph->first; node; node = node->next) {
        if (roots && node->in.n)
            continue;
        if (n < room)
            nodes[n] = (CUgraphNode)node;
        n++;
    }
    handles_poison(nodes, n, room);
    *count = nodes && n > room ? room : n;
    return CUDA_SUCCESS;
}

CUresult impl_cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
    DRIVER_LOCKED;

    if (!graph_is(hGraph) || !numNodes)
        return CUDA_ERROR_INVALID_VALUE;
    return put_nodes((struct graph *)hGraph, false, nodes, numNodes);
}

CUresult impl_cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes)
{
    DRIVER_LOCKED;

    if (!graph_is(hGraph) || !numRootNodes)
        return CUDA_ERROR_INVALID_VALUE;
    return put_nodes((struct graph *)hGraph, true, rootNodes, numRootNodes);
}

/* Has one of the first @room edges data that the caller does not ask for? Asked before anything is written. */
static bool is_lossy(const struct graph *graph, size_t room)
{
    static const CUgraphEdgeData plain;
    size_t n = 0;

    for (const struct graph_node *node = graph->first; node; node = node->next) {
        for (size_t i = 0; i < node->out.n && n < room; i++, n++) {
            if (!edge_equal(&node->out.edges[i].data, &plain))
                return true;
        }
    }
    return false;
}

CUresult impl_cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to,
                                 CUgraphEdgeData *edgeData, size_t *numEdges)
{
    struct graph *graph = (struct graph *)hGraph;
    size_t n = 0, room;
    DRIVER_LOCKED;

    if (!graph_is(hGraph) || !numEdges || !from != !to || (edgeData && !from))
        return CUDA_ERROR_INVALID_VALUE;
    room = from ? *numEdges : 0;
    if (from && !edgeData && is_lossy(graph, room))
        return CUDA_ERROR_LOSSY_QUERY;
    for (struct graph_node *node = graph->first; node; node = node->next) {
        for (size_t i = 0; i < node->out.n; i++, n++) {
            if (n >= room)
                continue;
            from[n] = (CUgraphNode)node;
            to[n] = (CUgraphNode)node->out.edges[i].node;
            if (edgeData)
                edgeData[n] = node->out.edges[i].data;
        }
    }
    handles_poison(from, n, room);
    handles_poison(to, n, room);
    poison_data(edgeData, n, room);
    *numEdges = from && n > room ? room : n;
    return CUDA_SUCCESS;
}

CUresult impl_cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges)
{
    return impl_cuGraphGetEdges_v2(hGraph, from, to, NULL, numEdges);
}

static CUresult put_edges(const struct edge_list *list, CUgraphNode *nodes, CUgraphEdgeData *data,
                          size_t *count)
{
    static const CUgraphEdgeData plain;
    size_t room = nodes ? *count : 0;

    for (size_t i = 0; i < room && i < list->n && !data; i++) {
        if (!edge_equal(&list->edges[i].data, &plain))
            return CUDA_ERROR_LOSSY_QUERY;
    }
    for (size_t i = 0; i < room && i < list->n; i++) {
        nodes[i] = (CUgraphNode)list->edges[i].node;
        if (data)
            data[i] = list->edges[i].data;
    }
    handles_poison(nodes, list->n, room);
    poison_data(data, list->n, room);
    *count = nodes && list->n > room ? room : list->n;
    return CUDA_SUCCESS;
}

CUresult impl_cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode *dependencies,
                                            CUgraphEdgeData *edgeData, size_t *numDependencies)
{
    DRIVER_LOCKED;

    if (!node_is(hNode) || !numDependencies || (edgeData && !dependencies))
        return CUDA_ERROR_INVALID_VALUE;
    return put_edges(&((struct graph_node *)hNode)->in, dependencies, edgeData, numDependencies);
}

CUresult impl_cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode *dependencies,
                                         size_t *numDependencies)
{
    return impl_cuGraphNodeGetDependencies_v2(hNode, dependencies, NULL, numDependencies);
}

CUresult impl_cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode *dependentNodes,
                                              CUgraphEdgeData *edgeData, size_t *numDependentNodes)
{
    DRIVER_LOCKED;

    if (!node_is(hNode) || !numDependentNodes || (edgeData && !dependentNodes))
        return CUDA_ERROR_INVALID_VALUE;
    return put_edges(&((struct graph_node *)hNode)->out, dependentNodes, edgeData,
                     numDependentNodes);
}

CUresult impl_cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode *dependentNodes,
                                           size_t *numDependentNodes)
{
    return impl_cuGraphNodeGetDependentNodes_v2(hNode, dependentNodes, NULL, numDependentNodes);
}

CUresult impl_cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type)
{
    DRIVER_LOCKED;

    if (!node_is(hNode) || !type)
        return CUDA_ERROR_INVALID_VALUE;
    *type = ((struct graph_node *)hNode)->type;
    return CUDA_SUCCESS;
}

CUresult impl_cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph *phGraph)
{
    DRIVER_LOCKED;

    if (!node_is(hNode) || !phGraph || !((struct graph_node *)hNode)->child)
        return CUDA_ERROR_INVALID_VALUE;
    *phGraph = (CUgraph)((struct graph_node *)hNode)->child;
    return CUDA_SUCCESS;
}

/* ---- entries: a node's parameters ---- */

CUresult node_work_kernel(const CUDA_KERNEL_NODE_PARAMS_v2 *p, bool v2, struct work **out)
{
    struct context *ctx = NULL;
    CUfunction func;
    CUresult res;

    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    func = p->func;
    if (!func && v2 && p->kern) {
        res = context_resolve(p->ctx, &ctx);
        if (res != CUDA_SUCCESS)
            return res;
        func = (CUfunction)p->kern;
    } else if (object_live(func, OBJECT_FUNCTION)) {
        ctx = ((struct function *)func)->module->ctx;
    } else {
        res = context_current(&ctx);
        if (res != CUDA_SUCCESS)
            return res;
    }
    res = kernel_work_new(ctx, func, (unsigned[]){ p->gridDimX, p->gridDimY, p->gridDimZ },
                          (unsigned[]){ p->blockDimX, p->blockDimY, p->blockDimZ },
                          p->sharedMemBytes, p->kernelParams, p->extra, out);
    if (res == CUDA_SUCCESS && !p->func)
        (*out)->kernel.kern = p->kern;
    return res;
}

CUresult node_work_copy(const CUDA_MEMCPY3D *params, CUcontext handle, struct work **out)
{
    struct copy_work copy;
    struct context *ctx;
    CUresult res;

    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    res = context_resolve(handle, &ctx);
    if (res == CUDA_SUCCESS)
        res = copy_work_from_params(params, &copy);
    if (res == CUDA_SUCCESS)
        res = copy_work_check(&copy);
    if (res != CUDA_SUCCESS)
        return res;
    *out = work_new(WORK_COPY, ctx);
    if (!*out)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*out)->copy = copy;
    return CUDA_SUCCESS;
}

CUresult node_work_set(const CUDA_MEMSET_NODE_PARAMS *p, CUcontext handle, struct work **out)
{
    struct set_work set;
    struct context *ctx;
    CUresult res;

    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    set = (struct set_work){ .address = p->dst,
                             .pitch = p->pitch,
                             .width = p->width,
                             .height = p->height,
                             .element = p->elementSize,
                             .value = p->value };
    res = context_resolve(handle, &ctx);
    if (res == CUDA_SUCCESS)
        res = set_work_check(&set);
    if (res != CUDA_SUCCESS)
        return res;
    *out = work_new(WORK_SET, ctx);
    if (!*out)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*out)->set = set;
    return CUDA_SUCCESS;
}

CUresult node_work_host(CUhostFn fn, void *data, struct work **out)
{
    if (!fn)
        return CUDA_ERROR_INVALID_VALUE;
    *out = work_new(WORK_HOST, NULL);
    if (!*out)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*out)->host.fn = fn;
    (*out)->host.data = data;
    return CUDA_SUCCESS;
}

CUresult node_work_event(CUevent event, bool record, struct work **out)
{
    if (!object_is(event, OBJECT_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    *out = work_new(record ? WORK_EVENT_RECORD : WORK_EVENT_WAIT, ((struct event *)event)->ctx);
    if (!*out)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*out)->event.event = (struct event *)event;
    return CUDA_SUCCESS;
}

CUresult graph_node_of(CUgraphNode handle, CUgraphNodeType type, const void *params,
                       struct graph_node **node)
{
    if (!params || !node_is(handle) || ((struct graph_node *)handle)->type != type)
        return CUDA_ERROR_INVALID_VALUE;
    *node = (struct graph_node *)handle;
    return CUDA_SUCCESS;
}

static CUresult node_set(CUgraphNode handle, CUgraphNodeType type, CUresult made,
                         struct work *const *made_work)
{
    struct graph_node *node;
    struct work *work = *made_work;

    if (made != CUDA_SUCCESS)
        return made;
    made = graph_node_of(handle, type, work, &node);
    if (made != CUDA_SUCCESS) {
        work_unref(work);
        return made;
    }
    if (type == CU_GRAPH_NODE_TYPE_KERNEL) {
        work->kernel.cooperative = node->work->kernel.cooperative;
        work->kernel.priority = node->work->kernel.priority;
        memcpy(work->kernel.cluster, node->work->kernel.cluster, sizeof(work->kernel.cluster));
    }
    work_unref(node->work);
    node->work = work;
    return CUDA_SUCCESS;
}

static void kernel_params_out(struct work *work, CUDA_KERNEL_NODE_PARAMS_v2 *p)
{
    struct kernel_work *kernel = &work->kernel;

    *p = (CUDA_KERNEL_NODE_PARAMS_v2){
        .func = kernel->kern ? NULL : (CUfunction)kernel->function,
        .gridDimX = kernel->grid[0],
        .gridDimY = kernel->grid[1],
        .gridDimZ = kernel->grid[2],
        .blockDimX = kernel->block[0],
        .blockDimY = kernel->block[1],
        .blockDimZ = kernel->block[2],
        .sharedMemBytes = kernel->shared_bytes,
        .kernelParams = kernel->from_extra ? NULL : kernel->values,
        .extra = kernel->from_extra ? kernel->extra : NULL,
        .kern = kernel->kern,
        .ctx = kernel->kern ? (CUcontext)work->ctx : NULL,
    };
}

CUresult impl_cuGraphKernelNodeGetParams_v2(CUgraphNode hNode,
                                            CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams)
{
    struct graph_node *node;
    CUresult res;
    DRIVER_LOCKED;

    res = graph_node_of(hNode, CU_GRAPH_NODE_TYPE_KERNEL, nodeParams, &node);
    if (res == CUDA_SUCCESS)
        kernel_params_out(node->work, nodeParams);
    return res;
}

CUresult impl_cuGraphKernelNodeGetParams(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    struct graph_node *node;
    CUDA_KERNEL_NODE_PARAMS_v2 v2;
    CUresult res;
    DRIVER_LOCKED;

    res = graph_node_of(hNode, CU_GRAPH_NODE_TYPE_KERNEL, nodeParams, &node);
    if (res != CUDA_SUCCESS)
        return res;
    kernel_params_out(node->work, &v2);
    v2.func = (CUfunction)node->work->kernel.function;
    memcpy(nodeParams, &v2, sizeof(*nodeParams));
    return CUDA_SUCCESS;
}

CUresult impl_cuGraphKernelNodeSetParams_v2(CUgraphNode hNode,
                                            const CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams)
{
    struct work *work = NULL;
    DRIVER_LOCKED;

    return node_set(hNode, CU_GRAPH_NODE_TYPE_KERNEL, node_work_kernel(nodeParams, true, &work),
                    &work);
}

CUresult impl_cuGraphKernelNodeSetParams(CUgraphNode hNode,
                                         const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    CUDA_KERNEL_NODE_PARAMS_v2 v2;

    if (!nodeParams)
        return CUDA_ERROR_INVALID_VALUE;
    v2 = kernel_v2(nodeParams);
    return impl_cuGraphKernelNodeSetParams_v2(hNode, &v2);
}

/* Work is shared and immutable: an attribute changes a copy. */
static struct work *kernel_copy(const struct kernel_work *kernel, struct context *ctx)
{
    struct work *work;

    if (kernel_work_new(ctx, (CUfunction)kernel->function, kernel->grid, kernel->block,
                        kernel->shared_bytes, kernel->values, NULL, &work) != CUDA_SUCCESS)
        return NULL;
    work->kernel.cooperative = kernel->cooperative;
    work->kernel.updatable = kernel->updatable;
    work->kernel.priority = kernel->priority;
    work->kernel.kern = kernel->kern;
    memcpy(work->kernel.cluster, kernel->cluster, sizeof(kernel->cluster));
    return work;
}

CUresult impl_cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                            const CUkernelNodeAttrValue *value)
{
    struct graph_node *node;
    struct work *work;
    CUresult res;
    DRIVER_LOCKED;

    res = graph_node_of(hNode, CU_GRAPH_NODE_TYPE_KERNEL, value, &node);
    if (res != CUDA_SUCCESS)
        return res;
    work = kernel_copy(&node->work->kernel, node->work->ctx);
    if (!work)
        return CUDA_ERROR_OUT_OF_MEMORY;
    kernel_attribute(&work->kernel, attr, value);
    log_detail("\"node\":%llu,\"priority\":%d", (unsigned long long)node->uid,
               work->kernel.priority);
    work_unref(node->work);
    node->work = work;
    return CUDA_SUCCESS;
}

CUresult impl_cuGraphKernelNodeGetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                            CUkernelNodeAttrValue *value_out)
{
    struct graph_node *node;
    CUresult res;
    DRIVER_LOCKED;

    res = graph_node_of(hNode, CU_GRAPH_NODE_TYPE_KERNEL, value_out, &node);
    if (res != CUDA_SUCCESS)
        return res;
    memset(value_out, 0, sizeof(*value_out));
    if (attr == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
        value_out->cooperative = node->work->kernel.cooperative;
    else if (attr == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE)
        value_out->deviceUpdatableKernelNode.deviceUpdatable = node->work->kernel.updatable;
    else if (attr == CU_LAUNCH_ATTRIBUTE_PRIORITY)
        value_out->priority = node->work->kernel.priority;
    else if (attr == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
        memcpy(&value_out->clusterDim, node->work->kernel.cluster,
               sizeof(node->work->kernel.cluster));
    return CUDA_SUCCESS;
}

CUresult impl_cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src)
{
    struct graph_node *to, *from;
    struct work *work;
    CUresult res;
    DRIVER_LOCKED;

    res = graph_node_of(dst, CU_GRAPH_NODE_TYPE_KERNEL, dst, &to);
    if (res == CUDA_SUCCESS)
        res = graph_node_of(src, CU_GRAPH_NODE_TYPE_KERNEL, src, &from);
    if (res != CUDA_SUCCESS)
        return res;
    work = kernel_copy(&to->work->kernel, to->work->ctx);
    if (!work)
        return CUDA_ERROR_OUT_OF_MEMORY;
    work->kernel.cooperative = from->work->kernel.cooperative;
    work->kernel.priority = from->work->kernel.priority;
    memcpy(work->kernel.cluster, from->work->kernel.cluster, sizeof(work->kernel.cluster));
    work_unref(to->work);
    to->work = work;
    return CUDA_SUCCESS;
}

CUresult impl_cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D *nodeParams)
{
    struct graph_node *node;
    CUresult res;
    DRIVER_LOCKED;

    res = graph_node_of(hNode, CU_GRAPH_NODE_TYPE_MEMCPY, nodeParams, &node);
    if (res == CUDA_SUCCESS)
        *nodeParams = node->work->copy.params;
    return res;
}

CUresult impl_cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D *nodeParams)
{
    struct graph_node *node;
    struct work *work = NULL;
    CUresult res;
    DRIVER_LOCKED;

    res = graph_node_of(hNode, CU_GRAPH_NODE_TYPE_MEMCPY, nodeParams, &node);
    if (res != CUDA_SUCCESS)
        return res;
    return node_set(hNode, CU_GRAPH_NODE_TYPE_MEMCPY,
                    node_work_copy(nodeParams, (CUcontext)node->work->ctx, &work), &work);
}

CUresult impl_cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS *p)
{
    struct graph_node *node;
    CUresult res;
    DRIVER_LOCKED;

    res = graph_node_of(hNode, CU_GRAPH_NODE_TYPE_MEMSET, p, &node);
    if (res == CUDA_SUCCESS) {
        const struct set_work *set = &node->work->set;

        *p = (CUDA_MEMSET_NODE_PARAMS){ .dst = set->address,
                                        .pitch = set->pitch,
                                        .value = set->value,
                                        .elementSize = set->element,
                                        .width = set->width,
                                        .height = set->height };
    }
    return res;
}

CUresult impl_cuGraphMemsetNodeSetParams(CUgraphNode hNode,
                                         const CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
    struct graph_node *node;
    struct work *work = NULL;
    CUresult res;
    DRIVER_LOCKED;

    res = graph_node_of(hNode, CU_GRAPH_NODE_TYPE_MEMSET, nodeParams, &node);
    if (res != CUDA_SUCCESS)
        return res;
    return node_set(hNode, CU_GRAPH_NODE_TYPE_MEMSET,
                    node_work_set(nodeParams, (CUcontext)node->work->ctx, &work), &work);
}

CUresult impl_cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS *nodeParams)
{
    struct graph_node *node;
    CUresult res;
    DRIVER_LOCKED;

    res = graph_node_of(hNode, CU_GRAPH_NODE_TYPE_HOST, nodeParams, &node);
    if (res == CUDA_SUCCESS)
        *nodeParams =
            (CUDA_HOST_NODE_PARAMS){ .fn = node->work->host.fn, .userData = node->work->host.data };
    return res;
}

CUresult impl_cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    struct work *work = NULL;
    DRIVER_LOCKED;

    if (!nodeParams)
        return CUDA_ERROR_INVALID_VALUE;
    return node_set(hNode, CU_GRAPH_NODE_TYPE_HOST,
                    node_work_host(nodeParams->fn, nodeParams->userData, &work), &work);
}

static CUresult event_get(CUgraphNode hNode, CUgraphNodeType type, CUevent *event_out)
{
    struct graph_node *node;
    CUresult res;
    DRIVER_LOCKED;

    res = graph_node_of(hNode, type, event_out, &node);
    if (res == CUDA_SUCCESS)
        *event_out = (CUevent)node->work->event.event;
    return res;
}

static CUresult event_set(CUgraphNode hNode, CUgraphNodeType type, CUevent event)
{
    struct work *work = NULL;
    DRIVER_LOCKED;

    return node_set(hNode, type,
                    node_work_event(event, type == CU_GRAPH_NODE_TYPE_EVENT_RECORD, &work), &work);
}

CUresult impl_cuGraphEventRecordNodeGetEvent(CUgraphNode hNode, CUevent *event_out)
{
    return event_get(hNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event_out);
}

CUresult impl_cuGraphEventRecordNodeSetEvent(CUgraphNode hNode, CUevent event)
{
    return event_set(hNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}

CUresult impl_cuGraphEventWaitNodeGetEvent(CUgraphNode hNode, CUevent *event_out)
{
    return event_get(hNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event_out);
}

CUresult impl_cuGraphEventWaitNodeSetEvent(CUgraphNode hNode, CUevent event)
{
    return event_set(hNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

CUresult impl_cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    struct work *work = NULL;
    DRIVER_LOCKED;

    if (!nodeParams || nodeParams->type == CU_GRAPH_NODE_TYPE_EMPTY)
        return CUDA_ERROR_INVALID_VALUE;
    return node_set(hNode, nodeParams->type, node_params_work(nodeParams, &work), &work);
}

CUresult impl_cuGraphDebugDotPrint(CUgraph hGraph, const char *path, unsigned int flags)
{
    struct graph *graph = (struct graph *)hGraph;
    FILE *out;
    DRIVER_LOCKED;

    (void)flags;
    if (!graph_is(hGraph) || !path)
        return CUDA_ERROR_INVALID_VALUE;
    out = fopen(path, "we");
    if (!out)
        return CUDA_ERROR_OPERATING_SYSTEM;
    fprintf(out, "digraph dot {\n");
    for (struct graph_node *node = graph->first; node; node = node->next) {
        fprintf(out, "  n%llu [label=\"%s\"];\n", (unsigned long long)node->uid,
                node->type == CU_GRAPH_NODE_TYPE_KERNEL ? node->work->kernel.function->name : "");
        for (size_t i = 0; i < node->out.n; i++)
            fprintf(out, "  n%llu -> n%llu;\n", (unsigned long long)node->uid,
                    (unsigned long long)node->out.edges[i].node->uid);
    }
    fprintf(out, "}\n");
    fclose(out);
    return CUDA_SUCCESS;
}
