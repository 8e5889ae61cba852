/* SPDX-License-Identifier: Apache-2.0 */
/* Captured graphs, clones, and where the nodes of one are in the other. */
#include "facts.h"

#include <stdio.h>
#include <string.h>

#define N 6

/* N kernels captured on one stream, and two on another that forks off the second and joins: poke(words + i, 1 + i). */
struct captured {
    CUdeviceptr words;
    CUfunction poke;
    CUgraph graph;
    CUgraphNode nodes[N];
};

static CUresult capture_pokes(struct captured *c)
{
    CUstream stream, side;
    CUevent fork, join;

    if (!c->words)
        PASS(device_memory(&c->words, 4096));
    PASS(kernel(&c->poke, "poke"));
    PASS(new_stream(&stream));
    PASS(new_stream(&side));
    PASS(CU(cuEventCreate, &fork, CU_EVENT_DISABLE_TIMING));
    PASS(CU(cuEventCreate, &join, CU_EVENT_DISABLE_TIMING));
    PASS(CU(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (unsigned i = 0; i < N; i++) {
        CUdeviceptr p = c->words + 4 * i;
        uint32_t value = 1 + i;
        void *params[] = { &p, &value };
        bool aside = i == 2 || i == 3;
        if (i == 2) {
            PASS(CU(cuEventRecord, fork, stream));
            PASS(CU(cuStreamWaitEvent, side, fork, 0));
        }
        PASS(launch(c->poke, 1, 1, aside ? side : stream, params));
    }
    PASS(CU(cuEventRecord, join, side));
    PASS(CU(cuStreamWaitEvent, stream, join, 0));
    PASS(CU(cuStreamEndCapture, stream, &c->graph));
    return list_nodes(c->graph, c->nodes, N) == N ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The value that a poke node writes, 0: it cannot be read. The driver gives parameters as pointers or as a buffer. */
static uint32_t value_of(CUgraphNode node)
{
    CUDA_KERNEL_NODE_PARAMS_v2 k;
    uint32_t value = 0;

    if (CU(cuGraphKernelNodeGetParams_v2, node, &k) != CUDA_SUCCESS)
        return 0;
    if (k.kernelParams)
        memcpy(&value, k.kernelParams[1], 4);
    for (int i = 0; k.extra && i < 8 && k.extra[i] != CU_LAUNCH_PARAM_END; i += 2)
        if (k.extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            memcpy(&value, (char *)k.extra[i + 1] + 8, 4);
    return value;
}

static CUresult run(CUgraph graph)
{
    CUgraphExec exec;
    CUstream stream;

    PASS(new_exec(&exec, graph));
    PASS(new_stream(&stream));
    PASS(CU(cuGraphLaunch, exec, stream));
    return CU(cuStreamSynchronize, stream);
}

static CUresult add_poke(CUgraph graph, CUgraphNode *node, const CUgraphNode *behind,
                         CUfunction poke, CUdeviceptr p, uint32_t value)
{
    void *params[] = { &p, &value };
    return add_kernel(graph, node, behind, poke, params);
}

void ask_add_to_captured(void)
{
    struct captured c = { 0 };
    CUgraphNode added;
    uint32_t words[N + 1];

    TRY(capture_pokes(&c));
    TRY(add_poke(c.graph, &added, &c.nodes[0], c.poke, c.words + 4 * N, 77));
    TRY(run(c.graph));
    TRY(CU(cuMemcpyDtoH_v2, words, c.words, sizeof words));
    holds("a node can be added after a captured one",
          words[N] == 77 && words[0] == 1 && words[N - 1] == N);
}

void ask_clone_captured(void)
{
    struct captured c = { 0 };
    CUgraph clone;
    CUgraphNode nodes[N + 2], twin, added;
    uint32_t words[N + 1];
    unsigned found = 0, same_kernel = 0, same_place = 0;

    TRY(capture_pokes(&c));
    TRY(CU(cuGraphClone, &clone, c.graph));
    if (list_nodes(clone, nodes, N) != N) {
        failed(CUDA_ERROR_UNKNOWN);
        return;
    }
    for (unsigned i = 0; i < N; i++) {
        if (CU(cuGraphNodeFindInClone, &twin, c.nodes[i], clone) != CUDA_SUCCESS)
            continue;
        found++;
        same_kernel += value_of(twin) && value_of(twin) == value_of(c.nodes[i]);
        same_place += twin == nodes[i];
    }
    holds("a captured graph can be cloned, and each node found", found == N);
    holds("what is found runs the same kernel with the same parameters", same_kernel == N);
    says("clone and original list their nodes in one order", same_place == N ? "yes" : "no");
    TRY(CU(cuGraphNodeFindInClone, &twin, c.nodes[1], clone));
    TRY(add_poke(clone, &added, &twin, c.poke, c.words + 4 * N, 77));
    TRY(CU(cuGraphDestroy, c.graph));
    TRY(run(clone));
    TRY(CU(cuMemcpyDtoH_v2, words, c.words, sizeof words));
    holds("a clone with a node more runs when its original is gone",
          words[N] == 77 && words[0] == 1 && words[N - 1] == N);
}

/* ------------------------------------------------------------------ children */

/* top: poke, child; child: poke, poke, grandchild; grandchild: poke */
static CUresult family(CUgraph *top, CUgraphNode *child_node, CUdeviceptr words, CUfunction poke)
{
    CUgraph child, grandchild;
    CUgraphNode node, inner, first;

    PASS(CU(cuGraphCreate, &grandchild, 0));
    PASS(add_poke(grandchild, &node, NULL, poke, words, 1));
    PASS(CU(cuGraphCreate, &child, 0));
    PASS(add_poke(child, &first, NULL, poke, words + 4, 2));
    PASS(add_poke(child, &node, &first, poke, words + 8, 3));
    PASS(CU(cuGraphAddChildGraphNode, &inner, child, &node, 1, grandchild));
    PASS(CU(cuGraphCreate, top, 0));
    PASS(add_poke(*top, &first, NULL, poke, words + 12, 4));
    return CU(cuGraphAddChildGraphNode, child_node, *top, &first, 1, child);
}

/* Looks for every node of @graph in @copy, and for kernels in @top; @depth 1: a child. */
static CUresult look_for_children(CUgraph graph, CUgraph copy, CUgraph top, int depth)
{
    CUgraphNode nodes[8], theirs[8], twin;
    char what[96];
    int n = list_nodes(graph, nodes, 8), in_copy = 0, in_top = 0, in_place = 0;

    if (n < 0 || list_nodes(copy, theirs, 8) != n)
        return CUDA_ERROR_UNKNOWN;
    for (int i = 0; i < n; i++) {
        bool found = CU(cuGraphNodeFindInClone, &twin, nodes[i], copy) == CUDA_SUCCESS;
        in_copy += found;
        in_place += found && twin == theirs[i];
        in_top += CU(cuGraphNodeFindInClone, &twin, nodes[i], top) == CUDA_SUCCESS;
    }
    const char *names[] = { "the graph", "a child graph", "a child's child" };
    snprintf(what, sizeof what, "nodes of %s are found in its counterpart", names[depth]);
    holds(what, in_copy == n);
    snprintf(what, sizeof what, "nodes of %s are listed in one order", names[depth]);
    says(what, in_place == n ? "yes" : "no");
    if (depth) {
        snprintf(what, sizeof what, "nodes of %s are found in the outermost clone", names[depth]);
        says(what, "%d of %d", in_top, n);
    }
    for (int i = 0; i < n; i++) {
        CUgraphNodeType type;
        CUgraph inner, inner_copy;
        PASS(CU(cuGraphNodeGetType, nodes[i], &type));
        if (type != CU_GRAPH_NODE_TYPE_GRAPH)
            continue;
        /* by place: the question is whether finding works */
        PASS(CU(cuGraphChildGraphNodeGetGraph, nodes[i], &inner));
        PASS(CU(cuGraphChildGraphNodeGetGraph, theirs[i], &inner_copy));
        PASS(look_for_children(inner, inner_copy, top, depth + 1));
    }
    return CUDA_SUCCESS;
}

void ask_clone_children(void)
{
    CUdeviceptr words;
    CUfunction poke;
    CUgraph top, clone, inner;
    CUgraphNode child, twin, nodes[8], added;
    uint32_t got[6];

    TRY(device_memory(&words, 64));
    TRY(kernel(&poke, "poke"));
    TRY(family(&top, &child, words, poke));
    TRY(CU(cuGraphClone, &clone, top));
    TRY(look_for_children(top, clone, clone, 0));
    TRY(CU(cuGraphNodeFindInClone, &twin, child, clone));
    TRY(CU(cuGraphChildGraphNodeGetGraph, twin, &inner));
    if (list_nodes(inner, nodes, 8) != 3) {
        failed(CUDA_ERROR_UNKNOWN);
        return;
    }
    TRY(add_poke(inner, &added, &nodes[0], poke, words + 20, 6));
    TRY(run(clone));
    TRY(CU(cuMemcpyDtoH_v2, got, words, sizeof got));
    holds("a node can be added to a child graph of a clone",
          got[0] == 1 && got[3] == 4 && got[5] == 6);
}

/* ------------------------------------------------------------------ order, and what is shared */

void ask_node_order(void)
{
    struct captured a = { 0 }, b = { 0 };
    unsigned same = 0, in_call_order = 0;

    TRY(capture_pokes(&a));
    TRY(capture_pokes(&b));
    for (unsigned i = 0; i < N; i++) {
        same += value_of(a.nodes[i]) && value_of(a.nodes[i]) == value_of(b.nodes[i]);
        in_call_order += value_of(a.nodes[i]) == i + 1;
    }
    holds("two captures of one sequence list their nodes in one order", same == N);
    says("that order is the order of the calls", in_call_order == N ? "yes" : "no");
}

void ask_clone_of_clone(void)
{
    struct captured c = { 0 };
    CUgraph clone, second;
    CUgraphNode twin, third;
    CUdeviceptr p;
    uint32_t value = 50, words[N];
    void *params[] = { &p, &value };

    TRY(capture_pokes(&c));
    p = c.words;
    TRY(CU(cuGraphClone, &clone, c.graph));
    TRY(CU(cuGraphClone, &second, clone));
    TRY(CU(cuGraphNodeFindInClone, &twin, c.nodes[0], clone));
    result("finding the original's node in a clone's clone",
           CU(cuGraphNodeFindInClone, &third, c.nodes[0], second));
    CUDA_KERNEL_NODE_PARAMS_v2 k = node_params(c.poke, 1, 1, params);
    TRY(CU(cuGraphKernelNodeSetParams_v2, twin, &k));
    holds("parameters set in the clone stay out of the original",
          value_of(twin) == 50 && value_of(c.nodes[0]) != 50);
    TRY(run(c.graph));
    TRY(CU(cuMemcpyDtoH_v2, words, c.words, sizeof words));
    holds("the original runs as it was", words[0] == 1);
}
