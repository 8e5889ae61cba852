/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a trace adds: bench_trace [ROUNDS], run under dmi-run --trace, and under dmi-run --spec without it.
 *
 * As bench_launch: direct calls and those that go through the library alternate in short rounds, and the median of the rounds is printed, in CPU
 * time of the launching thread. A step is dmi_step_begin(), a graph of 237 kernels and dmi_step_end(); without a trace and a
 * spec with sites the first and the last do nothing.
 */
#include "tests/bench/bench.h"

#include <dmi/dmi.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { REFUSED = 20000, GRAPHS = 20, KERNELS = 237, RANGES = 1000 };

static CUfunction plain;
static CUdeviceptr out, gate;
static uint32_t held;
static CUgraphExec exec;
static CUstream stream, other;
static CUevent events[2 * GRAPHS];
static int (*step_begin)(const struct dmi_step *);
static int (*step_end)(void);

static void check(CUresult r, CUresult want, const char *what)
{
    if (r != want)
        bench_die(what, (int)r);
}

/* The driver returns at once: what is left is the library's own path. */
static double ns_per_refused(int direct)
{
    __typeof__(cuLaunchKernel) *launch = direct ? DIRECT(cuLaunchKernel) : WRAPPED(cuLaunchKernel);
    void *params[] = { &out };
    uint64_t start = bench_thread_ns();
    for (int i = 0; i < REFUSED; i++)
        check(launch(plain, 0, 1, 1, 64, 1, 1, 0, stream, params, NULL), CUDA_ERROR_INVALID_VALUE,
              "cuLaunchKernel");
    return (double)(bench_thread_ns() - start) / REFUSED;
}

/* Nothing runs before finish(): the stand-in's workers, which take its lock, would cost the launching thread what a GPU does not. */
static uint64_t hold(void)
{
    check(DIRECT(cuStreamWaitValue32_v2)(stream, gate, ++held, CU_STREAM_WAIT_VALUE_GEQ),
          CUDA_SUCCESS, "cuStreamWaitValue32");
    return bench_thread_ns();
}

/* Return: nanoseconds of the thread for each of the GRAPHS since hold(). */
static double finish(uint64_t start)
{
    double ns = (double)(bench_thread_ns() - start) / GRAPHS;
    check(DIRECT(cuStreamWriteValue32_v2)(other, gate, held, 0), CUDA_SUCCESS,
          "cuStreamWriteValue32");
    check(DIRECT(cuStreamSynchronize)(stream), CUDA_SUCCESS, "cuStreamSynchronize");
    return ns;
}

static double ns_per_graph(int direct)
{
    __typeof__(cuGraphLaunch) *launch = direct ? DIRECT(cuGraphLaunch) : WRAPPED(cuGraphLaunch);
    uint64_t start = hold();
    for (int i = 0; i < GRAPHS; i++)
        check(launch(exec, stream), CUDA_SUCCESS, "cuGraphLaunch");
    return finish(start);
}

/* Steps of one graph each; direct: the graph alone. The wait is the driver's own: what it takes is not the library's. */
static double ns_per_step(int direct)
{
    __typeof__(cuGraphLaunch) *launch = direct ? DIRECT(cuGraphLaunch) : WRAPPED(cuGraphLaunch);
    const struct dmi_step said = { .size = sizeof said, .version = DMI_STEP_VERSION, .n_rows = 1 };
    uint64_t start = hold();
    for (int i = 0; i < GRAPHS; i++) {
        if (!direct && step_begin)
            step_begin(&said);
        check(launch(exec, stream), CUDA_SUCCESS, "cuGraphLaunch");
        if (!direct && step_end)
            step_end();
    }
    return finish(start);
}

