/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/recording/nodes.h"

#include "core/cleanup.h"
#include "core/grow.h"
#include "core/locked.h"
#include "preload/base/driver.h"
#include "preload/base/handles.h"
#include "preload/capture/params.h"
#include "preload/function/functions.h"
#include "preload/graph/edges.h"
#include "preload/graph/kernel_node.h"
#include "preload/recording/recorder.h"

#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 16 /* of child graphs */

/* A kernel node, as its exec launches it. */
struct node {
    CUgraphNode handle; /* the application's */
    CUfunction function;
    const struct func *func;
    uint32_t grid[3], block[3], shared_bytes;
    uint8_t *params; /* packed */
    size_t n_params;
    bool off;
};

struct nodes {
    struct node *at; /* in the order of the graph's edges */
    size_t n, room;
    const char *why; /* it is launched as it is; NULL: its kernels are */
    bool told;
};

static struct handles execs = HANDLES_INIT; /* exec -> struct nodes */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void nodes_free(struct nodes *nodes)
{
    for (size_t i = 0; nodes && i < nodes->n; i++)
        free(nodes->at[i].params);
    if (nodes)
        free(nodes->at);
    free(nodes);
}

/* ------------------------------------------------------------------------- one node */

static size_t n_param_bytes(const struct params *params)
{
    size_t n = 0;
    for (uint32_t i = 0; params->layout && i < params->layout->n; i++)
        if (params->layout->at[i].offset + params->layout->at[i].size > n)
            n = params->layout->at[i].offset + params->layout->at[i].size;
    return params->packed ? params->n_packed : n;
}

static bool copy_params(struct node *node, const struct params *params)
{
    size_t n = n_param_bytes(params);
    uint8_t *copy = calloc(n + 1, 1);
    bool good = copy && (params->packed || params->layout);
    if (good && params->packed)
        memcpy(copy, params->packed, n);
    for (uint32_t i = 0; good && !params->packed && i < params->layout->n; i++)
        good = !params_read((void *)params, (struct expr_ref){ .arg = (int)i },
                            copy + params->layout->at[i].offset, params->layout->at[i].size);
    if (!good) {
        free(copy);
        return false;
    }
    free(node->params);
    node->params = copy;
    node->n_params = n;
    return true;
}

static bool set_node(struct node *node, const CUDA_KERNEL_NODE_PARAMS_v2 *k)
{
    struct params params;
    node->function = k->func ? k->func : (CUfunction)k->kern;
    node->func = functions_lookup(node->function, k->func ? FUNC_FUNCTION : FUNC_KERNEL);
    if (node->func == &func_unmatched)
        return false;
    params_init(&params, functions_layout(node->func), k->kernelParams, k->extra);
    memcpy(node->grid, (uint32_t[]){ k->gridDimX, k->gridDimY, k->gridDimZ }, sizeof node->grid);
    memcpy(node->block, (uint32_t[]){ k->blockDimX, k->blockDimY, k->blockDimZ },
           sizeof node->block);
    node->shared_bytes = k->sharedMemBytes;
    return copy_params(node, &params);
}

/* A launch that cuLaunchKernel() cannot make. */
static bool is_special(CUgraphNode handle)
{
    static const CUkernelNodeAttrID ids[] = { CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE,
                                              CU_KERNEL_NODE_ATTRIBUTE_CLUSTER_DIMENSION };
    for (size_t i = 0; driver_table.cuGraphKernelNodeGetAttribute && i < 2; i++) {
        CUkernelNodeAttrValue value = { 0 };
        if (driver_table.cuGraphKernelNodeGetAttribute(handle, ids[i], &value) != CUDA_SUCCESS)
            continue;
        if (i ? value.clusterDim.x > 1 || value.clusterDim.y > 1 || value.clusterDim.z > 1
              : value.cooperative != 0)
            return true;
    }
    return false;
}

static void add_kernel(struct nodes *nodes, CUgraphNode handle)
{
    CUDA_KERNEL_NODE_PARAMS_v2 k = { 0 };
    if (grow((void **)&nodes->at, nodes->n, &nodes->room, sizeof *nodes->at, 64)) {
        nodes->why = "there is no memory for it";
        return;
    }
    struct node *node = &nodes->at[nodes->n++];
    *node = (struct node){ .handle = handle };
    if (is_special(handle))
        nodes->why = "a kernel of it is cooperative or in clusters";
    else if (kernel_node_get(handle, &k) != CUDA_SUCCESS || !set_node(node, &k))
        nodes->why = "the parameters of a kernel of it are not known";
}

/* ------------------------------------------------------------------------- all of a graph */

static bool comes_after(const CUgraphNode *nodes, const bool *done, size_t n, CUgraphNode node)
{
    struct edges in;
    bool ready = edges_in(node, &in);
    for (size_t i = 0; ready && i < in.n; i++)
        for (size_t k = 0; k < n; k++)
            ready = ready && (nodes[k] != in.nodes[i] || done[k]);
    edges_free(&in);
    return ready;
}

static void add_graph(struct nodes *nodes, CUgraph graph, int depth);

