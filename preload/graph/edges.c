/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/graph/edges.h"

#include "core/any.h"
#include "preload/base/driver.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- asking */

typedef CUresult CUDAAPI ask_fn(CUgraphNode, CUgraphNode *, CUgraphEdgeData *, size_t *);
typedef CUresult CUDAAPI ask_old_fn(CUgraphNode, CUgraphNode *, size_t *);

static bool has_data(const CUgraphEdgeData *data)
{
    static const CUgraphEdgeData none;
    return memcmp(data, &none, sizeof none) != 0;
}

/* Two nodes may have several edges, with data of their own: the first one's is kept. */
static void leave_out_twins(struct edges *e, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        while (k < e->n && e->nodes[k] != e->nodes[i])
            k++;
        e->twins = e->twins || k < e->n;
        if (k < e->n)
            continue;
        e->nodes[e->n] = e->nodes[i];
        e->data[e->n++] = e->data[i];
    }
}

/* The newer query gives edge data; the older one refuses graphs that have some. */
static bool neighbours(CUgraphNode node, ask_fn *ask, ask_old_fn *ask_old, struct edges *e)
{
    size_t n = 0;
    *e = (struct edges){ 0 };
    if ((ask ? ask(node, NULL, NULL, &n) : ask_old(node, NULL, &n)) != CUDA_SUCCESS)
        return false;
    e->data = calloc(n + 1, sizeof *e->data);
    e->nodes = calloc(n + 1, sizeof(CUgraphNode));
    if (!e->nodes || !e->data ||
        (n &&
         (ask ? ask(node, e->nodes, e->data, &n) : ask_old(node, e->nodes, &n)) != CUDA_SUCCESS)) {
        edges_free(e);
        return false;
    }
    leave_out_twins(e, n);
    return true;
}

bool edges_have_data(const struct edges *e)
{
    return ANY(i, e->n, has_data(&e->data[i]));
}

bool edges_in(CUgraphNode node, struct edges *e)
{
    return neighbours(node, driver_table.cuGraphNodeGetDependencies_v2,
                      driver_table.cuGraphNodeGetDependencies, e);
}

bool edges_out(CUgraphNode node, struct edges *e)
{
    return neighbours(node, driver_table.cuGraphNodeGetDependentNodes_v2,
                      driver_table.cuGraphNodeGetDependentNodes, e);
}

bool edges_is_leaf(CUgraphNode node, bool *leaf)
{
    size_t n = 0;
    CUresult r = driver_table.cuGraphNodeGetDependentNodes_v2
                     ? driver_table.cuGraphNodeGetDependentNodes_v2(node, NULL, NULL, &n)
                     : driver_table.cuGraphNodeGetDependentNodes(node, NULL, &n);
    *leaf = !n;
    return r == CUDA_SUCCESS;
}

void edges_free(struct edges *e)
{
    free(e->nodes);
    free(e->data);
    *e = (struct edges){ 0 };
}

