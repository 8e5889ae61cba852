/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captures, begun and ended within one operation: kernels and the rest as nodes, forks and joins, execs
 * that become child graphs, calls that change the graph meanwhile, and what breaks a capture.
 */
#include "program.h"

#include <dmi/dtype.h>
#include <dmi/tap.h>

#include <errno.h>
#include <string.h>

struct taking {
    CUstream origin;
    int graph; /* -1: the driver has not given its handle yet */
    bool own;
    bool forked[N_STREAMS];
};

static CUstream some_captured(struct program *p, const struct taking *t)
{
    uint32_t i = pick(p, N_STREAMS);
    CUstream stream = t->forked[i] ? p->streams[i] : t->origin;
    for (uint32_t k = 0; k < N_STREAMS; k++)
        if (p->streams[k] == stream)
            say(p, " s%u", k);
    return stream;
}

static void given_graph(struct program *p, struct taking *t, CUgraph handle)
{
    if (t->graph < 0 && handle && (void *)handle != UNSET) {
        int known = find_graph(p, handle);
        t->graph = known >= 0 ? known : new_graph(p, handle, -1);
    }
}

/* The nodes that the stream's next one would depend on; nodes that were never met get names. Return: the nodes' number, in @deps */
static size_t say_info(struct program *p, struct taking *t, CUstream stream, CUgraphNode *deps,
                       size_t room)
{
    CUstreamCaptureStatus status = (CUstreamCaptureStatus)77;
    cuuint64_t id = 0;
    CUgraph graph = (CUgraph)UNSET;
    const CUgraphNode *nodes = NULL;
    const CUgraphEdgeData *edges = NULL;
    size_t n = 0;
    CUresult r;
    bool newer = !older_form(p, 50, ENTRY_cuStreamGetCaptureInfo_v3);
    say(p, "info");
    if (chance(p, 15)) {
        r = CALL(p, cuStreamGetCaptureInfo, stream, &status, &id);
        say(p, " status %d %s", (int)status, id ? "with id" : "");
        say_result(p, r);
        return 0;
    }
    if (newer)
        r = CALL(p, cuStreamGetCaptureInfo_v3, stream, &status, &id, &graph, &nodes, &edges, &n);
    else
        r = CALL(p, cuStreamGetCaptureInfo_v2, stream, &status, &id, &graph, &nodes, &n);
    say(p, " status %d", (int)status);
    if (r == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        given_graph(p, t, graph);
        say_graph(p, graph);
        for (size_t i = 0; i < n; i++) {
            if (find_node(p, nodes[i]) < 0)
                new_node(p, t->graph, nodes[i], (CUgraphNodeType)-1);
            say_node(p, nodes[i]);
            if (edges)
                say_edge(p, &edges[i]);
            if (i < room)
                deps[i] = nodes[i];
        }
    } else {
        n = 0;
    }
    say_result(p, r);
    return n < room ? n : room;
}

/* A kernel node between the stream's last nodes and its next one, as engines add it. */
static void insert(struct program *p, struct taking *t, CUstream stream)
{
    CUgraphNode deps[8], node = UNSET;
    size_t n = say_info(p, t, stream, deps, 8);
    if (t->graph < 0)
        return;
    struct work w = some_work(p);
    struct arguments a;
    CUDA_KERNEL_NODE_PARAMS_v2 k;
    node_params(p, &w, &a, chance(p, 40), &k);
    say(p, "insert");
    say_work(p, &w);
    CUresult r = CALL(p, cuGraphAddKernelNode_v2, &node, p->graphs[t->graph].handle, deps, n, &k);
    if (r == CUDA_SUCCESS) {
        int known = new_node(p, t->graph, node, CU_GRAPH_NODE_TYPE_KERNEL);
        p->nodes[known].work = w;
        if (sites_of(w.kind))
            note(p, t->graph, known);
    }
    say_node(p, node);
    say_result(p, r);
    if (r != CUDA_SUCCESS)
        return;
    unsigned how =
        chance(p, 50) ? CU_STREAM_SET_CAPTURE_DEPENDENCIES : CU_STREAM_ADD_CAPTURE_DEPENDENCIES;
    say(p, "depend on it %u", how);
    if (chance(p, 50))
        r = CALL(p, cuStreamUpdateCaptureDependencies, stream, &node, 1, how);
    else
        r = CALL(p, cuStreamUpdateCaptureDependencies_v2, stream, &node, NULL, 1, how);
    say_result(p, r);
}

