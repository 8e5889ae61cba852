/* SPDX-License-Identifier: Apache-2.0 */
/* Adding nodes of every type, in every form; reading and setting their parameters. */
#include "program.h"

#include <errno.h>
#include <string.h>

/* ------------------------------------------------------------------------- parameters */

/* A place of memsets holds one byte's value throughout. */
void some_memset(struct program *p, CUDA_MEMSET_NODE_PARAMS *m)
{
    unsigned slot = p->next_slot++ % N_SLOTS, size = 1u << pick(p, 3), value = slot & 0xff;
    *m = (CUDA_MEMSET_NODE_PARAMS){
        .dst = p->fills + slot * SLOT_BYTES,
        .elementSize = size,
        .value = size == 4   ? value * 0x01010101u
                 : size == 2 ? value * 0x0101u
                             : value,
        .width = 1 + pick(p, 60 / size),
        .height = 1,
    };
    if (chance(p, 25)) {
        m->height = 2;
        m->pitch = 64;
    }
}

/* What is copied lies at the same offset everywhere. */
void some_memcpy(struct program *p, CUDA_MEMCPY3D *c)
{
    unsigned at = p->next_slot++ % N_SLOTS * SLOT_BYTES;
    *c = (CUDA_MEMCPY3D){
        .srcMemoryType = CU_MEMORYTYPE_DEVICE,
        .srcDevice = p->source + at,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
        .dstDevice = p->copies + at,
        .WidthInBytes = 1 + pick(p, SLOT_BYTES),
        .Height = 1,
        .Depth = 1,
    };
    if (chance(p, 20)) {
        c->dstMemoryType = CU_MEMORYTYPE_HOST;
        c->dstDevice = 0;
        c->dstHost = p->host_copies + at;
    } else if (chance(p, 20)) {
        c->srcMemoryType = CU_MEMORYTYPE_HOST;
        c->srcDevice = 0;
        c->srcHost = p->pattern + at;
    }
}

void some_host(struct program *p, CUDA_HOST_NODE_PARAMS *h)
{
    *h = (CUDA_HOST_NODE_PARAMS){ .fn = host_add, .userData = &p->tallies[pick(p, N_TALLIES)] };
}

void say_memset(struct program *p, const CUDA_MEMSET_NODE_PARAMS *m)
{
    say(p, " memset");
    say_pointer(p, m->dst);
    say(p, " %zux%zu of %u pitch %zu value %#x", m->width, m->height, m->elementSize, m->pitch,
        m->value);
}

void say_memcpy(struct program *p, const CUDA_MEMCPY3D *c)
{
    say(p, " memcpy %d", (int)c->srcMemoryType);
    say_pointer(p, c->srcMemoryType == CU_MEMORYTYPE_HOST ? (uintptr_t)c->srcHost : c->srcDevice);
    say(p, " to %d", (int)c->dstMemoryType);
    say_pointer(p, c->dstMemoryType == CU_MEMORYTYPE_HOST ? (uintptr_t)c->dstHost : c->dstDevice);
    say(p, " %zux%zux%zu", c->WidthInBytes, c->Height, c->Depth);
}

void say_host(struct program *p, const CUDA_HOST_NODE_PARAMS *h)
{
    const int *tally = h->userData;
    if (h->fn == host_add && tally >= p->tallies && tally < p->tallies + N_TALLIES)
        say(p, " host %d", (int)(tally - p->tallies));
    else
        say(p, " host unknown");
}

static CUevent some_event(struct program *p)
{
    return p->events[pick(p, N_EVENTS)];
}

/* ------------------------------------------------------------------------- adding */

/* Up to three nodes of @graph, each once; rarely a mistake: one twice, or one of another graph. */
static size_t some_deps(struct program *p, int graph, CUgraphNode *deps)
{
    size_t n = 0;
    for (uint32_t want = pick(p, 4), i = 0; i < want; i++) {
        int node = some_node(p, chance(p, 97) ? graph : some_graph(p, false));
        bool again = false;
        for (size_t k = 0; node >= 0 && k < n; k++)
            again = again || deps[k] == p->nodes[node].handle;
        if (node >= 0 && (!again || chance(p, 3)))
            deps[n++] = p->nodes[node].handle;
    }
    say(p, " after");
    for (size_t i = 0; i < n; i++)
        say_node(p, deps[i]);
    return n;
}

