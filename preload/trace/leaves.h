/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which execs leave records of CUPTI's when they are launched. Events, host functions, memory nodes and nodes that are switched off leave none; what is in bodies
 * of conditional nodes may. So launches of an exec that leaves none are not waited for. Thread: any, as with the driver one at a time per exec.
 */
#pragma once

#include "preload/base/cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

/* The exec was instantiated from the graph. */
void leaves_made(CUgraphExec handle, CUgraph graph);

/* A node of it was switched on or off, and was not so before. */
void leaves_switched(CUgraphExec handle, bool on);

/* It is about to be destroyed. */
void leaves_ends(CUgraphExec handle);

/* @id, CUPTI's of the exec, as trace_graph_launched() takes it: also where a launch leaves nothing, or perhaps nothing. Takes no lock, makes no call. */
uint32_t leaves_id(CUgraphExec handle, uint32_t id);

/* Did an exec that perhaps leaves nothing ever have this id? */
bool leaves_perhaps(uint32_t id);

/* After fork, in the child. */
void leaves_reset(void);
