/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph.h - graphs as nodes and edges. All with driver.lock held.
 */
#ifndef STANDIN_GRAPH_H
#define STANDIN_GRAPH_H

#include "driver.h"

struct graph_edge {
    struct graph_node *node; /* the other end */
    CUgraphEdgeData data;
};

struct edge_list {
    struct graph_edge *edges;
    size_t n, cap;
};

struct graph_node {
    struct object object;
    struct graph *graph;
    struct graph_node *prev, *next; /* in order of creation */
    uint64_t uid;                   /* never reused, as handles are */
    uint64_t origin;                /* uid of the node that this is a clone of, or 0 */
    CUgraphNodeType type;
    struct work *work;   /* NULL for child graphs and empty nodes */
    struct graph *child; /* owned */
    struct edge_list in, out;
    size_t index; /* scratch of the algorithms */
};

struct user_ref {
    struct user_object *object;
    unsigned count;
};

struct graph {
    struct object object;
    struct graph_node *first, *last;
    size_t n_nodes;
    struct graph_node *owner; /* of a child graph: the node that it belongs to */
    bool captured; /* a stream captures into it now: neither it nor its nodes can be destroyed */
    bool moved;    /* into its owner, not cloned: can be used through it only */
    struct user_ref *users;
    size_t n_users;
    unsigned long long id;
};

struct graph *graph_new(void);
void graph_free(struct graph *graph);
struct graph *graph_clone(struct graph *graph);
bool graph_is(CUgraph handle);
/** graph_add() - a node that depends on @deps; @work's reference is taken over in every case */
CUresult graph_add(struct graph *graph, CUgraphNodeType type, struct work *work,
                   struct graph_node *const *deps, const CUgraphEdgeData *data, size_t n_deps,
                   struct graph_node **out);
CUresult graph_connect(struct graph_node *from, struct graph_node *to, const CUgraphEdgeData *data);
/** graph_work_type() - the type of node that a piece of work becomes */
CUgraphNodeType graph_work_type(const struct work *work);

/** node_work_*() - a node's parameters, checked, as work */
CUresult node_work_kernel(const CUDA_KERNEL_NODE_PARAMS_v2 *params, bool v2, struct work **out);
CUresult node_work_copy(const CUDA_MEMCPY3D *params, CUcontext ctx, struct work **out);
CUresult node_work_set(const CUDA_MEMSET_NODE_PARAMS *params, CUcontext ctx, struct work **out);
CUresult node_work_host(CUhostFn fn, void *data, struct work **out);
CUresult node_work_event(CUevent event, bool record, struct work **out);

CUresult node_work_alloc(struct context *ctx, int device, size_t bytes, struct work **out);
CUresult node_work_free(struct context *ctx, uint64_t address, struct work **out);
/** graph_has_memory() - does @graph, or a child, hold memory nodes: then it can be neither cloned nor cut */
bool graph_has_memory(const struct graph *graph);

/** user_release() - drop @n references; the destructor runs on the host thread */
void user_release(struct user_object *object, unsigned n);
void user_retain(struct user_object *object, unsigned n);

/** exec_to_graph() - what a launch of @exec on a capturing stream embeds */
struct graph *exec_to_graph(struct graph_exec *exec);

#endif
