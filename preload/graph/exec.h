/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graph execs with nodes of ours. The application's graph is never touched: a clone of it (graph/plan.h) is
 * instantiated in its place, so whatever the application asks of its graph has the answer that it would have without
 * us. Where the application then names a node of its graph, the driver is given the clone's.
 *
 * Thread: whoever builds and launches, entered; as with the driver, one thread at a time per exec.
 */
#ifndef PRELOAD_GRAPH_EXEC_H
#define PRELOAD_GRAPH_EXEC_H

#include "preload/base/stream.h"
#include "preload/capture/admission.h"
#include "preload/graph/plan.h"
#include "preload/graph/state.h"

#include <dmi/ring.h>

#include <stdbool.h>
#include <stdint.h>

/* What a launch needs room for, of as many copies as the plan has. */
struct exec_scratch {
    struct admission *items;
    struct admission_pieces pieces;
    struct dmi_open ticket;
};

struct exec {
    CUgraphExec handle;
    CUgraph template; /* the application's; while plan.map.gone is 0 */
    struct graph_plan plan;
    struct exec_state state;
    struct exec_scratch scratch;
    bool empty;                /* open holds the empty ticket */
    bool open_off, close_off;  /* the node is disabled */
    uint64_t switches;         /* session.switches when nodes were last disabled and enabled */
    struct exec *next, **prev; /* of all; under the lock of exec.c */
};

/* NULL: the exec holds nothing of ours. Takes no lock, makes no call. Thread: any. */
struct exec *exec_find(CUgraphExec handle);

/**
 * exec_prepare() - a clone of @graph with nodes of ours, to be instantiated in its place
 * Return: NULL where the graph has no sites, or where they must be left alone (reported by name).
 */
struct exec *exec_prepare(CUgraph graph);

/**
 * exec_created() - the clone was instantiated as @handle, or (NULL) could not be
 * Return: false if it is to be without nodes of ours: then @exec is gone, and @handle too.
 */
bool exec_created(struct exec *exec, CUgraphExec handle);

/* Before and after the driver's cuGraphExecDestroy. exec_take() returns NULL where there is nothing of ours. */
struct exec *exec_take(CUgraphExec handle);
void exec_destroyed(struct exec *exec);

/* The driver's node for the application's; the node itself where @exec is NULL or does not know it. */
CUgraphNode exec_node(const struct exec *exec, CUgraphNode app);

/* Are there execs with nodes of ours? Takes no lock. Thread: any. */
bool exec_any(void);

/**
 * exec_nodes_end() - the application is about to destroy a node (NULL: none) and @n graphs with all of their nodes
 * No exec goes by them from here on: their handles may come back as those of other nodes. Return: a number for
 * exec_nodes_ended(), which follows the driver's call; if that failed, all is as it was. Thread: any.
 */
uint64_t exec_nodes_end(CUgraphNode node, const CUgraph *graphs, size_t n);
void exec_nodes_ended(uint64_t end, bool success);

/* A kernel node (the application's) got new parameters in the exec: its copies follow. */
void exec_kernel_changed(struct exec *exec, CUgraphNode app,
                         const CUDA_KERNEL_NODE_PARAMS_v2 *params);

/* The application switched a node of its graph on or off in the exec. */
void exec_node_enabled(struct exec *exec, CUgraphNode app, bool on);

/* Sites of a kernel at a place (NULL: unknown) where the plan holds no copy for them: reported. */
void exec_report_new_sites(const struct graph_plan *plan, const struct graph_kernel *kernel,
                           const struct func *func);

/* The context is gone, and with it its execs. */
void exec_forget_context(const struct context *context);

/* After fork, in the child. */
void exec_reset(void);

#endif