static void fork_or_join(struct program *p, struct taking *t, uint32_t i, bool fork)
{
    CUevent event = p->events[pick(p, N_EVENTS)];
    if (p->streams[i] == t->origin || (!fork && !t->forked[i]))
        return;
    say(p, fork ? "fork s%u" : "join s%u", i);
    CUresult r = CALL(p, cuEventRecord, event, fork ? t->origin : p->streams[i]);
    say_result(p, r);
    if (r != CUDA_SUCCESS)
        return; /* the capture is broken: the event is not in it */
    say(p, "so");
    r = CALL(p, cuStreamWaitEvent, fork ? p->streams[i] : t->origin, event, 0);
    say_result(p, r);
    if (r == CUDA_SUCCESS)
        t->forked[i] = fork;
}

static void break_it(struct program *p, struct taking *t)
{
    uint32_t which = pick(p, p->alone ? 5 : 3);
    struct work w = some_work(p);
    CUresult r;
    say(p, "break %u", which);
    switch (which) {
    case 0: r = CALL(p, cuCtxSynchronize); break;
    case 1: r = CALL(p, cuStreamSynchronize, t->origin); break;
    case 2: r = CALL(p, cuStreamBeginCapture_v2, t->origin, CU_STREAM_CAPTURE_MODE_RELAXED); break;
    case 3:
        r = launch_work(p, &w, NULL); /* the legacy stream waits for blocking ones */
        if (r == CUDA_SUCCESS)
            model_eager(p, &w);
        break;
    default: r = CALL(p, cuMemAlloc_v2, &(CUdeviceptr){ 0 }, 64); break;
    }
    say_result(p, r);
}

void tap(struct program *p, CUstream stream)
{
    uint32_t first = pick(p, N_SLOTS * SLOT_BYTES / 8), rows = 1 + pick(p, 6),
             words = 1 + pick(p, 40);
    struct dmi_tap t = { .size = sizeof t,
                         .version = DMI_TAP_VERSION,
                         .name = chance(p, 70) ? "pattern" : "nobody",
                         .data = (const void *)(uintptr_t)(p->source + 4 * first),
                         .stream = stream,
                         .layer = (int32_t)first, /* by which the test knows what it holds */
                         .dtype = DMI_DTYPE_U32,
                         .n_dims = 2,
                         .row_dims = 1,
                         .count = { rows, words },
                         .stride = { 4 * (int64_t)words, 4 } };
    dmi_tap_here(&t);
}

