/* SPDX-License-Identifier: Apache-2.0 */
/*
 * many_threads.c - 16 threads launch kernels and build graphs at once, in several contexts and devices
 *
 * many_threads DEVICES END [MS]. Each device has two contexts, each thread a stream in one of them. END `join`: every
 * thread does its rounds, and says how many kernels `block` it launched and the sum of their seeds. END `contexts`: the same, for
 * longer, while eight more threads make contexts and end them. Else the threads go on
 * until the process ends, after MS milliseconds: by `exit`, `_exit`, `kill` (SIGKILL), `return` (of main), or `thread` (one of
 * those that launch calls exit). It knows nothing of DMI.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 16, COMING = 8, ROUNDS = 4, WORDS = 64, MAX_CONTEXTS = 16 };

/* out[i] = seed * 65536 + i */
#define FILL(name)                                                                                 \
    ".visible .entry " name "(.param .u64 p, .param .u32 n, .param .u32 s)\n{\n"                   \
    ".reg .b32 %r<6>;\n.reg .b64 %d<4>;\n.reg .pred %q;\nld.param.u64 %d1, [p];\n"                 \
    "ld.param.u32 %r1, [n];\nld.param.u32 %r5, [s];\nmov.u32 %r2, %tid.x;\n"                       \
    "setp.ge.u32 %q, %r2, %r1;\n@%q ret;\nshl.b32 %r5, %r5, 16;\nadd.u32 %r5, %r5, %r2;\n"         \
    "mul.wide.u32 %d2, %r2, 4;\nadd.u64 %d3, %d1, %d2;\nst.global.u32 [%d3], %r5;\nret;\n}\n"

static const char ptx[] =
    ".version 6.4\n.target sm_75\n.address_size 64\n" FILL("block") FILL("other");

struct place {
    CUcontext context;
    CUfunction block, other;
};

struct worker {
    struct place *place;
    CUstream stream;
    CUdeviceptr buffer;
    unsigned number, next; /* seeds are number * 4096 + next */
    unsigned long launches, sum;
};

static bool endless;
static const char *end;
static int rounds = ROUNDS, n_working = THREADS;

/* A call of a process that ends may fail; any other may not. */
static void check(CUresult r, const char *what)
{
    if (r == CUDA_SUCCESS)
        return;
    if (endless)
        for (;;)
            pause();
    printf("%s: %d\n", what, (int)r);
    fflush(stdout);
    _exit(3);
}

#define CHECK(call) check(call, #call)

static unsigned seed_of(struct worker *w)
{
    return w->number * 4096 + w->next++ % 4096;
}

static void launched(struct worker *w, unsigned seed)
{
    w->launches++;
    w->sum += seed;
}

static void launch(struct worker *w, CUfunction f, unsigned seed)
{
    unsigned n = WORDS;
    void *params[] = { &w->buffer, &n, &seed };
    CHECK(cuLaunchKernel(f, 1, 1, 1, WORDS, 1, 1, 0, w->stream, params, NULL));
}

static void launch_graph(struct worker *w, CUgraph graph, const unsigned *seeds, unsigned n)
{
    CUgraphExec exec;
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 2; i++) {
        CHECK(cuGraphLaunch(exec, w->stream));
        for (unsigned k = 0; k < n; k++)
            launched(w, seeds[k]);
    }
    CHECK(cuStreamSynchronize(w->stream));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
}

