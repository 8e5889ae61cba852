/* SPDX-License-Identifier: Apache-2.0 */
/*
 * many_owners.c - threads own, share and end contexts while others launch in them
 *
 * many_owners SEED THREADS STEPS. Two devices. The main thread holds the primary context of device 0; each thread, by a random
 * schedule, retains and releases both, makes them current, launches `block` and instantiates graphs with it in device 0,
 * uses, resets and ends the one of device 1 and contexts of its own. It says how many kernels each thread launched on device
 * 0, and the sum of their seeds. It knows nothing of DMI.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_THREADS = 16, WORDS = 64, KEPT = 0, CHAOS = 1 };

/* out[i] = seed * 65536 + i */
static const char ptx[] =
    ".version 6.4\n.target sm_75\n.address_size 64\n"
    ".visible .entry block(.param .u64 p, .param .u32 n, .param .u32 s)\n{\n"
    ".reg .b32 %r<6>;\n.reg .b64 %d<4>;\n.reg .pred %q;\nld.param.u64 %d1, [p];\n"
    "ld.param.u32 %r1, [n];\nld.param.u32 %r5, [s];\nmov.u32 %r2, %tid.x;\n"
    "setp.ge.u32 %q, %r2, %r1;\n@%q ret;\nshl.b32 %r5, %r5, 16;\nadd.u32 %r5, %r5, %r2;\n"
    "mul.wide.u32 %d2, %r2, 4;\nadd.u64 %d3, %d1, %d2;\nst.global.u32 [%d3], %r5;\nret;\n}\n";

/* What a thread launches in a context. */
struct place {
    CUfunction block;
    CUstream stream;
    CUdeviceptr buffer;
};

struct worker {
    pthread_t id;
    uint64_t seed;
    int steps;
    unsigned number, next; /* seeds of device 0 are number * 4096 + next */
    struct place kept;
    unsigned held; /* references to the primary context of device 1 */
    CUcontext own; /* with as many attachments */
    unsigned attached;
    unsigned long launches, sum;
};

static pthread_rwlock_t whole = PTHREAD_RWLOCK_INITIALIZER; /* nobody resets what others use */
static CUcontext kept;
static CUfunction kept_block;

