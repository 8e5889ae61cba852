/* SPDX-License-Identifier: Apache-2.0 */
/* What the host pays for a graph's launch, and for the ticket that is set before it. */
#include "facts.h"

#include <dmi/ring.h>

#include <stdio.h>
#include <string.h>

/* A graph that begins with a kernel whose parameter is set anew, followed by a chain of empty ones. */
struct ticketed {
    CUgraph graph;
    CUgraphNode first;
    CUgraphExec exec;
    CUstream stream;
    CUfunction function;
    bool small; /* 8 bytes, else a struct dmi_open */
    struct dmi_open open;
};

static CUresult set_ticket(void *arg, unsigned i)
{
    struct ticketed *t = arg;
    void *params[] = { &t->open }; /* its first 8 bytes are an address, too */
    CUDA_KERNEL_NODE_PARAMS_v2 k = node_params(t->function, 1, 1, params);

    t->open.ticket.seq = i;
    if (t->small)
        t->open.state ^= 4;
    return CU(cuGraphExecKernelNodeSetParams_v2, t->exec, t->first, &k);
}

static CUresult ticketed_init(struct ticketed *t, bool small, unsigned n_nodes)
{
    void *params[] = { &t->open };
    CUgraphNode before, node;
    CUfunction empty;
    CUdeviceptr state;

    *t = (struct ticketed){ .small = small };
    PASS(device_memory(&state, 4096));
    t->open.state = state;
    PASS(new_stream(&t->stream));
    PASS(kernel(&empty, "empty"));
    PASS(kernel(&t->function, small ? "empty8" : "bulk"));
    PASS(CU(cuGraphCreate, &t->graph, 0));
    PASS(add_kernel(t->graph, &t->first, NULL, t->function, params));
    before = t->first;
    for (unsigned i = 1; i < n_nodes; i++) {
        PASS(add_kernel(t->graph, &node, &before, empty, NULL));
        before = node;
    }
    return new_exec(&t->exec, t->graph);
}

void ask_set_params_cost(void)
{
    static const struct {
        bool small;
        unsigned n_nodes;
        const char *what;
    } rows[] = {
        { true, 1, "8 bytes, the only node" },
        { false, 1, "a ticket (4088 bytes), the only node" },
        { true, 500, "8 bytes, first of 500 nodes" },
        { false, 500, "a ticket, first of 500 nodes" },
    };
    for (size_t i = 0; i < LENGTH(rows); i++) {
        struct ticketed t;
        double ns;
        TRY(ticketed_init(&t, rows[i].small, rows[i].n_nodes));
        TRY(time_calls(&ns, rounds(1000), 1, set_ticket, &t));
        figure(rows[i].what, ns, "ns");
    }
}

/* ------------------------------------------------------------------ launches */

#define MAX_LAUNCHES 400
#define IN_FLIGHT    16 /* no launch waits for room in the driver's queue */

struct cost {
    double set_ns, launch_ns, replay_us;
};

/* Medians of the calls, with the stream never full; and of a replay when launches follow each other. */
static CUresult launch_cost(struct cost *cost, struct ticketed *t, bool set)
{
    static double set_ns[MAX_LAUNCHES], launch_ns[MAX_LAUNCHES];
    unsigned n = rounds(MAX_LAUNCHES);

    PASS(CU(cuGraphLaunch, t->exec, t->stream));
    PASS(CU(cuStreamSynchronize, t->stream));
    for (unsigned i = 0; i < n; i++) {
        uint64_t a = now_ns();
        if (set)
            PASS(set_ticket(t, i));
        uint64_t b = now_ns();
        PASS(CU(cuGraphLaunch, t->exec, t->stream));
        uint64_t c = now_ns();
        set_ns[i] = (double)(b - a);
        launch_ns[i] = (double)(c - b);
        if (i % IN_FLIGHT == IN_FLIGHT - 1)
            PASS(CU(cuStreamSynchronize, t->stream));
    }
    PASS(CU(cuStreamSynchronize, t->stream));
    uint64_t start = now_ns();
    for (unsigned i = 0; i < n; i++) {
        if (set)
            PASS(set_ticket(t, i));
        PASS(CU(cuGraphLaunch, t->exec, t->stream));
    }
    PASS(CU(cuStreamSynchronize, t->stream));
    cost->replay_us = (double)(now_ns() - start) / 1000 / n;
    cost->set_ns = median(set_ns, n);
    cost->launch_ns = median(launch_ns, n);
    return CUDA_SUCCESS;
}

