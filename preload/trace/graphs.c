/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/graphs.h"

#include "core/atomic.h"
#include "cupti/tracer.h"
#include "preload/base/handles.h"
#include "preload/trace/threads.h"

#include <string.h>

#define IDS (1u << 20) /* beyond, each id is taken for one that an exec had */

static struct handles ids = HANDLES_INIT; /* of execs */
static uint64_t had[IDS / 64];            /* a bit each id; atomic */

static void note(uint32_t id)
{
    if (id < IDS)
        __atomic_fetch_or(&had[id / 64], 1ull << id % 64, __ATOMIC_RELAXED);
}

void graphs_made(CUgraphExec exec)
{
    uint32_t id = 0;
    if (!atomic_load_relaxed(&trace_by_stream))
        return;
    if (tracer_graph_id(exec, &id))
        note(id); /* before a launch of it can be */
    handles_set(&ids, exec, (void *)(uintptr_t)id);
}

void graphs_ends(CUgraphExec exec)
{
    if (graphs_id(exec))
        handles_set(&ids, exec, NULL);
}

uint32_t graphs_id(CUgraphExec exec)
{
    return (uint32_t)(uintptr_t)handles_find(&ids, exec);
}

bool graphs_had(uint32_t id)
{
    return id >= IDS || atomic_load_relaxed(&had[id / 64]) >> id % 64 & 1;
}

void graphs_reset(void)
{
    struct handles fresh = HANDLES_INIT;
    ids = fresh;
    memset(had, 0, sizeof had);
}
