/* SPDX-License-Identifier: Apache-2.0 */
/* What can be known, and done, while a stream is captured. */
#include "facts.h"

#include <stdio.h>
#include <string.h>

/* Is the one node that the next operation would depend on a kernel that writes @value? */
static bool is_poke(CUgraphNode node, uint32_t value)
{
    CUDA_KERNEL_NODE_PARAMS_v2 k;
    uint32_t got = 0;
    if (CU(cuGraphKernelNodeGetParams_v2, node, &k) != CUDA_SUCCESS || !k.kernelParams)
        return false;
    memcpy(&got, k.kernelParams[1], 4);
    return got == value;
}

void ask_capture_info(void)
{
    CUdeviceptr p;
    uint32_t value;
    void *params[] = { &p, &value };
    CUfunction poke;
    CUstream stream;
    CUstreamCaptureStatus status;
    CUgraph graph = NULL, captured;
    const CUgraphNode *behind;
    const CUgraphEdgeData *data;
    CUgraphNode node;
    cuuint64_t id;
    size_t n = 0;
    unsigned right_v2 = 0, right_v3 = 0;

    TRY(device_memory(&p, 64));
    TRY(kernel(&poke, "poke"));
    TRY(new_stream(&stream));
    TRY(CU(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (value = 1; value <= 4; value++) {
        TRY(launch(poke, 1, 1, stream, params));
        TRY(CU(cuStreamGetCaptureInfo_v2, stream, &status, &id, &graph, &behind, &n));
        right_v2 += n == 1 && is_poke(behind[0], value);
        TRY(CU(cuStreamGetCaptureInfo_v3, stream, &status, &id, &graph, &behind, &data, &n));
        right_v3 += n == 1 && is_poke(behind[0], value);
        node = n ? behind[0] : NULL;
    }
    holds("cuStreamGetCaptureInfo_v2 gives the node, and its parameters", right_v2 == 4);
    says("so does _v3", right_v3 == 4 ? "yes" : "no");
    says("the capture is still", "%s", capture_status_text(stream));
    TRY(CU(cuStreamEndCapture, stream, &captured));
    CUgraphNode nodes[4];
    bool there = false;
    int all = list_nodes(captured, nodes, 4);
    for (int i = 0; i < all && i < 4; i++)
        there = there || nodes[i] == node;
    holds("graph and node are those of the ended capture", graph == captured && there);
}

/* ------------------------------------------------------------------ lazy kernels, embedded graphs */

static void lazy(const char *how, const char *name, bool relaxed, bool ask_first)
{
    CUfunction function;
    CUstream stream;
    CUgraph graph;
    CUfunctionLoadingState state = CU_FUNCTION_LOADING_STATE_UNLOADED;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    size_t offset, size;
    char what[96];

    TRY(kernel(&function, name));
    TRY(new_stream(&stream));
    snprintf(what, sizeof what, "%s: loaded before its first use", how);
    CUresult r = CU(cuFuncIsLoaded, &state, function);
    if (r == CUDA_SUCCESS)
        says(what, state == CU_FUNCTION_LOADING_STATE_LOADED ? "yes" : "no");
    else
        result(what, r);
    TRY(CU(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    if (relaxed)
        TRY(CU(cuThreadExchangeStreamCaptureMode, &mode));
    if (ask_first) {
        snprintf(what, sizeof what, "%s: cuFuncGetParamInfo", how);
        result(what, CU(cuFuncGetParamInfo, function, 0, &offset, &size));
    }
    uint64_t start = now_ns();
    r = launch(function, 1, 1, stream, NULL);
    double us = (double)(now_ns() - start) / 1000;
    snprintf(what, sizeof what, "%s: launching it", how);
    result(what, r);
    figure(what, us, "us");
    if (relaxed)
        TRY(CU(cuThreadExchangeStreamCaptureMode, &mode));
    snprintf(what, sizeof what, "%s: the capture is then", how);
    says(what, "%s", capture_status_text(stream));
    snprintf(what, sizeof what, "%s: ending the capture", how);
    result(what, CU(cuStreamEndCapture, stream, &graph));
}

void ask_lazy_kernels(void)
{
    CUmoduleLoadingMode mode;

    CUresult r = CU(cuModuleGetLoadingMode, &mode);
    if (r == CUDA_SUCCESS)
        says("modules are loaded", mode == CU_MODULE_LAZY_LOADING ? "lazily" : "at once");
    else
        result("cuModuleGetLoadingMode", r);
    lazy("global mode", "lazy_0", false, false);
    lazy("relaxed", "lazy_1", true, false);
    lazy("asked for its parameters first", "lazy_2", false, true);
}

void ask_captured_graph_launch(void)
{
    CUdeviceptr p;
    uint32_t value = 3, got = 0;
    void *params[] = { &p, &value };
    CUfunction poke;
    CUgraph graph, captured;
    CUgraphNode node;
    CUgraphNodeType type;
    CUgraphExec exec, outer;
    CUstream stream;

    TRY(device_memory(&p, 64));
    TRY(kernel(&poke, "poke"));
    TRY(new_stream(&stream));
    TRY(CU(cuGraphCreate, &graph, 0));
    TRY(add_kernel(graph, &node, NULL, poke, params));
    TRY(new_exec(&exec, graph));
    TRY(CU(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    TRY(CU(cuGraphLaunch, exec, stream));
    /* parameters set after the launch: of the embedded copy, or of the exec alone? */
    value = 4;
    CUDA_KERNEL_NODE_PARAMS_v2 k = node_params(poke, 1, 1, params);
    TRY(CU(cuGraphExecKernelNodeSetParams_v2, exec, node, &k));
    TRY(CU(cuStreamEndCapture, stream, &captured));
    CUgraphNode nodes[4];
    int n = list_nodes(captured, nodes, 4);
    figure("nodes of the capture", n, "");
    if (n < 1)
        return;
    TRY(CU(cuGraphNodeGetType, nodes[0], &type));
    says("the first is a child graph", type == CU_GRAPH_NODE_TYPE_GRAPH ? "yes" : "no");
    TRY(new_exec(&outer, captured));
    TRY(CU(cuGraphLaunch, outer, stream));
    TRY(CU(cuStreamSynchronize, stream));
    TRY(CU(cuMemcpyDtoH_v2, &got, p, 4));
    says("it runs with the parameters that were set", got == 3   ? "before the launch"
                                                      : got == 4 ? "after it"
                                                                 : "at another time");
}
