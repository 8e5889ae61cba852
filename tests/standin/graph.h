/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph.h - graphs as nodes and edges. All with driver.lock held.
 */
#ifndef STANDIN_GRAPH_H
#define STANDIN_GRAPH_H

#include "driver.h"

struct users;
struct cond_node;
struct condition_list;

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
    struct work *work;      /* NULL for child graphs and empty nodes */
    struct graph *child;    /* owned */
    struct cond_node *cond; /* owned */
    struct edge_list in, out;
    size_t index; /* scratch of the algorithms */
};

struct graph {
    struct object object;
    struct graph_node *first, *last;
    size_t n_nodes;
    struct graph_node *owner; /* of a child graph: the node that it belongs to */
    bool captured; /* a stream captures into it now: neither it nor its nodes can be destroyed */
    bool moved;    /* into its owner, not cloned: can be used through it only */
    struct users *users;               /* NULL: it holds none */
    struct condition_list *conditions; /* handles that were created for it */
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
/** graph_add_entry() - the same for an entry point: checks the handles that it got */
CUresult graph_add_entry(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
                         const CUgraphEdgeData *data, size_t n, CUgraphNodeType type,
                         struct work *work);
/** graph_node_of() - a node of that type by its handle, for a call that has @params */
CUresult graph_node_of(CUgraphNode handle, CUgraphNodeType type, const void *params,
                       struct graph_node **node);
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
/** graph_memory_own() - @work, an allocation or a free, becomes a node of @graph: may it? */
CUresult graph_memory_own(const struct graph *graph, const struct work *work);
/** graph_memory_add() - the entries for nodes that allocate, and that free */
CUresult graph_memory_add(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
                          const CUgraphEdgeData *data, size_t n, CUDA_MEM_ALLOC_NODE_PARAMS *p);
CUresult graph_memory_add_free(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
                               const CUgraphEdgeData *data, size_t n, CUdeviceptr dptr);
/** graph_memory_work() - on a worker: an allocation begins or ends */
void graph_memory_work(const struct work *work);
/** graph_memory_stop() - the same for one that ends outside of a graph; lock held */
void graph_memory_stop(struct alloc *alloc);
/** graph_memory_unref() - the last work of an allocation node goes */
void graph_memory_unref(uint64_t address);
/** graph_has_memory() - does @graph, or a child, hold memory nodes: then it can be neither cloned nor cut */
bool graph_has_memory(const struct graph *graph);

/** users_copy() - what a clone or an exec of something that holds @from holds; *to NULL: nothing */
CUresult users_copy(struct users *from, struct users **to);
/** users_drop() - an owner goes; with the last one its references. Destructors run on the host thread */
void users_drop(struct users *users);

/** graph_add_conditional() - the entry for conditional nodes */
CUresult graph_add_conditional(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
                               const CUgraphEdgeData *data, size_t n,
                               CUDA_CONDITIONAL_NODE_PARAMS *p);
/** graph_has_conditional() - then it can be neither cloned nor a child */
bool graph_has_conditional(const struct graph *graph);
void cond_node_free(struct cond_node *cond);
void conditions_free(struct condition_list *list);

/** exec_to_graph() - what a launch of @exec on a capturing stream embeds */
struct graph *exec_to_graph(struct graph_exec *exec);
bool exec_has_conditional(const struct graph_exec *exec);

#endif
