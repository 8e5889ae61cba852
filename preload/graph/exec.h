/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graph execs with sites. The application's graph is never touched: a clone of it with nodes of ours (graph/plan.h)
 * is instantiated in its place, so whatever the application asks of its graph has the answer that it would have without
 * us. Where the application then names a node of its graph, the driver is given the clone's. Where a graph must be left
 * alone, the exec is the application's own, and each of its launches is counted: occurrences advance, records are drops.
 *
 * Thread: whoever builds and launches, entered; as with the driver, one thread at a time per exec.
 */
#pragma once

#include "preload/base/stream.h"
#include "preload/capture/admission.h"
#include "preload/graph/plan.h"
#include "preload/graph/repeat.h"
#include "preload/graph/state.h"

#include <dmi/ring.h>

#include <stdbool.h>
#include <stdint.h>

/* What a launch needs room for, of as many actions as the plan has. */
struct exec_scratch {
    uint32_t n_room;
    struct admission *items;
};

struct exec {
    CUgraphExec handle;
    CUgraph template; /* the application's; while plan.map.gone is 0 */
    struct graph_plan plan;
    struct exec_state state;
    struct exec_scratch scratch;
    bool for_device; /* kernels may launch it too */
    bool empty;      /* the opens hold empty tickets */
    struct repeat repeat;
    uint64_t switches;         /* session.switches when nodes were last disabled and enabled */
    bool orphan;               /* its context has ended: nothing of it is counted; atomic */
    struct exec *next, **prev; /* in the list of names.c, under its lock */
};

/* NULL: nothing is known of the exec. Takes no lock, makes no call. Thread: any. */
struct exec *exec_find(CUgraphExec handle);

/**
 * exec_prepare() - what is to be known of an exec of @graph, before it is instantiated
 * @flags: the application's, of cuGraphInstantiateWithFlags
 * Return: NULL where the run cannot be created. One without sites is known too: an update may bring some.
 */
struct exec *exec_prepare(CUgraph graph, unsigned long long flags);

/* Do launches of it concern us: has it sites, or nodes of ours? Takes no lock. Thread: any. */
static inline bool exec_concerns_us(const struct exec *exec)
{
    return exec && (exec->plan.has_sites || exec->plan.clone);
}

/* What is instantiated in @graph's place: a clone with nodes of ours, or @graph itself. */
CUgraph exec_graph(const struct exec *exec, CUgraph graph);

/**
 * exec_created() - it was instantiated as @handle, or (NULL) could not be
 * Return: true if the driver is to be asked again, with what exec_graph() says then. *@exec is NULL once it is over.
 */
bool exec_created(struct exec **exec, CUgraphExec handle);

/* Room for a launch with @n_actions. Return: 0, or -ENOMEM and as much room as before. */
int exec_make_room(struct err *err, struct exec *exec, uint32_t n_actions);

/*
 * The exec was instantiated, and its graph lives: the application may name its nodes, and the graph's end concerns it. And: it is
 * about to end. In names.c.
 */
void exec_named(struct exec *exec);
void exec_unnamed(struct exec *exec);

/* After fork, in the child. */
void exec_reset_names(void);

/*
 * Around whatever frees the kernels of an exec that others may find, or moves them: a context that ends looks at those of all
 * execs, whichever threads are at them. Short, and no call of the driver. Thread: any.
 */
void exec_shapes_lock(void);
void exec_shapes_unlock(void);

/* Before and after the driver's cuGraphExecDestroy. exec_take() returns NULL where there is nothing of ours. */
struct exec *exec_take(CUgraphExec handle);
void exec_free(struct exec *exec);

/* The driver's node for the application's; the node itself where @exec is NULL or does not know it. */
CUgraphNode exec_node(const struct exec *exec, CUgraphNode app);

/**
 * exec_pair() - a copy of what is known of the application's node @app, and exec_pair_at() at a position of the map
 * Once the application's graph has ended nobody names a node, and of those at positions only `off` is known. Return: false
 * where there is none.
 */
bool exec_pair(const struct exec *exec, CUgraphNode app, struct node_pair *pair);
bool exec_pair_at(const struct exec *exec, uint32_t position, struct node_pair *pair);

/* Are there execs whose graph lives, so that its end concerns them? Takes no lock. Thread: any. */
bool exec_any(void);

/**
 * exec_nodes_end() - the application is about to destroy a node (NULL: none) and @n graphs with all of their nodes
 * No exec goes by them from here on: their handles may come back as those of other nodes. Return: a number for
 * exec_nodes_ended(), which follows the driver's call; if that failed, all is as it was, else execs whose graph ended
 * keep nothing of its nodes. Thread: any.
 */
uint64_t exec_nodes_end(CUgraphNode node, const CUgraph *graphs, size_t n);
void exec_nodes_ended(uint64_t end, bool success);

/* Before a launch: memory may have changed since pointers were checked, and the actions follow. Thread: launches it. */
void exec_check_memory(struct exec *exec);

/**
 * exec_kernel_changed() - a kernel node (the application's) got new parameters in the exec
 * Its actions follow. Where a kernel becomes a site that was none, its records are counted drops.
 */
void exec_kernel_changed(struct exec *exec, CUgraphNode app,
                         const CUDA_KERNEL_NODE_PARAMS_v2 *params);

/* The application switched a node of its graph on or off in the exec. */
void exec_node_enabled(struct exec *exec, CUgraphNode app, bool on);

/* The context is gone: its execs hold nothing of it any more. */
void exec_forget_context(const struct context *context);

/* After fork, in the child. */
void exec_reset(void);
