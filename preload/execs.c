/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/execs.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "core/log.h"
#include "preload/forward.h"
#include "preload/funcs.h"
#include "preload/graphs.h"
#include "preload/handles.h"
#include "preload/hooks.h"
#include "preload/launch.h"
#include "preload/params.h"
#include "preload/process.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A copy node of ours, for one site of one kernel node. */
struct copy {
    CUgraphNode node;
    struct want want; /* site, plan, range, error; occurrence and layer are the launch's */
    bool dead;        /* in an update: there is no site here any more */
    bool live;        /* scratch of a launch: reserved */
    int drop;         /* scratch of a launch: enum dmi_drop + 1 that it was counted under */
    bool expected;    /* scratch of a launch */
    bool noted;       /* scratch of a launch: it took an occurrence */
};

/* A kernel node that the spec names, in the order in which occurrences are counted. */
struct entry {
    CUgraphNode host, node; /* the host's graph's; the clone's */
    size_t position;        /* among the nodes of its graph */
    bool enabled;
    const struct func *func;
    uint32_t first_copy, n_copies;
};

/* From nodes of the host's graph to the clone's, sorted by the host's. */
struct twin {
    CUgraphNode host, node;
};

struct exec {
    CUgraphExec handle;
    CUgraph clone;
    struct arena *arena;
    CUdeviceptr state; /* struct dmi_ticket */
    CUgraphNode open, close;
    struct entry *entries;
    uint32_t n_entries;
    struct copy *copies;
    uint32_t n_copies;
    struct twin *twins;
    size_t n_twins;
    uint64_t epoch; /* process.memory_epoch when pointers were last checked */
    bool empty;     /* open holds the empty ticket */
    uint64_t last_slot; /* behind the last launch's */
    struct exec *next_state; /* arena's list of states that may be used again */
    /* scratch of a launch */
    uint64_t forward[DMI_GRAPH_COPIES];
    uint32_t sites[DMI_GRAPH_COPIES];
    uint64_t sizes[DMI_GRAPH_COPIES], payloads[DMI_GRAPH_COPIES];
    struct dmi_open ticket;
};

static struct handles execs = HANDLES_INIT;

struct exec *execs_find(CUgraphExec exec)
{
    return handles_find(&execs, exec);
}

CUgraph execs_graph(const struct exec *exec)
{
    return exec->clone;
}

void execs_reset(void)
{
    struct handles fresh = HANDLES_INIT;
    execs = fresh;
}

/* ------------------------------------------------------------------------- device states */

/* State memory of execs that are gone; it may be used again once their last launch is over. */
struct spare {
    struct spare *next;
    const struct arena *arena;
    CUdeviceptr state;
    uint64_t last_slot;
};
static struct spare *spares;
static pthread_mutex_t spares_lock = PTHREAD_MUTEX_INITIALIZER;

static CUdeviceptr state_reuse(const struct arena *a)
{
    CUdeviceptr state = 0;
    uint64_t settled = atomic_load_acquire(&a->settled); /* of encoder_main() */
    pthread_mutex_lock(&spares_lock);
    for (struct spare **at = &spares; *at && !state;) {
        struct spare *s = *at;
        if (s->arena == a && s->last_slot <= settled) {
            state = s->state;
            *at = s->next;
            free(s);
        } else {
            at = &s->next;
        }
    }
    pthread_mutex_unlock(&spares_lock);
    return state;
}

static CUresult state_new(struct exec *x)
{
    struct arena *a = x->arena;
    CUresult r = CUDA_SUCCESS;
    x->state = state_reuse(a);
    if (!x->state)
        r = driver_table.cuMemAlloc_v2(&x->state, sizeof(struct dmi_ticket));
    /* on our own stream: the NULL stream would wait for the host's */
    if (r == CUDA_SUCCESS)
        r = driver_table.cuMemsetD8Async(x->state, 0, sizeof(struct dmi_ticket), a->stream);
    if (r == CUDA_SUCCESS)
        r = driver_table.cuStreamSynchronize(a->stream);
    return r;
}

static void state_give_back(const struct exec *x)
{
    struct spare *s = x->state ? malloc(sizeof *s) : NULL;
    if (!s)
        return; /* lost until the context ends */
    *s = (struct spare){.arena = x->arena, .state = x->state, .last_slot = x->last_slot};
    pthread_mutex_lock(&spares_lock);
    s->next = spares;
    spares = s;
    pthread_mutex_unlock(&spares_lock);
}

static void exec_free(struct exec *x)
{
    if (!x)
        return;
    if (x->clone)
        driver_table.cuGraphDestroy(x->clone);
    free(x->entries);
    free(x->copies);
    free(x->twins);
    free(x);
}

/* ------------------------------------------------------------------------- nodes and their twins */

static int by_host(const void *a, const void *b)
{
    const struct twin *x = a, *y = b;
    return x->host < y->host ? -1 : x->host > y->host;
}

