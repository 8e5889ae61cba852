/* SPDX-License-Identifier: Apache-2.0 */
/* What execs.c, surgery.c and exec_launch.c share of an exec. Nobody else includes this. */
#ifndef PRELOAD_EXEC_PRIVATE_H
#define PRELOAD_EXEC_PRIVATE_H

#include "preload/execs.h"
#include "preload/funcs.h"
#include "preload/launch.h"

#include <dmi/ring.h>

/* A copy node of ours, for one site of one kernel node. */
struct copy {
    CUgraphNode node;
    struct want want; /* site, plan, range, error; occurrence and layer are the launch's */
    bool dead;        /* in an update: there is no site here any more */
    bool live;        /* scratch of a launch: reserved */
    int drop;         /* scratch of a launch: enum dmi_drop + 1 that it was counted under */
    bool expected;    /* scratch of a launch */
    bool noted;       /* scratch of a launch: it took an occurrence */
    bool given_up;    /* scratch of a launch: by the drain, which has counted it */
    bool off;         /* the node is disabled: dmi_site_enable() */
};

/* A kernel node that the spec names, in the order in which occurrences are counted. */
struct entry {
    CUgraphNode host, node; /* the host's graph's; the clone's */
    CUgraph graph;          /* that @node lies in: the clone, or a child graph of it */
    uint32_t position;      /* as twins have it */
    bool enabled;
    const struct func *func;
    uint32_t first_copy, n_copies;
};

/*
 * From nodes of the host's graph to the clone's, sorted by the host's. Positions: the graph's own nodes come
 * first, as the driver lists them, then those of each child graph; a graph of the same shape has the same.
 */
struct twin {
    CUgraphNode host, node;
    CUgraph graph; /* that @node lies in */
    uint32_t position;
    bool is_graph;
    uint32_t first,
        n; /* of a child graph: positions of its nodes, those of its child graphs included */
    uint64_t gone; /* which of the host's calls destroyed it, 0: none; under the lock of execs.c */
};

struct exec {
    CUgraphExec handle;
    CUgraph template; /* the host's; NULL: it is destroyed */
    CUgraph clone;
    struct arena *arena;
    CUdeviceptr state; /* struct dmi_ticket */
    CUgraphNode open, close;
    struct entry *entries;
    uint32_t n_entries;
    struct copy *copies;
    uint32_t n_copies;
    struct twin *twins;
    size_t n_twins;
    uint64_t template_gone;    /* as twin.gone */
    struct exec *next, **prev; /* all of them; under the lock of execs.c */
    uint64_t epoch;            /* process.memory_epoch when pointers were last checked */
    bool empty;                /* open holds the empty ticket */
    bool whole;                /* of an update: with open and close */
    bool open_off, close_off;  /* the node is disabled */
    uint64_t switches;         /* process.switches when nodes were last disabled and enabled */
    uint64_t last_slot;        /* behind the last launch's that had a ticket */
    CUevent event;             /* behind the last one that had none; NULL: there was none */
    bool untold;               /* of a launch nobody can tell when it is over */
    struct exec *next_state;   /* arena's list of states that may be used again */
    /* scratch of a launch */
    uint64_t forward[DMI_GRAPH_COPIES];
    uint32_t sites[DMI_GRAPH_COPIES];
    uint64_t sizes[DMI_GRAPH_COPIES], payloads[DMI_GRAPH_COPIES];
    struct dmi_open ticket;
};

/* execs.c: the exec's state in device memory, and its end. */
CUresult exec_state_new(struct exec *x);
void exec_state_give_back(const struct exec *x);
/* A launch without a ticket is on its way: its open writes the state, its copies read it. */
void exec_unticketed(struct exec *x, CUstream stream, bool per_thread);
void exec_free(struct exec *x);
/* The entry of a node of the host's graph that still is one; NULL: there is none. */
const struct twin *exec_twin(const struct exec *x, CUgraphNode host);
/* Sites that came into the exec's graph later, for which it holds no copy. */
void exec_tell_new_sites(const struct exec *x, const struct entry *e, const struct func *func);

/*
 * surgery.c: @x gets a clone of @graph, and the clone's nodes as twins, in the order of positions (@sorted: by
 * the host's nodes); copies for its entries, then open and close.
 */
CUresult exec_clone(struct exec *x, CUgraph graph, bool sorted, const char **why);
void exec_sort_twins(struct exec *x);
CUresult exec_add_copies(struct exec *x);
CUresult exec_add_open_close(struct exec *x);
/* Calls that prepare a graph break nobody's capture. */
struct exec_relaxed {
    bool exchanged;
    CUstreamCaptureMode mode;
};
struct exec_relaxed exec_relax(void);
void exec_unrelax(struct exec_relaxed *before);

/* surgery.c: what a copy reads, as the spec and the node's parameters say, and as its kernel wants it. */
const struct func *exec_func_of(const CUDA_KERNEL_NODE_PARAMS_v2 *k); /* NULL: no site */
void exec_plan_copy(struct copy *c, const struct func *func, const CUDA_KERNEL_NODE_PARAMS_v2 *k);
void exec_fill_copy(const struct exec *x, const struct copy *c, struct dmi_graph_copy *param);
uint32_t exec_copy_blocks(const struct dmi_graph_copy *param);
/* New parameters for a node of ours in the exec. */
CUresult exec_set_params(struct exec *x, CUgraphNode node, CUfunction f, uint32_t blocks,
                         uint32_t threads, void *param);

#endif
