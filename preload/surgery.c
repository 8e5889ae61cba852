/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the host's graph to a clone with copies: which nodes are sites, what their copies read, and where
 * open, copies and close go.
 */
#include "preload/exec_private.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "preload/graphs.h"
#include "preload/hooks.h"
#include "preload/params.h"
#include "preload/process.h"

#include <stdlib.h>
#include <string.h>

/* What cannot be done to a clone in the host's stead, NULL: nothing. */
static const char *unfit(CUgraphNode node, CUgraphNodeType type)
{
    CUlaunchAttributeValue value = { 0 };
    if (type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
        return "it holds a conditional node, whose handle and body are the host's graph's own";
    if (type != CU_GRAPH_NODE_TYPE_KERNEL)
        return NULL;
    if (driver_table.cuGraphKernelNodeGetAttribute &&
        driver_table.cuGraphKernelNodeGetAttribute(
            node, CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, &value) == CUDA_SUCCESS &&
        value.deviceUpdatableKernelNode.deviceUpdatable)
        return "it holds a node that kernels update, by a handle of the host's graph";
    return NULL;
}

/* All nodes of @graph, with those of child graphs; @copy is its clone, not yet added to. Return: NULL or what is wrong. */
static const char *collect_twins(struct exec *x, CUgraph graph, CUgraph copy)
{
    const char *failed = "its nodes and its clone's cannot be paired";
    size_t n = 0;
    if (driver_table.cuGraphGetNodes(graph, NULL, &n) != CUDA_SUCCESS)
        return failed;
    _cleanup_(freep) CUgraphNode *nodes = calloc(n + 1, sizeof *nodes);
    struct twin *grown = realloc(x->twins, (x->n_twins + n + 1) * sizeof *grown);
    if (grown)
        x->twins = grown;
    if (!nodes || !grown || driver_table.cuGraphGetNodes(graph, nodes, &n) != CUDA_SUCCESS)
        return failed;
    size_t first = x->n_twins;
    for (size_t i = 0; i < n; i++) {
        struct twin *t = &x->twins[x->n_twins];
        *t = (struct twin){ .host = nodes[i], .graph = copy, .position = (uint32_t)x->n_twins++ };
        if (driver_table.cuGraphNodeFindInClone(&t->node, nodes[i], copy) != CUDA_SUCCESS)
            return failed;
    }
    for (size_t i = 0; i < n; i++) {
        CUgraphNodeType type;
        CUgraph inner, inner_copy;
        size_t inner_first = x->n_twins;
        if (driver_table.cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS)
            return failed;
        const char *why = unfit(nodes[i], type);
        if (!why && type == CU_GRAPH_NODE_TYPE_GRAPH) {
            bool both =
                driver_table.cuGraphChildGraphNodeGetGraph(nodes[i], &inner) == CUDA_SUCCESS &&
                driver_table.cuGraphChildGraphNodeGetGraph(x->twins[first + i].node, &inner_copy) ==
                    CUDA_SUCCESS;
            why = both ? collect_twins(x, inner, inner_copy) : failed;
            x->twins[first + i].is_graph = true;
            x->twins[first + i].first = (uint32_t)inner_first;
            x->twins[first + i].n = (uint32_t)(x->n_twins - inner_first);
        }
        if (why)
            return why;
    }
    return NULL;
}

static int compare_twins(const void *a, const void *b)
{
    const struct twin *x = a, *y = b;
    return x->host < y->host ? -1 : x->host > y->host;
}

void exec_sort_twins(struct exec *x)
{
    if (x->n_twins)
        qsort(x->twins, x->n_twins, sizeof *x->twins, compare_twins);
}

CUresult exec_clone(struct exec *x, CUgraph graph, bool sorted, const char **why)
{
    /* graphs that hold memory nodes cannot be cloned, nor can copies be added: they are told */
    *why = "it cannot be cloned";
    CUresult r = driver_table.cuGraphClone(&x->clone, graph);
    if (r != CUDA_SUCCESS) {
        x->clone = NULL;
        return r;
    }
    *why = collect_twins(x, graph, x->clone);
    if (sorted)
        exec_sort_twins(x);
    return *why ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

struct exec_relaxed exec_relax(void)
{
    struct exec_relaxed before = { .mode = CU_STREAM_CAPTURE_MODE_RELAXED };
    before.exchanged = driver_table.cuThreadExchangeStreamCaptureMode &&
                       driver_table.cuThreadExchangeStreamCaptureMode(&before.mode) == CUDA_SUCCESS;
    return before;
}

void exec_unrelax(struct exec_relaxed *before)
{
    if (before->exchanged)
        driver_table.cuThreadExchangeStreamCaptureMode(&before->mode);
}

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
        before ? driver_table.cuGraphNodeGetDependencies_v2
               : driver_table.cuGraphNodeGetDependentNodes_v2;
    __typeof__(cuGraphNodeGetDependencies) *ask_old =
        before ? driver_table.cuGraphNodeGetDependencies
               : driver_table.cuGraphNodeGetDependentNodes;
    if ((ask ? ask(node, NULL, NULL, n) : ask_old(node, NULL, n)) != CUDA_SUCCESS)
        return NULL;
    CUgraphNode *nodes = calloc(*n + 1, sizeof *nodes);
    _cleanup_(freep) CUgraphEdgeData *data = calloc(*n + 1, sizeof *data);
    if (nodes && data && *n &&
        (ask ? ask(node, nodes, data, n) : ask_old(node, nodes, n)) != CUDA_SUCCESS) {
        free(nodes);
        return NULL;
    }
    return nodes;
}

/* A kernel of ours as the driver wants it described; @params holds the one parameter's address. */
static CUDA_KERNEL_NODE_PARAMS_v2 kernel_params(CUfunction f, uint32_t blocks, uint32_t threads,
                                                void **params)
{
    return (CUDA_KERNEL_NODE_PARAMS_v2){
        .func = f,
        .gridDimX = blocks,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .kernelParams = params,
    };
}

CUresult exec_set_params(struct exec *x, CUgraphNode node, CUfunction f, uint32_t blocks,
                         uint32_t threads, void *param)
{
    void *params[] = { param };
    CUDA_KERNEL_NODE_PARAMS_v2 k = kernel_params(f, blocks, threads, params);
    return driver_table.cuGraphExecKernelNodeSetParams_v2(x->handle, node, &k);
}

static CUresult add_kernel(CUgraph graph, CUgraphNode *node, const CUgraphNode *deps, size_t n_deps,
                           CUfunction f, uint32_t blocks, uint32_t threads, void *param)
{
    void *params[] = { param };
    CUDA_KERNEL_NODE_PARAMS_v2 k = kernel_params(f, blocks, threads, params);
    return driver_table.cuGraphAddKernelNode_v2(node, graph, deps, n_deps, &k);
}

void exec_fill_copy(const struct exec *x, const struct copy *c, struct dmi_graph_copy *param)
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
        param->gather = (struct dmi_gather){ .count = { 1, 1, 1, 1 }, .run_bytes = 1, .access = 1 };
}