/* All nodes of @graph, with those of child graphs; @copy is its clone, not yet added to. */
static bool collect_twins(struct exec *x, CUgraph graph, CUgraph copy)
{
    size_t n = 0;
    if (driver_table.cuGraphGetNodes(graph, NULL, &n) != CUDA_SUCCESS)
        return false;
    _cleanup_(freep) CUgraphNode *nodes = calloc(n + 1, sizeof *nodes);
    struct twin *grown = realloc(x->twins, (x->n_twins + n + 1) * sizeof *grown);
    if (grown)
        x->twins = grown;
    if (!nodes || !grown || driver_table.cuGraphGetNodes(graph, nodes, &n) != CUDA_SUCCESS)
        return false;
    size_t first = x->n_twins;
    for (size_t i = 0; i < n; i++) {
        struct twin *t = &x->twins[x->n_twins++];
        t->host = nodes[i];
        if (driver_table.cuGraphNodeFindInClone(&t->node, nodes[i], copy) != CUDA_SUCCESS)
            return false;
    }
    for (size_t i = 0; i < n; i++) {
        CUgraphNodeType type;
        CUgraph inner, inner_copy;
        if (driver_table.cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS)
            return false;
        if (type != CU_GRAPH_NODE_TYPE_GRAPH)
            continue;
        if (driver_table.cuGraphChildGraphNodeGetGraph(nodes[i], &inner) != CUDA_SUCCESS ||
            driver_table.cuGraphChildGraphNodeGetGraph(x->twins[first + i].node, &inner_copy) != CUDA_SUCCESS ||
            !collect_twins(x, inner, inner_copy))
            return false;
    }
    return true;
}

CUgraphNode execs_node(const struct exec *x, CUgraphNode node)
{
    struct twin key = {.host = node};
    const struct twin *t = x ? bsearch(&key, x->twins, x->n_twins, sizeof key, by_host) : NULL;
    return t ? t->node : node;
}

CUgraphNode execs_host_node(const struct exec *x, CUgraphNode node)
{
    for (size_t i = 0; i < x->n_twins; i++)
        if (x->twins[i].node == node)
            return x->twins[i].host;
    return NULL;
}

/* ------------------------------------------------------------------------- surgery */

static CUresult add_edge(CUgraph graph, CUgraphNode from, CUgraphNode to)
{
    if (driver_table.cuGraphAddDependencies_v2)
        return driver_table.cuGraphAddDependencies_v2(graph, &from, &to, NULL, 1);
    return driver_table.cuGraphAddDependencies(graph, &from, &to, 1);
}

/* Nodes behind (or, with @before, in front of) @node; free() them. Return: NULL on error. */
static CUgraphNode *neighbours(CUgraphNode node, bool before, size_t *n)
{
    *n = 0;
    /* the newer query tells edge data, without which the older one refuses graphs that have some */
    __typeof__(cuGraphNodeGetDependencies_v2) *ask =
        before ? driver_table.cuGraphNodeGetDependencies_v2 : driver_table.cuGraphNodeGetDependentNodes_v2;
    __typeof__(cuGraphNodeGetDependencies) *ask_old =
        before ? driver_table.cuGraphNodeGetDependencies : driver_table.cuGraphNodeGetDependentNodes;
    if ((ask ? ask(node, NULL, NULL, n) : ask_old(node, NULL, n)) != CUDA_SUCCESS)
        return NULL;
    CUgraphNode *nodes = calloc(*n + 1, sizeof *nodes);
    _cleanup_(freep) CUgraphEdgeData *data = calloc(*n + 1, sizeof *data);
    if (nodes && data && *n && (ask ? ask(node, nodes, data, n) : ask_old(node, nodes, n)) != CUDA_SUCCESS) {
        free(nodes);
        return NULL;
    }
    return nodes;
}

static CUresult add_kernel(CUgraph graph, CUgraphNode *node, const CUgraphNode *deps, size_t n_deps, CUfunction f,
                           uint32_t blocks, uint32_t threads, void *param)
{
    void *params[] = {param};
    CUDA_KERNEL_NODE_PARAMS_v2 k = {
        .func = f,
        .gridDimX = blocks,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .kernelParams = params,
    };
    return driver_table.cuGraphAddKernelNode_v2(node, graph, deps, n_deps, &k);
}

static void fill_copy(const struct exec *x, const struct copy *c, struct dmi_graph_copy *param)
{
    const struct arena *a = x->arena;
    *param = (struct dmi_graph_copy){
        .gather = c->want.plan.gather,
        .state = x->state,
        .payload = a->payload,
        .desc = a->desc_device,
        .retired = a->retired,
        .n_bytes = c->want.plan.n_bytes,
        .number = (uint32_t)(c - x->copies),
        .site = c->want.site,
        .n_rows = c->want.plan.dims[0],
    };
    if (!param->gather.access)
        /* nothing to read now (an error, no rows, no site): a place that a later update may fill */
        param->gather = (struct dmi_gather){.count = {1, 1, 1, 1}, .run_bytes = 1, .access = 1};
}

static uint32_t blocks_of(const struct dmi_graph_copy *param)
{
    return copy_blocks(param->n_bytes, param->gather.access);
}

