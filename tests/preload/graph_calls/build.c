/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: created, cloned, read for the first time, changed, destroyed. */
#include "program.h"

#include <errno.h>
#include <stdlib.h>

/* ------------------------------------------------------------------------- reading graphs of unknown origin */

static void adopt_child(struct program *p, int node, bool noted)
{
    CUgraph held = UNSET;
    say(p, "embedded in");
    say_node(p, p->nodes[node].handle);
    CUresult r = CALL(p, cuGraphChildGraphNodeGetGraph, p->nodes[node].handle, &held);
    if (r == CUDA_SUCCESS)
        p->nodes[node].child = new_graph(p, held, node);
    say_graph(p, held);
    say_result(p, r);
    if (r == CUDA_SUCCESS)
        adopt(p, p->nodes[node].child, noted);
}

static void adopt_node(struct program *p, int graph, CUgraphNode handle, bool noted)
{
    CUgraphNodeType type = (CUgraphNodeType)-1;
    int known = find_node(p, handle);
    if (known >= 0 && p->nodes[known].graph == graph && p->nodes[known].type != (CUgraphNodeType)-1)
        return;
    if (known < 0 || p->nodes[known].graph != graph)
        known = new_node(p, graph, handle, type);
    say(p, "type of");
    say_node(p, handle);
    CUresult r = CALL(p, cuGraphNodeGetType, handle, &type);
    say(p, " %d", (int)type);
    say_result(p, r);
    p->nodes[known].type = type;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
        adopt_child(p, known, false);
        return;
    }
    get_node(p, known);
    if (noted && type == CU_GRAPH_NODE_TYPE_KERNEL && sites_of(p->nodes[known].work.kind))
        note(p, graph, known);
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        p->graphs[graph].memory = true;
}

void adopt(struct program *p, int graph, bool noted)
{
    CUgraph handle = p->graphs[graph].handle;
    size_t n = 4711, room;
    say(p, "nodes of");
    say_graph(p, handle);
    CUresult r = CALL(p, cuGraphGetNodes, handle, NULL, &n);
    say(p, " %zu", n);
    say_result(p, r);
    if (r != CUDA_SUCCESS || n > 4096)
        return;
    room = n;
    CUgraphNode *nodes = calloc(n + 1, sizeof *nodes);
    r = nodes ? CALL(p, cuGraphGetNodes, handle, nodes, &room) : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; r == CUDA_SUCCESS && i < n; i++)
        adopt_node(p, graph, nodes[i], noted);
    for (size_t i = 0; r == CUDA_SUCCESS && i < n && i < (size_t)p->graphs[graph].n_nodes; i++)
        p->graphs[graph].nodes[i] =
            find_node(p, nodes[i]); /* some may have been met in another order */
    free(nodes);
}

void carry_over(struct program *p, int from, int to)
{
    const struct graph *a = &p->graphs[from], *b = &p->graphs[to];
    for (int i = 0; i < a->n_notes; i++)
        for (int k = 0; k < a->n_nodes && k < b->n_nodes; k++)
            if (a->nodes[k] == a->notes[i]) {
                note(p, to, b->nodes[k]);
                break;
            }
    for (int k = 0; k < a->n_nodes && k < b->n_nodes; k++)
        if (p->nodes[a->nodes[k]].child >= 0 && p->nodes[b->nodes[k]].child >= 0) {
            int inner = p->nodes[a->nodes[k]].child, copy = p->nodes[b->nodes[k]].child;
            carry_over(p, inner, copy);
            users_add(p, p->graphs[copy].users, p->graphs[inner].users);
        }
}

/* ------------------------------------------------------------------------- making */

void op_graph(struct program *p)
{
    CUgraph handle = UNSET;
    unsigned flags = chance(p, 3);
    say(p, "create %u", flags);
    CUresult r = CALL(p, cuGraphCreate, &handle, flags);
    if (r == CUDA_SUCCESS)
        new_graph(p, handle, -1);
    say_graph(p, handle);
    say_result(p, r);
}

void op_clone(struct program *p)
{
    int graph = some_graph(p, false), nodes[256];
    CUgraph handle = UNSET;
    if (graph < 0 || flatten(p, graph, nodes, 256) > 100)
        return;
    say(p, "clone");
    say_graph(p, p->graphs[graph].handle);
    CUresult r = CALL(p, cuGraphClone, &handle, p->graphs[graph].handle);
    int copy = r == CUDA_SUCCESS ? new_graph(p, handle, -1) : -1;
    say_graph(p, handle);
    say_result(p, r);
    if (copy < 0)
        return;
    adopt(p, copy, false);
    carry_over(p, graph, copy);
    users_add(p, p->graphs[copy].users, p->graphs[graph].users);
}

/* ------------------------------------------------------------------------- edges */

static size_t some_pairs(struct program *p, int graph, CUgraphNode *from, CUgraphNode *to)
{
    const struct graph *g = &p->graphs[graph];
    size_t n = 1 + pick(p, 2);
    bool forwards = chance(p, 85);
    for (size_t i = 0; i < n; i++) {
        int a = (int)pick(p, (uint32_t)g->n_nodes), b = (int)pick(p, (uint32_t)g->n_nodes);
        if (forwards && a > b) { /* no cycle */
            int t = a;
            a = b;
            b = t;
        }
        from[i] = p->nodes[g->nodes[a]].handle;
        to[i] = p->nodes[g->nodes[b]].handle;
        say_node(p, from[i]);
        say(p, ">");
        say_node(p, to[i]);
    }
    return n;
}

