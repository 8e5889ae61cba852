/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of one exec that are queued, that run, and that meet on two streams. */
#include "facts.h"

#include <dmi/ring.h>

#include <stdio.h>
#include <string.h>

#define LAUNCHES 8

/* An exec of one kernel, whose launches are to write to distinct slots of pinned memory. */
struct slots {
    uint32_t *host;
    CUdeviceptr device;
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CUstream stream;
    struct gate gate;
    CUfunction poke, bulk;
};

static CUresult slots_init(struct slots *s)
{
    PASS(pinned_memory(&s->host, &s->device, 4096));
    PASS(new_stream(&s->stream));
    PASS(gate_init(&s->gate));
    PASS(kernel(&s->poke, "poke"));
    PASS(kernel(&s->bulk, "bulk"));
    return CU(cuGraphCreate, &s->graph, 0);
}

enum way { SET_V1, SET_V2, SET_BULK, SET_TURNS };

/* Launch @i writes 100 + i to slot i. */
static CUresult set_params(struct slots *s, enum way way, unsigned i)
{
    CUdeviceptr p = s->device + 4 * i;
    uint32_t value = 100 + i;
    static struct dmi_open open;
    void *two[] = { &p, &value }, *one[] = { &open };

    if (way == SET_TURNS)
        way = i % 2 ? SET_BULK : SET_V2;
    if (way == SET_BULK) {
        open.state = s->device;
        open.ticket.close_slot = i;
        memcpy((char *)&open + sizeof open - 4, &value, 4);
    }
    if (way != SET_V1) {
        CUDA_KERNEL_NODE_PARAMS_v2 k =
            way == SET_BULK ? node_params(s->bulk, 1, 1, one) : node_params(s->poke, 1, 1, two);
        return CU(cuGraphExecKernelNodeSetParams_v2, s->exec, s->node, &k);
    }
    CUDA_KERNEL_NODE_PARAMS_v1 k = {
        .func = s->poke,
        .gridDimX = 1,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = 1,
        .blockDimY = 1,
        .blockDimZ = 1,
        .kernelParams = two,
    };
    return CU(cuGraphExecKernelNodeSetParams, s->exec, s->node, &k);
}

static unsigned count_right(const struct slots *s, unsigned from)
{
    unsigned n = 0;
    for (unsigned i = from; i < LAUNCHES; i++)
        n += s->host[i] == 100 + i;
    return n;
}

static void ask_queued(enum way way, const char *how)
{
    struct slots s = { 0 };
    char what[128];
    CUdeviceptr p;
    uint32_t value = 0;
    static struct dmi_open open;
    void *two[] = { &p, &value }, *one[] = { &open };

    TRY(slots_init(&s));
    p = open.state = s.device + 2048;
    TRY(add_kernel(s.graph, &s.node, NULL, way == SET_BULK ? s.bulk : s.poke,
                   way == SET_BULK ? one : two));
    TRY(new_exec(&s.exec, s.graph));
    TRY(gate_launch(&s.gate, s.stream));
    uint64_t start = now_ns();
    for (unsigned i = 0; i < LAUNCHES; i++) {
        TRY(set_params(&s, way, i));
        TRY(CU(cuGraphLaunch, s.exec, s.stream));
    }
    double us = (double)(now_ns() - start) / 1000;
    gate_open(&s.gate);
    TRY(CU(cuStreamSynchronize, s.stream));
    snprintf(what, sizeof what, "%s: each of %d queued launches had its own", how, LAUNCHES);
    holds(what, count_right(&s, 0) == LAUNCHES);
    snprintf(what, sizeof what, "%s: nothing waited for the stream", how);
    holds(what, !gate_expired(&s.gate));
    snprintf(what, sizeof what, "%s: setting and launching %d times", how, LAUNCHES);
    figure(what, us, "us");
}

void ask_queued_params(void)
{
    ask_queued(SET_V1, "12 bytes, first form");
    ask_queued(SET_V2, "12 bytes");
    ask_queued(SET_BULK, "a ticket");
    ask_queued(SET_TURNS, "a ticket and 12 bytes in turn, each with its kernel");
}

void ask_running_params(void)
{
    struct slots s = { 0 };
    CUgraphNode gate;
    CUdeviceptr p;
    uint32_t value = 100;
    void *two[] = { &p, &value };

    TRY(slots_init(&s));
    p = s.device;
    TRY(gate_add(&s.gate, s.graph, &gate));
    TRY(add_kernel(s.graph, &s.node, &gate, s.poke, two));
    TRY(new_exec(&s.exec, s.graph));
    TRY(CU(cuGraphLaunch, s.exec, s.stream));
    if (!gate_wait_started(&s.gate)) {
        skipped("the first launch did not begin within a second");
        return;
    }
    uint64_t start = now_ns();
    for (unsigned i = 1; i < LAUNCHES; i++) {
        TRY(set_params(&s, SET_V2, i));
        TRY(CU(cuGraphLaunch, s.exec, s.stream));
    }
    double us = (double)(now_ns() - start) / 1000;
    gate_open(&s.gate);
    TRY(CU(cuStreamSynchronize, s.stream));
    holds("the launch that ran wrote with its own", s.host[0] == 100);
    holds("those after it wrote with theirs", count_right(&s, 1) == LAUNCHES - 1);
    holds("nothing waited for the launch that ran", !gate_expired(&s.gate));
    figure("setting and launching after it, 7 times", us, "us");
}

/* ------------------------------------------------------------------ two streams */

static CUresult most_at_a_time(uint32_t *most, CUgraphExec first, CUgraphExec second,
                               CUdeviceptr counters)
{
    CUstream a, b;

    PASS(new_stream(&a));
    PASS(new_stream(&b));
    PASS(CU(cuMemsetD8_v2, counters, 0, 8));
    PASS(CU(cuCtxSynchronize));
    for (int i = 0; i < 4; i++) {
        PASS(CU(cuGraphLaunch, first, a));
        PASS(CU(cuGraphLaunch, second, b));
    }
    PASS(CU(cuStreamSynchronize, a));
    PASS(CU(cuStreamSynchronize, b));
    return CU(cuMemcpyDtoH_v2, most, counters + 4, 4);
}

void ask_exec_two_streams(void)
{
    CUdeviceptr counters;
    uint64_t ns = 5000000;
    uint32_t most = 0;
    void *params[] = { &counters, &ns };
    CUfunction crowd;
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec, other;

    TRY(device_memory(&counters, 8));
    TRY(kernel(&crowd, "crowd"));
    TRY(CU(cuGraphCreate, &graph, 0));
    TRY(add_kernel(graph, &node, NULL, crowd, params));
    TRY(new_exec(&exec, graph));
    TRY(new_exec(&other, graph));
    TRY(most_at_a_time(&most, exec, other, counters));
    figure("two execs of a graph, launched on two streams: at a time", most, "");
    TRY(most_at_a_time(&most, exec, exec, counters));
    figure("one exec, launched on the same two: at a time", most, "");
    holds("launches of one exec run one after another", most == 1);
}