/* What a step of a graph cannot do without: two timing events, by the driver's own calls. */
static double ns_per_events(int direct)
{
    __typeof__(cuGraphLaunch) *launch = DIRECT(cuGraphLaunch);
    __typeof__(cuEventRecord) *record = DIRECT(cuEventRecord);
    uint64_t start = hold();
    for (int i = 0; i < GRAPHS; i++) {
        if (!direct)
            check(record(events[2 * i], stream), CUDA_SUCCESS, "cuEventRecord");
        check(launch(exec, stream), CUDA_SUCCESS, "cuGraphLaunch");
        if (!direct)
            check(record(events[2 * i + 1], stream), CUDA_SUCCESS, "cuEventRecord");
    }
    return finish(start);
}

/* Pairs of begin and end; there is nothing to compare them with. The ring is emptied by a thread that is given time between rounds. */
static void ranges(int rounds)
{
    int (*begin)(const char *) = (__typeof__(begin))dlsym(RTLD_DEFAULT, "dmi_range_begin");
    int (*end)(void) = (__typeof__(end))dlsym(RTLD_DEFAULT, "dmi_range_end");
    double *v = calloc((size_t)rounds, sizeof *v);
    if (!v || !begin || !end)
        return;
    for (int i = 0; i < rounds; i++) {
        uint64_t start = bench_thread_ns();
        for (int k = 0; k < RANGES; k++) {
            begin("EngineCore::Schedule");
            end();
        }
        v[i] = (double)(bench_thread_ns() - start) / RANGES;
        nanosleep(&(struct timespec){ .tv_nsec = 30000000 }, NULL);
    }
    printf("%-34s %9.1f ns\n", "a range", bench_median(v, rounds));
    free(v);
}

static void compare(const char *what, double (*ns)(int direct), int rounds)
{
    double *d = calloc((size_t)rounds, sizeof *d), *w = calloc((size_t)rounds, sizeof *w);
    if (!d || !w)
        bench_die("calloc", 0);
    for (int i = 0; i < rounds; i++) {
        d[i] = ns(1);
        w[i] = ns(0);
    }
    double md = bench_median(d, rounds), mw = bench_median(w, rounds);
    printf("%-34s direct %9.1f ns, wrapped %9.1f ns, added %8.1f ns (%.3fx)\n", what, md, mw,
           mw - md, mw / md);
    free(d);
    free(w);
}

static void build_graph(void)
{
    CUgraph graph;
    void *params[] = { &out };
    CUgraphNode last = NULL;
    CALL(cuGraphCreate, &graph, 0);
    for (int i = 0; i < KERNELS; i++) {
        CUgraphNode before = last;
        CUDA_KERNEL_NODE_PARAMS_v2 k = { .func = plain,
                                         .gridDimX = 1,
                                         .gridDimY = 1,
                                         .gridDimZ = 1,
                                         .blockDimX = 64,
                                         .blockDimY = 1,
                                         .blockDimZ = 1,
                                         .kernelParams = params };
        CALL(cuGraphAddKernelNode_v2, &last, graph, i ? &before : NULL, i ? 1 : 0, &k);
    }
    CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 31;
    struct bench_kernels kernels;
    bench_start(&kernels);
    bench_has_library();
    plain = kernels.plain;
    step_begin = (__typeof__(step_begin))dlsym(RTLD_DEFAULT, "dmi_step_begin");
    step_end = (__typeof__(step_end))dlsym(RTLD_DEFAULT, "dmi_step_end");
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CALL(cuStreamCreate, &other, CU_STREAM_NON_BLOCKING);
    CALL(cuMemAlloc_v2, &out, sizeof(float));
    CALL(cuMemAlloc_v2, &gate, sizeof held);
    CALL(cuMemsetD32_v2, gate, 0, 1);
    build_graph();
    for (int i = 0; i < 2 * GRAPHS; i++)
        CALL(cuEventCreate, &events[i], CU_EVENT_DEFAULT);
    const char *tier = getenv("DMI_TRACE");
    printf("DMI_TRACE=%s\n", tier ? tier : "");
    compare("refused launch", ns_per_refused, rounds);
    compare("launch of a graph", ns_per_graph, rounds);
    compare("a graph between two event records", ns_per_events, rounds);
    compare("step of a graph", ns_per_step, rounds);
    ranges(rounds);
    return 0;
}
