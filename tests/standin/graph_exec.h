/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph_exec.h - execs as the files see them that launch them. All with driver.lock held.
 */
#ifndef STANDIN_GRAPH_EXEC_H
#define STANDIN_GRAPH_EXEC_H

#include "graph.h"

struct exec_cond;

struct exec_node {
    uint64_t uid; /* of the template's node */
    CUgraphNodeType type;
    struct work *work;
    bool enabled;
    size_t n_deps;
    size_t *deps; /* indices of nodes before this one, in edge order */
    CUgraphEdgeData *data;
    bool leaf;
    struct exec_body *child;
    struct exec_cond *cond;
};

struct exec_body {
    size_t n;
    struct exec_node *nodes;
    size_t *by_creation; /* indices into nodes */
    struct users *users;
};

struct graph_exec {
    struct object object;
    struct graph_exec *next;
    struct exec_body *body;
    unsigned long long id;
    cuuint64_t flags;
    struct op *last;          /* end of the last launch */
    unsigned long long graph; /* id of the template, if it has memory nodes */
    int device;
    size_t node_bytes; /* of that device's memory, taken for the nodes */
};

/** struct launch - of an exec, while it is queued; conditional bodies are queued later, so it is copied */
struct launch {
    unsigned long long exec; /* its id */
    struct stream *stream;
    uint64_t correlation;
};

/** exec_part() - body @i in @node: its child, or those of a conditional node; NULL after the last */
struct exec_body *exec_part(const struct exec_node *node, size_t i);
/** body_launch() - operations for @body's nodes, committed. They depend on @begin, which is not committed:
 *  nothing runs yet. @end waits for all leaves. */
CUresult body_launch(const struct launch *launch, struct exec_body *body, struct op *begin,
                     struct op *end);
/** body_copy() - as it is now, without user objects; NULL: no memory */
struct exec_body *body_copy(const struct exec_body *body);
/** body_free() - @last: the last launch of it, or NULL */
void body_free(struct exec_body *body, struct op *last);

/** graph_memory_begin() - the memory that a launch of @exec allocates and frees; before anything is queued
 *  Return: INVALID_VALUE if what the last launch allocated has not been freed, OUT_OF_MEMORY. */
CUresult graph_memory_begin(struct graph_exec *exec);
/** graph_memory_end() - @end is the end of the launch */
void graph_memory_end(struct graph_exec *exec, struct op *end);
/** graph_memory_back() - memory for all that @exec allocates, as an upload or a launch needs it */
CUresult graph_memory_back(struct graph_exec *exec);

#endif
