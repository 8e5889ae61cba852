/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the library adds to a graph of 64 kernels in a row: bench_graph [ROUNDS]
 *
 * Run under dmi-run with a spec that names the kernel `armed` and not `plain`. Each graph is built twice:
 * "plain" through the driver's own entry points, unseen by the library, and through those that a program gets.
 * Both alternate in short rounds; medians are printed. Three things are timed: the call of cuGraphLaunch and of
 * cuGraphExecKernelNodeSetParams of one node with a new pointer every time, both in CPU time of the calling thread,
 * and a replay (launch and wait) by the clock.
 * Then all sites are switched off (dmi_site_enable) and the graph of nothing but sites is timed again.
 */
#include "tests/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>

enum { NODES = 64, CALLS = 10, REPLAYS = 10, PARAMS = 100, ELEMENTS = 576 };

/* The entry points through which a graph is built and replayed. */
struct way {
    __typeof__(cuGraphCreate) *create;
    __typeof__(cuGraphAddKernelNode_v2) *add;
    __typeof__(cuGraphInstantiateWithFlags) *instantiate;
    __typeof__(cuGraphLaunch) *launch;
    __typeof__(cuGraphExecKernelNodeSetParams_v2) *set_params;
};

struct graph {
    const struct way *way;
    CUgraphExec exec;
    CUgraphNode last;
    CUfunction last_function;
};

enum { LAUNCH, REPLAY, SET_PARAMS, N_TIMES };
static const char *const time_names[N_TIMES] = { "cuGraphLaunch", "replay", "SetParams, a node" };

static CUstream stream;
static CUdeviceptr out[2];

static void check(CUresult r, const char *what)
{
    if (r != CUDA_SUCCESS)
        bench_die(what, (int)r);
}

static CUDA_KERNEL_NODE_PARAMS_v2 node_params(CUfunction f, void **params)
{
    return (CUDA_KERNEL_NODE_PARAMS_v2){ .func = f,
                                         .gridDimX = 1,
                                         .gridDimY = 1,
                                         .gridDimZ = 1,
                                         .blockDimX = 64,
                                         .blockDimY = 1,
                                         .blockDimZ = 1,
                                         .kernelParams = params };
}

/* The last @n_armed of its kernels are sites. */
static struct graph make(const struct way *way, const struct bench_kernels *kernels, int n_armed)
{
    struct graph g = { .way = way };
    CUgraph graph;
    void *params[] = { &out[0] };
    check(way->create(&graph, 0), "cuGraphCreate");
    for (int i = 0; i < NODES; i++) {
        CUgraphNode behind = g.last;
        g.last_function = i < NODES - n_armed ? kernels->plain : kernels->armed;
        CUDA_KERNEL_NODE_PARAMS_v2 k = node_params(g.last_function, params);
        check(way->add(&g.last, graph, i ? &behind : NULL, i ? 1 : 0, &k),
              "cuGraphAddKernelNode_v2");
    }
    check(way->instantiate(&g.exec, graph, 0), "cuGraphInstantiateWithFlags");
    return g;
}

static void wait_for_stream(void)
{
    static __typeof__(cuStreamSynchronize) *synchronize;
    if (!synchronize)
        synchronize = DIRECT(cuStreamSynchronize);
    check(synchronize(stream), "cuStreamSynchronize");
}

static double ns_of(const struct graph *g, int what)
{
    static int which;
    void *params[] = { NULL };
    CUDA_KERNEL_NODE_PARAMS_v2 k = node_params(g->last_function, params);
    int n = what == LAUNCH ? CALLS : what == REPLAY ? REPLAYS : PARAMS;
    uint64_t (*now)(void) = what == REPLAY ? bench_now_ns : bench_thread_ns;
    uint64_t start = now();
    for (int i = 0; i < n; i++) {
        if (what == SET_PARAMS) {
            params[0] = &out[++which & 1];
            check(g->way->set_params(g->exec, g->last, &k), "cuGraphExecKernelNodeSetParams_v2");
            continue;
        }
        check(g->way->launch(g->exec, stream), "cuGraphLaunch");
        if (what == REPLAY)
            wait_for_stream();
    }
    double ns = (double)(now() - start) / n;
    wait_for_stream();
    return ns;
}

static void compare(const char *title, const struct graph *plain, const struct graph *wrapped,
                    int rounds)
{
    double *p = calloc((size_t)rounds, sizeof *p), *w = calloc((size_t)rounds, sizeof *w);
    if (!p || !w)
        bench_die("calloc", 0);
    printf("%s\n", title);
    for (int what = 0; what < N_TIMES; what++) {
        ns_of(wrapped, what);
        for (int i = 0; i < 2 * rounds; i++) {
            if ((i & 3) == 0 || (i & 3) == 3)
                p[i / 2] = ns_of(plain, what);
            else
                w[i / 2] = ns_of(wrapped, what);
        }
        double mp = bench_median(p, rounds), mw = bench_median(w, rounds);
        printf("  %-18s plain %9.2f us, through the library %9.2f us, added %9.2f us (%.2fx)\n",
               time_names[what], mp / 1e3, mw / 1e3, (mw - mp) / 1e3, mw / mp);
    }
    free(p);
    free(w);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 31;
    struct bench_kernels kernels;
    bench_start(&kernels);
    bench_has_library();
    CALL(cuMemAlloc_v2, &out[0], ELEMENTS * sizeof(float));
    CALL(cuMemAlloc_v2, &out[1], ELEMENTS * sizeof(float));
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
#define WAY(from)                                                                                  \
    {                                                                                              \
        from(cuGraphCreate), from(cuGraphAddKernelNode_v2), from(cuGraphInstantiateWithFlags),     \
            from(cuGraphLaunch), from(cuGraphExecKernelNodeSetParams_v2)                           \
    }
    const struct way direct = WAY(DIRECT), given = WAY(WRAPPED);
    static const struct {
        const char *title;
        int n_armed;
    } rows[] = {
        { "64 kernels, no site", 0 },
        { "64 kernels, the last one a site (2304 bytes)", 1 },
        { "64 kernels, all sites (147 KB a replay)", NODES },
    };
    struct graph plain = { 0 }, wrapped = { 0 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        plain = make(&direct, &kernels, rows[i].n_armed);
        wrapped = make(&given, &kernels, rows[i].n_armed);
        compare(rows[i].title, &plain, &wrapped, rounds);
    }
    /* looked up as the adapter of an engine does */
    int (*enable)(const char *, int) =
        (int (*)(const char *, int))dlsym(RTLD_DEFAULT, "dmi_site_enable");
    if (!enable || enable("*", 0)) {
        printf("64 kernels, all sites, switched off: n/a\n");
        return 0;
    }
    compare("64 kernels, all sites, switched off", &plain, &wrapped, rounds);
    return 0;
}