#define CHECK(call)                                                                                \
    do {                                                                                           \
        CUresult _r = (call);                                                                      \
        if (_r != CUDA_SUCCESS) {                                                                  \
            printf("%s: %d\n", #call, (int)_r);                                                    \
            fflush(stdout);                                                                        \
            _exit(3);                                                                              \
        }                                                                                          \
    } while (0)

static uint64_t next(struct worker *w)
{
    uint64_t z = w->seed += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    return z ^ z >> 27;
}

static CUresult launch(const struct place *p, unsigned seed)
{
    unsigned n = WORDS;
    CUdeviceptr out = p->buffer;
    void *params[] = { &out, &n, &seed };
    return cuLaunchKernel(p->block, 1, 1, 1, WORDS, 1, 1, 0, p->stream, params, NULL);
}

static unsigned launched(struct worker *w)
{
    unsigned seed = w->number * 4096 + w->next++ % 4096;
    w->launches++;
    w->sum += seed;
    return seed;
}

static CUresult graph_of(const struct place *p, unsigned seed, CUgraphExec *exec)
{
    CUgraph graph;
    CUgraphNode node;
    unsigned n = WORDS;
    CUdeviceptr out = p->buffer;
    void *params[] = { &out, &n, &seed };
    CUDA_KERNEL_NODE_PARAMS_v1 k = { p->block, 1, 1, 1, WORDS, 1, 1, 0, params, NULL };
    CUresult r = cuGraphCreate(&graph, 0);
    if (r == CUDA_SUCCESS)
        r = cuGraphAddKernelNode(&node, graph, NULL, 0, &k);
    return r == CUDA_SUCCESS ? cuGraphInstantiateWithFlags(exec, graph, 0) : r;
}

/* In the context that everybody shares and nobody ends; now and then where no context is current. */
static void use_kept(struct worker *w)
{
    CUcontext popped;
    CUgraphExec exec;
    int current = next(w) % 4 != 0;
    if (current)
        CHECK(cuCtxPushCurrent_v2(kept));
    if (next(w) % 3) {
        CHECK(launch(&w->kept, launched(w)));
    } else if (current) {
        CHECK(graph_of(&w->kept, launched(w), &exec));
        CHECK(cuGraphLaunch(exec, w->kept.stream));
        CHECK(cuStreamSynchronize(w->kept.stream));
        CHECK(cuGraphExecDestroy(exec));
    }
    CHECK(cuStreamSynchronize(w->kept.stream));
    if (current)
        CHECK(cuCtxPopCurrent_v2(&popped));
}

/* In one that ends later. */
static void use(struct worker *w, CUcontext context)
{
    CUcontext popped;
    CUmodule module;
    CUgraphExec exec;
    struct place p;
    CHECK(cuCtxPushCurrent_v2(context));
    CHECK(cuModuleLoadData(&module, ptx));
    CHECK(cuModuleGetFunction(&p.block, module, "block"));
    CHECK(cuMemAlloc_v2(&p.buffer, WORDS * 4));
    CHECK(cuStreamCreate(&p.stream, CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i < 3; i++)
        CHECK(launch(&p, i));
    if (next(w) % 2) {
        CHECK(graph_of(&p, 4, &exec));
        CHECK(cuGraphLaunch(exec, p.stream));
    }
    CHECK(cuCtxPopCurrent_v2(&popped));
}

static void borrow(struct worker *w)
{
    CUcontext context;
    pthread_rwlock_rdlock(&whole);
    CHECK(cuDevicePrimaryCtxRetain(&context, CHAOS));
    w->held++;
    use(w, context);
    pthread_rwlock_unlock(&whole);
}

static void reset(void)
{
    pthread_rwlock_wrlock(&whole);
    CHECK(cuDevicePrimaryCtxReset_v2(CHAOS));
    pthread_rwlock_unlock(&whole);
}

static void own(struct worker *w)
{
    CUcontext context;
    if (!w->own) {
        CHECK(cuCtxCreate_v2(&w->own, 0, CHAOS));
        w->attached = 1;
    } else {
        CHECK(cuCtxPushCurrent_v2(w->own));
        CHECK(cuCtxAttach(&context, 0));
        w->attached++;
    }
    CHECK(cuCtxPopCurrent_v2(&context));
    use(w, w->own);
}

static void disown(struct worker *w)
{
    if (!w->own)
        return;
    if (next(w) % 4) {
        CHECK(cuCtxDetach(w->own));
        w->attached--;
    } else {
        CHECK(cuCtxDestroy_v2(w->own));
        w->attached = 0;
    }
    if (!w->attached)
        w->own = NULL;
}

static void step(struct worker *w)
{
    CUcontext context;
    switch (next(w) % 10) {
    case 0: /* a transport does so for each transfer */
    case 1:
        CHECK(cuDevicePrimaryCtxRetain(&context, KEPT));
        CHECK(cuDevicePrimaryCtxRelease_v2(KEPT));
        break;
    case 2: borrow(w); break;
    case 3:
        if (w->held && w->held--)
            CHECK(cuDevicePrimaryCtxRelease_v2(CHAOS));
        break;
    case 4:
        if (next(w) % 4 == 0)
            reset();
        break;
    case 5: own(w); break;
    case 6: disown(w); break;
    default: use_kept(w);
    }
}

static void *work(void *arg)
{
    struct worker *w = arg;
    for (int i = 0; i < w->steps; i++)
        step(w);
    while (w->own)
        disown(w);
    while (w->held && w->held--)
        CHECK(cuDevicePrimaryCtxRelease_v2(CHAOS));
    return NULL;
}

int main(int argc, char **argv)
{
    static struct worker workers[MAX_THREADS];
    CUmodule module;
    int n = argc == 4 ? atoi(argv[2]) : 0;
    if (n < 1 || n > MAX_THREADS)
        return 2;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&kept, KEPT));
    CHECK(cuCtxSetCurrent(kept));
    CHECK(cuModuleLoadData(&module, ptx));
    CHECK(cuModuleGetFunction(&kept_block, module, "block"));
    for (int i = 0; i < n; i++) {
        struct worker *w = &workers[i];
        *w = (struct worker){ .number = (unsigned)i,
                              .steps = atoi(argv[3]),
                              .kept.block = kept_block };
        w->seed = strtoull(argv[1], NULL, 10) * 1000 + (unsigned)i;
        CHECK(cuStreamCreate(&w->kept.stream, CU_STREAM_NON_BLOCKING));
        CHECK(cuMemAlloc_v2(&w->kept.buffer, WORDS * 4));
    }
    for (int i = 0; i < n; i++)
        pthread_create(&workers[i].id, NULL, work, &workers[i]);
    for (int i = 0; i < n; i++) {
        pthread_join(workers[i].id, NULL);
        printf("%lu %lu\n", workers[i].launches, workers[i].sum);
    }
    return 0;
}
