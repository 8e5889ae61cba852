/* SPDX-License-Identifier: Apache-2.0 */
/*
 * program.h - a random program of graph calls, and what it knows of what it was given
 *
 * Every answer is printed without any address: graphs, nodes and execs are named by the order
 * in which the program was given them (g3, n17, x2). A handle that it was never given is "unknown".
 * Out-parameters hold a mark before each call; one that still holds it is "-".
 *
 * What runs on the device commutes: a place holds the same words whoever writes it, and counts its
 * writers. So contents do not depend on the order in which branches, streams and launches run.
 * Thread: one program belongs to one thread.
 */
#ifndef GRAPH_CALLS_PROGRAM_H
#define GRAPH_CALLS_PROGRAM_H

#include "entries.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
    MAX_NODES = 16384,
    MAX_GRAPHS = 4096,
    MAX_EXECS = 512,
    MAX_IN_GRAPH = 48, /* nodes that a graph is given by hand */
    MAX_OBJECTS = 64,  /* user objects */
    N_SLOTS = 2048,    /* places that kernels write */
    SLOT_BYTES = 128,  /* words of a pattern, then the number of writers */
    SLOT_ROWS = 31,
    N_STREAMS = 4, /* the last is the thread's own */
    N_EVENTS = 4,
    N_TALLIES = 32, /* calls of host nodes */
    MAX_SITES = 4,
    MAX_BODIES = 3,
};

/* The kernels: names, layouts of parameters, and which sites of the test's spec name them. */
enum kind { KIND_A, KIND_B, KIND_C, KIND_D, KIND_E, N_KINDS };

/* What a kernel node or a launch does. */
struct work {
    enum kind kind;
    bool as_kernel; /* a CUkernel */
    unsigned slot, rows;
    unsigned grid, block, shared;
};

struct node {
    CUgraphNode handle;
    CUgraphNodeType type;
    bool alive;
    bool noted; /* a site or a child with sites, in the library's eyes */
    int graph;
    int child;                        /* graph of a child graph node, -1: none */
    int bodies[MAX_BODIES], n_bodies; /* graphs of a conditional node */
    struct work work;
};

struct graph {
    CUgraph handle;
    bool alive;
    int owner;   /* node that it is embedded in, -1: none */
    bool memory; /* holds memory nodes */
    int *nodes;  /* in the order of cuGraphGetNodes */
    int n_nodes, room;
    int *notes; /* those noted, in the order in which they came */
    int n_notes, notes_room;
    unsigned users[MAX_OBJECTS];
};

/* A kernel or child graph node of an exec. In the order in which the library counts them, as far as it knows one. */
struct entry {
    int node;
    int position;
    bool kernel;
    bool enabled;
    bool ordered;   /* its place among the others is known */
    unsigned sites; /* bit mask of copies, of the kind that it was instantiated with */
    struct work work;
};

/* A graph inside an exec: the outermost one, or that of a child graph node. Its own spans follow it. */
struct span {
    int node;     /* -1: the outermost */
    int first, n; /* positions of its nodes, those of its child graphs included */
    int n_spans;  /* with itself */
    unsigned users[MAX_OBJECTS];
};

struct exec {
    CUgraphExec handle;
    bool alive;
    int graph; /* that it was instantiated from */
    struct entry *entries;
    struct span *spans;
    int n_entries, n_spans;
};

struct program {
    uint64_t seed, random;
    bool alone; /* in its process */
    long at;    /* number of the operation */
    bool in_line;
    FILE *out;  /* answers */
    FILE *told; /* what the library should record, launch by launch; NULL: not wanted */
    int device;
    CUcontext context;
    CUmodule module;
    CUlibrary library;
    CUfunction functions[N_KINDS];
    CUkernel kernels[N_KINDS];
    CUfunction kernel_functions[N_KINDS];
    CUdeviceptr slots, fills, copies, source;
    unsigned char *host_copies, *pattern; /* pattern: what source holds, on the host */
    unsigned next_slot;
    CUstream streams[N_STREAMS];
    CUevent events[N_EVENTS];
    int tallies[N_TALLIES];
    struct node *nodes;
    struct graph *graphs;
    struct exec *execs;
    int n_nodes, n_graphs, n_execs;
    int *index; /* hash of handles to nodes and graphs last known by them */
    CUuserObject objects[MAX_OBJECTS];
    unsigned object_refs[MAX_OBJECTS]; /* as the program counts them */
    int object_calls[MAX_OBJECTS];     /* of the destructor */
    int n_objects;
    bool object_mine[MAX_OBJECTS]; /* the program holds a reference of its own */
    CUdeviceptr allocs[64];        /* of memory nodes */
    int n_allocs;
    CUgraphNode unset_node; /* what out-parameters hold before a call */
};

