/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Updates of execs with nodes of ours: the driver compares the application's new graph with such an exec, so it is
 * given a clone with nodes of ours in the same places. A place that is no site any more keeps a dead copy.
 * Thread: as graph/exec.h.
 */
#ifndef PRELOAD_GRAPH_UPDATE_H
#define PRELOAD_GRAPH_UPDATE_H

#include "preload/graph/exec.h"

#include <stdbool.h>

/* What the driver is given instead of the application's graph. */
struct graph_update {
    struct graph_plan plan;
    bool complete; /* of the exec's own graph, with open and close; else of a child graph of it */
};

/* Return: NULL if it cannot be prepared. After the driver's update: update_done(). */
struct graph_update *update_prepare(struct exec *exec, CUgraph graph);

/* The same of a graph for one child graph node (the application's) of @exec. NULL: nothing of ours is in that one. */
struct graph_update *update_prepare_child(struct exec *exec, CUgraphNode app, CUgraph graph);

/* @success: the exec is as @update is now. Frees @update. */
void update_done(struct exec *exec, struct graph_update *update, bool success);

/* @graph updates an exec that holds nothing of ours: its sites are reported. */
void update_report(CUgraph graph);

#endif
