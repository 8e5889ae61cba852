/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a node adds to a graph: bench_nodes GROUP DMI.fatbin NODES.fatbin NODES_PDL.fatbin
 *
 * A chain of 200 kernels of 2 us, and the same chain with a node of one kind after each kernel, or after some; each copy has 5 KB. Both graphs are
 * replayed in turns; the median of the rounds, by events, gives us a node. cuGraphLaunch is timed by the launching thread's CPU time. GROUP: a
 * word of the table below, or `programmatic`. Prints what, the answer and its estimate, separated by tabs; a graph that the driver refuses says so. For one thread.
 */
#include "tests/bench/bench.h"
#include "tests/bench/nodes.h"

#include <dmi/ring.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STEPS = 200,
    TENSORS = 252,
    BYTES = 5120,
    THREADS = 256,
    COPY_BLOCKS = 2,
    MAX_JOINS = 16,
    MARK = 7, /* in each byte of a tensor */
    MAX_REPLAYS = 20,
    ROUNDS = 7,
    WARM_UP_MS = 500, /* until the clocks of an idle device are up */
    MHZ = 1500,       /* where the driver does not say */
};

/* What stands after a kernel, and how the next one depends on both. */
enum kind { NOTHING, EMPTY, TODAY, WORD, GATHER, PROGRAMMATIC, MEMCPY, OPEN_CLOSE };
enum how {
    IN_LINE,
    PAST,       /* in line, and the edge past it stays */
    MAIN_FIRST, /* beside: a later kernel waits for the chain and for it, in this order */
    MAIN_LAST,
};

struct variant {
    const char *group, *what;
    double estimate; /* us a node, 0: there is none (docs/measurements.md) */
    enum kind kind;
    enum how how;
    int every;    /* kernels to a node */
    int distance; /* beside: kernels that it may run along with; a gather: its tensors */
    bool chain;   /* programmatic: kernels let the next one start early */
};

/* The group `programmatic` is all of them on such a chain. */
static const struct variant variants[] = {
    { "line", "nothing, a kernel", 3.3, NOTHING, IN_LINE, 1, 0, false },
    { "line", "an empty kernel in line", 1.3, EMPTY, IN_LINE, 1, 0, false },
    { "line", "today's copy", 3.5, TODAY, IN_LINE, 1, 0, false },
    { "line", "today's copy, the edge past it stays", 5.5, TODAY, PAST, 1, 0, false },
    { "line", "a copy that does not publish", 2.1, WORD, IN_LINE, 1, 0, false },
    { "line", "a copy that does not publish, the edge past it stays", 0, WORD, PAST, 1, 0, false },
    { "line", "9 copies in one node", 2.6, GATHER, IN_LINE, 9, 9, false },
    { "line", "a memcpy node in line", 5, MEMCPY, IN_LINE, 1, 0, false },
    { "line", "open and close alone, a launch", 5, OPEN_CLOSE, IN_LINE, STEPS, 0, false },
    { "beside", "a copy that the next kernel starts beside", 0.45, PROGRAMMATIC, IN_LINE, 1, 0,
      false },
    { "beside", "a branch, joined 1 later, the chain first", 1.4, WORD, MAIN_FIRST, 1, 1, false },
    { "beside", "a branch, joined 1 later, the chain last", 1.4, WORD, MAIN_LAST, 1, 1, false },
    { "beside", "a branch, joined 3 later, the chain first", 1.4, WORD, MAIN_FIRST, 1, 3, false },
    { "beside", "a branch, joined 3 later, the chain last", 1.4, WORD, MAIN_LAST, 1, 3, false },
    { "beside", "a branch, joined 10 later, the chain first", 1.4, WORD, MAIN_FIRST, 1, 10, false },
    { "beside", "a branch, joined 10 later, the chain last", 1.4, WORD, MAIN_LAST, 1, 10, false },
    { "beside", "a memcpy node, joined 3 later, the chain first", 0, MEMCPY, MAIN_FIRST, 1, 3,
      false },
    { "gathered", "a gather of 7 every 6 kernels (a layer)", 2.6, GATHER, IN_LINE, 6, 7, false },
    { "gathered", "a gather of 28 every 22 kernels (4 layers)", 3.3, GATHER, IN_LINE, 22, 28,
      false },
    { "gathered", "a gather of 252 at the end", 9, GATHER, IN_LINE, STEPS, TENSORS, false },
};
static const double programmatic_kernel = 2.3;

