/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine feels of a link that is too slow: bench_overload STEPS PACE_US MODE ROW_BYTES
 *
 * Run under dmi-run with a spec that names the kernel `armed`. An engine of 32 requests, each of which decodes 25 tokens and ends, another in
 * its place, replays a graph of 8 kernels a step. Three such graphs take turns, a step each, and begin PACE_US apart:
 *
 *     plain     through the driver's own entry points, which the library does not see
 *     copies    the same, with a copy of each kernel's tensor to another place on the device
 *     captured  through those that a program gets, after dmi_step_begin(); MODE `naive`: plain, and then all tensors go to
 *               the host with a synchronous copy each
 *
 * Prints for each: the median and the greatest of the launching thread's time in its calls, the medians of its CPU time and of the step (until the
 * device has done it), in nanoseconds, over the later two thirds of the steps; before that how long all of it took.
 */
#include "tests/bench/bench.h"

#include <dmi/dmi.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LAYERS = 8, REQUESTS = 32, LIFE = 25, N_WAYS = 3 };

static const char *const way_names[N_WAYS] = { "plain", "copies", "captured" };

struct times {
    double *call, *cpu, *step;
    int n;
};

static struct {
    CUstream stream;
    CUdeviceptr tensors, places; /* LAYERS of them, one after the other */
    size_t n_bytes;              /* of one */
    void *host;
    CUgraphExec execs[N_WAYS];
    __typeof__(cuGraphLaunch) *launch[N_WAYS];
    __typeof__(cuStreamSynchronize) *synchronize;
    __typeof__(cuMemcpyDtoH_v2) *to_host;
    int (*step_begin)(const struct dmi_step *);
    int (*request_end)(const char *, uint32_t);
    int naive;
} at;

static void check(CUresult r, const char *what)
{
    if (r != CUDA_SUCCESS)
        bench_die(what, (int)r);
}

/* ------------------------------------------------------------------------- graphs */

static CUgraphNode add_kernel(__typeof__(cuGraphAddKernelNode_v2) *add, CUgraph graph,
                              CUgraphNode before, CUfunction f, CUdeviceptr tensor)
{
    CUgraphNode node;
    void *params[] = { &tensor };
    CUDA_KERNEL_NODE_PARAMS_v2 k = { .func = f,
                                     .gridDimX = REQUESTS,
                                     .gridDimY = 1,
                                     .gridDimZ = 1,
                                     .blockDimX = 64,
                                     .blockDimY = 1,
                                     .blockDimZ = 1,
                                     .kernelParams = params };
    check(add(&node, graph, before ? &before : NULL, before ? 1 : 0, &k), "cuGraphAddKernelNode");
    return node;
}

static CUgraphNode add_copy(CUgraph graph, CUgraphNode before, CUcontext context, size_t offset)
{
    CUgraphNode node;
    CUDA_MEMCPY3D copy = { .srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = at.tensors + offset,
                           .srcPitch = at.n_bytes,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = at.places + offset,
                           .dstPitch = at.n_bytes,
                           .WidthInBytes = at.n_bytes,
                           .Height = 1,
                           .Depth = 1 };
    check(DIRECT(cuGraphAddMemcpyNode)(&node, graph, &before, 1, &copy, context),
          "cuGraphAddMemcpyNode");
    return node;
}

static void make(int way, const struct bench_kernels *kernels)
{
    bool seen = way == 2 && !at.naive;
    CUgraph graph;
    CUgraphNode last = NULL;
    CUcontext context;
    check(DIRECT(cuCtxGetCurrent)(&context), "cuCtxGetCurrent");
    check((seen ? WRAPPED(cuGraphCreate) : DIRECT(cuGraphCreate))(&graph, 0), "cuGraphCreate");
    for (size_t i = 0; i < LAYERS; i++) {
        last = add_kernel(seen ? WRAPPED(cuGraphAddKernelNode_v2) : DIRECT(cuGraphAddKernelNode_v2),
                          graph, last, kernels->armed, at.tensors + i * at.n_bytes);
        if (way == 1)
            last = add_copy(graph, last, context, i * at.n_bytes);
    }
    check((seen ? WRAPPED(cuGraphInstantiateWithFlags)
                : DIRECT(cuGraphInstantiateWithFlags))(&at.execs[way], graph, 0),
          "cuGraphInstantiateWithFlags");
    at.launch[way] = seen ? WRAPPED(cuGraphLaunch) : DIRECT(cuGraphLaunch);
}

/* ------------------------------------------------------------------------- steps */

