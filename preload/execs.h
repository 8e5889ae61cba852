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

/*
 * The clone was instantiated as @handle, or (NULL) could not be.
 * Return: false if it is to be without copies: then @exec is gone, and @handle too.
 */
bool execs_made(struct exec *exec, CUgraphExec handle);

/* Before and after the driver's cuGraphExecDestroy. */
struct exec *execs_take(CUgraphExec handle);
void execs_destroyed(struct exec *exec);

/* The driver's node for the host's; the node itself where @exec is NULL or does not know it. */
CUgraphNode execs_node(const struct exec *exec, CUgraphNode node);

/*
 * The host is about to destroy a node (NULL: none) and @n graphs with all of their nodes: no exec goes by them from
 * here on. Return: a number for execs_ended(), which follows the driver's call; if that failed, all is as it
 * was. Thread: any.
 */
bool execs_any(void);
uint64_t execs_end(CUgraphNode node, const CUgraph *graphs, size_t n);
void execs_ended(uint64_t end, bool success);

/* A kernel node (the host's) got new parameters in the exec: its copies follow. */
void execs_kernel_changed(struct exec *exec, CUgraphNode node,
                          const CUDA_KERNEL_NODE_PARAMS_v2 *params);

/* The host switched a node (its own) of the exec on or off. */
void execs_node_enabled(struct exec *exec, CUgraphNode node, bool on);

/**
 * execs_prepare_update() - a clone of @graph with copies in the places where @exec has them
 * Return: NULL if it cannot be made. After the driver's update: execs_updated().
 */
struct exec *execs_prepare_update(struct exec *exec, CUgraph graph);
/* The same of a graph for one child graph node (the host's) of @exec. NULL: there are no copies in that one. */
struct exec *execs_prepare_child(struct exec *exec, CUgraphNode node, CUgraph graph);
void execs_updated(struct exec *exec, struct exec *update, bool success);

/**
 * execs_plain() - an exec of the graph that @exec was made from, without anything of ours
 * What the driver says of an update that it refuses is said of the host's graph and one like this. Return: NULL
 * if it cannot be made; cuGraphExecDestroy() it, the driver's.
 */
CUgraphExec execs_plain(const struct exec *exec);

/* @graph updates an exec without copies: its sites are told. */
void execs_tell_update(CUgraph graph);

/*
 * What a launch of @exec on a capturing stream has embedded there becomes the host's alone: ours goes. NULL: of an
 * exec without copies; the graphs are new all the same.
 */
void execs_embedded(const struct exec *exec, CUstream stream, bool per_thread);

/* The launch of an exec, around the driver's call. */
struct exec_job {
    struct exec *exec;     /* NULL: nothing to do afterwards */
    struct exec *embedded; /* launched on a capturing stream; else NULL */
    CUstream stream;
    bool per_thread;
    bool unticketed; /* it runs, and nothing in the ring tells when it is over */
    uint64_t first;  /* slots of this launch */
    uint32_t n_slots;
};
void execs_launch_before(struct exec *exec, CUstream stream, bool per_thread, struct exec_job *job);
void execs_launch_after(struct exec_job *job, CUresult result);

/* The context is gone, and with it its execs. */
void execs_forget_arena(const struct arena *arena);
void execs_reset(void);

#endif