static void step(struct program *p, struct taking *t)
{
    uint32_t which = pick(p, 100), i = pick(p, N_STREAMS);
    unsigned at = p->next_slot++ % N_SLOTS * SLOT_BYTES;
    CUresult r;
    CUgraphNode deps[4];
    if (which < 38) {
        struct work w = some_work(p);
        say(p, "take");
        say_work(p, &w);
        r = launch_work(p, &w, some_captured(p, t));
    } else if (which < 44) {
        say(p, "take memset %u", at);
        r = CALL(p, cuMemsetD8Async, p->fills + at, (unsigned char)(at / SLOT_BYTES),
                 1 + pick(p, 60), some_captured(p, t));
    } else if (which < 50) {
        say(p, "take memcpy %u", at);
        r = CALL(p, cuMemcpyDtoDAsync_v2, p->copies + at, p->source + at, 1 + pick(p, SLOT_BYTES),
                 some_captured(p, t));
    } else if (which < 55) {
        say(p, "take host");
        r = CALL(p, cuLaunchHostFunc, some_captured(p, t), host_add,
                 &p->tallies[pick(p, N_TALLIES)]);
    } else if (which < 65) {
        fork_or_join(p, t, i, !t->forked[i]);
        return;
    } else if (which < 75) {
        int x = some_exec(p);
        if (x < 0)
            return;
        say(p, "take");
        say_exec(p, p->execs[x].handle);
        STREAM_CALL(p, cuGraphLaunch, some_captured(p, t), r, p->execs[x].handle, s_);
    } else if (which < 84) {
        say_info(p, t, t->origin, deps, 4);
        return;
    } else if (which < 88) {
        say(p, "record outside e%u", i);
        r = CALL(p, cuEventRecordWithFlags, p->events[i], some_captured(p, t),
                 CU_EVENT_RECORD_EXTERNAL);
    } else if (which < 91) {
        say(p, "wait outside e%u", i);
        r = CALL(p, cuStreamWaitEvent, some_captured(p, t), p->events[i], CU_EVENT_WAIT_EXTERNAL);
    } else if (which < 95) {
        insert(p, t, t->origin);
        return;
    } else if (which < 98) {
        say(p, "tap");
        tap(p, some_captured(p, t));
        r = CUDA_SUCCESS;
    } else {
        break_it(p, t);
        return;
    }
    say_result(p, r);
}

static CUresult begin(struct program *p, struct taking *t)
{
    CUstreamCaptureMode mode =
        (CUstreamCaptureMode)(pick(p, 2 + p->alone) +
                              !p->alone); /* a capture in global mode concerns all threads */
    int graph = chance(p, 25) ? some_graph(p, true) : -1;
    CUresult r;
    uint32_t i = pick(p, N_STREAMS);
    *t = (struct taking){ .origin = p->streams[i], .graph = -1, .own = true };
    say(p, "capture s%u mode %d", i, (int)mode);
    if (graph >= 0 && p->graphs[graph].n_nodes < MAX_IN_GRAPH) {
        int node = some_node(p, graph);
        t->graph = graph;
        t->own = false;
        say(p, " to");
        say_graph(p, p->graphs[graph].handle);
        if (node >= 0)
            say_node(p, p->nodes[node].handle);
        r = CALL(p, cuStreamBeginCaptureToGraph, t->origin, p->graphs[graph].handle,
                 node < 0 ? NULL : &p->nodes[node].handle, NULL, node >= 0, mode);
    } else if (p->alone && chance(p, 10)) {
        r = CALL(p, cuStreamBeginCapture, t->origin);
    } else {
        STREAM_CALL(p, cuStreamBeginCapture_v2, t->origin, r, s_, mode);
    }
    say_result(p, r);
    return r;
}

/* Notes come in the order of nodes. */
static void sort_notes(struct program *p, int graph)
{
    struct graph *g = &p->graphs[graph];
    int n = 0;
    for (int i = 0; i < g->n_nodes; i++)
        if (p->nodes[g->nodes[i]].noted)
            g->notes[n++] = g->nodes[i];
}

void op_capture(struct program *p)
{
    struct taking t;
    CUgraph handle = (CUgraph)UNSET;
    if (begin(p, &t) != CUDA_SUCCESS)
        return;
    for (uint32_t n = 1 + pick(p, 9); n; n--)
        step(p, &t);
    for (uint32_t i = 0; i < N_STREAMS; i++)
        if (t.forked[i] && chance(p, 95))
            fork_or_join(p, &t, i, false);
    say(p, "end");
    CUresult r;
    STREAM_CALL(p, cuStreamEndCapture, t.origin, r, s_, &handle);
    if (r == CUDA_SUCCESS)
        given_graph(p, &t, handle);
    else if (t.own && t.graph >= 0) {
        forget_graph(p, t.graph);
        t.graph = -1;
    }
    say_graph(p, handle);
    say_result(p, r);
    if (t.graph >= 0) {
        adopt(p, t.graph, true);
        sort_notes(p, t.graph);
    }
}
