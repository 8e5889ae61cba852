/* SPDX-License-Identifier: Apache-2.0 */
/* What can be taken back: nodes of an embedded graph, an update that was refused, references of a clone. */
#include "facts.h"

#include <unistd.h>

/* ------------------------------------------------------------------ nodes of an embedded graph */

/* The child graph that a launch on the capturing @stream has just become. */
static CUresult embedded(CUstream stream, CUgraph *child)
{
    CUstreamCaptureStatus status;
    const CUgraphNode *nodes;
    CUgraph graph;
    size_t n = 0;

    PASS(CU(cuStreamGetCaptureInfo_v2, stream, &status, NULL, &graph, &nodes, &n));
    return n == 1 ? CU(cuGraphChildGraphNodeGetGraph, nodes[0], child) : CUDA_ERROR_NOT_FOUND;
}

/* Two kernels side by side, which write 1 at @p and 2 in the word after it; the capture of their exec. */
static CUresult capture_pair(CUdeviceptr p, CUstream stream, CUgraph *child)
{
    CUdeviceptr places[] = { p, p + 4 };
    CUfunction poke;
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node;

    PASS(kernel(&poke, "poke"));
    PASS(CU(cuGraphCreate, &graph, 0));
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t value = i + 1;
        void *params[] = { &places[i], &value };

        PASS(add_kernel(graph, &node, NULL, poke, params));
    }
    PASS(new_exec(&exec, graph));
    PASS(CU(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    PASS(CU(cuGraphLaunch, exec, stream));
    return embedded(stream, child);
}

void ask_embedded_nodes(void)
{
    CUdeviceptr p;
    CUstream stream;
    CUgraph child, captured;
    CUgraphExec exec;
    CUgraphNode nodes[4];
    CUDA_KERNEL_NODE_PARAMS_v2 k;
    CUfunction poke;
    uint32_t got[2] = { 0, 0 };

    TRY(device_memory(&p, 64));
    TRY(new_stream(&stream));
    TRY(capture_pair(p, stream, &child));
    figure("nodes of the embedded graph", list_nodes(child, nodes, 4), "");
    TRY(CU(cuGraphKernelNodeGetParams_v2, nodes[0], &k));
    TRY(kernel(&poke, "poke"));
    holds("they name the function that they were created with", k.func == poke);
    uint32_t first = k.kernelParams ? *(uint32_t *)k.kernelParams[1] : 0;
    says("they are listed", "%s",
         first == 1 ? "in the order of the exec's graph" : "in another order");
    CUresult r = CU(cuGraphDestroyNode, nodes[0]);
    result("destroying one while the capture goes on", r);
    holds("a node of an embedded graph can be destroyed", r == CUDA_SUCCESS);
    TRY(CU(cuStreamEndCapture, stream, &captured));
    TRY(new_exec(&exec, captured));
    TRY(CU(cuGraphLaunch, exec, stream));
    TRY(CU(cuStreamSynchronize, stream));
    TRY(CU(cuMemcpyDtoH_v2, got, p, sizeof got));
    holds("the other one runs, and it does not", got[0] + got[1] == 3 - first && first != 0);
}

/* ------------------------------------------------------------------ a refused update */

void ask_refused_update(void)
{
    CUdeviceptr p;
    uint32_t value = 1, got = 0;
    void *params[] = { &p, &value };
    CUfunction poke;
    CUgraph graph, longer, wider, alike;
    CUgraphNode nodes[3], leaf;
    CUgraphExec exec;
    CUstream stream;
    CUgraphExecUpdateResultInfo info;

    TRY(device_memory(&p, 64));
    TRY(new_stream(&stream));
    TRY(kernel(&poke, "poke"));
    TRY(CU(cuGraphCreate, &graph, 0));
    TRY(add_chain(graph, nodes, 2, poke, params));
    TRY(new_exec(&exec, graph));
    value = 2;
    TRY(CU(cuGraphCreate, &longer, 0));
    TRY(add_chain(longer, NULL, 3, poke, params));
    result("an update with a node more", CU(cuGraphExecUpdate_v2, exec, longer, &info));
    TRY(CU(cuGraphCreate, &wider, 0));
    TRY(add_chain(wider, NULL, 1, poke, params));
    TRY(add_kernel(wider, &leaf, NULL, poke, params));
    result("an update with a leaf more", CU(cuGraphExecUpdate_v2, exec, wider, &info));
    says("the node that is blamed", "%s",
         info.errorNode == leaf ? "the last leaf"
         : info.errorNode       ? "another"
                                : "none");
    TRY(CU(cuGraphLaunch, exec, stream));
    TRY(CU(cuStreamSynchronize, stream));
    TRY(CU(cuMemcpyDtoH_v2, &got, p, 4));
    holds("the exec runs as it was", got == 1);
    value = 3;
    TRY(CU(cuGraphCreate, &alike, 0));
    TRY(add_chain(alike, NULL, 2, poke, params));
    holds("a graph of its shape updates it",
          CU(cuGraphExecUpdate_v2, exec, alike, &info) == CUDA_SUCCESS);
    TRY(CU(cuGraphLaunch, exec, stream));
    TRY(CU(cuStreamSynchronize, stream));
    TRY(CU(cuMemcpyDtoH_v2, &got, p, 4));
    holds("what it set is used", got == 3);
}

/* ------------------------------------------------------------------ user objects */

static void count(void *counter)
{
    __atomic_fetch_add((int *)counter, 1, __ATOMIC_SEQ_CST);
}

static bool called(const int *counter)
{
    for (int i = 0; i < 200 && !__atomic_load_n(counter, __ATOMIC_SEQ_CST); i++)
        usleep(1000);
    return __atomic_load_n(counter, __ATOMIC_SEQ_CST) != 0;
}

static CUresult with_object(CUgraph *graph, CUuserObject *object, int *counter)
{
    CUfunction empty;
    CUgraphNode node;

    PASS(kernel(&empty, "empty"));
    PASS(CU(cuGraphCreate, graph, 0));
    PASS(add_kernel(*graph, &node, NULL, empty, NULL));
    PASS(CU(cuUserObjectCreate, object, counter, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    return CU(cuGraphRetainUserObject, *graph, *object, 1, CU_GRAPH_USER_OBJECT_MOVE);
}

void ask_user_objects(void)
{
    static int counters[2];
    CUuserObject objects[2];
    CUgraph first, second, clone;
    CUgraphExec exec;
    CUgraphExecUpdateResultInfo info;

    TRY(with_object(&first, &objects[0], &counters[0]));
    TRY(with_object(&second, &objects[1], &counters[1]));
    TRY(CU(cuGraphClone, &clone, first));
    TRY(new_exec(&exec, clone));
    TRY(CU(cuGraphReleaseUserObject, clone, objects[0], 1));
    TRY(CU(cuGraphDestroy, first));
    holds("an exec of a clone holds them when both graphs have dropped them",
          !called(&counters[0]));
    TRY(CU(cuGraphExecUpdate_v2, exec, second, &info));
    says("an update replaces them by those of its graph", called(&counters[0]) ? "yes" : "no");
    TRY(CU(cuGraphDestroy, second));
    says("and the exec holds these", called(&counters[1]) ? "no" : "yes");
    TRY(CU(cuGraphExecDestroy, exec));
    holds("they go with the exec", called(&counters[0]) && (called(&counters[1])));
}