/* The copy stands between the site and whatever it is ordered against. */
static CUresult add_copy(struct exec *x, CUgraph graph, const struct entry *e, struct copy *c)
{
    bool before = process.spec->sites[c->want.site].when == SPEC_BEFORE;
    struct dmi_graph_copy param;
    size_t n;
    _cleanup_(freep) CUgraphNode *others = neighbours(e->node, before, &n);
    if (!others)
        return CUDA_ERROR_OUT_OF_MEMORY;
    fill_copy(x, c, &param);
    CUresult r = add_kernel(graph, &c->node, before ? others : &e->node, before ? n : 1, x->arena->copy_graph,
                            blocks_of(&param), COPY_THREADS, &param);
    if (before)
        return r == CUDA_SUCCESS ? add_edge(graph, c->node, e->node) : r;
    for (size_t i = 0; i < n && r == CUDA_SUCCESS; i++)
        r = add_edge(graph, c->node, others[i]);
    return r;
}

/* Occurrences are known at launch only: what is read may not hang on them. */
static bool needs_occurrence(const struct spec_site *s)
{
    unsigned uses = s->offset ? expr_uses(s->offset) : 0;
    for (uint32_t i = 0; i < s->n_dims; i++)
        uses |= expr_uses(s->dims[i].count) | expr_uses(s->dims[i].stride);
    return uses & EXPR_USES_OCC;
}

static void plan_copy(struct copy *c, const struct func *func, const CUDA_KERNEL_NODE_PARAMS_v2 *k)
{
    const struct spec_site *site = &process.spec->sites[c->want.site];
    struct params params;
    uint32_t grid[3] = {k->gridDimX, k->gridDimY, k->gridDimZ};
    uint32_t block[3] = {k->blockDimX, k->blockDimY, k->blockDimZ};
    params_init(&params, func->layout, k->kernelParams, k->kernelParams ? NULL : k->extra);
    struct expr_env env = {.grid = grid, .block = block, .shared_bytes = k->sharedMemBytes, .param = params_read, .param_ctx = &params};
    c->want = (struct want){.site = c->want.site};
    if (needs_occurrence(site)) {
        process_problem(c->want.site, PROBLEM_UNSUPPORTED, "kernel %s is in a graph, where offsets and sizes may not use occ", func->name);
        c->want.error = DMI_DROP_UNSUPPORTED + 1;
        return;
    }
    want_plan(&c->want, &env);
}

static const struct func *func_of(const CUDA_KERNEL_NODE_PARAMS_v2 *k)
{
    const struct func *func = launch_lookup(k->func ? k->func : (CUfunction)k->kern);
    return func == &func_unmatched ? NULL : func;
}

static bool grow(struct exec *x, uint32_t n_copies)
{
    struct entry *entries = realloc(x->entries, (x->n_entries + 1) * sizeof *entries);
    if (entries)
        x->entries = entries;
    struct copy *copies = realloc(x->copies, (x->n_copies + n_copies + 1) * sizeof *copies);
    if (copies)
        x->copies = copies;
    return entries && copies;
}

static size_t position_of(const CUgraphNode *nodes, size_t n, CUgraphNode node)
{
    for (size_t i = 0; i < n; i++)
        if (nodes[i] == node)
            return i;
    return n;
}

