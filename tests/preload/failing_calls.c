/* SPDX-License-Identifier: Apache-2.0 */
/*
 * failing_calls.c - a program that makes many kinds of driver calls, says what each returned, and goes on
 *
 * It tells the stand-in which calls are its own (standin_own()), so that each can fail by its number, with and without a
 * library in front of the driver. What has no meaning after a failure is left out: no kernel runs on memory that was not
 * had, and no output is read that nobody waited for. So what is printed follows from the results alone.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <stdint.h>
#include <stdio.h>
#include <string.h>

void standin_own(const char *symbol);

enum { WORDS = 64, BYTES = 4096 };

/* out[i] = seed * 65536 + i */
#define FILL(name)                                                                                 \
    ".visible .entry " name "(.param .u64 p, .param .u32 n, .param .u32 s)\n{\n"                   \
    ".reg .b32 %r<6>;\n.reg .b64 %d<4>;\n.reg .pred %q;\nld.param.u64 %d1, [p];\n"                 \
    "ld.param.u32 %r1, [n];\nld.param.u32 %r5, [s];\nmov.u32 %r2, %tid.x;\n"                       \
    "setp.ge.u32 %q, %r2, %r1;\n@%q ret;\nshl.b32 %r5, %r5, 16;\nadd.u32 %r5, %r5, %r2;\n"         \
    "mul.wide.u32 %d2, %r2, 4;\nadd.u64 %d3, %d1, %d2;\nst.global.u32 [%d3], %r5;\nret;\n}\n"

static const char ptx[] =
    ".version 6.4\n.target sm_75\n.address_size 64\n" FILL("block") FILL("other");

static CUresult told(const char *name, CUresult r)
{
    standin_own(NULL);
    printf("%s %d\n", name, (int)r);
    return r;
}

#define CALL(name, ...) told(#name, (standin_own(#name), name(__VA_ARGS__)))
#define GOOD(name, ...) (CALL(name, __VA_ARGS__) == CUDA_SUCCESS)

static CUdevice device;
static CUcontext primary;
static CUmodule module, other_module;
static CUlibrary library;
static CUkernel kernel;
static CUfunction block, other, of_library;
static CUstream s[2];
static CUdeviceptr p, q;
static void *pinned;

struct args {
    CUdeviceptr at;
    uint32_t n, seed;
};

