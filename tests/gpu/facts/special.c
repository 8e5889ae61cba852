/* SPDX-License-Identifier: Apache-2.0 */
/* Memory nodes, conditional nodes, programmatic edges. */
#include "facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ memory nodes */

void ask_memory_nodes(void)
{
    CUgraph graph, clone;
    CUgraphNode alloc, node, release, added, twin;
    CUgraphExec exec;
    CUfunction empty;
    CUstream stream;
    CUDA_MEM_ALLOC_NODE_PARAMS_v1 params = {
        .poolProps = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                       .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = driver.device } },
        .bytesize = 4096,
    };

    TRY(kernel(&empty, "empty"));
    TRY(CU(cuGraphCreate, &graph, 0));
    TRY(CU(cuGraphAddMemAllocNode, &alloc, graph, NULL, 0, &params));
    TRY(add_kernel(graph, &node, &alloc, empty, NULL));
    TRY(CU(cuGraphAddMemFreeNode, &release, graph, &node, 1, params.dptr));
    CUresult r = CU(cuGraphClone, &clone, graph);
    result("cloning a graph with an allocation and its release", r);
    if (r == CUDA_SUCCESS) {
        result("finding the allocation in the clone",
               CU(cuGraphNodeFindInClone, &twin, alloc, clone));
        result("instantiating that clone", new_exec(&exec, clone));
    }
    result("adding a kernel to it", add_kernel(graph, &added, &node, empty, NULL));
    result("adding an edge in it",
           add_edge(graph, added, release, CU_GRAPH_DEPENDENCY_TYPE_DEFAULT));
    TRY(new_exec(&exec, graph));
    TRY(new_stream(&stream));
    TRY(CU(cuGraphLaunch, exec, stream));
    result("running it with both", CU(cuStreamSynchronize, stream));
    result("a second exec of it", new_exec(&exec, graph));
}

/* ------------------------------------------------------------------ conditional nodes */

void ask_conditional_nodes(void)
{
    CUgraph graph, clone;
    CUgraphNode first, conditional, inside, twin, added;
    CUgraphConditionalHandle handle;
    CUgraphExec exec;
    CUfunction empty;
    CUstream stream;

    TRY(kernel(&empty, "empty"));
    TRY(CU(cuGraphCreate, &graph, 0));
    TRY(add_kernel(graph, &first, NULL, empty, NULL));
    TRY(CU(cuGraphConditionalHandleCreate, &handle, graph, driver.context, 1,
           CU_GRAPH_COND_ASSIGN_DEFAULT));
    CUgraphNodeParams params = { .type = CU_GRAPH_NODE_TYPE_CONDITIONAL };
    params.conditional.handle = handle;
    params.conditional.type = CU_GRAPH_COND_TYPE_IF;
    params.conditional.size = 1;
    params.conditional.ctx = driver.context;
    TRY(CU(cuGraphAddNode, &conditional, graph, &first, 1, &params));
    TRY(add_kernel(params.conditional.phGraph_out[0], &inside, NULL, empty, NULL));
    CUresult r = CU(cuGraphClone, &clone, graph);
    result("cloning a graph with a conditional node", r);
    if (r == CUDA_SUCCESS) {
        result("finding the conditional node in the clone",
               CU(cuGraphNodeFindInClone, &twin, conditional, clone));
        result("finding a node of its body in the clone",
               CU(cuGraphNodeFindInClone, &twin, inside, clone));
        result("instantiating the clone", new_exec(&exec, clone));
    }
    result("adding a kernel beside it", add_kernel(graph, &added, &first, empty, NULL));
    r = new_exec(&exec, graph);
    result("instantiating the original", r);
    if (r != CUDA_SUCCESS)
        return;
    TRY(new_stream(&stream));
    TRY(CU(cuGraphLaunch, exec, stream));
    result("running the original", CU(cuStreamSynchronize, stream));
}

/* ------------------------------------------------------------------ programmatic edges */

static CUmodule sm90_module;

CUresult sm90_kernel(CUfunction *function, const char *name)
{
    if (!sm90_module)
        PASS(CU(cuModuleLoadData, &sm90_module, kernels_sm90_ptx));
    return CU(cuModuleGetFunction, function, sm90_module, name);
}

bool has_programmatic_launch(void)
{
    if (driver.capability >= 90)
        return true;
    skipped("programmatic dependent launch needs compute capability 9.0");
    return false;
}