/* Entries and copies of @graph's kernels, in order, without adding a node yet. */
static CUresult plan_graph(struct exec *x, CUgraph graph)
{
    size_t n_items, n_nodes = 0;
    _cleanup_(freep) struct graph_item *items = graphs_items(graph, &n_items);
    driver_table.cuGraphGetNodes(graph, NULL, &n_nodes);
    _cleanup_(freep) CUgraphNode *nodes = calloc(n_nodes + 1, sizeof *nodes);
    if (!nodes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    driver_table.cuGraphGetNodes(graph, nodes, &n_nodes);
    for (size_t i = 0; i < n_items; i++) {
        CUgraph inner;
        if (items[i].is_child) {
            CUresult r = driver_table.cuGraphChildGraphNodeGetGraph(items[i].node, &inner);
            if (r == CUDA_SUCCESS)
                r = plan_graph(x, inner);
            if (r != CUDA_SUCCESS)
                return r;
            continue;
        }
        CUDA_KERNEL_NODE_PARAMS_v2 k;
        CUresult r = driver_table.cuGraphKernelNodeGetParams_v2(items[i].node, &k);
        if (r != CUDA_SUCCESS)
            return r;
        const struct func *func = func_of(&k);
        if (!func)
            continue;
        if (!grow(x, func->match.n_sites) || x->n_copies + func->match.n_sites > DMI_GRAPH_COPIES)
            return CUDA_ERROR_OUT_OF_MEMORY;
        x->entries[x->n_entries++] = (struct entry){
            .host = items[i].node,
            .node = execs_node(x, items[i].node),
            .position = position_of(nodes, n_nodes, items[i].node),
            .enabled = true,
            .func = func,
            .first_copy = x->n_copies,
            .n_copies = func->match.n_sites,
        };
        for (uint32_t s = 0; s < func->match.n_sites; s++) {
            struct copy *c = &x->copies[x->n_copies++];
            *c = (struct copy){.want.site = func->match.sites[s]};
            plan_copy(c, func, &k);
        }
    }
    return CUDA_SUCCESS;
}

/* The clone's graph in which a node of the host's lies: the clone itself, or a child graph of it. */
static CUgraph graph_of(CUgraph clone, CUgraphNode node)
{
    size_t n = 0;
    if (driver_table.cuGraphGetNodes(clone, NULL, &n) != CUDA_SUCCESS)
        return NULL;
    _cleanup_(freep) CUgraphNode *nodes = calloc(n + 1, sizeof *nodes);
    if (!nodes || driver_table.cuGraphGetNodes(clone, nodes, &n) != CUDA_SUCCESS)
        return NULL;
    if (position_of(nodes, n, node) < n)
        return clone;
    for (size_t i = 0; i < n; i++) {
        CUgraphNodeType type;
        CUgraph inner, found;
        if (driver_table.cuGraphNodeGetType(nodes[i], &type) == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_GRAPH &&
            driver_table.cuGraphChildGraphNodeGetGraph(nodes[i], &inner) == CUDA_SUCCESS && (found = graph_of(inner, node)))
            return found;
    }
    return NULL;
}

/* open in front of every root that was there, close behind every leaf that is there then */
static CUresult add_open_close(struct exec *x)
{
    size_t n = 0, n_leaves = 0;
    CUresult r = driver_table.cuGraphGetRootNodes(x->clone, NULL, &n);
    _cleanup_(freep) CUgraphNode *nodes = calloc(n + 1, sizeof *nodes);
    if (r == CUDA_SUCCESS && nodes)
        r = driver_table.cuGraphGetRootNodes(x->clone, nodes, &n);
    if (r != CUDA_SUCCESS || !nodes)
        return r != CUDA_SUCCESS ? r : CUDA_ERROR_OUT_OF_MEMORY;
    x->ticket = (struct dmi_open){.state = x->state};
    x->empty = true;
    r = add_kernel(x->clone, &x->open, NULL, 0, x->arena->open, 1, COPY_THREADS, &x->ticket);
    for (size_t i = 0; i < n && r == CUDA_SUCCESS; i++)
        r = add_edge(x->clone, x->open, nodes[i]);
    if (r != CUDA_SUCCESS)
        return r;
    n = 0;
    r = driver_table.cuGraphGetNodes(x->clone, NULL, &n);
    _cleanup_(freep) CUgraphNode *all = calloc(n + 1, sizeof *all);
    if (r == CUDA_SUCCESS && all)
        r = driver_table.cuGraphGetNodes(x->clone, all, &n);
    if (r != CUDA_SUCCESS || !all)
        return r != CUDA_SUCCESS ? r : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < n; i++) {
        size_t behind;
        CUgraphNode *others = neighbours(all[i], false, &behind);
        free(others);
        if (others && !behind)
            all[n_leaves++] = all[i];
    }
    struct dmi_close param = {.state = x->state, .desc = x->arena->desc_device};
    return add_kernel(x->clone, &x->close, all, n_leaves, x->arena->close, 1, 1, &param);
}

static CUresult add_copies(struct exec *x)
{
    for (uint32_t i = 0; i < x->n_entries; i++) {
        const struct entry *e = &x->entries[i];
        CUgraph graph = e->n_copies ? graph_of(x->clone, e->node) : NULL;
        for (uint32_t c = 0; c < e->n_copies; c++) {
            CUresult r = graph ? add_copy(x, graph, e, &x->copies[e->first_copy + c]) : CUDA_ERROR_INVALID_VALUE;
            if (r != CUDA_SUCCESS)
                return r;
        }
    }
    return CUDA_SUCCESS;
}

/*
 * Kernels of the spec that were not noted: their graph was made where we could not see, or they became
 * sites by new parameters. Their order among the others is unknown.
 */
static void tell_unseen(CUgraph graph, const struct graph_item *items, size_t n_items)
{
    size_t n = 0;
    if (driver_table.cuGraphGetNodes(graph, NULL, &n) != CUDA_SUCCESS)
        return;
    _cleanup_(freep) CUgraphNode *nodes = calloc(n + 1, sizeof *nodes);
    if (!nodes || driver_table.cuGraphGetNodes(graph, nodes, &n) != CUDA_SUCCESS)
        return;
    for (size_t i = 0; i < n; i++) {
        CUgraphNodeType type;
        CUDA_KERNEL_NODE_PARAMS_v2 k;
        const struct func *func;
        bool noted = false;
        for (size_t item = 0; item < n_items && !noted; item++)
            noted = items[item].node == nodes[i];
        if (!noted && driver_table.cuGraphNodeGetType(nodes[i], &type) == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_KERNEL &&
            driver_table.cuGraphKernelNodeGetParams_v2(nodes[i], &k) == CUDA_SUCCESS && (func = func_of(&k)))
            for (uint32_t s = 0; s < func->match.n_sites; s++)
                process_problem(func->match.sites[s], PROBLEM_UNSUPPORTED,
                                "kernel %s came into its graph unseen (made before the library looked, or by new "
                                "parameters): not captured", func->name);
    }
}

