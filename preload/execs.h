/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graph execs with copies of ours in them.
 *
 * The host's graph is never touched: a clone of it gets the copy nodes and is instantiated in its
 * place, so whatever the host asks of its graph has the answer that it would have without us. Where
 * the host then names a node of its graph, the driver is given the clone's.
 *
 *     open -> every root;  site -> copy -> whatever depends on the site;  every leaf -> close
 *
 * One launch's ticket is a parameter of open, set right before the launch; copies find it in the exec's
 * own state. Thread: whoever builds and launches; as with the driver, one thread at a time per exec.
 */
#ifndef PRELOAD_EXECS_H
#define PRELOAD_EXECS_H

#include "preload/arena.h"
#include "preload/cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

struct exec;

/* NULL: the exec holds nothing of ours. Takes no lock, makes no call. */
struct exec *execs_find(CUgraphExec exec);

/**
 * execs_prepare() - a clone of @graph with our copies in it
 * Return: NULL where the graph has no sites, or where they must be left alone (told by name).
 */
struct exec *execs_prepare(CUgraph graph);

/* What is to be instantiated in the host's graph's place. */
CUgraph execs_graph(const struct exec *exec);

/* The clone was instantiated as @handle, or (NULL) could not be: then @exec is gone. */
void execs_made(struct exec *exec, CUgraphExec handle);

/* Before and after the driver's cuGraphExecDestroy. */
struct exec *execs_take(CUgraphExec handle);
void execs_destroyed(struct exec *exec);

/* The driver's node for the host's; the node itself where @exec is NULL or does not know it. */
CUgraphNode execs_node(const struct exec *exec, CUgraphNode node);
/* The host's node for one of the clone's; NULL for ours. */
CUgraphNode execs_host_node(const struct exec *exec, CUgraphNode node);

/* A kernel node (the host's) got new parameters in the exec: its copies follow. */
void execs_kernel_changed(struct exec *exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *params);

/* The host switched a node (its own) of the exec on or off. */
void execs_node_enabled(struct exec *exec, CUgraphNode node, bool on);

/**
 * execs_prepare_update() - a clone of @graph with copies in the places where @exec has them
 * Return: NULL if it cannot be made. After the driver's update: execs_updated().
 */
struct exec *execs_prepare_update(struct exec *exec, CUgraph graph);
void execs_updated(struct exec *exec, struct exec *update, bool success);

/* The launch of an exec, around the driver's call. */
struct exec_job {
    struct exec *exec; /* NULL: nothing to do afterwards */
    uint64_t first;    /* slots of this launch */
    uint32_t n_slots;
};
void execs_launch_before(struct exec *exec, CUstream stream, bool per_thread, struct exec_job *job);
void execs_launch_after(struct exec_job *job, CUresult result);

/* The context is gone, and with it its execs. */
void execs_forget_arena(const struct arena *arena);
void execs_reset(void);

#endif
