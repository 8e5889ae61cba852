/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order in which a graph's sites were added: by call of cuGraphAdd*Node, or by launch on the
 * capturing stream. The driver promises no order of nodes, and occurrences need one. Only kernels that
 * the spec names and child graphs are noted. Thread: any; takes a lock, never across a driver call.
 */
#ifndef PRELOAD_GRAPHS_H
#define PRELOAD_GRAPHS_H

#include "preload/cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>

struct graph_item {
    CUgraphNode node;
    bool is_child;     /* a child graph, else a kernel */
    CUcontext context; /* current when it was noted */
};

/* A kernel of the spec became a node of @graph. Once per node. */
void graphs_note(CUgraph graph, CUgraphNode node, bool is_child);

/* @node is @graph's copy of @child: notes of @child go over to the copy that the node holds. */
void graphs_note_child(CUgraph graph, CUgraphNode node, CUgraph child);

/* @copy is a clone of @graph. */
void graphs_note_clone(CUgraph graph, CUgraph copy);

/* The graph, or one node of it, ends. */
void graphs_forget(CUgraph graph);
void graphs_forget_node(CUgraphNode node);

/**
 * graphs_items() - a copy of what is noted of @graph, in order; free() it
 * Return: NULL where nothing is noted.
 */
struct graph_item *graphs_items(CUgraph graph, size_t *n);

void graphs_reset(void);

#endif