/* Edge data where only kernels may have some: programmatic ones, among kernels. */
static void some_edges(struct program *p, const CUgraphNode *deps, size_t n, CUgraphNodeType type,
                       CUgraphEdgeData *edges)
{
    memset(edges, 0, 4 * sizeof *edges);
    for (size_t i = 0; i < n; i++) {
        int from = find_node(p, deps[i]);
        if (from >= 0 && p->nodes[from].type == CU_GRAPH_NODE_TYPE_KERNEL &&
            type == CU_GRAPH_NODE_TYPE_KERNEL && chance(p, 20))
            edges[i] = (CUgraphEdgeData){ .from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC,
                                          .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC };
        say_edge(p, &edges[i]);
    }
}

/* Names the node that was added. */
static void added(struct program *p, CUresult r, int graph, CUgraphNode handle,
                  CUgraphNodeType type, const struct work *w)
{
    int known = r == CUDA_SUCCESS ? new_node(p, graph, handle, type) : -1;
    if (r != CUDA_SUCCESS)
        say(p, handle == UNSET ? " untouched" : " touched");
    else
        say_node(p, handle);
    if (known >= 0 && w) {
        p->nodes[known].work = *w;
        if (sites_of(w->kind))
            note(p, graph, known);
    }
    say_result(p, r);
}

static void add_kernel(struct program *p, int graph)
{
    struct work w = some_work(p);
    struct arguments a;
    CUDA_KERNEL_NODE_PARAMS_v2 k;
    CUgraphNode deps[4], node = UNSET;
    CUgraph g = p->graphs[graph].handle;
    CUresult r;
    say(p, "add kernel to");
    say_graph(p, g);
    say_work(p, &w);
    size_t n = some_deps(p, graph, deps);
    node_params(p, &w, &a, chance(p, 40), &k);
    unsigned form = pick(p, 4);
    switch (entries_lack(ENTRY_cuGraphAddKernelNode_v2) ? 0 : form) {
    case 0: {
        CUDA_KERNEL_NODE_PARAMS_v1 old;
        memcpy(&old, &k, sizeof old);
        if (w.as_kernel)
            old.func = (CUfunction)k.kern;
        say(p, " v1");
        r = CALL(p, cuGraphAddKernelNode, &node, g, deps, n, &old);
        break;
    }
    case 1:
        say(p, " v2");
        r = CALL(p, cuGraphAddKernelNode_v2, &node, g, n ? deps : NULL, n, &k);
        break;
    default: {
        CUgraphNodeParams any = { .type = CU_GRAPH_NODE_TYPE_KERNEL };
        CUgraphEdgeData edges[4];
        memcpy(&any.kernel, &k, sizeof k);
        if (chance(p, 50)) {
            say(p, " any");
            r = CALL(p, cuGraphAddNode, &node, g, deps, n, &any);
        } else {
            some_edges(p, deps, n, any.type, edges);
            say(p, " any_v2");
            r = CALL(p, cuGraphAddNode_v2, &node, g, deps, edges, n, &any);
        }
    }
    }
    added(p, r, graph, node, CU_GRAPH_NODE_TYPE_KERNEL, &w);
}

/* The node holds @inner itself, with all that is noted of it. */
static void moved(struct program *p, int graph, int node, int inner)
{
    p->nodes[node].child = inner;
    p->graphs[inner].owner = node;
    for (int at = p->graphs[inner].memory ? graph : -1; at >= 0;
         at = p->graphs[at].owner < 0 ? -1 : p->nodes[p->graphs[at].owner].graph)
        p->graphs[at].memory = true;
    note(p, graph, node);
}

static bool has_users(struct program *p, int graph)
{
    for (int i = 0; i < p->n_objects; i++)
        if (p->graphs[graph].users[i])
            return true;
    for (int i = 0; i < p->graphs[graph].n_nodes; i++) {
        int child = p->nodes[p->graphs[graph].nodes[i]].child;
        if (child >= 0 && has_users(p, child))
            return true;
    }
    return false;
}

