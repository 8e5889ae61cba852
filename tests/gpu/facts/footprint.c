/* SPDX-License-Identifier: Apache-2.0 */
/* What nodes and edges of an exec cost: device memory, time. */
#include "facts.h"

#include <dmi/ring.h>

#include <stdio.h>

#define NODES     500
#define MAX_EXECS 40

static double in_use(void)
{
    size_t free_bytes = 0, total = 0;
    CU(cuMemGetInfo_v2, &free_bytes, &total);
    return (double)total - (double)free_bytes;
}

/* Bytes of device memory for a node of a chain, once instantiated and once launched. */
static CUresult node_bytes(const char *what, CUfunction function, void **params)
{
    CUgraph graph;
    CUgraphExec execs[MAX_EXECS];
    CUstream stream;
    unsigned n = rounds(MAX_EXECS);
    char text[96];

    PASS(new_stream(&stream));
    PASS(CU(cuGraphCreate, &graph, 0));
    PASS(add_chain(graph, NULL, NODES, function, params));
    PASS(new_exec(&execs[0], graph)); /* the first one loads the kernel */
    PASS(CU(cuGraphLaunch, execs[0], stream));
    PASS(CU(cuStreamSynchronize, stream));
    double before = in_use();
    for (unsigned i = 0; i < n; i++)
        PASS(new_exec(&execs[i], graph));
    double instantiated = in_use();
    for (unsigned i = 0; i < n; i++)
        PASS(CU(cuGraphLaunch, execs[i], stream));
    PASS(CU(cuStreamSynchronize, stream));
    double launched = in_use();
    for (unsigned i = 0; i < n; i++)
        PASS(CU(cuGraphExecDestroy, execs[i]));
    snprintf(text, sizeof text, "%s: a node, instantiated", what);
    figure(text, (instantiated - before) / n / NODES, "B");
    snprintf(text, sizeof text, "%s: a node, launched", what);
    figure(text, (launched - before) / n / NODES, "B");
    snprintf(text, sizeof text, "%s: what stays when the execs are destroyed", what);
    figure(text, (in_use() - before) / (1 << 20), "MiB");
    return CUDA_SUCCESS;
}

void ask_node_memory(void)
{
    static struct dmi_open open;
    static struct dmi_graph_copy copy;
    CUfunction empty, idle_copy, bulk;
    void *open_params[] = { &open }, *copy_params[] = { &copy };
    CUdeviceptr state;

    TRY(device_memory(&state, 8192));
    open.state = copy.state = state;
    TRY(kernel(&empty, "empty"));
    TRY(kernel(&idle_copy, "idle_copy"));
    TRY(kernel(&bulk, "bulk"));
    TRY(node_bytes("no parameter", empty, NULL));
    TRY(node_bytes("a copy's parameter (144 bytes)", idle_copy, copy_params));
    TRY(node_bytes("a ticket (4088 bytes)", bulk, open_params));
}

/* ------------------------------------------------------------------ redundant edges */

#define CHAIN 200

/* site -> copy -> next site; @redundant: site -> next site, too, as the clone keeps it. us a replay. */
static CUresult chain_us(double *us, bool redundant)
{
    CUfunction empty;
    CUgraph graph;
    CUgraphNode site = NULL, copy = NULL, next;
    CUgraphExec exec;
    CUstream stream;

    PASS(kernel(&empty, "empty"));
    PASS(CU(cuGraphCreate, &graph, 0));
    for (int i = 0; i < CHAIN; i++) {
        PASS(add_kernel(graph, &next, i ? &copy : NULL, empty, NULL));
        if (i && redundant)
            PASS(add_edge(graph, site, next, CU_GRAPH_DEPENDENCY_TYPE_DEFAULT));
        site = next;
        PASS(add_kernel(graph, &copy, &site, empty, NULL));
    }
    PASS(new_exec(&exec, graph));
    PASS(new_stream(&stream));
    return time_replays(us, exec, stream, rounds(40));
}

void ask_redundant_edges(void)
{
    double us;

    TRY(chain_us(&us, false));
    figure("200 sites and copies in a chain, a replay", us, "us");
    TRY(chain_us(&us, true));
    figure("with an edge past each copy", us, "us");
}
