/* SPDX-License-Identifier: Apache-2.0 */
/* Four ways to give a graph's launch its ticket of 3.9 KB, and what they cost. */
#include "facts.h"

#include <dmi/ring.h>

#include <stdio.h>
#include <string.h>

#define NODES        200
#define SLOTS        16 /* of the ring; no launch waits for room in the driver's queue */
#define SLOT_BYTES   4096
#define MAX_LAUNCHES 320

static_assert(sizeof(struct dmi_open) <= SLOT_BYTES, "a slot holds a ticket");

enum way { NOTHING, NODE_PARAMS, KERNEL_BEFORE, COPY_BEFORE, RING, N_WAYS };

static const char *const names[N_WAYS] = {
    "no ticket",
    "parameters of a node",
    "a kernel in front of the graph",
    "a copy in front of it",
    "a pinned ring that a node reads",
};

struct ticketed {
    enum way way;
    CUgraphExec exec;
    CUgraphNode first;
    CUfunction bulk;
    CUstream stream;
    CUdeviceptr state, ring_device;
    unsigned char *ring;
    struct dmi_open open;
};

static CUresult init(struct ticketed *t, enum way way)
{
    CUfunction empty, fetch;
    CUgraph graph;
    CUgraphNode node, before;
    void *open_params[] = { &t->open }, *fetch_params[] = { &t->ring_device, &t->state };

    memset(t, 0, sizeof *t);
    t->way = way;
    PASS(device_memory(&t->state, 2 * SLOT_BYTES));
    PASS(pinned_memory(&t->ring, &t->ring_device, (size_t)SLOTS * SLOT_BYTES));
    PASS(new_stream(&t->stream));
    PASS(kernel(&empty, "empty"));
    PASS(kernel(&t->bulk, "bulk"));
    PASS(kernel(&fetch, "fetch"));
    t->open.state = t->state;
    PASS(CU(cuGraphCreate, &graph, 0));
    CUDA_KERNEL_NODE_PARAMS_v2 k = way == NODE_PARAMS ? node_params(t->bulk, 1, 1, open_params)
                                   : way == RING      ? node_params(fetch, 1, 256, fetch_params)
                                                      : node_params(empty, 1, 1, NULL);
    PASS(CU(cuGraphAddKernelNode_v2, &t->first, graph, NULL, 0, &k));
    before = t->first;
    for (unsigned i = 1; i < NODES; i++) {
        PASS(add_kernel(graph, &node, &before, empty, NULL));
        before = node;
    }
    return new_exec(&t->exec, graph);
}

/* Launch @i, with its ticket. */
static CUresult deliver(struct ticketed *t, unsigned i)
{
    unsigned char *slot = t->ring + (size_t)(i % SLOTS) * SLOT_BYTES;
    void *params[] = { &t->open };

    t->open.ticket.seq = i + 2;
    switch (t->way) {
    case NODE_PARAMS: {
        CUDA_KERNEL_NODE_PARAMS_v2 k = node_params(t->bulk, 1, 1, params);
        PASS(CU(cuGraphExecKernelNodeSetParams_v2, t->exec, t->first, &k));
        break;
    }
    case KERNEL_BEFORE: PASS(launch(t->bulk, 1, 1, t->stream, params)); break;
    case COPY_BEFORE:
        memcpy(slot, &t->open, sizeof t->open);
        PASS(CU(cuMemcpyHtoDAsync_v2, t->state, slot, sizeof t->open, t->stream));
        break;
    case RING: memcpy(slot, &t->open, sizeof t->open); break;
    default: break;
    }
    return CU(cuGraphLaunch, t->exec, t->stream);
}

static CUresult measure(struct ticketed *t)
{
    static double call_ns[MAX_LAUNCHES], alone_us[MAX_LAUNCHES];
    unsigned n = rounds(MAX_LAUNCHES);
    char what[96];

    PASS(deliver(t, 0));
    PASS(CU(cuStreamSynchronize, t->stream));
    uint64_t start = now_ns();
    for (unsigned i = 0; i < n; i++) {
        uint64_t a = now_ns();
        PASS(deliver(t, i));
        call_ns[i] = (double)(now_ns() - a);
        if (i % SLOTS == SLOTS - 1)
            PASS(CU(cuStreamSynchronize, t->stream));
    }
    PASS(CU(cuStreamSynchronize, t->stream));
    double us = (double)(now_ns() - start) / 1000 / n;
    for (unsigned i = 0; i < n / 4 + 1; i++) {
        uint64_t a = now_ns();
        PASS(deliver(t, i));
        PASS(CU(cuStreamSynchronize, t->stream));
        alone_us[i] = (double)(now_ns() - a) / 1000;
    }
    snprintf(what, sizeof what, "%s: ticket and launch, the calls", names[t->way]);
    figure(what, median(call_ns, n), "ns");
    snprintf(what, sizeof what, "%s: from replay to replay, 16 in flight", names[t->way]);
    figure(what, us, "us");
    snprintf(what, sizeof what, "%s: one alone, until it is done", names[t->way]);
    figure(what, median(alone_us, n / 4 + 1), "us");
    return CUDA_SUCCESS;
}

void ask_ticket_delivery(void)
{
    static struct ticketed t;

    for (enum way way = NOTHING; way < N_WAYS; way++) {
        TRY(init(&t, way));
        TRY(measure(&t));
    }
}