static void add_node(struct nodes *nodes, CUgraphNode handle, int depth)
{
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_HOST;
    CUgraph child = NULL;
    if (driver_table.cuGraphNodeGetType(handle, &type) != CUDA_SUCCESS)
        nodes->why = "the driver does not say what its nodes are";
    else if (type == CU_GRAPH_NODE_TYPE_KERNEL)
        add_kernel(nodes, handle);
    else if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
             driver_table.cuGraphChildGraphNodeGetGraph(handle, &child) == CUDA_SUCCESS)
        add_graph(nodes, child, depth + 1);
    else if (type != CU_GRAPH_NODE_TYPE_EMPTY)
        nodes->why = "it holds other nodes than kernels";
}

/* Nodes that wait for nothing that is left, until none is left. */
static void add_graph(struct nodes *nodes, CUgraph graph, int depth)
{
    size_t n = 0, left;
    if (depth > MAX_DEPTH || driver_table.cuGraphGetNodes(graph, NULL, &n) != CUDA_SUCCESS) {
        nodes->why = "the driver does not say what is in it";
        return;
    }
    _cleanup_(freep) CUgraphNode *all = calloc(n + 1, sizeof(CUgraphNode));
    _cleanup_(freep) bool *done = calloc(n + 1, sizeof *done);
    if (!all || !done || (n && driver_table.cuGraphGetNodes(graph, all, &n) != CUDA_SUCCESS)) {
        nodes->why = "there is no memory for it";
        return;
    }
    for (left = n; left && !nodes->why;) {
        size_t before = left;
        for (size_t i = 0; i < n && !nodes->why; i++) {
            if (done[i] || !comes_after(all, done, n, all[i]))
                continue;
            add_node(nodes, all[i], depth);
            done[i] = true;
            left--;
        }
        if (left == before)
            nodes->why = "its edges cannot be followed";
    }
}

void nodes_created(CUgraphExec exec, CUgraph graph)
{
    struct nodes *nodes = calloc(1, sizeof *nodes);
    if (!nodes)
        return;
    add_graph(nodes, graph, 0);
    UNDER(&lock, nodes_free(handles_set(&execs, exec, nodes)));
}

void nodes_destroyed(CUgraphExec exec)
{
    UNDER(&lock, nodes_free(handles_set(&execs, exec, NULL)));
}

/* ------------------------------------------------------------------------- changes */

static struct node *node_of(struct nodes *nodes, CUgraphNode handle)
{
    for (size_t i = 0; nodes && i < nodes->n; i++)
        if (nodes->at[i].handle == handle)
            return &nodes->at[i];
    return NULL;
}

void nodes_changed(CUgraphExec exec, CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
    pthread_mutex_lock(&lock);
    struct nodes *nodes = handles_find(&execs, exec);
    struct node *node = node_of(nodes, handle);
    if (nodes && (!node || !set_node(node, params)))
        nodes->why = "the new parameters of a kernel of it are not known";
    pthread_mutex_unlock(&lock);
}

void nodes_switched(CUgraphExec exec, CUgraphNode handle, bool on)
{
    pthread_mutex_lock(&lock);
    struct node *node = node_of(handles_find(&execs, exec), handle);
    if (node)
        node->off = !on;
    pthread_mutex_unlock(&lock);
}

void nodes_lost(CUgraphExec exec, const char *why)
{
    pthread_mutex_lock(&lock);
    struct nodes *nodes = handles_find(&execs, exec);
    if (nodes)
        nodes->why = why;
    pthread_mutex_unlock(&lock);
}

/* ------------------------------------------------------------------------- launching */

static CUresult launch_node(const struct node *node, struct stream stream)
{
    size_t n = node->n_params;
    void *extra[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, node->params, CU_LAUNCH_PARAM_BUFFER_SIZE, &n,
                      CU_LAUNCH_PARAM_END };
    struct eager_launch l = { .function = node->function,
                              .shared_bytes = node->shared_bytes,
                              .stream = stream,
                              .extra = n ? extra : NULL };
    memcpy(l.grid, node->grid, sizeof l.grid);
    memcpy(l.block, node->block, sizeof l.block);
    __typeof__(cuLaunchKernel) *real =
        stream.per_thread ? driver_table.cuLaunchKernel_ptsz : driver_table.cuLaunchKernel;
    bool recorded = recorder_before(&l, node->func, true);
    CUresult r = real(l.function, l.grid[0], l.grid[1], l.grid[2], l.block[0], l.block[1],
                      l.block[2], l.shared_bytes, stream.handle, NULL, l.extra);
    if (recorded)
        recorder_after(&l, r);
    return r;
}

bool nodes_launch(CUgraphExec exec, struct stream stream, CUresult *result)
{
    if (!recorder_on() || stream_is_capturing(stream))
        return false;
    pthread_mutex_lock(&lock);
    struct nodes *nodes = handles_find(&execs, exec);
    const char *why = nodes ? nodes->why : "it is older than the recording";
    if (why) {
        recorder_unseen(why, !nodes || !nodes->told);
        if (nodes)
            nodes->told = true;
    }
    *result = CUDA_SUCCESS;
    for (size_t i = 0; !why && i < nodes->n && *result == CUDA_SUCCESS; i++)
        if (!nodes->at[i].off)
            *result = launch_node(&nodes->at[i], stream);
    pthread_mutex_unlock(&lock);
    return !why;
}

void nodes_reset(void)
{
    struct handles fresh = HANDLES_INIT;
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    execs = fresh; /* as in functions_reset() */
    lock = unlocked;
}
