/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conditional.h - conditional nodes in graphs, execs and launches. Lock held where nothing else is said.
 */
#ifndef STANDIN_CONDITIONAL_H
#define STANDIN_CONDITIONAL_H

#include "graph_exec.h"

/** struct cond_node - of a graph's node */
struct cond_node {
    struct condition *condition;
    CUgraphConditionalNodeType type;
    unsigned n;
    CUgraph *graphs; /* the bodies, owned; what cuda.h calls phGraph_out */
};

/** struct exec_cond - the same of an exec's */
struct exec_cond {
    struct condition *condition;
    CUgraphConditionalNodeType type;
    unsigned n;
    struct exec_body *bodies[];
};

/** condition_set() - cudaGraphSetConditional(), from kernels; no lock. Return: 0 if there is no such handle */
int condition_set(uint64_t handle, uint32_t value);
/** conditions_unused() - is there a handle of @graph without a node */
bool conditions_unused(const struct graph *graph);
/** conditional_error() - a node that may not be in the body that it is in, or NULL */
struct graph_node *conditional_error(const struct graph *graph);

struct exec_cond *exec_cond_new(struct condition *condition, CUgraphConditionalNodeType type,
                                unsigned n);
struct exec_cond *exec_cond_copy(const struct exec_cond *cond);
void exec_cond_free(struct exec_cond *cond);
/** exec_cond_take() - @old stands for the handle of @new from now on */
void exec_cond_take(struct exec_cond *old, struct exec_cond *new);

bool body_has_conditional(const struct exec_body *body);
/** conditional_launch() - an uncommitted operation that looks at the value; *last is done when the node is */
struct op *conditional_launch(const struct launch *launch, struct exec_cond *cond,
                              struct op **last);
/** conditional_begin() - @begin, of a launch of @body, gives handles their initial values */
void conditional_begin(struct exec_body *body, struct op *begin);
/** conditional_look() - on a worker, lock not held: queue what the value asks for */
void conditional_look(struct cond_run *run);

#endif