static void tell_left_alone(const struct graph_item *items, size_t n, const char *why, CUresult r)
{
    for (size_t i = 0; i < n; i++) {
        CUDA_KERNEL_NODE_PARAMS_v2 k;
        const struct func *func;
        if (items[i].is_child || driver_table.cuGraphKernelNodeGetParams_v2(items[i].node, &k) != CUDA_SUCCESS || !(func = func_of(&k)))
            continue;
        for (uint32_t s = 0; s < func->match.n_sites; s++)
            process_problem(func->match.sites[s], PROBLEM_UNSUPPORTED, "kernel %s is in a graph that is left alone: %s (error %d)",
                            func->name, why, (int)r);
    }
}

static CUresult clone_graph(struct exec *x, CUgraph graph)
{
    /* graphs that hold memory nodes cannot be cloned, nor can copies be added: they are told */
    CUresult r = driver_table.cuGraphClone(&x->clone, graph);
    if (r != CUDA_SUCCESS) {
        x->clone = NULL;
        return r;
    }
    if (!collect_twins(x, graph, x->clone))
        return CUDA_ERROR_OUT_OF_MEMORY;
    qsort(x->twins, x->n_twins, sizeof *x->twins, by_host);
    return CUDA_SUCCESS;
}

static CUresult prepare(struct exec *x, CUgraph graph, const char **why)
{
    *why = "it cannot be cloned";
    CUresult r = clone_graph(x, graph);
    if (r != CUDA_SUCCESS)
        return r;
    *why = "no memory for its state";
    r = state_new(x);
    if (r != CUDA_SUCCESS)
        return r;
    *why = "its kernels cannot be read, or are too many";
    r = plan_graph(x, graph);
    if (r != CUDA_SUCCESS)
        return r;
    *why = "copies cannot be added";
    r = add_copies(x);
    return r == CUDA_SUCCESS ? add_open_close(x) : r;
}

struct exec *execs_prepare(CUgraph graph)
{
    size_t n;
    _cleanup_(freep) struct graph_item *items = graphs_items(graph, &n);
    tell_unseen(graph, items, n);
    if (!n)
        return NULL;
    struct arena *a = arena_current();
    if (!a || atomic_load_acquire(&a->state) != ARENA_READY) {
        tell_left_alone(items, n, "this context has no ring", 0);
        return NULL;
    }
    struct exec *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->arena = a;
    x->epoch = atomic_load_acquire(&process.memory_epoch);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool exchanged = driver_table.cuThreadExchangeStreamCaptureMode &&
                     driver_table.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
    const char *why;
    CUresult r = prepare(x, graph, &why);
    if (exchanged)
        driver_table.cuThreadExchangeStreamCaptureMode(&mode);
    if (r == CUDA_SUCCESS && x->n_entries)
        return x;
    if (r != CUDA_SUCCESS)
        tell_left_alone(items, n, why, r);
    state_give_back(x);
    exec_free(x);
    return NULL;
}

void execs_made(struct exec *x, CUgraphExec handle)
{
    if (!handle) {
        for (uint32_t i = 0; i < x->n_copies; i++)
            process_problem(x->copies[i].want.site, PROBLEM_UNSUPPORTED,
                            "its graph could not be instantiated with our copies: not captured");
        state_give_back(x);
        exec_free(x);
        return;
    }
    x->handle = handle;
    if (handles_set(&execs, handle, x) == x)
        log_line("too many graph execs: the sites of this one are not captured");
}

struct exec *execs_take(CUgraphExec handle)
{
    return execs_find(handle) ? handles_set(&execs, handle, NULL) : NULL;
}

void execs_destroyed(struct exec *x)
{
    state_give_back(x);
    exec_free(x);
}

static void forget_if_of(const void *handle, void *value, void *ctx)
{
    struct exec *x = value;
    if (x->arena != ctx)
        return;
    handles_set(&execs, handle, NULL);
    x->clone = NULL; /* graphs outlive contexts no better than their kernels do: leave it be */
    exec_free(x);
}

void execs_forget_arena(const struct arena *arena)
{
    handles_each(&execs, forget_if_of, (void *)arena);
    pthread_mutex_lock(&spares_lock);
    for (struct spare **at = &spares; *at;) {
        struct spare *s = *at;
        if (s->arena == arena) {
            *at = s->next;
            free(s);
        } else {
            at = &s->next;
        }
    }
    pthread_mutex_unlock(&spares_lock);
}

/* ------------------------------------------------------------------------- changes by the host */

static struct entry *entry_of(struct exec *x, CUgraphNode host)
{
    for (uint32_t i = 0; i < x->n_entries; i++)
        if (x->entries[i].host == host)
            return &x->entries[i];
    return NULL;
}