static void digest(void)
{
    static unsigned char bytes[BYTES];
    uint64_t hash = 0xcbf29ce484222325u;
    if (!p || !GOOD(cuCtxSynchronize) || !GOOD(cuMemcpyDtoH_v2, bytes, p, sizeof bytes))
        return;
    for (size_t i = 0; i < sizeof bytes; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    printf("digest %016llx\n", (unsigned long long)hash);
}

/* ---- start: context, code, memory, streams ---- */

static void begin(void)
{
    int value = 0;
    size_t n = 0;
    CUcontext current = NULL;
    CALL(cuInit, 0);
    CALL(cuDriverGetVersion, &value);
    CALL(cuDeviceGetCount, &value);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDeviceTotalMem_v2, &n, device);
    CALL(cuDeviceGetAttribute, &value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    CALL(cuDevicePrimaryCtxRetain, &primary, device);
    CALL(cuCtxSetCurrent, primary);
    CALL(cuCtxGetCurrent, &current);
    printf("current %d\n", current && current == primary);
    CALL(cuCtxGetDevice, &device);
}

static void load(void)
{
    int value = 0;
    CALL(cuModuleLoadData, &module, ptx);
    CALL(cuModuleGetFunction, &block, module, "block");
    CALL(cuModuleGetFunction, &other, module, "other");
    CALL(cuModuleLoadDataEx, &other_module, ptx, 0, NULL, NULL);
    CALL(cuLibraryLoadData, &library, ptx, NULL, NULL, 0, NULL, NULL, 0);
    CALL(cuLibraryGetKernel, &kernel, library, "block");
    CALL(cuKernelGetFunction, &of_library, kernel);
    CALL(cuFuncGetAttribute, &value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, block);
}

static void allocate(void)
{
    CUdeviceptr base = 0, managed = 0, host_address = 0;
    size_t n = 0, free_bytes = 0;
    CALL(cuMemAlloc_v2, &p, BYTES);
    CALL(cuMemAlloc_v2, &q, BYTES);
    CALL(cuMemHostAlloc, &pinned, BYTES, CU_MEMHOSTALLOC_DEVICEMAP);
    CALL(cuMemHostGetDevicePointer_v2, &host_address, pinned, 0);
    CALL(cuMemAllocManaged, &managed, BYTES, CU_MEM_ATTACH_GLOBAL);
    CALL(cuMemGetInfo_v2, &free_bytes, &n);
    if (GOOD(cuMemGetAddressRange_v2, &base, &n, p))
        printf("range %d %zu\n", base == p, n);
    CALL(cuMemsetD8_v2, p, 0, BYTES);
    CALL(cuMemFree_v2, managed);
    CALL(cuStreamCreate, &s[0], 0);
    CALL(cuStreamCreateWithPriority, &s[1], 0, 0);
}

/* ---- launches of their own ---- */

static void launch(CUfunction f, CUstream stream, uint32_t offset, uint32_t seed)
{
    struct args a = { p + offset, WORDS, seed };
    void *params[] = { &a.at, &a.n, &a.seed };
    if (p)
        CALL(cuLaunchKernel, f, 1, 1, 1, WORDS, 1, 1, 0, stream, params, NULL);
}

static void launch_packed(CUfunction f, uint32_t offset, uint32_t seed)
{
    struct args a = { p + offset, WORDS, seed };
    size_t n = sizeof a;
    void *extra[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, &a, CU_LAUNCH_PARAM_BUFFER_SIZE, &n,
                      CU_LAUNCH_PARAM_END };
    if (p)
        CALL(cuLaunchKernel, f, 1, 1, 1, WORDS, 1, 1, 0, s[0], NULL, extra);
}

static void launch_more(CUfunction f, uint32_t offset, uint32_t seed)
{
    struct args a = { p + offset, WORDS, seed };
    void *params[] = { &a.at, &a.n, &a.seed };
    CUlaunchConfig config = { 1, 1, 1, WORDS, 1, 1, 0, s[0], NULL, 0 };
    if (!p)
        return;
    CALL(cuLaunchKernelEx, &config, f, params, NULL);
    a.seed++;
    CALL(cuLaunchCooperativeKernel, f, 1, 1, 1, WORDS, 1, 1, 0, s[0], params);
    a.seed++;
    CALL(cuLaunchKernel_ptsz, f, 1, 1, 1, WORDS, 1, 1, 0, s[0], params, NULL);
}

static void eager(void)
{
    launch(block, NULL, 0, 1);
    launch(block, s[0], 0, 2);
    launch_packed(block, 0, 3);
    launch_more(block, 0, 4);
    launch(other, s[0], 256, 7);
    launch(of_library, s[0], 512, 8);
    launch((CUfunction)kernel, s[0], 512, 9);
    CALL(cuStreamSynchronize, s[0]);
    digest();
}

/* ---- streams, events, copies ---- */

static void called_back(void *at)
{
    *(int *)at = 1;
}

static void streams(void)
{
    static int ran;
    CUevent from = NULL, to = NULL;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    float ms = 0;
    CALL(cuEventCreate, &from, 0);
    CALL(cuEventCreate, &to, 0);
    CALL(cuEventRecord, from, s[0]);
    launch(block, s[0], 0, 10);
    CALL(cuStreamWaitEvent, s[1], from, 0);
    CALL(cuStreamIsCapturing, s[0], &status);
    CALL(cuLaunchHostFunc, s[0], called_back, &ran);
    CALL(cuEventRecord, to, s[0]);
    if (GOOD(cuEventSynchronize, to))
        CALL(cuEventElapsedTime, &ms, from, to);
    CALL(cuStreamSynchronize, s[1]);
    if (GOOD(cuStreamSynchronize, s[0])) {
        printf("called back %d\n", ran);
        CALL(cuStreamQuery, s[0]);
        CALL(cuEventQuery, to);
    }
    CALL(cuEventDestroy_v2, from);
    CALL(cuEventDestroy_v2, to);
}

static void copies(void)
{
    static unsigned char bytes[BYTES];
    CUdeviceptr r = 0;
    memset(bytes, 7, sizeof bytes);
    if (q) {
        CALL(cuMemcpyHtoD_v2, q, bytes, BYTES);
        CALL(cuMemsetD32Async, q + 256, 0x01020304, 16, s[0]);
    }
    if (p && q)
        CALL(cuMemcpyDtoDAsync_v2, p + 2048, q, 1024, s[0]);
    if (p && pinned && GOOD(cuMemcpyDtoHAsync_v2, pinned, p, BYTES, s[0]) &&
        GOOD(cuStreamSynchronize, s[0]))
        printf("first word %08x\n", *(const uint32_t *)pinned);
    if (GOOD(cuMemAllocAsync, &r, BYTES, s[0])) {
        CALL(cuMemsetD8Async, r, 1, BYTES, s[0]);
        CALL(cuMemFreeAsync, r, s[0]);
    }
    digest();
}

/* ---- graphs ---- */

static CUDA_KERNEL_NODE_PARAMS_v2 node_params(CUfunction f, void **params)
{
    return (CUDA_KERNEL_NODE_PARAMS_v2){ .func = f,
                                         .gridDimX = 1,
                                         .gridDimY = 1,
                                         .gridDimZ = 1,
                                         .blockDimX = WORDS,
                                         .blockDimY = 1,
                                         .blockDimZ = 1,
                                         .kernelParams = params };
}

static CUgraphNode add_kernel(CUgraph graph, CUgraphNode after, CUfunction f, uint32_t offset,
                              uint32_t seed)
{
    struct args a = { p + offset, WORDS, seed };
    void *params[] = { &a.at, &a.n, &a.seed };
    CUDA_KERNEL_NODE_PARAMS_v2 k = node_params(f, params);
    CUgraphNode node = NULL;
    CALL(cuGraphAddKernelNode_v2, &node, graph, &after, after ? 1 : 0, &k);
    return node;
}

/* block, other, block, in a row, each with memory of its own: where one is missing the others have no order */
static CUgraph build(CUgraphNode nodes[3], uint32_t offset, uint32_t seed)
{
    CUgraph graph = NULL;
    CALL(cuGraphCreate, &graph, 0);
    nodes[0] = add_kernel(graph, NULL, block, offset, seed);
    nodes[1] = add_kernel(graph, nodes[0], other, offset + 256, seed + 1);
    nodes[2] = add_kernel(graph, nodes[1], block, offset + 512, seed + 2);
    return graph;
}

static void launched(CUgraphExec exec)
{
    CALL(cuGraphLaunch, exec, s[0]);
    CALL(cuGraphLaunch, exec, s[0]);
    CALL(cuStreamSynchronize, s[0]);
    digest();
}

static void set_params(CUgraphExec exec, CUgraphNode node, CUfunction f, uint32_t seed)
{
    struct args a = { p + 512, WORDS, seed };
    void *params[] = { &a.at, &a.n, &a.seed };
    CUDA_KERNEL_NODE_PARAMS_v2 k = node_params(f, params);
    CALL(cuGraphExecKernelNodeSetParams_v2, exec, node, &k);
}

/* Nodes of other kinds, and a graph within the graph. */
static void add_more(CUgraph graph, CUgraphNode last)
{
    CUDA_MEMSET_NODE_PARAMS_v1 set = {
        .dst = p + 3072, .value = 5, .elementSize = 1, .width = 16, .height = 1
    };
    CUgraphNode node = NULL, empty = NULL, child = NULL, nodes[3], of_child[2];
    CUgraph inner = build(nodes, 1024, 40), copy = NULL;
    size_t n = 2;
    CALL(cuGraphAddMemsetNode, &node, graph, &last, last ? 1 : 0, &set, primary);
    CALL(cuGraphAddEmptyNode, &empty, graph, NULL, 0);
    if (node && empty)
        CALL(cuGraphAddDependencies, graph, &node, &empty, 1);
    CALL(cuGraphClone, &copy, inner);
    CALL(cuGraphAddChildGraphNode, &child, graph, &last, last ? 1 : 0, copy);
    if (GOOD(cuGraphGetNodes, graph, of_child, &n))
        printf("nodes %zu\n", n);
    CALL(cuGraphDestroy, inner);
    CALL(cuGraphDestroy, copy);
}

static void by_hand(void)
{
    CUgraphNode nodes[3], others[3];
    CUgraphExec exec = NULL;
    CUgraphExecUpdateResultInfo_v1 info = { 0 };
    unsigned on = 0;
    if (!p)
        return;
    CUgraph graph = build(nodes, 0, 20), next = build(others, 0, 30);
    add_more(graph, nodes[2]);
    CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);
    CALL(cuGraphUpload, exec, s[0]);
    launched(exec);
    set_params(exec, nodes[2], block, 25);
    launched(exec);
    CALL(cuGraphNodeSetEnabled, exec, nodes[0], 0);
    if (GOOD(cuGraphNodeGetEnabled, exec, nodes[0], &on))
        printf("on %u\n", on);
    launched(exec);
    CALL(cuGraphNodeSetEnabled, exec, nodes[0], 1);
    CALL(cuGraphExecDestroy, exec);
    exec = NULL;
    CALL(cuGraphDestroyNode, nodes[1]);
    CALL(cuGraphDestroy, graph);
    graph = build(nodes, 0, 50);
    CALL(cuGraphInstantiate_v2, &exec, graph, NULL, NULL, 0);
    CALL(cuGraphExecUpdate_v2, exec, next, &info);
    printf("update %d\n", (int)info.result);
    launched(exec);
    CALL(cuGraphExecDestroy, exec);
    CALL(cuGraphDestroy, graph);
    CALL(cuGraphDestroy, next);
}

