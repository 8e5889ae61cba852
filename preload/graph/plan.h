/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A graph plan: a clone of a graph of the application's, its kernels that the spec names, and the nodes of ours that
 * the clone gets for them. One is instantiated in the graph's place; an update of an exec makes another, with nodes
 * in the same places.
 *
 *     open -> every root;  site -> copy -> whatever depends on the site;  every leaf -> close
 *
 * Thread: whoever instantiates or updates, entered; one at a time per plan.
 */
#ifndef PRELOAD_GRAPH_PLAN_H
#define PRELOAD_GRAPH_PLAN_H

#include "core/err.h"
#include "preload/base/functions.h"
#include "preload/capture/plan.h"
#include "preload/context/context.h"
#include "preload/graph/node_map.h"

#include <stdbool.h>
#include <stdint.h>

/* A node of ours, for one site of one kernel node. */
struct graph_copy {
    CUgraphNode node;
    uint32_t site;
    struct site_plan plan;     /* replaced as a whole when the kernel's parameters change */
    struct memory_range range; /* that the tensor lies in */
    int drop;                  /* why it cannot be read now, DROP_NONE */
    bool stale;                /* the driver refused the parameters that @plan asks for */
    bool dead;                 /* there is no site here any more */
    bool off;                  /* the node is disabled */
};

/* A kernel node that the spec names. In the order in which occurrences are counted. */
struct graph_kernel {
    CUgraphNode app, node; /* the application's; the clone's */
    CUgraph graph;         /* that @node lies in */
    uint32_t position;     /* as node_map.h has it */
    bool enabled;
    const struct func *func;
    uint32_t first_copy, n_copies;
};

struct graph_plan {
    struct context *context;
    CUdeviceptr state; /* of the exec: struct dmi_ticket */
    CUgraph clone;
    struct node_map map;
    struct graph_kernel *kernels;
    uint32_t n_kernels;
    struct graph_copy *copies;
    uint32_t n_copies;
    CUgraphNode open, close; /* NULL in a plan for a child graph */
    uint64_t epoch;          /* session.memory_epoch when pointers were last checked */
};

/* The plan has a clone of @graph, and its node map, unsorted. Return: 0 or -errno. */
int graph_plan_clone(struct err *err, struct graph_plan *plan, CUgraph graph);

/* Kernels and copies of @graph, in the order of their sites; no node is added yet. After node_map_sort(). */
int graph_plan_kernels(struct err *err, struct graph_plan *plan, CUgraph graph);

/* What the copy reads, as the kernel's parameters say: plan and drop reason are set anew. */
void graph_plan_copy(struct graph_copy *copy, const struct func *func,
                     const CUDA_KERNEL_NODE_PARAMS_v2 *params);

/* Memory may have been freed since pointers were checked: a copy of it would fault in the application's graph. */
void graph_plan_check_memory(struct graph_plan *plan);

/* What the spec says of the kernel of a node, NULL: nothing. */
const struct func *graph_plan_func(const CUDA_KERNEL_NODE_PARAMS_v2 *params);
/* The same of a node of any type. @params is filled in where it is a kernel. */
const struct func *graph_plan_func_of(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *params);

/* The clone and all memory of the plan. */
void graph_plan_deinit(struct graph_plan *plan);

#endif
