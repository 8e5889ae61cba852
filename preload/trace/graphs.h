/* SPDX-License-Identifier: Apache-2.0 */
/*
 * By which number CUPTI knows each exec: its records of what a graph ran carry it, and so say which graph they are of. CUPTI is asked
 * when an exec is instantiated or updated; a launch costs a look into a table. Thread: any.
 */
#ifndef PRELOAD_TRACE_GRAPHS_H
#define PRELOAD_TRACE_GRAPHS_H

#include "preload/base/stream.h"

#include <stdbool.h>
#include <stdint.h>

/* The exec was instantiated, or updated. */
void graphs_made(CUgraphExec exec);

/* It is about to be destroyed: its handle may come back as another's. */
void graphs_ends(CUgraphExec exec);

/* CUPTI's id of the exec; 0: it is not known. Takes no lock, makes no call. */
uint32_t graphs_id(CUgraphExec exec);

/* Did an exec ever have this id? */
bool graphs_had(uint32_t id);

/* After fork, in the child. */
void graphs_reset(void);

#endif