/* Says whose tokens the rows are: of requests that come and go at different times. */
static void say_step(uint64_t number)
{
    static char ids[REQUESTS][24];
    struct dmi_span spans[REQUESTS];
    struct dmi_step step = { .size = sizeof step,
                             .version = DMI_STEP_VERSION,
                             .step = number,
                             .n_rows = REQUESTS,
                             .n_spans = REQUESTS,
                             .span_size = sizeof *spans,
                             .spans = spans,
                             .tp_size = 1,
                             .pp_size = 1,
                             .dp_size = 1,
                             .ep_size = 1 };
    for (uint32_t i = 0; i < REQUESTS; i++) {
        uint64_t age = number + i * LIFE / REQUESTS;
        if (number && age % LIFE == 0)
            at.request_end(ids[i], DMI_END_STOP);
        snprintf(ids[i], sizeof ids[i], "%s%u-%llu", i % 4 ? "r" : "vip-", i,
                 (unsigned long long)(age / LIFE));
        spans[i] = (struct dmi_span){ .request_id = ids[i],
                                      .first_position = (int64_t)(age % LIFE),
                                      .first_row = i,
                                      .n_tokens = 1,
                                      .phase = DMI_PHASE_DECODE };
    }
    at.step_begin(&step);
}

static void naive_copies(void)
{
    for (size_t i = 0; i < LAYERS; i++)
        check(at.to_host((char *)at.host + i * at.n_bytes, at.tensors + i * at.n_bytes, at.n_bytes),
              "cuMemcpyDtoH");
}

static void run_step(int way, uint64_t number, struct times *t)
{
    uint64_t start = bench_now_ns(), cpu = bench_thread_ns();
    if (way == 2 && !at.naive)
        say_step(number);
    check(at.launch[way](at.execs[way], at.stream), "cuGraphLaunch");
    if (way == 2 && at.naive) {
        check(at.synchronize(at.stream), "cuStreamSynchronize");
        naive_copies();
    }
    uint64_t called = bench_now_ns();
    t->cpu[t->n] = (double)(bench_thread_ns() - cpu);
    t->call[t->n] = (double)(called - start);
    check(at.synchronize(at.stream), "cuStreamSynchronize");
    t->step[t->n++] = (double)(bench_now_ns() - start);
}

static void sleep_until(uint64_t ns)
{
    struct timespec then = { .tv_sec = (time_t)(ns / 1000000000u),
                             .tv_nsec = (long)(ns % 1000000000u) };
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &then, NULL);
}

static void print(const char *name, const struct times *t)
{
    double greatest = 0;
    int first = t->n / 3;
    for (int i = first; i < t->n; i++)
        greatest = t->call[i] > greatest ? t->call[i] : greatest;
    printf("%s %.0f %.0f %.0f %.0f\n", name, bench_median(t->call + first, t->n - first), greatest,
           bench_median(t->cpu + first, t->n - first), bench_median(t->step + first, t->n - first));
}

static void *numbers(int n)
{
    void *p = calloc((size_t)n, sizeof(double));
    if (!p)
        bench_die("calloc", 0);
    return p;
}

static void look_up(void)
{
    at.synchronize = DIRECT(cuStreamSynchronize);
    at.to_host = DIRECT(cuMemcpyDtoH_v2);
    *(void **)&at.step_begin = dlsym(RTLD_DEFAULT, "dmi_step_begin");
    *(void **)&at.request_end = dlsym(RTLD_DEFAULT, "dmi_request_end");
    if (!at.naive && (!at.step_begin || !at.request_end))
        bench_die("no library is loaded", 0);
}

int main(int argc, char **argv)
{
    struct bench_kernels kernels;
    struct times times[N_WAYS] = { 0 };
    if (argc != 5)
        bench_die("expected STEPS PACE_US MODE ROW_BYTES", argc);
    int n = atoi(argv[1]);
    uint64_t pace = (uint64_t)atoi(argv[2]) * 1000;
    at.naive = !strcmp(argv[3], "naive");
    at.n_bytes = (size_t)REQUESTS * (size_t)atol(argv[4]);
    bench_start(&kernels);
    look_up();
    CALL(cuMemAlloc_v2, &at.tensors, LAYERS * at.n_bytes);
    CALL(cuMemAlloc_v2, &at.places, LAYERS * at.n_bytes);
    CALL(cuStreamCreate, &at.stream, CU_STREAM_NON_BLOCKING);
    at.host = numbers((int)(LAYERS * at.n_bytes / sizeof(double)));
    for (int way = 0; way < N_WAYS; way++) {
        make(way, &kernels);
        times[way] = (struct times){ numbers(n), numbers(n), numbers(n), 0 };
    }
    uint64_t start = bench_now_ns(), then = start;
    for (int i = 0; i < n; i++)
        for (int way = 0; way < N_WAYS; way++) {
            run_step(way, (uint64_t)i, &times[way]);
            uint64_t now = bench_now_ns();
            then = then + pace > now ? then + pace
                                     : now; /* a step that took longer delays the others */
            sleep_until(then);
        }
    printf("elapsed %.0f\n", (double)(bench_now_ns() - start));
    for (int way = 0; way < N_WAYS; way++)
        print(way_names[way], &times[way]);
    return 0;
}