static CUresult are(bool known, struct edges *e, size_t n, bool *yes)
{
    *yes = known && e->n == n && !e->twins;
    edges_free(e);
    return known ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

/* Whether @node depends on @n others, by an edge each. An error is no answer: another shape would come of it. */
static CUresult has_in(CUgraphNode node, size_t n, bool *yes)
{
    struct edges e;
    bool known = edges_in(node, &e);
    return are(known, &e, n, yes);
}

/* The same of others that depend on @node. */
static CUresult has_out(CUgraphNode node, size_t n, bool *yes)
{
    struct edges e;
    bool known = edges_out(node, &e);
    return are(known, &e, n, yes);
}

/* ------------------------------------------------------------------------- changing */

/* An edge with @data, NULL: without. */
static CUresult add(CUgraph graph, CUgraphNode from, CUgraphNode to, const CUgraphEdgeData *data)
{
    if (driver_table.cuGraphAddDependencies_v2)
        return driver_table.cuGraphAddDependencies_v2(graph, &from, &to, data, 1);
    return driver_table.cuGraphAddDependencies(graph, &from, &to, 1);
}

static CUresult take_out(CUgraph graph, CUgraphNode from, CUgraphNode to,
                         const CUgraphEdgeData *data)
{
    if (driver_table.cuGraphRemoveDependencies_v2)
        return driver_table.cuGraphRemoveDependencies_v2(graph, &from, &to, data, 1);
    return driver_table.cuGraphRemoveDependencies(graph, &from, &to, 1);
}

/* The node's edge comes first: without any in between, nodes would become roots or leaves, whose order counts too. */
static CUresult put(CUgraph graph, CUgraphNode from, CUgraphNode node, CUgraphNode to,
                    const CUgraphEdgeData *data, bool instead)
{
    CUresult r = add(graph, node, to, instead ? data : NULL);
    return r == CUDA_SUCCESS && instead ? take_out(graph, from, to, data) : r;
}

CUresult edges_put_before(CUgraph graph, CUgraphNode node, CUgraphNode from, const struct edges *to,
                          enum edges_mixed mixed)
{
    CUresult r = CUDA_SUCCESS;
    bool instead = !to->twins;
    for (size_t i = 0; i < to->n && instead && r == CUDA_SUCCESS; i++)
        r = has_in(to->nodes[i], 1, &instead);
    for (size_t i = 0; i < to->n && r == CUDA_SUCCESS; i++) {
        const CUgraphEdgeData *data = to->data ? &to->data[i] : NULL;
        bool moves = mixed == EDGES_MIXED_MOVE && !to->twins && data && has_data(data);
        r = put(graph, from, node, to->nodes[i], data, instead || moves);
    }
    return r;
}

/* Whether none of @from has another dependent than the two, and all their edges are alike, as those must be that one edge stands for. */
static CUresult may_take_place(const struct edges *from, enum edges_mixed mixed, bool *instead)
{
    CUresult r = CUDA_SUCCESS;
    *instead = !from->twins && (!edges_have_data(from) || from->n == 1);
    if (mixed == EDGES_MIXED_MOVE && edges_have_data(from))
        return r;
    for (size_t i = 0; i < from->n && *instead && r == CUDA_SUCCESS; i++)
        r = has_out(from->nodes[i], 2, instead); /* @node and @to */
    return r;
}

CUresult edges_put_after(CUgraph graph, const struct edges *from, CUgraphNode node, CUgraphNode to,
                         enum edges_mixed mixed)
{
    bool instead;
    CUresult r = may_take_place(from, mixed, &instead);
    if (r == CUDA_SUCCESS)
        r = add(graph, node, to, instead && from->n ? &from->data[0] : NULL);
    for (size_t i = 0; i < from->n && instead && r == CUDA_SUCCESS; i++)
        r = take_out(graph, from->nodes[i], to, &from->data[i]);
    return r;
}

CUresult edges_add_before(CUgraph graph, CUgraphNode node, const CUgraphNode *others, size_t n)
{
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; i < n && r == CUDA_SUCCESS; i++)
        r = add(graph, node, others[i], NULL);
    return r;
}

/* With @data, or without where it leads from what is no kernel any more: drivers show a node that is off as an empty one. */
static CUresult add_again(CUgraph graph, CUgraphNode from, CUgraphNode to,
                          const CUgraphEdgeData *data)
{
    CUresult r = add(graph, from, to, data);
    return r != CUDA_SUCCESS && has_data(data) ? add(graph, from, to, NULL) : r;
}

CUresult edges_bridge(CUgraph graph, CUgraphNode node)
{
    CUresult r = CUDA_ERROR_INVALID_VALUE;
    struct edges in = { 0 }, out = { 0 };
    if (edges_in(node, &in) && edges_out(node, &out))
        r = CUDA_SUCCESS;
    for (size_t i = 0; i < out.n && r == CUDA_SUCCESS; i++) {
        bool only;
        r = has_in(out.nodes[i], 1, &only);
        for (size_t k = 0; k < in.n && only && r == CUDA_SUCCESS; k++)
            r = add_again(graph, in.nodes[k], out.nodes[i], &out.data[i]);
    }
    edges_free(&in);
    edges_free(&out);
    return r;
}