static void captured(void)
{
    CUDA_GRAPH_INSTANTIATE_PARAMS how = { 0 };
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CALL(cuStreamBeginCapture_v2, s[0], CU_STREAM_CAPTURE_MODE_GLOBAL);
    launch(block, s[0], 0, 60);
    launch(other, s[0], 256, 61);
    launch(block, s[0], 0, 62);
    CALL(cuStreamEndCapture, s[0], &graph);
    CALL(cuGraphInstantiateWithParams, &exec, graph, &how);
    if (p)
        launched(exec);
    launch(block, s[0], 0, 63);
    CALL(cuGraphExecDestroy, exec);
    CALL(cuGraphDestroy, graph);
}

/* ---- another context, and the end ---- */

static void second_context(void)
{
    CUcontext second = NULL, popped = NULL;
    CUdeviceptr r = 0;
    if (!GOOD(cuCtxCreate_v2, &second, 0, device))
        return;
    CALL(cuMemAlloc_v2, &r, BYTES);
    CALL(cuMemFree_v2, r);
    CALL(cuCtxSynchronize);
    CALL(cuCtxPopCurrent_v2, &popped);
    CALL(cuCtxPushCurrent_v2, second);
    CALL(cuCtxDestroy_v2, second);
    CALL(cuCtxSetCurrent, primary);
}

static void finish(void)
{
    launch(block, s[0], 0, 70);
    digest();
    CALL(cuStreamDestroy_v2, s[0]);
    CALL(cuStreamDestroy_v2, s[1]);
    CALL(cuMemFree_v2, p);
    CALL(cuMemFree_v2, q);
    CALL(cuMemFreeHost, pinned);
    CALL(cuModuleUnload, module);
    CALL(cuModuleUnload, other_module);
    CALL(cuLibraryUnload, library);
    CALL(cuDevicePrimaryCtxRelease_v2, device);
}

int main(void)
{
    begin();
    load();
    allocate();
    eager();
    streams();
    copies();
    by_hand();
    captured();
    second_context();
    finish();
    return 0;
}
