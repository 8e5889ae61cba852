/* SPDX-License-Identifier: Apache-2.0 */
/* What changes in an exec: single nodes, child graphs, all of it. */
#include "program.h"

#include <errno.h>
#include <string.h>

static CUresult set_kernel(struct program *p, CUgraphExec exec, CUgraphNode node, struct work *w)
{
    struct arguments a;
    CUDA_KERNEL_NODE_PARAMS_v2 k;
    *w = some_work(p);
    say_work(p, w);
    node_params(p, w, &a, chance(p, 40), &k);
    if (older_form(p, 35, ENTRY_cuGraphExecKernelNodeSetParams_v2)) {
        CUDA_KERNEL_NODE_PARAMS_v1 old;
        memcpy(&old, &k, sizeof old);
        if (w->as_kernel)
            old.func = (CUfunction)k.kern;
        return CALL(p, cuGraphExecKernelNodeSetParams, exec, node, &old);
    }
    if (chance(p, 50))
        return CALL(p, cuGraphExecKernelNodeSetParams_v2, exec, node, &k);
    CUgraphNodeParams any = { .type = CU_GRAPH_NODE_TYPE_KERNEL };
    memcpy(&any.kernel, &k, sizeof k);
    return CALL(p, cuGraphExecNodeSetParams, exec, node, &any);
}

static CUresult set_memset(struct program *p, CUgraphExec exec, CUgraphNode node)
{
    CUDA_MEMSET_NODE_PARAMS m;
    some_memset(p, &m);
    say_memset(p, &m);
    if (chance(p, 60))
        return CALL(p, cuGraphExecMemsetNodeSetParams, exec, node, &m, p->context);
    CUgraphNodeParams any = { .type = CU_GRAPH_NODE_TYPE_MEMSET };
    memcpy(&any.memset, &m, sizeof m);
    any.memset.ctx = p->context;
    return CALL(p, cuGraphExecNodeSetParams, exec, node, &any);
}

static CUresult set_memcpy(struct program *p, CUgraphExec exec, CUgraphNode node)
{
    CUgraphNodeParams any = { .type = CU_GRAPH_NODE_TYPE_MEMCPY, .memcpy.copyCtx = p->context };
    some_memcpy(p, &any.memcpy.copyParams);
    say_memcpy(p, &any.memcpy.copyParams);
    if (chance(p, 60))
        return CALL(p, cuGraphExecMemcpyNodeSetParams, exec, node, &any.memcpy.copyParams,
                    p->context);
    return CALL(p, cuGraphExecNodeSetParams, exec, node, &any);
}

static CUresult set_host(struct program *p, CUgraphExec exec, CUgraphNode node)
{
    CUDA_HOST_NODE_PARAMS h;
    some_host(p, &h);
    say_host(p, &h);
    return CALL(p, cuGraphExecHostNodeSetParams, exec, node, &h);
}

/* As the node's type asks for, and sometimes as another's. */
void op_exec_set(struct program *p)
{
    int x = some_exec(p), node = x < 0 ? -1 : some_node_for(p, x);
    if (node < 0)
        return;
    CUgraphNodeType type = chance(p, 92) ? p->nodes[node].type : (CUgraphNodeType)pick(p, 8);
    CUgraphExec exec = p->execs[x].handle;
    CUgraphNode handle = p->nodes[node].handle;
    CUevent event = p->events[pick(p, N_EVENTS)];
    struct work w;
    CUresult r;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH)
        return;
    say(p, "set in");
    say_exec(p, exec);
    say_node(p, handle);
    switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        r = set_kernel(p, exec, handle, &w);
        if (r == CUDA_SUCCESS)
            model_set(p, x, node, &w);
        break;
    case CU_GRAPH_NODE_TYPE_MEMSET: r = set_memset(p, exec, handle); break;
    case CU_GRAPH_NODE_TYPE_MEMCPY: r = set_memcpy(p, exec, handle); break;
    case CU_GRAPH_NODE_TYPE_HOST: r = set_host(p, exec, handle); break;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        say(p, " record");
        say_event(p, event);
        r = CALL(p, cuGraphExecEventRecordNodeSetEvent, exec, handle, event);
        break;
    default:
        say(p, " wait");
        say_event(p, event);
        r = CALL(p, cuGraphExecEventWaitNodeSetEvent, exec, handle, event);
    }
    say_result(p, r);
}

/* A graph that @graph was cloned from or into has its shape, as long as neither changed. */
static int graph_like(struct program *p, int graph)
{
    for (int tries = 0; tries < 40; tries++) {
        int other = some_graph(p, false);
        if (other < 0 || p->graphs[other].n_nodes != p->graphs[graph].n_nodes)
            continue;
        bool alike = true;
        for (int i = 0; i < p->graphs[graph].n_nodes && alike; i++)
            alike = p->nodes[p->graphs[graph].nodes[i]].type ==
                    p->nodes[p->graphs[other].nodes[i]].type;
        if (alike)
            return other;
    }
    return some_graph(p, false);
}

