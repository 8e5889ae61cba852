/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the launching thread pays for the launch of a graph of 252 sites: bench_repeat [TURNS]
 *
 * Run under dmi-run with repeat.yaml. Each turn launches one exec LAUNCHES times in each of three ways, each launch in a step of its own: by the driver's own entry point, where nothing of the
 * library comes between; through the library with as many rows as the launch before, which it repeats; and with another number of rows each time, so that it goes the long way.
 * CPU time of the calling thread: medians. The driver's share is that of a stand-in which takes a launch apart; tests/unit/test_tickets.c times the library alone.
 */
#include "tests/bench/bench.h"

#include <dmi/dmi.h>

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

enum { NODES = 252, LAUNCHES = 10, ROWS = 4, ELEMENTS = 64 };
enum { DIRECT_WAY, REPEATED, LONG_WAY, N_WAYS };

static CUstream stream;
static CUgraphExec exec;
static __typeof__(cuGraphLaunch) *launch[N_WAYS];
static int (*step_begin)(const struct dmi_step *step);

static void check(CUresult r, const char *what)
{
    if (r != CUDA_SUCCESS)
        bench_die(what, (int)r);
}

static void make(CUfunction f)
{
    CUgraph graph;
    CUgraphNode node = NULL;
    CUdeviceptr out;
    void *params[] = { &out };
    CALL(cuMemAlloc_v2, &out, ROWS * ELEMENTS * sizeof(float));
    CALL(cuGraphCreate, &graph, 0);
    for (int i = 0; i < NODES; i++) {
        CUgraphNode behind = node;
        CUDA_KERNEL_NODE_PARAMS_v2 k = { .func = f,
                                         .gridDimX = 1,
                                         .gridDimY = 1,
                                         .gridDimZ = 1,
                                         .blockDimX = 32,
                                         .blockDimY = 1,
                                         .blockDimZ = 1,
                                         .kernelParams = params };
        CALL(cuGraphAddKernelNode_v2, &node, graph, i ? &behind : NULL, i ? 1 : 0, &k);
    }
    CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);
}

/* The first @n rows of the next step's tensors are a request's. */
static void say_step(uint32_t n)
{
    static uint64_t number;
    struct dmi_span spans[] = {
        { .request_id = "r", .first_position = (int64_t)number * ROWS, .n_tokens = n },
        { .first_row = n, .n_tokens = ROWS - n, .flags = DMI_SPAN_PADDING }
    };
    struct dmi_step step = { .size = sizeof step,
                             .version = DMI_STEP_VERSION,
                             .step = number++,
                             .n_rows = ROWS,
                             .n_spans = n < ROWS ? 2 : 1,
                             .span_size = sizeof spans[0],
                             .spans = spans };
    if (step_begin(&step) != DMI_OK)
        bench_die("dmi_step_begin", 0);
}

static sem_t gate;

/* What is launched waits, so that nothing runs beside it. */
static void CUDA_CB hold(void *arg)
{
    (void)arg;
    sem_wait(&gate);
}

/* Nanoseconds of CPU a launch. */
static double ns_of(int way)
{
    uint64_t ns = 0;
    CALL(cuLaunchHostFunc, stream, hold, NULL);
    for (int i = 0; i < LAUNCHES; i++) {
        say_step(way == LONG_WAY && i % 2 ? ROWS - 1 : ROWS);
        uint64_t start = bench_thread_ns();
        check(launch[way](exec, stream), "cuGraphLaunch");
        ns += bench_thread_ns() - start;
    }
    sem_post(&gate);
    CALL(cuStreamSynchronize, stream);
    return (double)ns / LAUNCHES;
}

int main(int argc, char **argv)
{
    static const char *const names[N_WAYS] = { "the driver alone", "repeated", "the long way" };
    int turns = argc > 1 ? atoi(argv[1]) : 20;
    double *ns[N_WAYS], median[N_WAYS];
    struct bench_kernels kernels;
    bench_start(&kernels);
    bench_has_library();
    step_begin = (int (*)(const struct dmi_step *))dlsym(RTLD_DEFAULT, "dmi_step_begin");
    if (!step_begin)
        bench_die("dmi_step_begin", 0);
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    sem_init(&gate, 0, 0);
    make(kernels.armed);
    launch[DIRECT_WAY] = DIRECT(cuGraphLaunch);
    launch[REPEATED] = launch[LONG_WAY] = WRAPPED(cuGraphLaunch);
    for (int way = 0; way < N_WAYS; way++)
        if (!(ns[way] = calloc((size_t)turns, sizeof *ns[way])))
            bench_die("calloc", 0);
    for (int i = 0; i < turns; i++) {
        say_step(ROWS);
        check(launch[REPEATED](exec, stream), "cuGraphLaunch"); /* there is one to repeat */
        for (int way = 0; way < N_WAYS; way++)
            ns[way][i] = ns_of(way);
    }
    for (int way = 0; way < N_WAYS; way++) {
        median[way] = bench_median(ns[way], turns);
        printf("%-18s %7.2f us\n", names[way], median[way] / 1e3);
    }
    printf("%d sites, added by the library: repeated %.2f us, the long way %.2f us\n", NODES,
           (median[REPEATED] - median[DIRECT_WAY]) / 1e3,
           (median[LONG_WAY] - median[DIRECT_WAY]) / 1e3);
    return 0;
}