/* pdl_slow_poke(words, 1) =programmatic=> pdl_move(words, words + 4) */
static CUresult two_with_edge(CUgraph *graph, CUgraphNode nodes[2], CUdeviceptr words, uint64_t ns)
{
    CUfunction poke, move;
    CUdeviceptr to = words + 4;
    uint32_t value = 1;
    void *poke_params[] = { &words, &value, &ns }, *move_params[] = { &words, &to };

    PASS(sm90_kernel(&poke, "pdl_slow_poke"));
    PASS(sm90_kernel(&move, "pdl_move"));
    PASS(CU(cuGraphCreate, graph, 0));
    PASS(add_kernel(*graph, &nodes[0], NULL, poke, poke_params));
    PASS(add_kernel(*graph, &nodes[1], NULL, move, move_params));
    return add_edge(*graph, nodes[0], nodes[1], CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
}

static bool is_programmatic(const CUgraphEdgeData *data)
{
    return data->type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC &&
           data->from_port == CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
}

static CUresult ask_edges(CUgraph graph, bool *programmatic)
{
    CUgraphNode from[4], to[4];
    CUgraphEdgeData data[4];
    size_t n = 4;

    PASS(CU(cuGraphGetEdges_v2, graph, from, to, data, &n));
    *programmatic = n == 1 && is_programmatic(data);
    return CUDA_SUCCESS;
}

void ask_programmatic_edges(void)
{
    CUdeviceptr words;
    CUgraph graph, clone;
    CUgraphNode nodes[2], others[4], to[4], twin;
    CUgraphEdgeData data[4];
    CUgraphExec exec;
    size_t n;
    bool kept;

    if (!has_programmatic_launch())
        return;
    TRY(device_memory(&words, 64));
    TRY(two_with_edge(&graph, nodes, words, 1000));
    TRY(CU(cuGraphClone, &clone, graph));
    TRY(ask_edges(clone, &kept));
    holds("a clone keeps the edge programmatic", kept);
    TRY(CU(cuGraphNodeFindInClone, &twin, nodes[1], clone));
    n = 4;
    TRY(CU(cuGraphNodeGetDependencies_v2, twin, others, data, &n));
    holds("the newer query gives it", n == 1 && is_programmatic(data));
    n = 4;
    TRY(CU(cuGraphNodeGetDependentNodes_v2, nodes[0], others, data, &n));
    holds("so does the one for dependent nodes", n == 1 && is_programmatic(data));
    n = 4;
    result("cuGraphNodeGetDependencies", CU(cuGraphNodeGetDependencies, nodes[1], others, &n));
    n = 4;
    result("cuGraphNodeGetDependentNodes", CU(cuGraphNodeGetDependentNodes, nodes[0], others, &n));
    n = 4;
    result("cuGraphGetEdges", CU(cuGraphGetEdges, graph, others, to, &n));
    result("cuGraphNodeGetDependencies, number only",
           CU(cuGraphNodeGetDependencies, nodes[1], NULL, &n));
    result("instantiating the clone", new_exec(&exec, clone));
}

void ask_beside_programmatic(void)
{
    CUdeviceptr words, from, to;
    uint32_t value = 9, got[4];
    uint64_t ns = 300000;
    void *poke_params[] = { &from, &value, &ns }, *move_params[] = { &from, &to };
    CUgraph graph;
    CUgraphNode nodes[2], between;
    CUfunction slow;
    CUgraphExec exec;
    CUstream stream;

    if (!has_programmatic_launch())
        return;
    TRY(device_memory(&words, 64));
    TRY(two_with_edge(&graph, nodes, words, 100000));
    /* the second kernel now reads what the node in between writes, late */
    from = words + 8;
    to = words + 12;
    CUfunction move;
    TRY(sm90_kernel(&move, "pdl_move"));
    CUDA_KERNEL_NODE_PARAMS_v2 k = node_params(move, 1, 1, move_params);
    TRY(CU(cuGraphKernelNodeSetParams_v2, nodes[1], &k));
    TRY(kernel(&slow, "slow_poke"));
    TRY(add_kernel(graph, &between, &nodes[0], slow, poke_params));
    CUresult r = add_edge(graph, between, nodes[1], CU_GRAPH_DEPENDENCY_TYPE_DEFAULT);
    result("a default edge beside the programmatic one", r);
    holds("both may exist side by side", r == CUDA_SUCCESS);
    r = new_exec(&exec, graph);
    result("instantiating that", r);
    if (r != CUDA_SUCCESS)
        return;
    TRY(new_stream(&stream));
    unsigned right = 0;
    for (int i = 0; i < 20; i++) {
        TRY(CU(cuMemsetD8_v2, words, 0, 64));
        TRY(CU(cuCtxSynchronize));
        TRY(CU(cuGraphLaunch, exec, stream));
        TRY(CU(cuStreamSynchronize, stream));
        TRY(CU(cuMemcpyDtoH_v2, got, words, sizeof got));
        right += got[0] == 1 && got[3] == 9;
    }
    holds("the second kernel waits for the node in between, 20 times", right == 20);
}

void ask_captured_programmatic(void)
{
    CUdeviceptr words, to;
    uint32_t value = 1;
    uint64_t ns = 1000;
    void *poke_params[] = { &words, &value, &ns }, *move_params[] = { &words, &to };
    CUfunction poke, move;
    CUgraph graph;
    CUgraphExec exec;
    CUstream stream;
    CUstreamCaptureStatus status;
    const CUgraphNode *behind = NULL;
    const CUgraphEdgeData *data = NULL;
    size_t n = 0;
    bool programmatic = false;

    if (!has_programmatic_launch())
        return;
    TRY(device_memory(&words, 64));
    to = words + 4;
    TRY(sm90_kernel(&poke, "pdl_slow_poke"));
    TRY(sm90_kernel(&move, "pdl_move"));
    TRY(new_stream(&stream));
    CUlaunchAttribute attribute = { .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION };
    attribute.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config = {
        .gridDimX = 1,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = 1,
        .blockDimY = 1,
        .blockDimZ = 1,
        .hStream = stream,
        .attrs = &attribute,
        .numAttrs = 1,
    };
    TRY(CU(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    TRY(launch(poke, 1, 1, stream, poke_params));
    TRY(CU(cuLaunchKernelEx, &config, move, move_params, NULL));
    CUresult r = CU(cuStreamGetCaptureInfo_v2, stream, &status, NULL, NULL, &behind, &n);
    result("cuStreamGetCaptureInfo_v2 after a programmatic launch", r);
    holds("it gives the launch's node", r == CUDA_SUCCESS && n == 1);
    r = CU(cuStreamGetCaptureInfo_v3, stream, &status, NULL, NULL, &behind, &data, &n);
    result("cuStreamGetCaptureInfo_v3", r);
    TRY(CU(cuStreamEndCapture, stream, &graph));
    TRY(ask_edges(graph, &programmatic));
    says("the edge between the two", programmatic ? "programmatic" : "another kind");
    result("instantiating the capture", new_exec(&exec, graph));
}

/* ------------------------------------------------------------------ lost overlap */

#define PAIRS 100

/* A chain of PAIRS + 1 kernels of 2 us; @between: an empty kernel between each two, by default edges. */
static CUresult chain_us(double *us, CUgraphDependencyType type, bool between)
{
    uint64_t ns = 2000;
    void *params[] = { &ns };
    CUfunction step, empty;
    CUgraph graph;
    CUgraphNode before = NULL, node, extra;
    CUgraphExec exec;
    CUstream stream;

    PASS(sm90_kernel(&step, "pdl_step"));
    PASS(kernel(&empty, "empty"));
    PASS(CU(cuGraphCreate, &graph, 0));
    for (int i = 0; i <= PAIRS; i++) {
        PASS(add_kernel(graph, &node, NULL, step, params));
        if (i && (!between || type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC))
            PASS(add_edge(graph, before, node, type));
        if (i && between) {
            PASS(add_kernel(graph, &extra, &before, empty, NULL));
            PASS(add_edge(graph, extra, node, CU_GRAPH_DEPENDENCY_TYPE_DEFAULT));
        }
        before = node;
    }
    PASS(new_exec(&exec, graph));
    PASS(new_stream(&stream));
    PASS(time_replays(us, exec, stream, rounds(40)));
    *us /= PAIRS;
    return CUDA_SUCCESS;
}

void ask_overlap_lost(void)
{
    double us;

    if (!has_programmatic_launch())
        return;
    TRY(chain_us(&us, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC, false));
    figure("a kernel of 2 us with programmatic edges", us, "us");
    TRY(chain_us(&us, CU_GRAPH_DEPENDENCY_TYPE_DEFAULT, false));
    figure("with default edges", us, "us");
    TRY(chain_us(&us, CU_GRAPH_DEPENDENCY_TYPE_DEFAULT, true));
    figure("with default edges and an empty kernel between", us, "us");
    TRY(chain_us(&us, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC, true));
    figure(
        "with programmatic edges and an empty kernel between by default edges, as copies have them",
        us, "us");
}
