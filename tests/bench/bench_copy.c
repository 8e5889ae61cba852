/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy kernel alone: bench_copy ROUNDS FILE [FILE ...], fatbins or PTX
 *
 * A graph of 100 copies in a row, by dmi_copy_eager of each file in turn, ROUNDS times: records of 4 MiB, packed, as rows of a wider buffer,
 * and with three dimensions. What is read is spread over 1 GiB, more than a device's cache holds. Prints the median time of a copy, by events
 * around the graph, and the rate in payload bytes. For one thread.
 */
#include "tests/bench/bench.h"

#include <dmi/ring.h>

#include <stdio.h>
#include <stdlib.h>

enum {
    BYTES = 4 << 20,
    SOURCE_BYTES = 1 << 30,
    THREADS = 256,
    BLOCKS = 256,
    MAX_FILES = 4,
    COPIES = 100
};

static const struct {
    const char *name;
    struct dmi_gather gather;
} shapes[] = {
    { "packed", { .count = { 1, 1, 1, 1 }, .run_bytes = BYTES } },
    { "rows of 4608 in 13824 bytes",
      { .count = { BYTES / 4608, 1, 1, 1 }, .stride = { 13824, 0, 0, 0 }, .run_bytes = 4608 } },
    { "rows of 256 in 768 bytes",
      { .count = { BYTES / 256, 1, 1, 1 }, .stride = { 768, 0, 0, 0 }, .run_bytes = 256 } },
    { "[64][32][8] of 256 bytes",
      { .count = { 64, 1, 32, 8 },
        .stride = { 256, 0, 64 * 256, 32 * 64 * 256 },
        .run_bytes = 256 } },
};

enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static CUstream stream;
static CUevent start, end;

/* COPIES copies, one after the other, each of another part of @source to another part of @payload. */
static CUgraphExec make(CUfunction function, struct dmi_copy copy, CUdeviceptr source,
                        CUdeviceptr payload)
{
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node = NULL;
    uint64_t span =
        (SOURCE_BYTES - 3 * BYTES) / COPIES / 16 * 16; /* a shape reads within 3 * BYTES */
    CALL(cuGraphCreate, &graph, 0);
    for (uint64_t i = 0; i < COPIES; i++) {
        CUgraphNode before = node;
        void *params[] = { &copy };
        CUDA_KERNEL_NODE_PARAMS_v2 k = { .func = function,
                                         .gridDimX = BLOCKS,
                                         .gridDimY = 1,
                                         .gridDimZ = 1,
                                         .blockDimX = THREADS,
                                         .blockDimY = 1,
                                         .blockDimZ = 1,
                                         .kernelParams = params };
        copy.gather.src = source + i * span;
        copy.payload = payload + i * BYTES;
        CALL(cuGraphAddKernelNode_v2, &node, graph, i ? &before : NULL, i ? 1 : 0, &k);
    }
    CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);
    CALL(cuGraphDestroy, graph);
    return exec;
}

/* Return: ns of one of the copies, on the device. */
static double copy_ns(CUgraphExec exec)
{
    float ms = 0;
    CALL(cuEventRecord, start, stream);
    CALL(cuGraphLaunch, exec, stream);
    CALL(cuEventRecord, end, stream);
    CALL(cuStreamSynchronize, stream);
    CALL(cuEventElapsedTime, &ms, start, end);
    return (double)ms * 1e6 / COPIES;
}

static CUdeviceptr memory(size_t n)
{
    CUdeviceptr p;
    CALL(cuMemAlloc_v2, &p, n);
    CALL(cuMemsetD8_v2, p, 0, n);
    return p;
}

int main(int argc, char **argv)
{
    int rounds = argc > 2 ? atoi(argv[1]) : 0, n_files = argc - 2;
    if (rounds < 1 || n_files > MAX_FILES)
        bench_die("usage: bench_copy ROUNDS FILE ...", 0);
    struct bench_kernels kernels;
    bench_start(&kernels);
    CUfunction functions[MAX_FILES];
    for (int f = 0; f < n_files; f++)
        CALL(cuModuleGetFunction, &functions[f], bench_module(argv[2 + f]), "dmi_copy_eager");
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CALL(cuEventCreate, &start, CU_EVENT_DEFAULT);
    CALL(cuEventCreate, &end, CU_EVENT_DEFAULT);
    struct dmi_copy copy = { .record = { .ready = DMI_SEQ_FIRST } };
    CUdeviceptr source = memory(SOURCE_BYTES), payload = memory((size_t)BYTES * COPIES);
    copy.desc = memory(sizeof(struct dmi_desc));
    copy.retired = memory(sizeof(uint32_t));
    double *times = calloc((size_t)rounds * MAX_FILES, sizeof *times);
    if (!times)
        bench_die("no memory", 0);
    for (int s = 0; s < N_SHAPES; s++) {
        CUgraphExec execs[MAX_FILES];
        copy.gather = shapes[s].gather;
        copy.gather.access = 16;
        copy.record.n_rows = copy.gather.count[0];
        for (int f = 0; f < n_files; f++)
            execs[f] = make(functions[f], copy, source, payload);
        for (int r = -1; r < rounds; r++) /* one to warm up */
            for (int f = 0; f < n_files; f++) {
                double ns = copy_ns(execs[f]);
                if (r >= 0)
                    times[f * rounds + r] = ns;
            }
        for (int f = 0; f < n_files; f++) {
            double ns = bench_median(times + f * rounds, rounds);
            printf("%-28s file %d: %8.1f us, %6.2f GB/s\n", shapes[s].name, f + 1, ns / 1e3,
                   BYTES / ns);
        }
    }
    free(times);
    return 0;
}