static void add_child(struct program *p, int graph)
{
    int inner = some_graph(p, false), node;
    if (inner < 0 || (in_body(p, graph) && (has_users(p, inner) || p->graphs[inner].memory)))
        return; /* what bodies hold is not followed */
    CUgraphNode deps[4], handle = UNSET;
    CUgraph g = p->graphs[graph].handle, child = p->graphs[inner].handle, held = UNSET;
    CUresult r;
    int nodes[256];
    if (flatten(p, inner, nodes, 256) > 60)
        return;
    say(p, "add child");
    say_graph(p, child);
    say(p, " to");
    say_graph(p, g);
    size_t n = some_deps(p, graph, deps);
    if (older_form(p, 50, ENTRY_cuGraphAddNode)) {
        r = CALL(p, cuGraphAddChildGraphNode, &handle, g, deps, n, child);
    } else {
        CUgraphNodeParams any = { .type = CU_GRAPH_NODE_TYPE_GRAPH, .graph.graph = child };
        if (chance(p, 15))
            any.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
        say(p, " any %d", (int)any.graph.ownership);
        r = chance(p, 50) ? CALL(p, cuGraphAddNode, &handle, g, deps, n, &any)
                          : CALL(p, cuGraphAddNode_v2, &handle, g, deps, NULL, n, &any);
        say(p, any.graph.graph == child ? " as given" : " replaced");
    }
    added(p, r, graph, handle, CU_GRAPH_NODE_TYPE_GRAPH, NULL);
    if (r != CUDA_SUCCESS)
        return;
    node = find_node(p, handle);
    say(p, "embedded");
    r = CALL(p, cuGraphChildGraphNodeGetGraph, handle, &held);
    if (held == child) {
        say_graph(p, held);
        say_result(p, r);
        moved(p, graph, node, inner);
        return;
    }
    p->nodes[node].child = new_graph(p, held, node);
    say_graph(p, held);
    say_result(p, r);
    adopt(p, p->nodes[node].child, false);
    carry_over(p, inner, p->nodes[node].child);
    users_add(p, p->graphs[p->nodes[node].child].users, p->graphs[inner].users);
    note(p, graph, node);
}

/* Its bodies; a value is assigned at each launch, so what runs is known. */
static void adopt_bodies(struct program *p, int node, const CUgraph *bodies, unsigned n)
{
    say(p, "bodies of");
    say_node(p, p->nodes[node].handle);
    for (unsigned i = 0; i < n; i++) {
        p->nodes[node].bodies[i] = new_graph(p, bodies[i], node);
        p->nodes[node].n_bodies++;
        say_graph(p, bodies[i]);
    }
    say_end(p);
    for (unsigned i = 0; i < n && chance(p, 70); i++)
        add_kernel(p, p->nodes[node].bodies[i]);
}

/* Mostly it ends again at once: its graph is left alone while it is there. */
static void add_conditional(struct program *p, int graph)
{
    CUgraphNode deps[4], node = UNSET;
    CUgraph g = p->graphs[graph].handle;
    bool is_switch = chance(p, 40);
    CUgraphNodeParams any = {
        .type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
        .conditional.type = is_switch ? CU_GRAPH_COND_TYPE_SWITCH : CU_GRAPH_COND_TYPE_IF,
        .conditional.size = 1 + pick(p, is_switch ? MAX_BODIES : 2),
        .conditional.ctx = p->context,
    };
    say(p, "condition of");
    say_graph(p, g);
    CUresult r = CALL(p, cuGraphConditionalHandleCreate, &any.conditional.handle, g, p->context,
                      pick(p, 3), CU_GRAPH_COND_ASSIGN_DEFAULT);
    say_result(p, r);
    if (r != CUDA_SUCCESS)
        return;
    say(p, "add conditional %d of %u to", (int)any.conditional.type, any.conditional.size);
    say_graph(p, g);
    size_t n = some_deps(p, graph, deps);
    r = chance(p, 50) ? CALL(p, cuGraphAddNode, &node, g, deps, n, &any)
                      : CALL(p, cuGraphAddNode_v2, &node, g, deps, NULL, n, &any);
    added(p, r, graph, node, any.type, NULL);
    if (r != CUDA_SUCCESS)
        return;
    int known = find_node(p, node);
    adopt_bodies(p, known, any.conditional.phGraph_out, any.conditional.size);
    if (chance(p, 60))
        destroy_node(p, known);
}

