/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that the library makes at every launch, or might make. */
#include "facts.h"

#include <dmi/ring.h>

#include <string.h>

struct subject {
    CUstream stream;
    CUfunction function;
    CUdeviceptr memory;
};

static CUresult get_current(void *arg, unsigned i)
{
    CUcontext context;
    (void)arg;
    (void)i;
    return driver.cuCtxGetCurrent(&context);
}

static CUresult is_capturing(void *arg, unsigned i)
{
    const struct subject *s = arg;
    CUstreamCaptureStatus status;
    (void)i;
    return driver.cuStreamIsCapturing(s->stream, &status);
}

static CUresult is_capturing_null(void *arg, unsigned i)
{
    CUstreamCaptureStatus status;
    (void)arg;
    (void)i;
    return driver.cuStreamIsCapturing(NULL, &status);
}

static CUresult capture_info(void *arg, unsigned i)
{
    const struct subject *s = arg;
    CUstreamCaptureStatus status;
    (void)i;
    return driver.cuStreamGetCaptureInfo_v2(s->stream, &status, NULL, NULL, NULL, NULL);
}

static CUresult exchange_mode(void *arg, unsigned i)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    (void)arg;
    (void)i;
    CUresult r = driver.cuThreadExchangeStreamCaptureMode(&mode);
    return r == CUDA_SUCCESS ? driver.cuThreadExchangeStreamCaptureMode(&mode) : r;
}

static CUresult pointer_context(void *arg, unsigned i)
{
    const struct subject *s = arg;
    CUcontext context;
    (void)i;
    return driver.cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, s->memory);
}

#define IN_FLIGHT                                                                                  \
    128 /* after so many launches the stream is waited for, outside of what is measured */

static CUresult launch_ns(double *ns, struct subject *s, size_t parameter_bytes)
{
    static _Alignas(16) unsigned char parameter[4096];
    static double values[2000];
    void *params[] = { parameter };
    unsigned n = rounds(LENGTH(values));

    if (parameter_bytes)
        PASS(kernel(&s->function, parameter_bytes == 8 ? "empty8" : "idle_copy"));
    else
        PASS(kernel(&s->function, "empty"));
    ((struct dmi_graph_copy *)(void *)parameter)->state = s->memory; /* of idle_copy */
    for (unsigned i = 0; i < n; i++) {
        uint64_t start = now_ns();
        PASS(launch(s->function, 1, 1, s->stream, parameter_bytes ? params : NULL));
        values[i] = (double)(now_ns() - start);
        if (i % IN_FLIGHT == IN_FLIGHT - 1)
            PASS(CU(cuStreamSynchronize, s->stream));
    }
    *ns = median(values, n);
    return CU(cuStreamSynchronize, s->stream);
}

void ask_call_costs(void)
{
    static const struct {
        const char *name;
        timed_call *call;
    } calls[] = {
        { "cuCtxGetCurrent", get_current },
        { "cuStreamIsCapturing", is_capturing },
        { "cuStreamIsCapturing of the NULL stream", is_capturing_null },
        { "cuStreamGetCaptureInfo_v2, nothing captured", capture_info },
        { "cuThreadExchangeStreamCaptureMode, there and back", exchange_mode },
        { "cuPointerGetAttribute, the context", pointer_context },
    };
    struct subject s;
    double ns;

    TRY(new_stream(&s.stream));
    TRY(device_memory(&s.memory, 4096));
    for (size_t i = 0; i < LENGTH(calls); i++) {
        CUresult r = time_calls(&ns, rounds(200), 50, calls[i].call, &s);
        if (r == CUDA_SUCCESS)
            figure(calls[i].name, ns, "ns");
        else
            result(calls[i].name, r);
    }
    TRY(launch_ns(&ns, &s, 0));
    figure("cuLaunchKernel, no parameter", ns, "ns");
    TRY(launch_ns(&ns, &s, 8));
    figure("cuLaunchKernel, 8 bytes", ns, "ns");
    TRY(launch_ns(&ns, &s, sizeof(struct dmi_graph_copy)));
    figure("cuLaunchKernel, 136 bytes", ns, "ns");
}

/* ------------------------------------------------------------------ an update as the library makes it */

#define UPDATED_NODES 500
#define UPDATES       5

/* What the library asks of a node before it updates an exec with a clone of the given graph. */
static CUresult query_node(CUgraphNode node, CUgraph clone)
{
    CUgraphNode others[4], twin;
    CUgraphEdgeData data[4];
    CUgraphNodeType type;
    CUDA_KERNEL_NODE_PARAMS_v2 k;
    CUlaunchAttributeValue value;
    size_t n = 0;

    PASS(CU(cuGraphNodeGetType, node, &type));
    PASS(CU(cuGraphKernelNodeGetParams_v2, node, &k));
    PASS(CU(cuGraphKernelNodeGetAttribute, node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    PASS(CU(cuGraphNodeFindInClone, &twin, node, clone));
    PASS(CU(cuGraphNodeGetDependencies_v2, twin, NULL, NULL, &n));
    PASS(CU(cuGraphNodeGetDependentNodes_v2, twin, NULL, NULL, &n));
    n = LENGTH(others);
    return CU(cuGraphNodeGetDependentNodes_v2, twin, others, data, &n);
}

static CUresult time_update(CUgraphExec exec, CUgraph graph, const CUgraphNode *nodes, double ms[4])
{
    CUgraphExecUpdateResultInfo info;
    CUgraph clone;

    uint64_t a = now_ns();
    PASS(CU(cuGraphExecUpdate_v2, exec, graph, &info));
    uint64_t b = now_ns();
    PASS(CU(cuGraphClone, &clone, graph));
    uint64_t c = now_ns();
    for (unsigned k = 0; k < UPDATED_NODES; k++)
        PASS(query_node(nodes[k], clone));
    uint64_t d = now_ns();
    PASS(CU(cuGraphExecUpdate_v2, exec, clone, &info));
    PASS(CU(cuGraphDestroy, clone));
    ms[0] = (double)(b - a) / 1e6;
    ms[1] = (double)(c - b) / 1e6;
    ms[2] = (double)(d - c) / 1e6;
    ms[3] = (double)(now_ns() - b) / 1e6;
    return CUDA_SUCCESS;
}

void ask_update_cost(void)
{
    static const char *const what[] = { "update of 500 nodes", "clone of 500 nodes",
                                        "seven queries a node, of 500",
                                        "clone, queries, update and the clone's end" };
    static CUgraphNode nodes[UPDATED_NODES];
    double each[4], ms[4][UPDATES];
    CUfunction poke;
    CUdeviceptr p;
    uint32_t value = 1;
    void *params[] = { &p, &value };
    CUgraph graph;
    CUgraphExec exec;

    TRY(device_memory(&p, 64));
    TRY(kernel(&poke, "poke"));
    TRY(CU(cuGraphCreate, &graph, 0));
    TRY(add_chain(graph, nodes, UPDATED_NODES, poke, params));
    TRY(new_exec(&exec, graph));
    for (int i = 0; i < UPDATES; i++) {
        TRY(time_update(exec, graph, nodes, each));
        for (size_t k = 0; k < LENGTH(each); k++)
            ms[k][i] = each[k];
    }
    for (size_t k = 0; k < LENGTH(each); k++)
        figure(what[k], median(ms[k], UPDATES), "ms");
}
