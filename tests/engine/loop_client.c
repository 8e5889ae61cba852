/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop_client.c - an engine in miniature, to be killed at any moment
 *
 * One forward is a launch of `first` and three of `block` (its layers), all into one buffer that is
 * used again and again. Every element says which launch wrote it: seed * 2^16 + row * 64 + column,
 * where the seed counts the launches of this process from 0. It knows nothing of DMI.
 *
 *     loop_client FORWARDS [ROWS [eager|graphs [thread:US|here:FORWARDS]]]
 *
 * FORWARDS 0: until killed. Prints "ready" before the first launch. graphs: a captured graph of `first` and
 * two layers, of which two execs take turns, and a hand-built one of the third layer; all nodes get new
 * parameters for every launch, and up to four forwards are queued at a time.
 * thread: another thread calls _exit(3) after that many microseconds; here: this one does, after that many
 * forwards, with whatever is queued then.
 */
/* Declares the _v2 entries by name. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { COLUMNS = 64, LAYERS = 3, MAX_ROWS = 1024, QUEUED = 4, LEFT = 3 };

#define KERNEL(name)                                                                               \
    ".visible .entry " name "(.param .u64 " name "_out, .param .u32 " name                         \
    "_rows, .param .u32 " name "_seed)\n"                                                          \
    "{\n"                                                                                          \
    ".reg .b32 %r<8>;\n.reg .b64 %d<4>;\n"                                                         \
    "ld.param.u64 %d1, [" name "_out];\n"                                                          \
    "ld.param.u32 %r1, [" name "_seed];\n"                                                         \
    "mov.u32 %r2, %ctaid.x;\n"                                                                     \
    "mov.u32 %r3, %tid.x;\n"                                                                       \
    "shl.b32 %r4, %r2, 6;\n"                                                                       \
    "add.u32 %r4, %r4, %r3;\n"                                                                     \
    "shl.b32 %r5, %r1, 16;\n"                                                                      \
    "add.u32 %r5, %r5, %r4;\n"                                                                     \
    "mul.wide.u32 %d2, %r4, 4;\n"                                                                  \
    "add.u64 %d3, %d1, %d2;\n"                                                                     \
    "st.global.u32 [%d3], %r5;\n"                                                                  \
    "ret;\n"                                                                                       \
    "}\n"

static const char ptx[] =
    ".version 6.4\n.target sm_75\n.address_size 64\n" KERNEL("first") KERNEL("block");

static void *library;

static void *entry(const char *name)
{
    void *found = dlsym(library, name);

    if (!found) {
        fprintf(stderr, "loop_client: libcuda has no %s\n", name);
        exit(2);
    }
    return found;
}

#define CALL(name, ...)                                                                            \
    do {                                                                                           \
        static __typeof__(&name) fn_;                                                              \
        CUresult res_;                                                                             \
        if (!fn_)                                                                                  \
            *(void **)&fn_ = entry(#name);                                                         \
        res_ = fn_(__VA_ARGS__);                                                                   \
        if (res_ != CUDA_SUCCESS) {                                                                \
            fprintf(stderr, "loop_client: %s: error %d\n", #name, (int)res_);                      \
            exit(2);                                                                               \
        }                                                                                          \
    } while (0)

static CUfunction first, block;
static CUdeviceptr out;
static uint32_t rows, seed;

/* ------------------------------------------------------------------------- launches one by one */

static void launch(CUfunction function, CUstream stream)
{
    void *params[] = { &out, &rows, &seed };

    CALL(cuLaunchKernel, function, rows, 1u, 1u, (unsigned)COLUMNS, 1u, 1u, 0u, stream, params,
         (void **)NULL);
    seed++;
}

static void forward_eager(void)
{
    launch(first, NULL);
    for (int layer = 0; layer < LAYERS; layer++)
        launch(block, NULL);
}

/* ------------------------------------------------------------------------- graphs */

enum { MAX_NODES = 3 };

struct graph {
    CUgraph graph;
    CUgraphExec execs[2]; /* take turns */
    CUfunction functions[MAX_NODES];
    CUgraphNode nodes[MAX_NODES]; /* a chain */
    size_t n;
};

static struct graph early, late;
static CUstream stream;

static CUDA_KERNEL_NODE_PARAMS_v2 node_params(CUfunction function, void **params)
{
    return (CUDA_KERNEL_NODE_PARAMS_v2){
        .func = function,
        .gridDimX = rows,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = COLUMNS,
        .blockDimY = 1,
        .blockDimZ = 1,
        .kernelParams = params,
    };
}