uint32_t exec_copy_blocks(const struct dmi_graph_copy *param)
{
    return copy_blocks(param->n_bytes, param->gather.access);
}

/* The copy stands between the site and whatever it is ordered against. */
static CUresult add_copy(struct exec *x, const struct entry *e, struct copy *c)
{
    bool before = process.spec->sites[c->want.site].when == SPEC_BEFORE;
    struct dmi_graph_copy param;
    size_t n;
    _cleanup_(freep) CUgraphNode *others = neighbours(e->node, before, &n);
    if (!others)
        return CUDA_ERROR_OUT_OF_MEMORY;
    exec_fill_copy(x, c, &param);
    CUresult r = add_kernel(e->graph, &c->node, before ? others : &e->node, before ? n : 1,
                            x->arena->copy_graph, exec_copy_blocks(&param), COPY_THREADS, &param);
    if (before)
        return r == CUDA_SUCCESS ? add_edge(e->graph, c->node, e->node) : r;
    for (size_t i = 0; i < n && r == CUDA_SUCCESS; i++)
        r = add_edge(e->graph, c->node, others[i]);
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

void exec_plan_copy(struct copy *c, const struct func *func, const CUDA_KERNEL_NODE_PARAMS_v2 *k)
{
    const struct spec_site *site = &process.spec->sites[c->want.site];
    struct params params;
    uint32_t grid[3] = { k->gridDimX, k->gridDimY, k->gridDimZ };
    uint32_t block[3] = { k->blockDimX, k->blockDimY, k->blockDimZ };
    params_init(&params, func->layout, k->kernelParams, k->kernelParams ? NULL : k->extra);
    struct expr_env env = { .grid = grid,
                            .block = block,
                            .shared_bytes = k->sharedMemBytes,
                            .param = params_read,
                            .param_ctx = &params };
    c->want = (struct want){ .site = c->want.site };
    if (needs_occurrence(site)) {
        process_problem(c->want.site, PROBLEM_UNSUPPORTED,
                        "kernel %s is in a graph, where offsets and sizes may not use occ",
                        func->name);
        c->want.error = DMI_DROP_UNSUPPORTED + 1;
        return;
    }
    want_plan(&c->want, &env);
}

const struct func *exec_func_of(const CUDA_KERNEL_NODE_PARAMS_v2 *k)
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

static CUresult plan_kernel(struct exec *x, const struct twin *t)
{
    CUDA_KERNEL_NODE_PARAMS_v2 k;
    CUresult r = driver_table.cuGraphKernelNodeGetParams_v2(t->host, &k);
    const struct func *func = r == CUDA_SUCCESS ? exec_func_of(&k) : NULL;
    if (!func)
        return r;
    if (!grow(x, func->match.n_sites) || x->n_copies + func->match.n_sites > DMI_GRAPH_COPIES)
        return CUDA_ERROR_OUT_OF_MEMORY;
    x->entries[x->n_entries++] = (struct entry){
        .host = t->host,
        .node = t->node,
        .graph = t->graph,
        .position = t->position,
        .enabled = true,
        .func = func,
        .first_copy = x->n_copies,
        .n_copies = func->match.n_sites,
    };
    for (uint32_t s = 0; s < func->match.n_sites; s++) {
        struct copy *c = &x->copies[x->n_copies++];
        *c = (struct copy){ .want.site = func->match.sites[s] };
        exec_plan_copy(c, func, &k);
    }
    return CUDA_SUCCESS;
}

/* Entries and copies of @graph's kernels, in order, without adding a node yet. */
static CUresult plan_graph(struct exec *x, CUgraph graph)
{
    size_t n_items;
    _cleanup_(freep) struct graph_item *items = graphs_items(graph, &n_items);
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; i < n_items && r == CUDA_SUCCESS; i++) {
        const struct twin *t = exec_twin(x, items[i].node);
        CUgraph inner;
        if (!t)
            continue; /* a note of a graph that ended unseen */
        if (!items[i].is_child)
            r = items[i].context == x->arena->context ? plan_kernel(x, t)
                                                      : CUDA_ERROR_INVALID_CONTEXT;
        else if ((r = driver_table.cuGraphChildGraphNodeGetGraph(t->host, &inner)) == CUDA_SUCCESS)
            r = plan_graph(x, inner);
    }
    return r;
}

