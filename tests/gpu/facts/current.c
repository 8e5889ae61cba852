/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of a thread that has no current context: which of them work, by their stream's or their nodes' context. */
#include "facts.h"

struct subject {
    CUfunction poke;
    CUdeviceptr p; /* a word for each launch */
    CUstream stream;
    CUgraph graph, alike;
    CUgraphNode node;
    CUgraphExec exec;
};

#define WORDS 4

static CUresult prepare(struct subject *s)
{
    uint32_t value = 1;
    CUdeviceptr third;
    void *params[] = { &third, &value };

    PASS(kernel(&s->poke, "poke"));
    PASS(device_memory(&s->p, WORDS * 4));
    third = s->p + 8;
    PASS(new_stream(&s->stream));
    PASS(CU(cuGraphCreate, &s->graph, 0));
    PASS(add_kernel(s->graph, &s->node, NULL, s->poke, params));
    PASS(new_exec(&s->exec, s->graph));
    PASS(CU(cuGraphCreate, &s->alike, 0));
    return add_chain(s->alike, NULL, 1, s->poke, params);
}

static CUresult poke_word(const struct subject *s, unsigned word, CUstream stream)
{
    CUdeviceptr p = s->p + 4 * word;
    uint32_t value = 1;
    void *params[] = { &p, &value };
    return launch(s->poke, 1, 1, stream, params);
}

static void ask_graph_calls(const struct subject *s)
{
    CUdeviceptr fourth = s->p + 12;
    uint32_t value = 1;
    void *params[] = { &fourth, &value };
    CUDA_KERNEL_NODE_PARAMS_v2 k = node_params(s->poke, 1, 1, params);
    CUgraphExecUpdateResultInfo info;
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;

    result("cuGraphLaunch", CU(cuGraphLaunch, s->exec, s->stream));
    result("cuGraphCreate", CU(cuGraphCreate, &graph, 0));
    result("adding a kernel to a graph", CU(cuGraphAddKernelNode_v2, &node, s->alike, NULL, 0, &k));
    result("cuGraphClone", CU(cuGraphClone, &graph, s->graph));
    CUresult r = new_exec(&exec, s->graph);
    result("cuGraphInstantiateWithFlags", r);
    result("cuGraphExecUpdate_v2", CU(cuGraphExecUpdate_v2, s->exec, s->graph, &info));
    result("cuGraphNodeSetEnabled", CU(cuGraphNodeSetEnabled, s->exec, s->node, 1));
    result("cuGraphExecKernelNodeSetParams_v2",
           CU(cuGraphExecKernelNodeSetParams_v2, s->exec, s->node, &k));
    if (r == CUDA_SUCCESS)
        result("cuGraphExecDestroy", CU(cuGraphExecDestroy, exec));
}

static void ask_other_calls(const struct subject *s)
{
    CUstreamCaptureStatus status;
    CUdeviceptr base, p;
    CUcontext context;
    CUmodule module;
    CUevent event;
    size_t n;

    result("cuStreamGetCtx", CU(cuStreamGetCtx, s->stream, &context));
    result("cuStreamIsCapturing", CU(cuStreamIsCapturing, s->stream, &status));
    result("cuPointerGetAttribute, the context",
           CU(cuPointerGetAttribute, &context, CU_POINTER_ATTRIBUTE_CONTEXT, s->p));
    result("cuMemGetAddressRange_v2", CU(cuMemGetAddressRange_v2, &base, &n, s->p));
    result("cuFuncGetParamInfo", CU(cuFuncGetParamInfo, s->poke, 0, &n, &n));
    result("cuFuncGetModule", CU(cuFuncGetModule, &module, s->poke));
    result("cuEventCreate", CU(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING));
    result("cuMemAlloc_v2", CU(cuMemAlloc_v2, &p, 64));
    result("cuMemAllocAsync, on a stream", CU(cuMemAllocAsync, &p, 64, s->stream));
    result("cuModuleLoadData", CU(cuModuleLoadData, &module, kernels_ptx));
}

void ask_no_context(void)
{
    uint32_t words[WORDS];
    struct subject s;

    TRY(prepare(&s));
    TRY(CU(cuCtxSynchronize));
    TRY(CU(cuCtxSetCurrent, NULL));
    result("cuLaunchKernel on a stream of the function's context", poke_word(&s, 0, s.stream));
    result("cuLaunchKernel on the NULL stream", poke_word(&s, 1, NULL));
    ask_graph_calls(&s);
    result("cuStreamSynchronize", CU(cuStreamSynchronize, s.stream));
    ask_other_calls(&s);
    TRY(CU(cuCtxSetCurrent, driver.context));
    TRY(CU(cuCtxSynchronize));
    TRY(CU(cuMemcpyDtoH_v2, words, s.p, sizeof words));
    says("the launch on a stream has run", words[0] ? "yes" : "no");
    says("the launch on the NULL stream has run", words[1] ? "yes" : "no");
    says("the graph has run", words[2] ? "yes" : "no");
}