static CUresult set_exec_params(struct exec *x, CUgraphNode node, CUfunction f, uint32_t blocks, uint32_t threads, void *param)
{
    void *params[] = {param};
    CUDA_KERNEL_NODE_PARAMS_v2 k = {
        .func = f,
        .gridDimX = blocks,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .kernelParams = params,
    };
    return driver_table.cuGraphExecKernelNodeSetParams_v2(x->handle, node, &k);
}

/* The copy node reads what its plan says now. If the driver refuses, it must not read what it said. */
static void refresh(struct exec *x, struct copy *c)
{
    struct dmi_graph_copy param;
    fill_copy(x, c, &param);
    CUresult r = set_exec_params(x, c->node, x->arena->copy_graph, blocks_of(&param), COPY_THREADS, &param);
    if (r != CUDA_SUCCESS)
        c->want.error = DMI_DROP_COPY_FAILED + 1;
}

static bool same_plan(const struct copy *a, const struct copy *b)
{
    return a->want.error == b->want.error && !memcmp(&a->want.plan, &b->want.plan, sizeof a->want.plan);
}

static bool matches_site(const struct func *func, uint32_t site)
{
    for (uint32_t i = 0; func && i < func->match.n_sites; i++)
        if (func->match.sites[i] == site)
            return true;
    return false;
}

static void tell_new_sites(const struct exec *x, const struct entry *e, const struct func *func)
{
    for (uint32_t i = 0; func && i < func->match.n_sites; i++) {
        bool there = false;
        for (uint32_t c = 0; e && c < e->n_copies; c++)
            there = there || x->copies[e->first_copy + c].want.site == func->match.sites[i];
        if (!there)
            process_problem(func->match.sites[i], PROBLEM_UNSUPPORTED,
                            "kernel %s came into a graph after it was instantiated: not captured", func->name);
    }
}

void execs_kernel_changed(struct exec *x, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *k)
{
    int saved = errno;
    struct entry *e = entry_of(x, node);
    const struct func *func = func_of(k);
    if (!e || func != e->func)
        tell_new_sites(x, e, func);
    for (uint32_t i = 0; e && i < e->n_copies; i++) {
        struct copy *c = &x->copies[e->first_copy + i], old = *c;
        c->dead = !matches_site(func, c->want.site);
        if (!c->dead)
            plan_copy(c, func, k);
        if (!same_plan(c, &old) && !c->dead)
            refresh(x, c);
    }
    if (e)
        e->func = func ? func : &func_unmatched;
    errno = saved;
}

void execs_node_enabled(struct exec *x, CUgraphNode node, bool on)
{
    struct entry *e = entry_of(x, node);
    if (e)
        e->enabled = on;
}

/* The entry of @x at the same place in its graph as @e in its own. */
static const struct entry *entry_at(const struct exec *x, size_t position)
{
    for (uint32_t i = 0; i < x->n_entries; i++)
        if (x->entries[i].position == position)
            return &x->entries[i];
    return NULL;
}

/*
 * The update must have our copies where the exec has them, or the driver finds another topology. Child
 * graphs are paired by position too: those with sites in them are refused by the driver if they differ.
 */
static CUresult fit_to(struct exec *u, const struct exec *x, CUgraph graph)
{
    _cleanup_(freep) CUgraphNode *nodes = NULL;
    size_t n = 0;
    struct exec planned = *u;
    CUresult r = plan_graph(&planned, graph);
    if (r != CUDA_SUCCESS)
        goto out;
    u->entries = calloc(x->n_entries + 1, sizeof *u->entries);
    u->copies = calloc(x->n_copies + 1, sizeof *u->copies);
    driver_table.cuGraphGetNodes(graph, NULL, &n);
    nodes = calloc(n + 1, sizeof *nodes);
    r = CUDA_ERROR_OUT_OF_MEMORY;
    if (!u->entries || !u->copies || !nodes)
        goto out;
    driver_table.cuGraphGetNodes(graph, nodes, &n);
    u->n_entries = x->n_entries;
    u->n_copies = x->n_copies;
    r = CUDA_SUCCESS;
    for (uint32_t i = 0; i < x->n_entries && r == CUDA_SUCCESS; i++) {
        const struct entry *old = &x->entries[i], *new = entry_at(&planned, old->position);
        struct entry *e = &u->entries[i];
        *e = *old;
        if (old->position >= n)
            r = CUDA_ERROR_INVALID_VALUE;
        else
            e->node = execs_node(u, nodes[old->position]);
        e->func = new ? new->func : &func_unmatched;
        for (uint32_t c = 0; c < old->n_copies; c++) {
            struct copy *to = &u->copies[old->first_copy + c];
            *to = (struct copy){.want.site = x->copies[old->first_copy + c].want.site, .dead = true};
            for (uint32_t k = 0; new && k < new->n_copies; k++)
                if (planned.copies[new->first_copy + k].want.site == to->want.site)
                    *to = planned.copies[new->first_copy + k];
        }
        tell_new_sites(x, old, e->func);
    }
out:
    free(planned.entries);
    free(planned.copies);
    return r;
}

