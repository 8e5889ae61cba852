/* SPDX-License-Identifier: Apache-2.0 */
#include "facts.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ------------------------------------------------------------------ kernels, memory, streams */

CUresult kernel(CUfunction *function, const char *name)
{
    static CUmodule module;

    if (!module)
        PASS(CU(cuModuleLoadData, &module, kernels_ptx));
    return CU(cuModuleGetFunction, function, module, name);
}

CUresult launch(CUfunction function, unsigned blocks, unsigned threads, CUstream stream,
                void **params)
{
    return CU(cuLaunchKernel, function, blocks, 1, 1, threads, 1, 1, 0, stream, params, NULL);
}

CUresult new_stream(CUstream *stream)
{
    return CU(cuStreamCreate, stream, CU_STREAM_NON_BLOCKING);
}

CUresult device_memory(CUdeviceptr *p, size_t n)
{
    PASS(CU(cuMemAlloc_v2, p, n));
    PASS(CU(cuMemsetD8_v2, *p, 0, n));
    return CU(cuCtxSynchronize);
}

CUresult pinned_memory(void *host, CUdeviceptr *p, size_t n)
{
    void *memory = NULL;

    PASS(CU(cuMemHostAlloc, &memory, n, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    memset(memory, 0, n);
    memcpy(host, &memory, sizeof memory);
    return CU(cuMemHostGetDevicePointer_v2, p, memory, 0);
}

/* ------------------------------------------------------------------ graphs */

CUDA_KERNEL_NODE_PARAMS_v2 node_params(CUfunction function, unsigned blocks, unsigned threads,
                                       void **params)
{
    return (CUDA_KERNEL_NODE_PARAMS_v2){
        .func = function,
        .gridDimX = blocks,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .kernelParams = params,
    };
}

CUresult add_kernel(CUgraph graph, CUgraphNode *node, const CUgraphNode *dependency,
                    CUfunction function, void **params)
{
    CUDA_KERNEL_NODE_PARAMS_v2 k = node_params(function, 1, 1, params);
    return CU(cuGraphAddKernelNode_v2, node, graph, dependency, dependency ? 1 : 0, &k);
}

CUresult add_edge(CUgraph graph, CUgraphNode from, CUgraphNode to, CUgraphDependencyType type)
{
    CUgraphEdgeData data = { .type = (unsigned char)type };

    if (type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
        data.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
    return CU(cuGraphAddDependencies_v2, graph, &from, &to, &data, 1);
}

CUresult add_chain(CUgraph graph, CUgraphNode *nodes, unsigned n, CUfunction function,
                   void **params)
{
    CUgraphNode node = NULL, before;

    for (unsigned i = 0; i < n; i++) {
        before = node;
        PASS(add_kernel(graph, &node, i ? &before : NULL, function, params));
        if (nodes)
            nodes[i] = node;
    }
    return CUDA_SUCCESS;
}

CUresult new_exec(CUgraphExec *exec, CUgraph graph)
{
    return CU(cuGraphInstantiateWithFlags, exec, graph, 0);
}

int list_nodes(CUgraph graph, CUgraphNode *nodes, size_t max)
{
    size_t n = max, all = 0;

    if (CU(cuGraphGetNodes, graph, NULL, &all) != CUDA_SUCCESS ||
        CU(cuGraphGetNodes, graph, nodes, &n) != CUDA_SUCCESS)
        return -1;
    return (int)all;
}

/* ------------------------------------------------------------------ captures */

static CUstreamCaptureStatus status_of(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CU(cuStreamIsCapturing, stream, &status);
    return status;
}

bool capture_is_active(CUstream stream)
{
    return status_of(stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

const char *capture_status_text(CUstream stream)
{
    CUstreamCaptureStatus status = status_of(stream);
    return status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? "active"
           : status == CU_STREAM_CAPTURE_STATUS_NONE ? "none"
                                                     : "invalidated";
}

/* ------------------------------------------------------------------ time */

uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

unsigned rounds(unsigned n)
{
    return !driver.standin ? n : n > 20 ? n / 20 : 1;
}

CUresult time_calls(double *ns, unsigned samples, unsigned batch, timed_call *call, void *arg)
{
    double *values = calloc(samples, sizeof *values);

    if (!values)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; i < samples; i++) {
        uint64_t start = now_ns();
        for (unsigned k = 0; k < batch; k++) {
            CUresult r = call(arg, i * batch + k);
            if (r != CUDA_SUCCESS) {
                free(values);
                return r;
            }
        }
        values[i] = (double)(now_ns() - start) / batch;
    }
    *ns = median(values, samples);
    free(values);
    return CUDA_SUCCESS;
}

#define REPLAY_RUNS 5

CUresult time_replays(double *us, CUgraphExec exec, CUstream stream, unsigned n)
{
    double values[REPLAY_RUNS];
    CUevent start, end;

    PASS(CU(cuEventCreate, &start, CU_EVENT_DEFAULT));
    PASS(CU(cuEventCreate, &end, CU_EVENT_DEFAULT));
    for (int run = -1; run < REPLAY_RUNS; run++) { /* the first run warms up */
        float ms = 0;
        PASS(CU(cuEventRecord, start, stream));
        for (unsigned i = 0; i < n; i++)
            PASS(CU(cuGraphLaunch, exec, stream));
        PASS(CU(cuEventRecord, end, stream));
        PASS(CU(cuStreamSynchronize, stream));
        PASS(CU(cuEventElapsedTime, &ms, start, end));
        if (run >= 0)
            values[run] = (double)ms * 1000 / n;
    }
    *us = median(values, REPLAY_RUNS);
    return CUDA_SUCCESS;
}