static void set_child(struct program *p, int x, int node, int graph)
{
    CUgraphExec exec = p->execs[x].handle;
    CUgraphNode handle = p->nodes[node].handle;
    CUgraph child = p->graphs[graph].handle;
    CUresult r;
    say(p, "set child in");
    say_exec(p, exec);
    say_node(p, handle);
    say_graph(p, child);
    if (chance(p, 60)) {
        r = CALL(p, cuGraphExecChildGraphNodeSetParams, exec, handle, child);
    } else {
        CUgraphNodeParams any = { .type = CU_GRAPH_NODE_TYPE_GRAPH, .graph.graph = child };
        r = CALL(p, cuGraphExecNodeSetParams, exec, handle, &any);
    }
    if (r == CUDA_SUCCESS)
        model_set_child(p, x, node, graph);
    say_result(p, r);
}

/* Often with the embedded graph itself, whose parameters may have changed meanwhile. */
void op_exec_set_child(struct program *p)
{
    int x = some_exec(p), node = -1;
    for (int tries = 0; x >= 0 && tries < 12; tries++) {
        node = some_node_for(p, x);
        if (node >= 0 && p->nodes[node].child >= 0)
            break;
    }
    if (node < 0)
        return;
    int child = p->nodes[node].child;
    int graph = child < 0 ? some_graph(p, false) : chance(p, 40) ? child : graph_like(p, child);
    if (graph >= 0)
        set_child(p, x, node, graph);
}

static void update(struct program *p, int x, int graph)
{
    CUgraphExec exec = p->execs[x].handle;
    CUgraph handle = p->graphs[graph].handle;
    CUresult r;
    say(p, "update");
    say_exec(p, exec);
    say_graph(p, handle);
    if (older_form(p, 40, ENTRY_cuGraphExecUpdate_v2)) {
        CUgraphNode error = UNSET;
        CUgraphExecUpdateResult result = (CUgraphExecUpdateResult)99;
        r = CALL(p, cuGraphExecUpdate, exec, handle, chance(p, 80) ? &error : NULL, &result);
        say(p, " result %d error node", (int)result);
        say_node(p, error);
    } else {
        CUgraphExecUpdateResultInfo info = { (CUgraphExecUpdateResult)99, UNSET, UNSET };
        r = CALL(p, cuGraphExecUpdate_v2, exec, handle, &info);
        say(p, " result %d error node", (int)info.result);
        say_node(p, info.errorNode);
        say(p, " from");
        say_node(p, info.errorFromNode);
    }
    if (r == CUDA_SUCCESS)
        model_update(p, x, graph);
    say_result(p, r);
}

void op_update(struct program *p)
{
    int x = some_exec(p), graph = some_graph(p, false);
    if (x >= 0 && graph >= 0)
        update(p, x, graph);
}

/* With its own graph, changed meanwhile or not, or one of its shape. */
void op_update_alike(struct program *p)
{
    int x = some_exec(p);
    int graph = x < 0 ? -1 : p->execs[x].graph;
    if (graph < 0 || !p->graphs[graph].alive)
        return;
    if (!chance(p, 40))
        graph = graph_like(p, graph);
    if (graph >= 0)
        update(p, x, graph);
}

/* A clone whose nodes get other parameters, but for a few of other types, takes the place of @graph. */
static int changed_clone(struct program *p, int graph)
{
    CUgraph handle = (CUgraph)UNSET;
    int nodes[512];
    if (flatten(p, graph, nodes, 512) > 100)
        return -1;
    say(p, "clone");
    say_graph(p, p->graphs[graph].handle);
    CUresult r = CALL(p, cuGraphClone, &handle, p->graphs[graph].handle);
    int copy = r == CUDA_SUCCESS ? new_graph(p, handle, -1) : -1;
    say_graph(p, handle);
    say_result(p, r);
    if (copy < 0)
        return -1;
    adopt(p, copy, false);
    carry_over(p, graph, copy);
    users_add(p, p->graphs[copy].users, p->graphs[graph].users);
    int n = flatten(p, copy, nodes, 512);
    for (int i = 0; i < n && i < 512; i++)
        if (chance(p, 50))
            set_node(p, nodes[i]);
    return copy;
}

/* An exec that knows its graph's shape is given another of it, or one of its child graphs is. */
void op_update_clone(struct program *p)
{
    int x = some_exec(p), graph = x < 0 ? -1 : p->execs[x].graph, node = -1;
    if (graph < 0 || !p->graphs[graph].alive)
        return;
    for (int tries = 0; tries < 12 && (node < 0 || p->nodes[node].child < 0); tries++)
        node = some_node_for(p, x);
    if (node >= 0 && p->nodes[node].child >= 0 && chance(p, 60)) {
        int copy = changed_clone(p, p->nodes[node].child);
        if (copy >= 0)
            set_child(p, x, node, copy);
        return;
    }
    int copy = changed_clone(p, graph);
    if (copy >= 0)
        update(p, x, copy);
}