struct exec *execs_prepare_update(struct exec *x, CUgraph graph)
{
    struct exec *u = calloc(1, sizeof *u);
    if (!u)
        return NULL;
    u->arena = x->arena;
    u->state = x->state;
    u->epoch = atomic_load_acquire(&process.memory_epoch);
    CUresult r = clone_graph(u, graph);
    if (r == CUDA_SUCCESS)
        r = fit_to(u, x, graph);
    if (r == CUDA_SUCCESS)
        r = add_copies(u);
    if (r == CUDA_SUCCESS)
        r = add_open_close(u);
    if (r == CUDA_SUCCESS)
        return u;
    exec_free(u);
    return NULL;
}

void execs_updated(struct exec *x, struct exec *u, bool success)
{
    if (success) {
        for (uint32_t i = 0; i < x->n_copies; i++) {
            CUgraphNode node = x->copies[i].node; /* the exec still goes by the nodes it was made from */
            x->copies[i] = u->copies[i];
            x->copies[i].node = node;
        }
        for (uint32_t i = 0; i < x->n_entries; i++)
            x->entries[i].func = u->entries[i].func;
        x->epoch = u->epoch;
        x->empty = true; /* the update's open came with the empty ticket */
    }
    exec_free(u);
}

/* ------------------------------------------------------------------------- launch */

static int no_param(void *ctx, struct expr_ref ref, void *dst, size_t n)
{
    (void)ctx;
    (void)ref;
    (void)dst;
    (void)n;
    return -ENOENT;
}

/* Memory may have been freed since pointers were checked: a copy of it would fault in the host's graph. */
static void check_memory(struct exec *x)
{
    uint64_t epoch = atomic_load_acquire(&process.memory_epoch);
    if (x->epoch == epoch)
        return;
    for (uint32_t i = 0; i < x->n_copies; i++)
        if (!x->copies[i].dead)
            want_check_memory(&x->copies[i].want);
    x->epoch = epoch;
}

/* Occurrences in the order of the graph's sites; under the lock. */
static void note_occurrences(struct exec *x)
{
    struct arena *a = x->arena;
    for (uint32_t i = 0; i < x->n_entries; i++) {
        const struct entry *e = &x->entries[i];
        if (e->enabled)
            forward_advance(a, e->func->match.kind);
        for (uint32_t k = e->first_copy; k < e->first_copy + e->n_copies; k++) {
            struct copy *c = &x->copies[k];
            const struct spec_site *site = &process.spec->sites[c->want.site];
            c->noted = e->enabled && !c->dead && forward_occurrence(a, c->want.site, &c->want.occurrence);
            c->expected = c->noted && c->want.occurrence >= site->first_occurrence &&
                          c->want.occurrence <= site->last_occurrence && (c->want.error || c->want.plan.n_bytes);
            c->live = false;
            c->drop = 0;
            x->forward[k] = a->forward.sequence;
            if (c->noted)
                atomic_add_relaxed(&process.counters->sites[c->want.site].launches, 1);
        }
    }
}

static void drop(struct exec *x, struct copy *c, int reason)
{
    c->live = false;
    c->drop = reason;
    want_drop(x->arena, &c->want, reason);
}

/* Expected, and either live or a counted drop. Return: number of live ones */
static uint32_t admit(struct exec *x)
{
    struct expr_env env = {.param = no_param};
    uint32_t none[3] = {0}, n = 0;
    env.grid = env.block = none;
    for (uint32_t k = 0; k < x->n_copies; k++) {
        struct copy *c = &x->copies[k];
        if (!c->expected)
            continue;
        struct want at_launch = c->want; /* an error of the layer is this launch's, not the copy's */
        want_layer(&at_launch, &env);
        c->want.layer = at_launch.layer;
        want_expect(&c->want);
        if (at_launch.error) {
            drop(x, c, at_launch.error);
            continue;
        }
        c->live = true;
        x->sites[n] = c->want.site;
        x->sizes[n++] = c->want.plan.n_bytes;
    }
    return n;
}

static int reserve_once(struct exec *x, uint32_t n, uint64_t *first, uint64_t *seq)
{
    struct arena *a = x->arena;
    int r = DMI_DROP_CONTEXT_GONE + 1;
    pthread_mutex_lock(&a->lock);
    if (atomic_load_acquire(&a->broken)) {
        r = DMI_DROP_DEVICE_ERROR + 1;
    } else if (atomic_load_acquire(&a->state) == ARENA_READY) {
        *seq = atomic_add_relaxed(&process.next_launch, 1);
        r = ring_reserve_launch(&a->ring, *seq, x->sites, x->sizes, n, first, x->payloads);
        if (r)
            r = (r == RING_E_FULL ? DMI_DROP_RING_FULL : DMI_DROP_TOO_LARGE) + 1;
        uint32_t i = 0;
        for (uint32_t k = 0; k < x->n_copies && !r; k++)
            if (x->copies[k].live)
                want_fill_pending(a, &x->copies[k].want, x->forward[k], *first + i++);
    }
    pthread_mutex_unlock(&a->lock);
    return r;
}

