/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of the application's graphs: the order in which their sites were added, by call of cuGraphAdd*Node or
 * by launch or tap on the capturing stream (the driver promises no order of nodes, and occurrences need one), and
 * the user objects that they hold. Only kernels and taps that the spec names, child graphs and bodies of conditional nodes
 * are noted.
 * Thread: any; takes a lock, never across a driver call.
 */
#pragma once

#include "preload/base/cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct func;

struct graph_tap;

struct order_item {
    CUgraphNode node; /* NULL: a tap or a condition */
    bool is_child;    /* a child graph, else a kernel, a conditional node or a tap */
    CUgraph body;     /* of a conditional node; NULL: it is none */
    CUgraphConditionalHandle condition; /* without a node so far; 0: it is none */
    struct graph_tap *tap;              /* NULL: it is none. Borrowed while its graph lives */
    CUcontext context;                  /* current when it was noted */
    const struct func
        *func; /* of a kernel, with what ranges said of the node; NULL: nothing was said */
};

/* The same of a kernel, with what ranges say of it: a variant of its function, or that itself. */
void order_note_kernel(CUgraph graph, CUgraphNode node, const struct func *func);

/*
 * A conditional node that @graph will run goes by @condition. Drivers refuse a graph with one that no node goes by, and its clone
 * has none.
 */
void order_note_condition(CUgraph graph, CUgraphConditionalHandle condition);
bool order_lacks_conditional(CUgraph graph);

/* Is @graph no clone, but the graph itself, in a node of another? Drivers neither instantiate it nor update by it; they would its clone. */
bool order_is_moved(CUgraph graph);

/* @node, a new conditional node of @graph, has new graphs as bodies: it runs them, or does not, as often as kernels say. */
void order_note_conditional(CUgraph graph, CUgraphNode node,
                            const CUDA_CONDITIONAL_NODE_PARAMS *params);

/* @node is @graph's copy of @child, or holds @child itself: what is noted of it goes over. */
void order_note_child(CUgraph graph, CUgraphNode node, CUgraph child);

/* @to is a copy of @from: what is noted of that is noted of it, too. */
void order_note_clone(CUgraph from, CUgraph to);

/* Something was tapped while @graph was captured. Takes over @tap. */
void order_note_tap(CUgraph graph, struct graph_tap *tap);

/* @graph holds @count references to @object more; or, below 0, fewer. */
void order_note_user(CUgraph graph, CUuserObject object, int count);

/**
 * order_items() - a copy of what is noted of @graph, in order; free() it
 * Return: NULL where nothing is noted.
 */
struct order_item *order_items(CUgraph graph, size_t *n);

/* Are there kernels of the spec in @graph, in its child graphs, or in bodies of its conditional nodes? */
bool order_has_sites(CUgraph graph);

/* Does @graph, or a child graph of it, hold user objects? */
bool order_has_users(CUgraph graph);

/**
 * order_users_are_copied() - has a clone references of its own to the user objects of its source?
 * Asked of the driver once, with a graph of ours. If they are shared, to release them through a clone would end the
 * application's objects too early. Thread: any, in a call that instantiates.
 */
bool order_users_are_copied(void);

/**
 * order_release_users() - our own clone @copy of @graph lets go of the user objects that both hold
 * Their child graphs keep theirs. Return: false if the driver refuses.
 */
bool order_release_users(CUgraph graph, CUgraph copy);

/* @graph is new: what is noted under its handle was of another, which ended where we could not see. */
void order_forget(CUgraph graph);

/* Graphs that lie in one another. */
struct order_nested {
    CUgraph *graphs;
    size_t n;
};
/* @graph with the child graphs and the bodies of conditional nodes in it, at any depth; free() its `graphs`. */
struct order_nested order_nested(CUgraph graph);
/* Those inside @node alone; free() its `graphs`. */
struct order_nested order_nested_in(CUgraphNode node);

/*
 * Graphs, or one node with what is inside it, end. Begun before the driver's call: once that returns, another
 * thread may be given the same handles. Ended after it: if the driver refused, all is as it was.
 */
struct order_end {
    struct order_end_note *notes; /* of graphs, taken out */
    size_t n;
    struct order_end_item *items; /* of the node, taken out */
    size_t n_items, items_cap;
};
/* The graphs of @which end. */
void order_end_graphs(struct order_end *end, const struct order_nested *which);
/* @node ends, with the graphs @inside it. */
void order_end_node(struct order_end *end, CUgraphNode node, const struct order_nested *inside);
/* The driver has answered. */
void order_ended(struct order_end *end, bool success);

/* After fork, in the child. */
void order_reset(void);