/* open in front of every root that was there, close behind every leaf that is there then */
CUresult exec_add_open_close(struct exec *x)
{
    size_t n = 0, n_leaves = 0;
    CUresult r = driver_table.cuGraphGetRootNodes(x->clone, NULL, &n);
    _cleanup_(freep) CUgraphNode *nodes = calloc(n + 1, sizeof *nodes);
    if (r == CUDA_SUCCESS && nodes)
        r = driver_table.cuGraphGetRootNodes(x->clone, nodes, &n);
    if (r != CUDA_SUCCESS || !nodes)
        return r != CUDA_SUCCESS ? r : CUDA_ERROR_OUT_OF_MEMORY;
    x->ticket = (struct dmi_open){ .state = x->state };
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
    struct dmi_close param = { .state = x->state, .desc = x->arena->desc_device };
    return add_kernel(x->clone, &x->close, all, n_leaves, x->arena->close, 1, 1, &param);
}

CUresult exec_add_copies(struct exec *x)
{
    for (uint32_t i = 0; i < x->n_entries; i++) {
        const struct entry *e = &x->entries[i];
        for (uint32_t c = 0; c < e->n_copies; c++) {
            CUresult r = add_copy(x, e, &x->copies[e->first_copy + c]);
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
        if (!noted && driver_table.cuGraphNodeGetType(nodes[i], &type) == CUDA_SUCCESS &&
            type == CU_GRAPH_NODE_TYPE_KERNEL &&
            driver_table.cuGraphKernelNodeGetParams_v2(nodes[i], &k) == CUDA_SUCCESS &&
            (func = exec_func_of(&k)))
            for (uint32_t s = 0; s < func->match.n_sites; s++)
                process_problem(func->match.sites[s], PROBLEM_UNSUPPORTED,
                                "kernel %s came into its graph unseen (made before the library "
                                "looked, or by new "
                                "parameters): not captured",
                                func->name);
    }
}

static void tell_left_alone(const struct graph_item *items, size_t n, const char *why, CUresult r)
{
    for (size_t i = 0; i < n; i++) {
        CUDA_KERNEL_NODE_PARAMS_v2 k;
        const struct func *func;
        if (items[i].is_child ||
            driver_table.cuGraphKernelNodeGetParams_v2(items[i].node, &k) != CUDA_SUCCESS ||
            !(func = exec_func_of(&k)))
            continue;
        for (uint32_t s = 0; s < func->match.n_sites; s++)
            process_problem(func->match.sites[s], PROBLEM_UNSUPPORTED,
                            "kernel %s is in a graph that is left alone: %s (error %d)", func->name,
                            why, (int)r);
    }
}

static CUresult prepare(struct exec *x, CUgraph graph, const char **why)
{
    CUresult r = exec_clone(x, graph, true, why);
    if (r != CUDA_SUCCESS)
        return r;
    *why = "no memory for its state";
    r = exec_state_new(x);
    if (r != CUDA_SUCCESS)
        return r;
    *why = "its kernels cannot be read, are too many, or another context's";
    r = plan_graph(x, graph);
    if (r != CUDA_SUCCESS)
        return r;
    *why = "copies cannot be added";
    r = exec_add_copies(x);
    return r == CUDA_SUCCESS ? exec_add_open_close(x) : r;
}

struct exec *execs_prepare(CUgraph graph)
{
    size_t n;
    _cleanup_(freep) struct graph_item *items = graphs_items(graph, &n);
    tell_unseen(graph, items, n);
    if (!graphs_have_sites(graph))
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
    x->template = graph;
    struct exec_relaxed relaxed = exec_relax();
    const char *why;
    CUresult r = prepare(x, graph, &why);
    exec_unrelax(&relaxed);
    if (r == CUDA_SUCCESS && x->n_entries)
        return x;
    if (r != CUDA_SUCCESS)
        tell_left_alone(items, n, why, r);
    exec_state_give_back(x);
    exec_free(x);
    return NULL;
}