static void captured_graph(struct worker *w)
{
    CUgraph graph;
    unsigned seeds[2] = { seed_of(w), seed_of(w) };
    CHECK(cuStreamBeginCapture_v2(w->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    launch(w, w->place->block, seeds[0]);
    launch(w, w->place->other, seed_of(w));
    launch(w, w->place->block, seeds[1]);
    CHECK(cuStreamEndCapture(w->stream, &graph));
    launch_graph(w, graph, seeds, 2);
}

static void built_graph(struct worker *w)
{
    CUgraph graph;
    CUgraphNode node = NULL;
    unsigned n = WORDS, seeds[3];
    CHECK(cuGraphCreate(&graph, 0));
    for (int i = 0; i < 3; i++) {
        CUgraphNode before = node;
        seeds[i] = seed_of(w);
        void *params[] = { &w->buffer, &n, &seeds[i] };
        CUDA_KERNEL_NODE_PARAMS_v1 p = { w->place->block, 1, 1, 1, WORDS, 1, 1, 0, params, NULL };
        CHECK(cuGraphAddKernelNode(&node, graph, before ? &before : NULL, before ? 1 : 0, &p));
    }
    launch_graph(w, graph, seeds, 3);
}

static void *work(void *arg)
{
    struct worker *w = arg;
    CHECK(cuCtxSetCurrent(w->place->context));
    for (int round = 0; endless || round < rounds; round++) {
        for (int i = 0; i < 3; i++) {
            unsigned seed = seed_of(w);
            launch(w, w->place->block, seed);
            launched(w, seed);
        }
        captured_graph(w);
        built_graph(w);
        if (round == 2 && w->number == 7 && !strcmp(end, "thread"))
            exit(5);
    }
    __atomic_sub_fetch(&n_working, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void open_place(struct place *p, int device)
{
    CUmodule module;
    CUdevice d;
    CHECK(cuDeviceGet(&d, device));
    CHECK(cuCtxCreate_v2(&p->context, 0, d));
    CHECK(cuModuleLoadData(&module, ptx));
    CHECK(cuModuleGetFunction(&p->block, module, "block"));
    CHECK(cuModuleGetFunction(&p->other, module, "other"));
}

/* What other threads have in contexts of theirs is none of its business. */
static void *come_and_go(void *arg)
{
    struct place place;
    while (__atomic_load_n(&n_working, __ATOMIC_ACQUIRE)) {
        open_place(&place, *(int *)arg);
        CHECK(cuCtxDestroy_v2(place.context));
    }
    return NULL;
}

static void open_worker(struct worker *w, unsigned number, struct place *place)
{
    *w = (struct worker){ .place = place, .number = number };
    CHECK(cuCtxSetCurrent(place->context));
    CHECK(cuStreamCreate(&w->stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc_v2(&w->buffer, WORDS * 4));
}

static int leave(const char *ms)
{
    struct timespec pause = { .tv_nsec = strtol(ms, NULL, 10) * 1000000 };
    nanosleep(&pause, NULL);
    if (!strcmp(end, "exit"))
        exit(5);
    if (!strcmp(end, "_exit"))
        _exit(5);
    if (!strcmp(end, "kill"))
        kill(getpid(), SIGKILL);
    while (!strcmp(end, "thread"))
        sleep(1);
    return 5;
}

int main(int argc, char **argv)
{
    static struct place places[MAX_CONTEXTS];
    static struct worker workers[THREADS];
    pthread_t ids[THREADS];
    int n_places = argc > 2 ? 2 * (int)strtol(argv[1], NULL, 10) : 0;
    if (n_places < 1 || n_places > MAX_CONTEXTS)
        return 2;
    end = argv[2];
    CHECK(cuInit(0));
    for (int i = 0; i < n_places; i++)
        open_place(&places[i], i / 2);
    for (unsigned i = 0; i < THREADS; i++)
        open_worker(&workers[i], i, &places[i % (unsigned)n_places]);
    bool coming = !strcmp(end, "contexts");
    endless = !coming && strcmp(end, "join") != 0;
    rounds = coming ? 40 : ROUNDS;
    for (int i = 0; i < THREADS; i++)
        pthread_create(&ids[i], NULL, work, &workers[i]);
    if (endless)
        return leave(argc > 3 ? argv[3] : "100");
    int device = 0;
    pthread_t others[COMING];
    for (int i = 0; coming && i < COMING; i++)
        pthread_create(&others[i], NULL, come_and_go, &device);
    for (int i = 0; coming && i < COMING; i++)
        pthread_join(others[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(ids[i], NULL);
        printf("%lu %lu\n", workers[i].launches, workers[i].sum);
    }
    return 0;
}
