/* SPDX-License-Identifier: Apache-2.0 */
/*
 * By which numbers CUPTI knows graphs, in its records of what they ran: an exec, so that a record says which graph it is of, and the nodes that have sites,
 * so that it says which site and layer. CUPTI is asked when an exec is instantiated or updated; a launch costs a look into a table and, of a graph with sites, a
 * comparison each. Thread: any, where nothing else is said.
 */
#pragma once

#include "cupti/records.h"
#include "preload/graph/exec.h"
#include "storage/ran.h"

#include <stdbool.h>
#include <stdint.h>

/* The exec was instantiated, or updated. @exec: what is known of it, NULL: nothing. */
void graphs_made(CUgraphExec handle, const struct exec *exec);

/* It is about to be destroyed: its handle may come back as another's. */
void graphs_ends(CUgraphExec handle);

/* CUPTI's id of the exec; 0: it is not known. Takes no lock, makes no call. */
uint32_t graphs_id(CUgraphExec handle);

/* Did an exec ever have this id? */
bool graphs_had(uint32_t id);

/* The exec is about to be launched. @counted: its occurrences were, so layers follow. Thread: launches it. */
void graphs_launches(const struct exec *exec, bool counted);

/* The site and layer of the kernel that the record is of. Thread: the collector. */
struct ran_place graphs_place(const struct records_event *event);

/* Lets go of what is known of execs that ended long ago. Thread: the collector. */
void graphs_sweep(void);

/* Were there records of graphs with sites, and none of them of a node that CUPTI gave an id for? Thread: the collector. */
bool graphs_strange(void);

/* After fork, in the child. */
void graphs_reset(void);
