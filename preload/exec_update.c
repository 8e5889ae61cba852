/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Updates: the driver compares the host's new graph with an exec that has copies, so it is given a clone
 * with copies in the same places. A place that is no site any more keeps a dead copy.
 */
#include "preload/exec_private.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "preload/graphs.h"
#include "preload/hooks.h"
#include "preload/process.h"

#include <errno.h>
#include <stdlib.h>

/* @e is at @t in the new graph: its copies read what the kernel there gets. */
static void fit_entry(struct exec *u, const struct exec *x, struct entry *e, const struct twin *t)
{
    CUgraphNodeType type;
    CUDA_KERNEL_NODE_PARAMS_v2 k;
    const struct func *func = NULL;
    if (driver_table.cuGraphNodeGetType(t->host, &type) == CUDA_SUCCESS &&
        type == CU_GRAPH_NODE_TYPE_KERNEL &&
        driver_table.cuGraphKernelNodeGetParams_v2(t->host, &k) == CUDA_SUCCESS)
        func = exec_func_of(&k);
    e->node = t->node;
    e->graph = t->graph;
    e->func = func ? func : &func_unmatched;
    for (uint32_t c = e->first_copy; c < e->first_copy + e->n_copies; c++) {
        struct copy *to = &u->copies[c];
        *to = (struct copy){ .want.site = x->copies[c].want.site, .dead = true };
        for (uint32_t s = 0; func && s < func->match.n_sites && to->dead; s++)
            to->dead = func->match.sites[s] != to->want.site;
        if (!to->dead)
            exec_plan_copy(to, func, &k);
    }
    exec_tell_new_sites(x, e, func);
}

/*
 * The entries of @x at the @n positions from @first on get places in @u, whose twins are in the order of
 * positions; the others have no copies there. Graphs of another shape are the driver's to refuse.
 */
static CUresult fit_to(struct exec *u, const struct exec *x, uint32_t first, uint32_t n)
{
    u->entries = calloc(x->n_entries + 1, sizeof *u->entries);
    u->copies = calloc(x->n_copies + 1, sizeof *u->copies);
    if (!u->entries || !u->copies)
        return CUDA_ERROR_OUT_OF_MEMORY;
    u->n_entries = x->n_entries;
    u->n_copies = x->n_copies;
    for (uint32_t i = 0; i < x->n_entries; i++) {
        uint32_t at = x->entries[i].position - first;
        u->entries[i] = x->entries[i];
        if (at >= n)
            u->entries[i].n_copies = 0;
        else if (at >= u->n_twins)
            return CUDA_ERROR_INVALID_VALUE;
        else
            fit_entry(u, x, &u->entries[i], &u->twins[at]);
    }
    return CUDA_SUCCESS;
}

/* Sites of @graph at places where @x (NULL: it holds nothing of ours) has no copies. */
static void tell_strangers(const struct exec *x, const struct exec *u, CUgraph graph,
                           uint32_t first)
{
    size_t n;
    _cleanup_(freep) struct graph_item *items = graphs_items(graph, &n);
    for (size_t i = 0; i < n; i++) {
        const struct twin *t = u ? exec_twin(u, items[i].node) : NULL;
        bool known = false;
        CUgraph inner;
        CUDA_KERNEL_NODE_PARAMS_v2 k;
        const struct func *func;
        if (items[i].is_child) {
            if (driver_table.cuGraphChildGraphNodeGetGraph(items[i].node, &inner) == CUDA_SUCCESS)
                tell_strangers(x, u, inner, first);
            continue;
        }
        for (uint32_t e = 0; x && t && e < x->n_entries && !known; e++)
            known = x->entries[e].position - first == t->position;
        if (!known &&
            driver_table.cuGraphKernelNodeGetParams_v2(items[i].node, &k) == CUDA_SUCCESS &&
            (func = exec_func_of(&k)))
            exec_tell_new_sites(x, NULL, func);
    }
}

void execs_tell_update(CUgraph graph)
{
    int saved = errno;
    tell_strangers(NULL, NULL, graph, 0);
    errno = saved;
}

static struct exec *prepare(struct exec *x, CUgraph graph, uint32_t first, uint32_t n, bool whole)
{
    struct exec *u = calloc(1, sizeof *u);
    if (!u)
        return NULL;
    u->arena = x->arena;
    u->state = x->state;
    u->epoch = atomic_load_acquire(&process.memory_epoch);
    u->whole = whole;
    struct exec_relaxed relaxed = exec_relax();
    const char *why;
    CUresult r = exec_clone(u, graph, false, &why);
    if (r == CUDA_SUCCESS)
        r = fit_to(u, x, first, n);
    if (r == CUDA_SUCCESS)
        r = exec_add_copies(u);
    if (r == CUDA_SUCCESS && whole)
        r = exec_add_open_close(u);
    exec_sort_twins(u);
    if (r == CUDA_SUCCESS)
        tell_strangers(x, u, graph, first);
    exec_unrelax(&relaxed);
    if (r == CUDA_SUCCESS)
        return u;
    exec_free(u);
    return NULL;
}

struct exec *execs_prepare_update(struct exec *x, CUgraph graph)
{
    return prepare(x, graph, 0, UINT32_MAX, true);
}

struct exec *execs_prepare_child(struct exec *x, CUgraphNode node, CUgraph graph)
{
    const struct twin *t = exec_twin(x, node);
    bool any = false;
    for (uint32_t i = 0; t && i < x->n_entries && !any; i++)
        any = x->entries[i].position - t->first < t->n;
    if (!any) {
        execs_tell_update(graph);
        return NULL;
    }
    return prepare(x, graph, t->first, t->n, false);
}

void execs_updated(struct exec *x, struct exec *u, bool success)
{
    for (uint32_t i = 0; i < x->n_entries && success; i++) {
        struct entry *e = &x->entries[i];
        const struct entry *new = &u->entries[i];
        if (!new->n_copies)
            continue;
        e->func = new->func;
        for (uint32_t c = e->first_copy; c < e->first_copy + e->n_copies; c++) {
            struct copy old = x->copies[c]; /* the exec still goes by the nodes it was made from */
            x->copies[c] = u->copies[c];
            x->copies[c].node = old.node;
            x->copies[c].off = old.off;
            if (x->epoch != u->epoch)
                want_check_memory(&x->copies[c].want);
        }
    }
    if (success && u->whole) {
        x->epoch = u->epoch;
        x->empty = true; /* the update's open came with the empty ticket */
    }
    exec_free(u);
}
