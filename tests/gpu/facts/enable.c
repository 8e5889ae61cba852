/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that are switched off, and what nodes that do nothing cost. */
#include "facts.h"

#include <dmi/ring.h>

#include <stdio.h>
#include <string.h>

struct toggled {
    CUgraphExec exec;
    CUgraphNode node;
};

static CUresult toggle(void *arg, unsigned i)
{
    struct toggled *t = arg;
    return driver.cuGraphNodeSetEnabled(t->exec, t->node, i & 1);
}

void ask_set_enabled(void)
{
    CUdeviceptr p;
    uint32_t value = 1, got = 0;
    unsigned enabled = 9;
    void *params[] = { &p, &value };
    CUfunction poke;
    CUgraph graph;
    CUgraphNode node, memset_node;
    CUgraphExec exec;
    CUstream stream;
    double ns;

    TRY(device_memory(&p, 4096));
    TRY(kernel(&poke, "poke"));
    TRY(new_stream(&stream));
    TRY(CU(cuGraphCreate, &graph, 0));
    TRY(add_kernel(graph, &node, NULL, poke, params));
    CUDA_MEMSET_NODE_PARAMS_v1 zero = {
        .dst = p + 1024, .elementSize = 4, .width = 4, .height = 1
    };
    TRY(CU(cuGraphAddMemsetNode, &memset_node, graph, &node, 1, &zero, driver.context));
    TRY(new_exec(&exec, graph));
    TRY(CU(cuGraphNodeSetEnabled, exec, node, 0));
    TRY(CU(cuGraphNodeGetEnabled, exec, node, &enabled));
    TRY(CU(cuGraphLaunch, exec, stream));
    TRY(CU(cuStreamSynchronize, stream));
    TRY(CU(cuMemcpyDtoH_v2, &got, p, 4));
    holds("a kernel switched off by its template's node does not run", !got && !enabled);
    TRY(CU(cuGraphNodeSetEnabled, exec, node, 1));
    TRY(CU(cuGraphLaunch, exec, stream));
    TRY(CU(cuStreamSynchronize, stream));
    TRY(CU(cuMemcpyDtoH_v2, &got, p, 4));
    holds("switched on again it runs", got == 1);
    result("a memset node", CU(cuGraphNodeSetEnabled, exec, memset_node, 0));

    /* while a gate holds the stream: does it affect only later launches? */
    struct gate gate;
    TRY(gate_init(&gate));
    TRY(CU(cuMemsetD8_v2, p, 0, 4));
    TRY(CU(cuCtxSynchronize));
    TRY(gate_launch(&gate, stream));
    TRY(CU(cuGraphLaunch, exec, stream));
    TRY(CU(cuGraphNodeSetEnabled, exec, node, 0));
    gate_open(&gate);
    TRY(CU(cuStreamSynchronize, stream));
    TRY(CU(cuMemcpyDtoH_v2, &got, p, 4));
    holds("a queued launch keeps the node that is switched off after it",
          got == 1 && !gate_expired(&gate));
    struct toggled t = { exec, node };
    TRY(time_calls(&ns, rounds(2000), 1, toggle, &t));
    figure("cuGraphNodeSetEnabled", ns, "ns");
}

/* ------------------------------------------------------------------ replays */

#define CHAIN 200

enum extra { NOTHING, COPIES, SWITCHED_OFF };

/* A chain of CHAIN empty kernels, each followed by a copy that finds no ticket: us a replay. */
static CUresult replay_us(double *us, enum extra extra, unsigned blocks)
{
    CUfunction empty, copy;
    CUgraph graph;
    CUgraphNode before = NULL, node, extras[CHAIN];
    CUgraphExec exec;
    CUstream stream;
    CUdeviceptr state;
    struct dmi_graph_copy param = { 0 };
    void *params[] = { &param };

    PASS(kernel(&empty, "empty"));
    PASS(kernel(&copy, "idle_copy"));
    PASS(device_memory(&state, sizeof(struct dmi_ticket)));
    param.state = state;
    PASS(CU(cuGraphCreate, &graph, 0));
    CUDA_KERNEL_NODE_PARAMS_v2 k = node_params(copy, blocks, 256, params);
    for (int i = 0; i < CHAIN; i++) {
        PASS(add_kernel(graph, &node, i ? &before : NULL, empty, NULL));
        before = node;
        if (extra == NOTHING)
            continue;
        PASS(CU(cuGraphAddKernelNode_v2, &extras[i], graph, &node, 1, &k));
        before = extras[i];
    }
    PASS(new_exec(&exec, graph));
    for (int i = 0; i < CHAIN && extra == SWITCHED_OFF; i++)
        PASS(CU(cuGraphNodeSetEnabled, exec, extras[i], 0));
    PASS(new_stream(&stream));
    return time_replays(us, exec, stream, rounds(40));
}

void ask_replay_of_extra_nodes(void)
{
    static const unsigned blocks[] = { 1, 132, 1024 };
    double plain, us;
    char what[96];

    TRY(replay_us(&plain, NOTHING, 1));
    figure("a chain of 200 empty kernels", plain, "us");
    figure("each of them", plain / CHAIN, "us");
    for (size_t i = 0; i < LENGTH(blocks) && (!driver.standin || !i); i++) {
        TRY(replay_us(&us, COPIES, blocks[i]));
        snprintf(what, sizeof what, "a copy without a ticket, %u blocks of 256 threads", blocks[i]);
        figure(what, (us - plain) / CHAIN, "us");
    }
    for (size_t i = 0; i < LENGTH(blocks) && (!driver.standin || !i); i++) {
        TRY(replay_us(&us, SWITCHED_OFF, blocks[i]));
        snprintf(what, sizeof what, "the same switched off, %u blocks", blocks[i]);
        figure(what, (us - plain) / CHAIN, "us");
    }
}