/* From the root on: a captured graph's nodes come in no promised order. */
static void find_chain(struct graph *g)
{
    size_t one = 1;

    CALL(cuGraphGetRootNodes, g->graph, g->nodes, &one);
    for (size_t i = 1; i < g->n; i++, one = 1)
        CALL(cuGraphNodeGetDependentNodes, g->nodes[i - 1], &g->nodes[i], &one);
}

static void make_graphs(void)
{
    void *params[] = { &out, &rows, &seed };

    early = (struct graph){ .functions = { first, block, block }, .n = 3 };
    late = (struct graph){ .functions = { block }, .n = 1 };
    CALL(cuStreamCreate, &stream, (unsigned)CU_STREAM_NON_BLOCKING);
    CALL(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    for (size_t i = 0; i < early.n; i++)
        launch(early.functions[i], stream);
    CALL(cuStreamEndCapture, stream, &early.graph);
    find_chain(&early);
    seed = 0; /* nothing has run */
    CALL(cuGraphCreate, &late.graph, 0u);
    CUDA_KERNEL_NODE_PARAMS_v2 k = node_params(block, params);
    CALL(cuGraphAddKernelNode_v2, &late.nodes[0], late.graph, (const CUgraphNode *)NULL, (size_t)0,
         &k);
    for (int i = 0; i < 2; i++) {
        CALL(cuGraphInstantiateWithFlags, &early.execs[i], early.graph, 0ull);
        CALL(cuGraphInstantiateWithFlags, &late.execs[i], late.graph, 0ull);
    }
}

static void replay(struct graph *g, CUgraphExec exec)
{
    void *params[] = { &out, &rows, &seed };

    for (size_t i = 0; i < g->n; i++, seed++) {
        CUDA_KERNEL_NODE_PARAMS_v2 k = node_params(g->functions[i], params);
        CALL(cuGraphExecKernelNodeSetParams_v2, exec, g->nodes[i], &k);
    }
    CALL(cuGraphLaunch, exec, stream);
}

static void forward_graphs(long i)
{
    replay(&early, early.execs[i % 2]);
    replay(&late, late.execs[i % 2]);
}

/* ------------------------------------------------------------------------- leaving */

static void *leave_later(void *arg)
{
    long us = *(long *)arg;
    struct timespec pause = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 };

    nanosleep(&pause, NULL);
    _exit(LEFT);
}

int main(int argc, char **argv)
{
    long n_forwards = argc > 1 ? strtol(argv[1], NULL, 10) : 1;
    long n_rows = argc > 2 ? strtol(argv[2], NULL, 10) : 4;
    bool graphs = argc > 3 && !strcmp(argv[3], "graphs");
    long leave_us =
        argc > 4 && !strncmp(argv[4], "thread:", 7) ? strtol(argv[4] + 7, NULL, 10) : -1;
    long leave_at = argc > 4 && !strncmp(argv[4], "here:", 5) ? strtol(argv[4] + 5, NULL, 10) : -1;
    CUdevice device;
    CUcontext context;
    CUmodule module;
    pthread_t leaver;

    if (n_rows < 1 || n_rows > MAX_ROWS)
        return 2;
    rows = (uint32_t)n_rows;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "loop_client: %s\n", dlerror());
        return 77;
    }
    CALL(cuInit, 0u);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuCtxCreate_v2, &context, 0u, device);
    CALL(cuModuleLoadData, &module, ptx);
    CALL(cuModuleGetFunction, &first, module, "first");
    CALL(cuModuleGetFunction, &block, module, "block");
    CALL(cuMemAlloc_v2, &out, (size_t)rows * COLUMNS * 4);
    if (write(1, "ready\n", 6) != 6)
        return 2;
    if (leave_us >= 0 && pthread_create(&leaver, NULL, leave_later, &leave_us))
        return 2;
    if (graphs)
        make_graphs();
    for (long i = 0; n_forwards == 0 || i < n_forwards; i++) {
        if (i == leave_at)
            _exit(LEFT);
        if (graphs)
            forward_graphs(i);
        else
            forward_eager();
        /* An engine reads a token back every step; without that the queue would grow for ever. */
        if (!graphs || i % QUEUED == QUEUED - 1)
            CALL(cuCtxSynchronize);
    }
    CALL(cuCtxSynchronize);
    return 0;
}