static struct {
    CUcontext context;
    CUstream stream;
    CUevent start, end;
    CUfunction step, pdl_step, nothing, copy_word, gather, pdl_copy, copy_graph, open, close;
    CUdeviceptr inputs, tensors, payload, words, table, state, marks, desc;
    struct dmi_desc *descs; /* what desc is for the host */
    unsigned blocks;        /* of a kernel of the application's */
    uint64_t cycles;
    int replays, rounds, warm_up_ms;
} at;

/* A graph, and what is set anew before each of its launches. */
struct graph {
    CUgraph graph; /* kept: its nodes name those of the exec */
    CUgraphExec exec;
    CUgraphNode open;
    struct dmi_open ticket;
    int n_nodes; /* that were added to the chain */
    double us, cpu_us;
};

static const char *failed; /* the call that gave an error */

#define TRY(name, ...)                                                                             \
    do {                                                                                           \
        CUresult _r = WRAPPED(name)(__VA_ARGS__);                                                  \
        if (_r != CUDA_SUCCESS) {                                                                  \
            failed = #name;                                                                        \
            return _r;                                                                             \
        }                                                                                          \
    } while (0)
#define PASS(call)                                                                                 \
    do {                                                                                           \
        CUresult _r = (call);                                                                      \
        if (_r != CUDA_SUCCESS)                                                                    \
            return _r;                                                                             \
    } while (0)

/* ------------------------------------------------------------------------- nodes */

static CUresult add_kernel(CUgraph graph, CUgraphNode *node, CUfunction f, unsigned blocks,
                           unsigned threads, void *param)
{
    void *params[] = { param };
    CUDA_KERNEL_NODE_PARAMS_v2 k = { .func = f,
                                     .gridDimX = blocks,
                                     .gridDimY = 1,
                                     .gridDimZ = 1,
                                     .blockDimX = threads,
                                     .blockDimY = 1,
                                     .blockDimZ = 1,
                                     .kernelParams = params };
    TRY(cuGraphAddKernelNode_v2, node, graph, NULL, 0, &k);
    return CUDA_SUCCESS;
}

static CUresult add_edge(CUgraph graph, CUgraphNode from, CUgraphNode to, bool programmatic)
{
    CUgraphEdgeData data = { 0 };
    if (programmatic) {
        data.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
        data.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
        TRY(cuGraphAddDependencies_v2, graph, &from, &to, &data, 1);
    } else {
        TRY(cuGraphAddDependencies, graph, &from, &to, 1);
    }
    return CUDA_SUCCESS;
}

static struct node_step node(CUdeviceptr to, CUdeviceptr from, int i)
{
    size_t tensor = (size_t)(i % TENSORS);
    return (struct node_step){ .to = to + tensor * BYTES,
                               .from = from + tensor * BYTES,
                               .word = at.words + 4 * tensor,
                               .cycles = at.cycles,
                               .n16 = BYTES / 16 };
}

static struct node_step step_of(int i)
{
    return node(at.tensors, at.inputs, i);
}

static struct node_step copy_of(int i)
{
    return node(at.payload, at.tensors, i);
}

/* The library's own copy, as its ticket in at.state has it. */
static struct dmi_graph_copy todays_copy(int i)
{
    return (struct dmi_graph_copy){ .gather = { .src = at.tensors + (size_t)i * BYTES,
                                                .count = { 1, 1, 1, 1 },
                                                .run_bytes = BYTES,
                                                .access = 16 },
                                    .state = at.state,
                                    .mark = at.marks + (size_t)i * sizeof(struct dmi_copy_mark),
                                    .number = (uint32_t)i,
                                    .n_rows = 1,
                                    .row_bytes = BYTES,
                                    .inverse = DMI_INVERSE(BYTES / 16) };
}

