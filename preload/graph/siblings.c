/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/graph/siblings.h"

#include "core/cleanup.h"
#include "core/sorted.h"
#include "preload/base/driver.h"
#include "preload/graph/edges.h"
#include "preload/session/session.h"

#include <stdlib.h>

/* All nodes of a graph, by handle, and which of them were met. */
struct walk {
    CUgraphNode *nodes;
    bool *met;
    CUgraphNode *queue; /* met, and their neighbours not yet */
    size_t n, n_met, n_queue;
};

static int by_handle(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t) * (const CUgraphNode *)a, y = (uintptr_t) * (const CUgraphNode *)b;
    return x < y ? -1 : x > y;
}

static void meet(struct walk *w, CUgraphNode node)
{
    size_t i;
    SEARCH(i, w->n, (uintptr_t)w->nodes[i] < (uintptr_t)node);
    if (i == w->n || w->nodes[i] != node || w->met[i])
        return;
    w->met[i] = true;
    w->n_met++;
    w->queue[w->n_queue++] = node;
}

/* All that comes before @node, or after it. Return: false where the driver does not say. */
static bool follow(struct walk *w, CUgraphNode node, bool (*ask)(CUgraphNode, struct edges *))
{
    w->queue[w->n_queue++] = node;
    while (w->n_queue) {
        struct edges e;
        if (!ask(w->queue[--w->n_queue], &e))
            return false;
        for (size_t i = 0; i < e.n; i++)
            meet(w, e.nodes[i]);
        edges_free(&e);
    }
    return true;
}

/* Does every other node of @graph come before or after @node? */
static bool has_none(CUgraph graph, CUgraphNode node)
{
    struct walk w = { .n = 0 };
    if (driver_table.cuGraphGetNodes(graph, NULL, &w.n) != CUDA_SUCCESS)
        return false;
    _cleanup_(freep) CUgraphNode *nodes = w.nodes = calloc(w.n + 1, sizeof(CUgraphNode));
    _cleanup_(freep) CUgraphNode *queue = w.queue = calloc(w.n + 2, sizeof(CUgraphNode));
    _cleanup_(freep) bool *met = w.met = calloc(w.n + 1, sizeof *met);
    if (!nodes || !queue || !met ||
        driver_table.cuGraphGetNodes(graph, nodes, &w.n) != CUDA_SUCCESS)
        return false;
    SORT(nodes, w.n, by_handle);
    /* the node itself comes before and after itself */
    meet(&w, node);
    w.n_queue = 0;
    return follow(&w, node, edges_in) && follow(&w, node, edges_out) && w.n_met == w.n;
}

bool siblings_allow(uint32_t site, const struct func *func, CUgraph graph, CUgraphNode node)
{
    const struct spec_site *s = session_site(site);
    if (s->action != SPEC_EDIT || s->when != SPEC_BEFORE || (graph && has_none(graph, node)))
        return true;
    session_problem(site, PROBLEM_UNSUPPORTED,
                    "kernel %s is in a graph in which other nodes may run at the same time: edits "
                    "with when: before could write what these read, and write nothing there",
                    func->name);
    return false;
}