static void add_memory(struct program *p, int graph)
{
    CUgraphNode deps[4], node = UNSET;
    CUgraph g = p->graphs[graph].handle;
    bool allocate = p->n_allocs < 8 || chance(p, 60);
    CUresult r;
    if (p->n_allocs == (int)(sizeof p->allocs / sizeof p->allocs[0]))
        return;
    say(p, allocate ? "add alloc to" : "add free to");
    say_graph(p, g);
    size_t n = some_deps(p, graph, deps);
    if (allocate) {
        CUDA_MEM_ALLOC_NODE_PARAMS m = { .bytesize = 64 + pick(p, 1000), .dptr = (uintptr_t)UNSET };
        m.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        m.poolProps.location.type =
            chance(p, 90) ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST;
        m.poolProps.location.id = p->device;
        r = CALL(p, cuGraphAddMemAllocNode, &node, g, deps, n, &m);
        if (r == CUDA_SUCCESS)
            p->allocs[p->n_allocs++] = m.dptr;
        say(p, " at");
        say_pointer(p, r == CUDA_SUCCESS ? m.dptr : 0);
    } else {
        int mine = some_node_of(p, graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
        CUdeviceptr at = p->slots + 1; /* no allocation's */
        if (mine >= 0 && chance(p, 90))
            at = p->allocs[p->nodes[mine].work.slot];
        say_pointer(p, at);
        r = CALL(p, cuGraphAddMemFreeNode, &node, g, deps, n, at);
    }
    added(p, r, graph, node, allocate ? CU_GRAPH_NODE_TYPE_MEM_ALLOC : CU_GRAPH_NODE_TYPE_MEM_FREE,
          NULL);
    if (r == CUDA_SUCCESS) {
        p->nodes[find_node(p, node)].work.slot = (unsigned)p->n_allocs - 1;
        for (int at = graph; at >= 0;
             at = p->graphs[at].owner < 0 ? -1 : p->nodes[p->graphs[at].owner].graph)
            p->graphs[at].memory = true;
    }
}

static void add_other(struct program *p, int graph, CUgraphNodeType type)
{
    CUgraphNode deps[4], node = UNSET;
    CUgraph g = p->graphs[graph].handle;
    CUgraphNodeParams any = { .type = type };
    CUDA_HOST_NODE_PARAMS host;
    CUevent event = some_event(p);
    CUresult r;
    say(p, "add");
    if (type == CU_GRAPH_NODE_TYPE_MEMSET) {
        CUDA_MEMSET_NODE_PARAMS m;
        some_memset(p, &m);
        say_memset(p, &m);
        memcpy(&any.memset, &m, sizeof m);
        any.memset.ctx = p->context;
    } else if (type == CU_GRAPH_NODE_TYPE_MEMCPY) {
        some_memcpy(p, &any.memcpy.copyParams);
        say_memcpy(p, &any.memcpy.copyParams);
        any.memcpy.copyCtx = p->context;
    } else if (type == CU_GRAPH_NODE_TYPE_HOST) {
        some_host(p, &host);
        say_host(p, &host);
        any.host.fn = host.fn;
        any.host.userData = host.userData;
    } else if (type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
        say(p, " record");
        say_event(p, event);
        any.eventRecord.event = event;
    } else if (type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) {
        say(p, " wait");
        say_event(p, event);
        any.eventWait.event = event;
    } else {
        say(p, " empty");
    }
    say(p, " to");
    say_graph(p, g);
    size_t n = some_deps(p, graph, deps);
    if (chance(p, 40)) {
        say(p, " any");
        r = CALL(p, cuGraphAddNode, &node, g, deps, n, &any);
    } else if (type == CU_GRAPH_NODE_TYPE_MEMSET) {
        r = CALL(p, cuGraphAddMemsetNode, &node, g, deps, n, (CUDA_MEMSET_NODE_PARAMS *)&any.memset,
                 p->context);
    } else if (type == CU_GRAPH_NODE_TYPE_MEMCPY) {
        r = CALL(p, cuGraphAddMemcpyNode, &node, g, deps, n, &any.memcpy.copyParams, p->context);
    } else if (type == CU_GRAPH_NODE_TYPE_HOST) {
        r = CALL(p, cuGraphAddHostNode, &node, g, deps, n, &host);
    } else if (type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
        r = CALL(p, cuGraphAddEventRecordNode, &node, g, deps, n, event);
    } else if (type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) {
        r = CALL(p, cuGraphAddEventWaitNode, &node, g, deps, n, event);
    } else {
        r = CALL(p, cuGraphAddEmptyNode, &node, g, deps, n);
    }
    added(p, r, graph, node, type, NULL);
}

void op_add_node(struct program *p)
{
    static const CUgraphNodeType types[] = {
        CU_GRAPH_NODE_TYPE_MEMSET,       CU_GRAPH_NODE_TYPE_MEMCPY,     CU_GRAPH_NODE_TYPE_HOST,
        CU_GRAPH_NODE_TYPE_EVENT_RECORD, CU_GRAPH_NODE_TYPE_WAIT_EVENT, CU_GRAPH_NODE_TYPE_EMPTY
    };
    int graph = some_graph(p, chance(p, 85));
    if (graph < 0 || p->graphs[graph].n_nodes >= MAX_IN_GRAPH)
        return;
    uint32_t which = pick(p, 100);
    if (which < 60)
        add_kernel(p, graph);
    else if (which < 70)
        add_child(p, graph);
    else if (which < 73 && !in_body(p, graph))
        add_memory(p, graph);
    else if (which < 78)
        add_conditional(p, graph);
    else
        add_other(p, graph, types[pick(p, 6)]);
}
