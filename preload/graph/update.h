/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Updates of execs: the driver compares the application's new graph with the exec, so where that has nodes of ours it
 * is given a clone with nodes of ours in the same places. A place that is no site any more keeps a dead action, and a
 * site without a place is counted. Thread: as graph/exec.h.
 */
#pragma once

#include "preload/graph/exec.h"

#include <stdbool.h>

/* An update under way. */
struct graph_update {
    struct graph_plan
        plan; /* of the application's new graph; its clone is what the driver is given, if it has one */
    struct graph_plan next; /* kernels and actions alone: what the exec's plan becomes */
    bool complete; /* of the exec's own graph, with opens and close; else of a child graph of it */
};

/**
 * update_prepare() - @graph is to update @exec, NULL: one of which nothing is known
 * Return: NULL where nothing of ours is concerned. After the driver's update: update_done().
 */
struct graph_update *update_prepare(struct exec *exec, CUgraph graph);

/* The same of a graph for one child graph node (the application's) of the exec. */
struct graph_update *update_prepare_child(struct exec *exec, CUgraphNode app, CUgraph graph);

/* What the driver is to be given in @graph's place; @update may be NULL. */
CUgraph update_graph(const struct graph_update *update, CUgraph graph);

/* @success: the exec is as @update is now. Frees @update. */
void update_done(struct exec *exec, struct graph_update *update, bool success);
