/* SPDX-License-Identifier: Apache-2.0 */
/*
 * programmatic.h - operations that may start before a kernel that they come after has ended: programmatic dependent launch
 *
 * Without a delay seed these dependencies are plain ones, as a driver is free to have it. With one a dependent starts as early as
 * its edge allows, and half of the kernels give it time to run ahead.
 * Source: PTX ISA, griddepcontrol; cuda.h, CU_GRAPH_KERNEL_NODE_PORT_*, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_*
 */
#ifndef STANDIN_PROGRAMMATIC_H
#define STANDIN_PROGRAMMATIC_H

#include "driver.h"

struct ptx_dependents;

/* of a launch with programmatic stream serialization: from a trigger, and its griddepcontrol.wait waits for the end */
extern const CUgraphEdgeData programmatic_edge;

/** programmatic_depend() - as op_depend(), by an edge of a graph with @data, or a launch attribute; lock held */
void programmatic_depend(struct op *op, struct op *on, const CUgraphEdgeData *data);

/** programmatic_begin() - @op, a kernel of @n_blocks, runs now. Return: what its blocks tell and ask; no lock held */
const struct ptx_dependents *programmatic_begin(struct op *op, uint64_t n_blocks,
                                                struct ptx_dependents *out);

/** programmatic_join() - @op has run; it has ended once those have that it did not wait for; lock held, dropped meanwhile */
void programmatic_join(struct op *op);

/** programmatic_end() - @op has ended: those that would have started earlier start now; lock held */
void programmatic_end(struct op *op);

#endif
