/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A clone whose graph has ended serves to name nodes of ours in its exec, and to say what the driver thinks of an update
 * that it refuses (graph/strip.h). Programs that keep thousands of such execs update none of them: their clones are
 * reduced to nodes of ours. cuda.h allows it: a node by which an exec is changed must not have been
 * removed from the graph that was instantiated; of others it asks nothing.
 */
#ifndef PRELOAD_GRAPH_REDUCE_H
#define PRELOAD_GRAPH_REDUCE_H

#include "preload/graph/plan.h"

/* Is the driver known to find nodes of an exec by those that are left of its graph? Thread: any. */
bool reduce_may(void);

/* Asks it, once there have been many execs: with a graph of kernels of ours. Thread: any, in a call that instantiates. */
void reduce_ask(const struct context *context);

/* Its nodes that are not ours are destroyed. Thread: any, while nobody else is at the clone. */
void reduce_clone(const struct graph_plan *plan);

#endif