static CUresult add_memcpy(CUgraph graph, CUgraphNode *node, int i)
{
    struct node_step s = copy_of(i);
    CUDA_MEMCPY3D copy = { .srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = s.from,
                           .srcPitch = BYTES,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = s.to,
                           .dstPitch = BYTES,
                           .WidthInBytes = BYTES,
                           .Height = 1,
                           .Depth = 1 };
    TRY(cuGraphAddMemcpyNode, node, graph, NULL, 0, &copy, at.context);
    return CUDA_SUCCESS;
}

static CUresult add_extra(CUgraph graph, CUgraphNode *node, const struct variant *v, int i)
{
    struct node_step s = copy_of(i);
    struct node_gather g = { at.table };
    struct dmi_graph_copy copy = todays_copy(i);
    switch (v->kind) {
    case EMPTY: return add_kernel(graph, node, at.nothing, 1, 1, &s);
    case TODAY: return add_kernel(graph, node, at.copy_graph, COPY_BLOCKS, THREADS, &copy);
    case WORD: return add_kernel(graph, node, at.copy_word, COPY_BLOCKS, THREADS, &s);
    case GATHER: return add_kernel(graph, node, at.gather, (unsigned)v->distance, THREADS, &g);
    case PROGRAMMATIC: return add_kernel(graph, node, at.pdl_copy, COPY_BLOCKS, THREADS, &s);
    case MEMCPY: return add_memcpy(graph, node, i);
    case NOTHING:
    case OPEN_CLOSE: break;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

/* ------------------------------------------------------------------------- graphs */

/* What the next kernel waits for: the chain, and branches that are to be joined. */
struct tail {
    CUgraphNode last;
    bool programmatic;
    CUgraphNode past; /* or NULL: the kernel before the node in line */
    struct {
        CUgraphNode node;
        int at;
    } joins[MAX_JOINS];
    int n_joins;
};

static CUresult join(CUgraph graph, struct tail *t, CUgraphNode node, int i)
{
    int kept = 0;
    for (int k = 0; k < t->n_joins; k++) {
        if (t->joins[k].at == i)
            PASS(add_edge(graph, t->joins[k].node, node, false));
        else
            t->joins[kept++] = t->joins[k];
    }
    t->n_joins = kept;
    return CUDA_SUCCESS;
}

static CUresult depend(CUgraph graph, const struct variant *v, struct tail *t, CUgraphNode node,
                       int i)
{
    if (v->how == MAIN_LAST)
        PASS(join(graph, t, node, i));
    if (t->last)
        PASS(add_edge(graph, t->last, node, t->programmatic));
    if (t->past)
        PASS(add_edge(graph, t->past, node, v->chain));
    return join(graph, t, node, i);
}

static CUresult add_after(CUgraph graph, const struct variant *v, struct tail *t, int i)
{
    CUgraphNode extra, node = t->last;
    PASS(add_extra(graph, &extra, v, i));
    PASS(add_edge(graph, node, extra, false));
    if (v->how == IN_LINE || v->how == PAST) {
        t->last = extra;
        t->programmatic = v->kind == PROGRAMMATIC;
        t->past = v->how == PAST ? node : NULL;
    } else if (t->n_joins < MAX_JOINS) {
        t->joins[t->n_joins].node = extra;
        t->joins[t->n_joins++].at = i + 1 + v->distance;
    }
    return CUDA_SUCCESS;
}

static CUresult add_open(CUgraph graph, struct graph *g, struct tail *t)
{
    g->ticket = (struct dmi_open){ .state = at.state,
                                   .ticket = { .seq = DMI_SEQ_FIRST,
                                               .n_actions = STEPS,
                                               .n_records = 1,
                                               .payload = at.payload } };
    PASS(add_kernel(graph, &g->open, at.open, 1, THREADS, &g->ticket));
    t->last = g->open;
    return CUDA_SUCCESS;
}

static CUresult add_close(CUgraph graph, struct tail *t)
{
    struct dmi_close close = {
        .state = at.state, .marks = at.marks, .desc = at.desc, .n_tickets = 1, .n_slots = STEPS
    };
    CUgraphNode node;
    PASS(add_kernel(graph, &node, at.close, 1, DMI_CLOSE_THREADS, &close));
    return add_edge(graph, t->last, node, false);
}

static CUresult make(struct graph *g, const struct variant *v)
{
    CUgraph graph;
    struct tail t = { 0 };
    *g = (struct graph){ 0 };
    TRY(cuGraphCreate, &graph, 0);
    g->graph = graph;
    if (v->kind == OPEN_CLOSE)
        PASS(add_open(graph, g, &t));
    for (int i = 0; i < STEPS; i++) {
        struct node_step s = step_of(i);
        CUgraphNode node;
        PASS(add_kernel(graph, &node, v->chain ? at.pdl_step : at.step, at.blocks, THREADS, &s));
        PASS(depend(graph, v, &t, node, i));
        t.last = node;
        t.programmatic = v->chain;
        t.past = NULL;
        if (v->kind != NOTHING && v->kind != OPEN_CLOSE && (i + 1) % v->every == 0) {
            PASS(add_after(graph, v, &t, i));
            g->n_nodes++;
        }
    }
    if (v->kind == OPEN_CLOSE) {
        PASS(add_close(graph, &t));
        g->n_nodes = 1;
    }
    TRY(cuGraphInstantiateWithFlags, &g->exec, graph, 0);
    return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------- time */

static CUresult next_ticket(struct graph *g)
{
    void *params[] = { &g->ticket };
    CUDA_KERNEL_NODE_PARAMS_v2 k = { .func = at.open,
                                     .gridDimX = 1,
                                     .gridDimY = 1,
                                     .gridDimZ = 1,
                                     .blockDimX = THREADS,
                                     .blockDimY = 1,
                                     .blockDimZ = 1,
                                     .kernelParams = params };
    g->ticket.ticket.seq++;
    TRY(cuGraphExecKernelNodeSetParams_v2, g->exec, g->open, &k);
    return CUDA_SUCCESS;
}

/* us of a replay by events, and of a launch by the thread's CPU time. */
static CUresult replay(struct graph *g, double *us, double *cpu_us)
{
    float ms = 0;
    uint64_t cpu = 0;
    TRY(cuEventRecord, at.start, at.stream);
    for (int i = 0; i < at.replays; i++) {
        uint64_t before = bench_thread_ns();
        if (g->open)
            PASS(next_ticket(g));
        TRY(cuGraphLaunch, g->exec, at.stream);
        cpu += bench_thread_ns() - before;
    }
    TRY(cuEventRecord, at.end, at.stream);
    TRY(cuStreamSynchronize, at.stream);
    TRY(cuEventElapsedTime, &ms, at.start, at.end);
    *us = (double)ms * 1e3 / at.replays;
    *cpu_us = (double)cpu / 1e3 / at.replays;
    return CUDA_SUCCESS;
}

/* Medians of rounds in turns; the first one warms up. */
static CUresult time_both(struct graph *plain, struct graph *with)
{
    double us[2][ROUNDS], cpu[2][ROUNDS], unused;
    PASS(replay(plain, &unused, &unused));
    PASS(replay(with, &unused, &unused));
    for (int r = 0; r < at.rounds; r++)
        for (int k = 0; k < 2; k++) {
            int which = (r + k) & 1;
            PASS(replay(which ? with : plain, &us[which][r], &cpu[which][r]));
        }
    plain->us = bench_median(us[0], at.rounds);
    plain->cpu_us = bench_median(cpu[0], at.rounds);
    with->us = bench_median(us[1], at.rounds);
    with->cpu_us = bench_median(cpu[1], at.rounds);
    return CUDA_SUCCESS;
}

static CUresult make_plain(struct graph *g, bool chain)
{
    double unused;
    uint64_t start = bench_now_ns();
    PASS(make(g, &(struct variant){ .kind = NOTHING, .every = 1, .chain = chain }));
    while (bench_now_ns() - start < (uint64_t)at.warm_up_ms * 1000000)
        PASS(replay(g, &unused, &unused));
    return CUDA_SUCCESS;
}

/* A node that does nothing would cost too little. */
static void check(const struct variant *v, const struct graph *g)
{
    static unsigned char copied[TENSORS * BYTES];
    int n = v->kind == GATHER                                                 ? v->distance
            : v->kind == EMPTY || v->kind == NOTHING || v->kind == OPEN_CLOSE ? 0
                                                                              : STEPS;
    CALL(cuMemcpyDtoH_v2, copied, at.payload, sizeof copied);
    for (int i = 0; i < n * BYTES; i++)
        if (copied[i] != MARK)
            bench_die("a copy that was not made: byte", i);
    static struct dmi_copy_mark marks[STEPS];
    CALL(cuMemcpyDtoH_v2, marks, at.marks, sizeof marks);
    for (int i = 0; i < STEPS && v->kind == TODAY; i++)
        if (marks[i].seq != DMI_SEQ_FIRST || marks[i].sum != dmi_copy_sum(0, BYTES))
            bench_die("a copy that left no mark", i);
    if (v->kind == OPEN_CLOSE && at.descs[0].ready != g->ticket.ticket.seq)
        bench_die("close published nothing", 0);
}

static CUresult measure(const struct variant *v, struct graph *plain)
{
    struct graph with;
    PASS(make(&with, v));
    CALL(cuMemsetD8_v2, at.marks, 0, STEPS * sizeof(struct dmi_copy_mark));
    CALL(cuMemsetD8_v2, at.payload, 0, (size_t)TENSORS * BYTES);
    memset(at.descs, 0, STEPS * sizeof(struct dmi_desc));
    PASS(time_both(plain, &with));
    check(v, &with);
    if (v->kind == NOTHING)
        printf("%s\t%.2f us, cuGraphLaunch %.1f us of CPU\t", v->what, with.us / STEPS,
               with.cpu_us);
    else
        printf("%s\t%.2f us a node, %d nodes, cuGraphLaunch %.1f us of CPU, without them %.1f\t",
               v->what, (with.us - plain->us) / with.n_nodes, with.n_nodes, with.cpu_us,
               plain->cpu_us);
    TRY(cuGraphExecDestroy, with.exec);
    TRY(cuGraphDestroy, with.graph);
    return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------- set-up */

static CUfunction function(CUmodule module, const char *name)
{
    CUfunction f;
    CALL(cuModuleGetFunction, &f, module, name);
    return f;
}

static int attribute(CUdevice_attribute which)
{
    int value = 0;
    CALL(cuDeviceGetAttribute, &value, which, 0);
    return value;
}

static CUdeviceptr memory(size_t n)
{
    CUdeviceptr p;
    CALL(cuMemAlloc_v2, &p, n);
    CALL(cuMemsetD8_v2, p, 0, n);
    return p;
}

/* The table of the gathers, and the ticket by which today's copies do their work at every launch. */
static void fill(void)
{
    static struct node_step table[TENSORS];
    static struct dmi_ticket ticket;
    for (int i = 0; i < TENSORS; i++)
        table[i] = copy_of(i);
    at.table = memory(sizeof table);
    CALL(cuMemcpyHtoD_v2, at.table, table, sizeof table);
    ticket = (struct dmi_ticket){
        .seq = DMI_SEQ_FIRST, .n_actions = STEPS, .close_slot = DMI_NO_CLOSE, .payload = at.payload
    };
    for (uint32_t i = 0; i < STEPS; i++) {
        ticket.offset16[i] = i * BYTES / 16;
        ticket.slot[i] = (unsigned short)i;
        ticket.rows_of[i] = DMI_ROWS_ALL;
    }
    at.state = memory(sizeof ticket);
    CALL(cuMemcpyHtoD_v2, at.state, &ticket, sizeof ticket);
    CALL(cuMemHostAlloc, (void **)&at.descs, STEPS * sizeof(struct dmi_desc),
         CU_MEMHOSTALLOC_DEVICEMAP);
    memset(at.descs, 0, STEPS * sizeof(struct dmi_desc));
    CALL(cuMemHostGetDevicePointer_v2, &at.desc, at.descs, 0);
}

static void set_up(char **files, bool programmatic)
{
    struct bench_kernels kernels;
    char name[128] = "";
    bench_start(&kernels);
    CALL(cuCtxGetCurrent, &at.context);
    CALL(cuDeviceGetName, name, sizeof name, 0);
    bool standin = strstr(name, "stand-in") != NULL;
    CUmodule dmi = bench_module(files[0]), nodes = bench_module(files[1]);
    at.copy_graph = function(dmi, "dmi_copy_graph_packed");
    at.open = function(dmi, "dmi_open");
    at.close = function(dmi, "dmi_close");
    at.step = function(nodes, "step");
    at.nothing = function(nodes, "nothing");
    at.copy_word = function(nodes, "copy_word");
    at.gather = function(nodes, "gather");
    if (programmatic) {
        CUmodule pdl = bench_module(files[2]);
        at.pdl_step = function(pdl, "pdl_step");
        at.pdl_copy = function(pdl, "pdl_copy");
    }
    CALL(cuStreamCreate, &at.stream, CU_STREAM_NON_BLOCKING);
    CALL(cuEventCreate, &at.start, CU_EVENT_DEFAULT);
    CALL(cuEventCreate, &at.end, CU_EVENT_DEFAULT);
    at.blocks = standin ? 2 : (unsigned)attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    int khz = attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
    at.cycles = standin ? 100 : 2 * (khz > 0 ? (uint64_t)khz / 1000 : MHZ);
    at.warm_up_ms = standin ? 0 : WARM_UP_MS;
    at.replays = standin ? 1 : MAX_REPLAYS;
    at.rounds = standin ? 1 : ROUNDS;
    at.inputs = memory((size_t)TENSORS * BYTES);
    at.tensors = memory((size_t)TENSORS * BYTES);
    CALL(cuMemsetD8_v2, at.inputs, MARK, (size_t)TENSORS * BYTES);
    CALL(cuMemsetD8_v2, at.tensors, MARK, (size_t)TENSORS * BYTES);
    at.payload = memory((size_t)TENSORS * BYTES);
    at.words = memory((size_t)TENSORS * 4);
    at.marks = memory((size_t)STEPS * sizeof(struct dmi_copy_mark));
    fill();
}

/* Return: whether this device has programmatic launches. */
static bool has_programmatic(void)
{
    int major = 0;
    bench_library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!bench_library)
        bench_die("dlopen(libcuda.so.1)", 0);
    CALL(cuInit, 0);
    CALL(cuDeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
    return major >= 9;
}

static void run(const struct variant *v, struct graph plain[2], bool programmatic)
{
    if ((v->chain || v->kind == PROGRAMMATIC) && !programmatic) {
        printf("%s\tneeds compute capability 9.0\t\n", v->what);
        return;
    }
    struct graph *base = &plain[v->chain];
    CUresult r = CUDA_SUCCESS;
    if (!base->exec)
        r = make_plain(base, v->chain);
    if (r == CUDA_SUCCESS)
        r = measure(v, base);
    if (r != CUDA_SUCCESS)
        printf("%s\trefused: %s gave %d\t\n", v->what, failed, (int)r);
    else if (v->estimate > 0)
        printf("%g\n", v->estimate);
    else
        printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct graph plain[2] = { 0 };
    int n = 0;
    if (argc != 5)
        bench_die("usage: bench_nodes GROUP DMI.fatbin NODES.fatbin NODES_PDL.fatbin", argc);
    bool programmatic = has_programmatic();
    set_up(argv + 2, programmatic);
    bool all = !strcmp(argv[1], "programmatic");
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        struct variant v = variants[i];
        if (!all && strcmp(argv[1], v.group))
            continue;
        v.chain = all;
        if (all)
            v.estimate = v.kind == NOTHING ? programmatic_kernel : 0;
        run(&v, plain, programmatic);
        n++;
    }
    if (!n)
        bench_die("there is no such group", 0);
    return 0;
}