void op_add_edges(struct program *p)
{
    int graph = some_graph(p, false);
    CUgraphNode from[2], to[2];
    CUgraphEdgeData data[2] = { { 0 } };
    CUresult r;
    if (graph < 0 || !p->graphs[graph].n_nodes)
        return;
    say(p, "connect in");
    say_graph(p, p->graphs[graph].handle);
    size_t n = some_pairs(p, graph, from, to);
    if (chance(p, 50)) {
        r = CALL(p, cuGraphAddDependencies, p->graphs[graph].handle, from, to, n);
    } else {
        for (size_t i = 0; i < n; i++)
            if (chance(p, 15))
                data[i] = (CUgraphEdgeData){ .from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC,
                                             .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC };
        say_edge(p, &data[0]);
        say_edge(p, &data[1]);
        r = CALL(p, cuGraphAddDependencies_v2, p->graphs[graph].handle, from, to,
                 chance(p, 80) ? data : NULL, n);
    }
    say_result(p, r);
}

/* An edge that exists, or rarely one that may not exist. */
static bool some_edge(struct program *p, int graph, CUgraphNode *from, CUgraphNode *to,
                      CUgraphEdgeData *data)
{
    CUgraphNode a[128], b[128];
    CUgraphEdgeData all[128];
    size_t n = 128;
    if (chance(p, 10)) {
        some_pairs(p, graph, a, b);
        *from = a[0];
        *to = b[0];
        *data = (CUgraphEdgeData){ 0 };
        return true;
    }
    if (CALL(p, cuGraphGetEdges_v2, p->graphs[graph].handle, a, b, all, &n) != CUDA_SUCCESS || !n)
        return false;
    size_t i = pick(p, (uint32_t)(n < 128 ? n : 128));
    *from = a[i];
    *to = b[i];
    *data = all[i];
    return true;
}

void op_remove_edges(struct program *p)
{
    int graph = some_graph(p, false);
    CUgraphNode from, to;
    CUgraphEdgeData data;
    CUresult r;
    if (graph < 0 || !p->graphs[graph].n_nodes || !some_edge(p, graph, &from, &to, &data))
        return;
    say(p, "disconnect in");
    say_graph(p, p->graphs[graph].handle);
    say_node(p, from);
    say(p, ">");
    say_node(p, to);
    say_edge(p, &data);
    if (chance(p, 50))
        r = CALL(p, cuGraphRemoveDependencies, p->graphs[graph].handle, &from, &to, 1);
    else
        r = CALL(p, cuGraphRemoveDependencies_v2, p->graphs[graph].handle, &from, &to,
                 chance(p, 80) ? &data : NULL, 1);
    say_result(p, r);
}

/* ------------------------------------------------------------------------- destroying */

bool destroy_node(struct program *p, int node)
{
    say(p, "destroy");
    say_node(p, p->nodes[node].handle);
    CUresult r = CALL(p, cuGraphDestroyNode, p->nodes[node].handle);
    say_result(p, r);
    if (r == CUDA_SUCCESS)
        forget_node(p, node);
    return r == CUDA_SUCCESS;
}

void op_destroy_node(struct program *p)
{
    int node = some_node(p, some_graph(p, chance(p, 80)));
    if (node >= 0)
        destroy_node(p, node);
}

/*
 * A node takes the place of another, perhaps at the same address, in a graph that has execs: they know
 * nothing of it.
 */
void op_destroy_and_add(struct program *p)
{
    int exec = some_exec(p);
    int graph = exec < 0 ? -1 : p->execs[exec].graph;
    int node = graph >= 0 && p->graphs[graph].alive
                   ? some_node_of(p, graph, CU_GRAPH_NODE_TYPE_KERNEL)
                   : -1;
    if (node < 0 || !destroy_node(p, node))
        return;
    struct work w = some_work(p);
    struct arguments a;
    CUDA_KERNEL_NODE_PARAMS_v2 k;
    CUgraphNode handle = UNSET;
    node_params(p, &w, &a, false, &k);
    say(p, "add again");
    say_work(p, &w);
    CUresult r = CALL(p, cuGraphAddKernelNode_v2, &handle, p->graphs[graph].handle, NULL, 0, &k);
    if (r == CUDA_SUCCESS) {
        int fresh = new_node(p, graph, handle, CU_GRAPH_NODE_TYPE_KERNEL);
        p->nodes[fresh].work = w;
        if (sites_of(w.kind))
            note(p, graph, fresh);
    }
    say_node(p, handle);
    say_result(p, r);
    if (r != CUDA_SUCCESS)
        return;
    say(p, "unknown to");
    say_exec(p, p->execs[exec].handle);
    unsigned on = 4711;
    r = CALL(p, cuGraphNodeGetEnabled, p->execs[exec].handle, handle, &on);
    say(p, " %u", on);
    say_result(p, r);
    w = some_work(p);
    node_params(p, &w, &a, false, &k);
    say(p, "set in");
    say_exec(p, p->execs[exec].handle);
    say_node(p, handle);
    say_work(p, &w);
    r = CALL(p, cuGraphExecKernelNodeSetParams_v2, p->execs[exec].handle, handle, &k);
    say_result(p, r);
    if (r == CUDA_SUCCESS)
        model_set(p, exec, find_node(p, handle), &w);
}

void op_destroy_graph(struct program *p)
{
    int graph = some_graph(p, chance(p, 90));
    if (graph < 0)
        return;
    say(p, "destroy");
    say_graph(p, p->graphs[graph].handle);
    CUresult r = CALL(p, cuGraphDestroy, p->graphs[graph].handle);
    say_result(p, r);
    if (r == CUDA_SUCCESS)
        forget_graph(p, graph);
}