static int reserve(struct exec *x, uint32_t n, uint64_t *first, uint64_t *seq)
{
    uint64_t end = 0;
    int r;
    do
        r = reserve_once(x, n, first, seq);
    while (r == DMI_DROP_RING_FULL + 1 && launch_wait(&end));
    return r;
}

static void fill_ticket(struct exec *x, uint32_t n, uint64_t first, uint64_t seq)
{
    struct dmi_ticket *t = &x->ticket.ticket;
    uint32_t mask = x->arena->ring.n_slots - 1, i = 0;
    t->seq = seq;
    t->n_copies = x->n_copies;
    t->close_slot = (uint32_t)(first + n) & mask;
    for (uint32_t k = 0; k < x->n_copies; k++) {
        bool live = x->copies[k].live;
        t->offset16[k] = live ? (uint32_t)(x->payloads[i] / RING_ALIGN) : DMI_NOT_WANTED;
        t->slot[k] = live ? (unsigned short)((first + i) & mask) : 0;
        i += live;
    }
}

static CUresult set_ticket(struct exec *x)
{
    CUresult r = set_exec_params(x, x->open, x->arena->open, 1, COPY_THREADS, &x->ticket);
    x->empty = r == CUDA_SUCCESS && !x->ticket.ticket.n_copies;
    if (r != CUDA_SUCCESS && driver_table.cuGraphNodeSetEnabled)
        /* an old ticket must not be used twice: without open, the state stays as close left it: empty */
        driver_table.cuGraphNodeSetEnabled(x->handle, x->open, 0);
    return r;
}

static void set_empty_ticket(struct exec *x)
{
    if (x->empty)
        return;
    x->ticket.ticket.seq = 0;
    x->ticket.ticket.n_copies = 0;
    set_ticket(x);
}

static void cancel(struct exec *x, const struct exec_job *job)
{
    for (uint32_t i = 0; i < job->n_slots; i++)
        ring_cancel(&x->arena->ring, job->first + i);
}

static void drop_live(struct exec *x, int reason)
{
    for (uint32_t k = 0; k < x->n_copies; k++)
        if (x->copies[k].live)
            drop(x, &x->copies[k], reason);
}

void execs_launch_before(struct exec *x, CUstream stream, bool per_thread, struct exec_job *job)
{
    int saved = errno;
    job->exec = NULL;
    job->n_slots = 0;
    __atomic_fetch_add(&process.active, 1, __ATOMIC_SEQ_CST); /* see launch_before() */
    if (!__atomic_load_n(&process.armed, __ATOMIC_SEQ_CST) || launch_is_captured(stream, per_thread)) {
        /* embedded as a child graph, or the run has ended: it must run without a ticket */
        set_empty_ticket(x);
        errno = saved;
        return;
    }
    struct arena *a = x->arena;
    job->exec = x;
    check_memory(x);
    atomic_add_relaxed(&process.counters->launches_matched, 1);
    pthread_mutex_lock(&a->lock);
    note_occurrences(x);
    pthread_mutex_unlock(&a->lock);
    uint32_t n = admit(x);
    uint64_t first = 0, seq = 0;
    int r = n ? reserve(x, n, &first, &seq) : 0;
    if (n && r) {
        drop_live(x, r);
        n = 0;
    }
    if (n) {
        job->first = first;
        job->n_slots = n + 1;
        fill_ticket(x, n, first, seq);
        x->last_slot = first + n + 1;
        if (set_ticket(x) != CUDA_SUCCESS) {
            cancel(x, job);
            job->n_slots = 0;
            drop_live(x, DMI_DROP_COPY_FAILED + 1);
        }
    } else {
        set_empty_ticket(x);
    }
    errno = saved;
}

/* The driver refused the launch: it is as if nobody had asked for its records. */
static void take_back(struct exec *x, const struct exec_job *job)
{
    cancel(x, job);
    pthread_mutex_lock(&x->arena->lock);
    for (uint32_t k = 0; k < x->n_copies; k++) {
        struct copy *c = &x->copies[k];
        struct dmi_site_counters *counters = &process.counters->sites[c->want.site];
        if (c->noted) {
            forward_take_back(x->arena, c->want.site);
            atomic_sub_relaxed(&counters->launches, 1);
        }
        if (!c->expected)
            continue;
        process_count(&counters->expected, -1, 1, c->want.plan.dims[0], c->want.plan.n_bytes);
        if (c->drop)
            process_count(&counters->dropped[c->drop - 1], -1, 1, c->want.plan.dims[0], c->want.plan.n_bytes);
    }
    pthread_mutex_unlock(&x->arena->lock);
}

void execs_launch_after(struct exec_job *job, CUresult result)
{
    int saved = errno;
    if (job->exec && result != CUDA_SUCCESS)
        take_back(job->exec, job);
    atomic_sub_relaxed(&process.active, 1);
    errno = saved;
}
