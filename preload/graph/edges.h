/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Edges around nodes of ours, in clones and in what drivers make of them. A node that is put between others takes the
 * place of their edges, which say nothing more then, where taking them out and putting them back leaves every list
 * of edges in its order: drivers pair the nodes of an update by that. So edges stay, beside those of the node, where one end
 * has others too. The data of an edge (programmatic dependent launch) goes with it: the edge that leads away from the node has
 * it from then on, so it is there when the node goes. Thread: as graph/plan.h.
 */
#pragma once

#include "preload/base/cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>

/* The nodes at the other ends of a node's edges, each once. */
struct edges {
    CUgraphNode *nodes;
    CUgraphEdgeData *data; /* of the first edge to each */
    size_t n;
    bool twins; /* a node is there by several edges */
};

/* What @node depends on. Return: false where the driver does not say; else edges_free(). */
bool edges_in(CUgraphNode node, struct edges *edges);
/* What depends on @node. */
bool edges_out(CUgraphNode node, struct edges *edges);
void edges_free(struct edges *edges);

/* Whether nothing depends on @node. Return: false where the driver does not say. */
bool edges_is_leaf(CUgraphNode node, bool *leaf);

/* What becomes of edges with data that would stay beside edges without. */
enum edges_mixed {
    EDGES_MIXED_STAY,
    EDGES_MIXED_MOVE, /* they take the node's place too: for a driver that refuses graphs with both */
};

/* Does one of them have data? */
bool edges_have_data(const struct edges *edges);

/* @node of @graph, which depends on @from, comes before all of @to, which depended on @from (NULL: on nothing). */
CUresult edges_put_before(CUgraph graph, CUgraphNode node, CUgraphNode from, const struct edges *to,
                          enum edges_mixed mixed);

/* @node of @graph, which depends on all of @from, comes before @to, which depended on them. */
CUresult edges_put_after(CUgraph graph, const struct edges *from, CUgraphNode node, CUgraphNode to,
                         enum edges_mixed mixed);

/* @node of @graph comes before @n others, beside what they depend on now. */
CUresult edges_add_before(CUgraph graph, CUgraphNode node, const CUgraphNode *others, size_t n);

/*
 * @node of @graph is about to be destroyed: the edges whose place it took are there again, in their order if nodes go in
 * the reverse of the order in which they came.
 */
CUresult edges_bridge(CUgraph graph, CUgraphNode node);