/* ---- names.c ---- */
void random_start(struct program *p, long at);
uint32_t pick(struct program *p, uint32_t n);
bool chance(struct program *p, unsigned percent);
#define UNSET ((void *)(uintptr_t)0xdeadbeef)
void say(struct program *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Ends the line of a call with its result, and errno where the call changed it. */
void say_result(struct program *p, CUresult r);
void say_end(struct program *p);
void say_node(struct program *p, CUgraphNode handle);
void say_graph(struct program *p, CUgraph handle);
void say_exec(struct program *p, CUgraphExec handle);
void say_pointer(struct program *p, uint64_t address);
void say_event(struct program *p, CUevent event);
void say_edge(struct program *p, const CUgraphEdgeData *data);
int find_node(struct program *p, CUgraphNode handle);
int find_graph(struct program *p, CUgraph handle);
int new_node(struct program *p, int graph, CUgraphNode handle, CUgraphNodeType type);
int new_graph(struct program *p, CUgraph handle, int owner);
void note(struct program *p, int graph, int node);
void forget_node(struct program *p, int node);
void forget_graph(struct program *p, int graph);
/* Does @graph lie in the body of a conditional node? */
bool in_body(struct program *p, int graph);
/* Some live graph (that may be changed and destroyed where @own), node or exec; -1: none */
int some_graph(struct program *p, bool own);
int some_node(struct program *p, int graph);
int some_node_of(struct program *p, int graph, CUgraphNodeType type);
int some_exec(struct program *p);

/* ---- kernels.c ---- */
struct arguments {
    uint64_t out, count;
    uint32_t rows, seed;
    unsigned char packed[40];
    size_t n_packed;
    void *params[4];
    void *extra[5];
};
void kernels_load(struct program *p);
struct work some_work(struct program *p);
unsigned sites_of(enum kind kind);
const char *kind_name(enum kind kind);
void arguments_of(struct program *p, const struct work *w, struct arguments *a);
/* @a must outlive @k. With @packed, `extra` instead of `kernelParams`. */
void node_params(struct program *p, const struct work *w, struct arguments *a, bool packed,
                 CUDA_KERNEL_NODE_PARAMS_v2 *k);
/* Prints what a kernel node does; @w: the same, where it could be read. */
void say_params(struct program *p, const CUDA_KERNEL_NODE_PARAMS_v2 *k, struct work *w);
void say_work(struct program *p, const struct work *w);
CUresult launch_work(struct program *p, const struct work *w, CUstream stream);

/* ---- nodes.c, params.c ---- */
void some_memset(struct program *p, CUDA_MEMSET_NODE_PARAMS *m);
void some_memcpy(struct program *p, CUDA_MEMCPY3D *c);
void some_host(struct program *p, CUDA_HOST_NODE_PARAMS *h);
void say_memset(struct program *p, const CUDA_MEMSET_NODE_PARAMS *m);
void say_memcpy(struct program *p, const CUDA_MEMCPY3D *c);
void say_host(struct program *p, const CUDA_HOST_NODE_PARAMS *h);
void op_add_node(struct program *p);
void op_set_node(struct program *p);
void op_get_node(struct program *p);
void op_attributes(struct program *p);
void get_node(struct program *p, int node);
void set_node(struct program *p, int node);

/* ---- build.c ---- */
void op_graph(struct program *p);
void op_clone(struct program *p);
void op_add_edges(struct program *p);
void op_remove_edges(struct program *p);
bool destroy_node(struct program *p, int node);
void op_destroy_node(struct program *p);
void op_destroy_and_add(struct program *p);
void op_destroy_graph(struct program *p);
/* Names what @graph holds that has no name yet, and reads it; kernels of sites are noted if @noted. */
void adopt(struct program *p, int graph, bool noted);
/* @to is a copy of @from, node by node: notes go over. */
void carry_over(struct program *p, int from, int to);

/* ---- query.c ---- */
void op_nodes(struct program *p);
void op_edges(struct program *p);
void op_neighbours(struct program *p);
void op_find_in_clone(struct program *p);
void op_dot(struct program *p);
void op_mistakes(struct program *p);

/* ---- execs.c ---- */
/* Mostly a node of the exec's graph, also of its child graphs; sometimes any. -1: none */
int some_node_for(struct program *p, int exec);
void op_instantiate(struct program *p);
void op_exec_destroy(struct program *p);
void op_launch(struct program *p);
void op_exec_queries(struct program *p);
void op_enable(struct program *p);
void op_eager(struct program *p);

/* ---- update.c ---- */
void op_exec_set(struct program *p);
void op_exec_set_child(struct program *p);
void op_update(struct program *p);
void op_update_alike(struct program *p);
void op_update_clone(struct program *p);

/* ---- capture.c ---- */
void op_capture(struct program *p);
/* Taps some of what never changes, if DMI is there. */
void tap(struct program *p, CUstream stream);

/* ---- users.c ---- */
void op_user_object(struct program *p);
void op_user_retain(struct program *p);
void op_sync(struct program *p);
void users_add(struct program *p, unsigned *to, const unsigned *from);
void users_drop(struct program *p, unsigned *of);
void CUDA_CB host_add(void *data);

/* ---- model.c ---- */
void model_instantiate(struct program *p, int exec);
void model_destroy(struct program *p, int exec);
void model_launch(struct program *p, int exec);
void model_eager(struct program *p, const struct work *w);
void model_set(struct program *p, int exec, int node, const struct work *w);
void model_enable(struct program *p, int exec, int node, bool on);
void model_update(struct program *p, int exec, int graph);
void model_set_child(struct program *p, int exec, int node, int graph);
/* Does @graph, or a child graph of it, hold conditional nodes? The library leaves it alone then. */
bool has_conditional(struct program *p, int graph);
/* Nodes of @graph and of its child graphs: @graph's own first, then each child's. Return: how many */
int flatten(struct program *p, int graph, int *nodes, int room);

#endif
