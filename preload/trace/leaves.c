/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/leaves.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "preload/base/driver.h"
#include "preload/base/handles.h"
#include "preload/trace/graphs.h"
#include "preload/trace/threads.h"

#include <stddef.h>
#include <stdlib.h>

#define DEEPEST     16u /* children within children */
#define CONDITIONAL 13  /* CU_GRAPH_NODE_TYPE_CONDITIONAL, since CUDA 12.3 */
#define IDS         (1u << 16)

/* A value in the table: it is known, bodies may leave records, and how many nodes leave one. */
#define KNOWN ((uintptr_t)1)
#define MAYBE ((uintptr_t)2)
#define NODE  ((uintptr_t)4)

static struct handles leaves = HANDLES_INIT; /* of execs that may leave nothing */
static uint64_t perhaps[IDS / 64];           /* a bit each id; atomic */

/* Adds what the graph's nodes leave. Return: false: it is not known. */
static bool look_into(CUgraph graph, uintptr_t *what, uint32_t depth)
{
    size_t n = 0;
    if (depth > DEEPEST || driver_table.cuGraphGetNodes(graph, NULL, &n) != CUDA_SUCCESS)
        return false;
    _cleanup_(freep) CUgraphNode *nodes = calloc(n + 1, sizeof *nodes);
    if (!nodes || (n && driver_table.cuGraphGetNodes(graph, nodes, &n) != CUDA_SUCCESS))
        return false;
    for (size_t i = 0; i < n; i++) {
        CUgraphNodeType type;
        CUgraph child;
        if (driver_table.cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS)
            return false;
        if (type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMCPY ||
            type == CU_GRAPH_NODE_TYPE_MEMSET)
            *what += NODE;
        *what |= (int)type == CONDITIONAL ? MAYBE : 0;
        if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
            (driver_table.cuGraphChildGraphNodeGetGraph(nodes[i], &child) != CUDA_SUCCESS ||
             !look_into(child, what, depth + 1)))
            return false;
    }
    return true;
}

static void note(CUgraphExec handle, uintptr_t what)
{
    uint32_t id = graphs_id(handle);
    handles_set(&leaves, handle, (void *)what);
    if (what < NODE && (what & MAYBE) && id && id < IDS)
        __atomic_fetch_or(&perhaps[id / 64], 1ull << id % 64, __ATOMIC_RELAXED);
}

void leaves_made(CUgraphExec handle, CUgraph graph)
{
    uintptr_t what = KNOWN;
    if (!atomic_load_relaxed(&trace_by_stream))
        return;
    note(handle, graph && look_into(graph, &what, 0) ? what : 0);
}

void leaves_switched(CUgraphExec handle, bool on)
{
    uintptr_t what = (uintptr_t)handles_find(&leaves, handle);
    if (what && (on || what >= NODE))
        note(handle, on ? what + NODE : what - NODE);
}

void leaves_ends(CUgraphExec handle)
{
    if (handles_find(&leaves, handle))
        handles_set(&leaves, handle, NULL);
}

bool leaves_perhaps(uint32_t id)
{
    return id < IDS && atomic_load_relaxed(&perhaps[id / 64]) >> id % 64 & 1;
}

uint32_t leaves_id(CUgraphExec handle, uint32_t id)
{
    uintptr_t what = (uintptr_t)handles_find(&leaves, handle);
    if ((what & MAYBE) &&
        leaves_perhaps(id)) /* also where nodes are on again: its records are not counted */
        return TRACE_PERHAPS;
    if (!what || what >= NODE)
        return id;
    if (!(what & MAYBE))
        return TRACE_NO_RECORDS;
    return id;
}

void leaves_reset(void)
{
    struct handles fresh = HANDLES_INIT;
    leaves = fresh;
}