void ask_graph_launch_cost(void)
{
    static const unsigned sizes[] = { 1, 200, 500 };

    for (size_t i = 0; i < LENGTH(sizes); i++) {
        struct ticketed t;
        struct cost plain, set;
        char what[96];
        TRY(ticketed_init(&t, false, sizes[i]));
        TRY(launch_cost(&plain, &t, false));
        TRY(launch_cost(&set, &t, true));
        snprintf(what, sizeof what, "%u nodes: cuGraphLaunch", sizes[i]);
        figure(what, plain.launch_ns, "ns");
        snprintf(what, sizeof what, "%u nodes: cuGraphLaunch after a ticket", sizes[i]);
        figure(what, set.launch_ns, "ns");
        snprintf(what, sizeof what, "%u nodes: setting the ticket between launches", sizes[i]);
        figure(what, set.set_ns, "ns");
        snprintf(what, sizeof what, "%u nodes: from replay to replay", sizes[i]);
        figure(what, plain.replay_us, "us");
        snprintf(what, sizeof what, "%u nodes: from replay to replay, a ticket each", sizes[i]);
        figure(what, set.replay_us, "us");
    }
}

/* ------------------------------------------------------------------ switched nodes */

#define SWITCHED_NODES 500

/* As when sites are switched between replays: @n nodes before each launch. */
static CUresult switch_and_launch(unsigned n, CUgraphExec exec, const CUgraphNode *nodes,
                                  CUstream stream)
{
    static double switch_ns[MAX_LAUNCHES], launch_ns[MAX_LAUNCHES];
    unsigned times = rounds(100);
    char what[96];
    uint64_t start = now_ns();

    for (unsigned i = 0; i < times; i++) {
        uint64_t a = now_ns();
        for (unsigned k = 0; k < n; k++)
            PASS(CU(cuGraphNodeSetEnabled, exec, nodes[1 + k * 4], i & 1));
        uint64_t b = now_ns();
        PASS(CU(cuGraphLaunch, exec, stream));
        switch_ns[i] = (double)(b - a);
        launch_ns[i] = (double)(now_ns() - b);
    }
    PASS(CU(cuStreamSynchronize, stream));
    double us = (double)(now_ns() - start) / 1000 / times;
    snprintf(what, sizeof what, "%u of 500 nodes switched: the switching", n);
    figure(what, median(switch_ns, times), "ns");
    snprintf(what, sizeof what, "%u of 500 nodes switched: cuGraphLaunch after it", n);
    figure(what, median(launch_ns, times), "ns");
    snprintf(what, sizeof what, "%u of 500 nodes switched: from replay to replay", n);
    figure(what, us, "us");
    return CUDA_SUCCESS;
}

void ask_launch_behind_switch(void)
{
    static CUgraphNode nodes[SWITCHED_NODES];
    static const unsigned numbers[] = { 0, 1, 100 };
    CUfunction empty;
    CUgraph graph;
    CUgraphExec exec;
    CUstream stream;

    TRY(kernel(&empty, "empty"));
    TRY(new_stream(&stream));
    TRY(CU(cuGraphCreate, &graph, 0));
    TRY(add_chain(graph, nodes, SWITCHED_NODES, empty, NULL));
    TRY(new_exec(&exec, graph));
    TRY(CU(cuGraphLaunch, exec, stream));
    TRY(CU(cuStreamSynchronize, stream));
    for (size_t i = 0; i < LENGTH(numbers); i++)
        TRY(switch_and_launch(numbers[i], exec, nodes, stream));
}

/* ------------------------------------------------------------------ upload */

static CUresult first_launch(const char *how, bool upload, bool set)
{
    struct ticketed t;
    char what[96];

    PASS(ticketed_init(&t, false, 500));
    if (upload) {
        uint64_t start = now_ns();
        PASS(CU(cuGraphUpload, t.exec, t.stream));
        PASS(CU(cuStreamSynchronize, t.stream));
        snprintf(what, sizeof what, "%s: cuGraphUpload until it is done", how);
        figure(what, (double)(now_ns() - start) / 1000, "us");
    }
    if (set)
        PASS(set_ticket(&t, 1));
    for (int i = 0; i < 2; i++) {
        uint64_t start = now_ns();
        PASS(CU(cuGraphLaunch, t.exec, t.stream));
        uint64_t launched = now_ns();
        PASS(CU(cuStreamSynchronize, t.stream));
        snprintf(what, sizeof what, "%s: %s launch, the call", how, i ? "second" : "first");
        figure(what, (double)(launched - start) / 1000, "us");
        snprintf(what, sizeof what, "%s: %s launch, until it is done", how, i ? "second" : "first");
        figure(what, (double)(now_ns() - start) / 1000, "us");
    }
    return CUDA_SUCCESS;
}

void ask_upload(void)
{
    TRY(first_launch("warming up, 500 nodes", false, false));
    TRY(first_launch("no upload", false, false));
    TRY(first_launch("uploaded", true, false));
    TRY(first_launch("uploaded, then a ticket", true, true));
}
