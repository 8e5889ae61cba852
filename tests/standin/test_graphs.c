/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs built by hand and captured, execs and their changes, capture's rules. */
#include "test_standin.h"

#include <pthread.h>
#include <unistd.h>

static CUDA_KERNEL_NODE_PARAMS_v2 add_params(CUdeviceptr *p, uint32_t *n, uint32_t *v,
                                             void **params)
{
    params[0] = p;
    params[1] = n;
    params[2] = v;
    return (CUDA_KERNEL_NODE_PARAMS_v2){ .func = test_function("add"),
                                         .gridDimX = 1,
                                         .gridDimY = 1,
                                         .gridDimZ = 1,
                                         .blockDimX = 64,
                                         .blockDimY = 1,
                                         .blockDimZ = 1,
                                         .kernelParams = params };
}

static CUgraphNode add_node(CUgraph graph, CUdeviceptr p, uint32_t v, const CUgraphNode *deps,
                            size_t n_deps)
{
    uint32_t n = 64;
    void *params[3];
    CUDA_KERNEL_NODE_PARAMS_v2 kernel = add_params(&p, &n, &v, params);
    CUgraphNode node;

    ok(cuGraphAddKernelNode_v2(&node, graph, deps, n_deps, &kernel));
    return node;
}

START_TEST(a_graph_runs_its_nodes_in_order)
{
    CUdeviceptr p = test_zeros(256), q = test_zeros(256);
    CUgraph graph;
    CUgraphNode set, add, copy, empty;
    CUstream stream = test_stream();
    CUgraphExec exec;
    CUDA_MEMCPY3D copy_params = { .srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                  .srcDevice = p,
                                  .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                  .dstDevice = q,
                                  .WidthInBytes = 256,
                                  .Height = 1,
                                  .Depth = 1 };

    ok(cuGraphCreate(&graph, 0));
    ok(cuGraphAddMemsetNode(&set, graph, NULL, 0,
                            &(CUDA_MEMSET_NODE_PARAMS){
                                .dst = p, .elementSize = 4, .value = 10, .width = 64, .height = 1 },
                            test_ctx));
    add = add_node(graph, p, 5, &set, 1);
    ok(cuGraphAddEmptyNode(&empty, graph, &add, 1));
    ok(cuGraphAddMemcpyNode(&copy, graph, &empty, 1, &copy_params, test_ctx));
    exec = test_exec(graph, 0);
    for (int i = 0; i < 3; i++)
        ok(cuGraphLaunch(exec, stream));
    ok(cuStreamSynchronize(stream));
    ck_assert_uint_eq(test_read(q + 252), 15);
    ok(cuGraphDestroy(graph));
    ok(cuGraphLaunch(exec, stream));
    ok(cuGraphExecDestroy(exec));
    ok(cuStreamSynchronize(stream));
}
END_TEST

START_TEST(all_instantiate_forms_agree)
{
    CUdeviceptr p = test_zeros(256);
    CUgraph graph;
    CUgraphExec exec[4];
    CUgraphNode error;
    char log[64];
    CUDA_GRAPH_INSTANTIATE_PARAMS params = { .flags =
                                                 CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH };

    ok(cuGraphCreate(&graph, 0));
    add_node(graph, p, 1, NULL, 0);
    ok((cuGraphInstantiate)(&exec[0], graph, &error, log, sizeof(log)));
    ok(cuGraphInstantiate_v2(&exec[1], graph, &error, log, sizeof(log)));
    ok(cuGraphInstantiateWithFlags(&exec[2], graph, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY));
    ok(cuGraphInstantiateWithParams(&exec[3], graph, &params));
    ck_assert_int_eq(params.result_out, CUDA_GRAPH_INSTANTIATE_SUCCESS);
    for (int i = 0; i < 4; i++)
        ok(cuGraphLaunch(exec[i], NULL));
    ck_assert_uint_eq(test_read(p), 4);
}
END_TEST

START_TEST(a_cycle_cannot_be_instantiated)
{
    CUdeviceptr p = test_zeros(256);
    CUgraph graph;
    CUgraphNode a, b, error = NULL;
    CUgraphExec exec;
    CUDA_GRAPH_INSTANTIATE_PARAMS params = { 0 };

    ok(cuGraphCreate(&graph, 0));
    a = add_node(graph, p, 1, NULL, 0);
    b = add_node(graph, p, 1, &a, 1);
    ok((cuGraphAddDependencies)(graph, &b, &a, 1));
    fails(cuGraphInstantiate_v2(&exec, graph, &error, NULL, 0), CUDA_ERROR_INVALID_VALUE);
    ck_assert_ptr_nonnull(error);
    fails(cuGraphInstantiateWithParams(&exec, graph, &params), CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(params.result_out, CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE);
}
END_TEST

START_TEST(edges_can_be_asked_added_and_removed)
{
    CUdeviceptr p = test_zeros(256);
    CUgraph graph;
    CUgraphNode a, b, c, nodes[5], from[4], to[4];
    size_t n;

    ok(cuGraphCreate(&graph, 0));
    a = add_node(graph, p, 1, NULL, 0);
    b = add_node(graph, p, 1, &a, 1);
    c = add_node(graph, p, 1, &a, 1);
    fails((cuGraphAddDependencies)(graph, &a, &b, 1), CUDA_ERROR_INVALID_VALUE);
    ok((cuGraphAddDependencies)(graph, &b, &c, 1));
    ok(cuGraphGetNodes(graph, NULL, &n));
    ck_assert_uint_eq(n, 3);
    n = 5;
    ok(cuGraphGetNodes(graph, nodes, &n));
    ck_assert_uint_eq(n, 3);
    ok(cuGraphGetRootNodes(graph, NULL, &n));
    ck_assert_uint_eq(n, 1);
    n = 4;
    ok((cuGraphGetEdges)(graph, from, to, &n));
    ck_assert_uint_eq(n, 3);
    n = 5;
    ok((cuGraphNodeGetDependencies)(c, nodes, &n));
    ck_assert_uint_eq(n, 2);
    ck_assert_ptr_eq(nodes[0], a);
    ck_assert_ptr_eq(nodes[1], b);
    ok((cuGraphRemoveDependencies)(graph, &b, &c, 1));
    fails((cuGraphRemoveDependencies)(graph, &b, &c, 1), CUDA_ERROR_INVALID_VALUE);
    ok((cuGraphNodeGetDependentNodes)(a, NULL, &n));
    ck_assert_uint_eq(n, 2);
    ok(cuGraphDestroyNode(b));
    ok((cuGraphNodeGetDependentNodes)(a, NULL, &n));
    ck_assert_uint_eq(n, 1);
}
END_TEST

START_TEST(programmatic_edges_need_the_queries_that_show_them)
{
    CUdeviceptr p = test_zeros(256);
    CUgraph graph;
    CUgraphNode a, b, nodes[2];
    CUgraphEdgeData data = { .from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC,
                             .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC },
                    seen[2];
    size_t n = 2;

    ok(cuGraphCreate(&graph, 0));
    a = add_node(graph, p, 1, NULL, 0);
    b = add_node(graph, p, 1, NULL, 0);
    ok(cuGraphAddDependencies_v2(graph, &a, &b, &data, 1));
    fails((cuGraphNodeGetDependencies)(b, nodes, &n), CUDA_ERROR_LOSSY_QUERY);
    n = 2;
    ok(cuGraphNodeGetDependencies_v2(b, nodes, seen, &n));
    ck_assert_uint_eq(n, 1);
    ck_assert_uint_eq(seen[0].type, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
}
END_TEST

START_TEST(exec_parameters_reach_later_launches_only)
{
    CUdeviceptr p = test_zeros(256), wait = test_zeros(4), other = test_zeros(256);
    uint32_t n = 64, v = 100;
    void *params[3];
    CUDA_KERNEL_NODE_PARAMS_v2 changed = add_params(&other, &n, &v, params);
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CUstream stream = test_stream();

    ok(cuGraphCreate(&graph, 0));
    node = add_node(graph, p, 1, NULL, 0);
    exec = test_exec(graph, 0);
    ok(test_launch_slow(wait, 5000000, stream));
    ok(cuGraphLaunch(exec, stream));
    ok(cuGraphExecKernelNodeSetParams_v2(exec, node, &changed));
    ok(cuGraphLaunch(exec, stream));
    ok(cuStreamSynchronize(stream));
    ck_assert_uint_eq(test_read(p), 1);
    ck_assert_uint_eq(test_read(other), 100);
}
END_TEST

START_TEST(node_parameters_can_be_read_and_set)
{
    CUdeviceptr p = test_zeros(256);
    uint32_t n = 64, v = 7;
    void *params[3];
    CUDA_KERNEL_NODE_PARAMS_v2 changed = add_params(&p, &n, &v, params), seen;
    CUgraph graph;
    CUgraphNode node;

    ok(cuGraphCreate(&graph, 0));
    node = add_node(graph, p, 1, NULL, 0);
    ok(cuGraphKernelNodeGetParams_v2(node, &seen));
    ck_assert_uint_eq(*(uint32_t *)seen.kernelParams[2], 1);
    ck_assert_ptr_null(seen.extra);
    ok(cuGraphKernelNodeSetParams_v2(node, &changed));
    v = 0;
    ok(cuGraphKernelNodeGetParams_v2(node, &seen));
    ck_assert_uint_eq(*(uint32_t *)seen.kernelParams[2], 7);
    ok(cuGraphLaunch(test_exec(graph, 0), NULL));
    ck_assert_uint_eq(test_read(p), 7);
}
END_TEST

START_TEST(nodes_can_be_switched_off_and_on)
{
    CUdeviceptr p = test_zeros(256);
    CUgraph graph;
    CUgraphNode a, b, empty;
    CUgraphExec exec;
    unsigned enabled;

    ok(cuGraphCreate(&graph, 0));
    a = add_node(graph, p, 1, NULL, 0);
    b = add_node(graph, p, 10, &a, 1);
    ok(cuGraphAddEmptyNode(&empty, graph, &b, 1));
    exec = test_exec(graph, 0);
    ok(cuGraphNodeSetEnabled(exec, a, 0));
    ok(cuGraphNodeGetEnabled(exec, a, &enabled));
    ck_assert_uint_eq(enabled, 0);
    ok(cuGraphLaunch(exec, NULL));
    ck_assert_uint_eq(test_read(p), 10);
    ok(cuGraphNodeSetEnabled(exec, a, 1));
    ok(cuGraphLaunch(exec, NULL));
    ck_assert_uint_eq(test_read(p), 21);
    fails(cuGraphNodeSetEnabled(exec, empty, 0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(children_and_clones_are_copies)
{
    CUdeviceptr p = test_zeros(256);
    CUgraph graph, child, inner, clone;
    CUgraphNode node, in_child, in_clone, after;
    size_t n;

    ok(cuGraphCreate(&graph, 0));
    ok(cuGraphCreate(&child, 0));
    in_child = add_node(child, p, 1, NULL, 0);
    add_node(child, p, 1, &in_child, 1);
    ok(cuGraphAddChildGraphNode(&node, graph, NULL, 0, child));
    after = add_node(graph, p, 1, &node, 1);
    add_node(child, p, 100, NULL, 0);
    ok(cuGraphChildGraphNodeGetGraph(node, &inner));
    ck_assert_ptr_ne(inner, child);
    ok(cuGraphGetNodes(inner, NULL, &n));
    ck_assert_uint_eq(n, 2);
    fails(cuGraphDestroy(inner), CUDA_ERROR_INVALID_VALUE);
    ok(cuGraphClone(&clone, graph));
    ok(cuGraphNodeFindInClone(&in_clone, after, clone));
    ck_assert_ptr_ne(in_clone, after);
    ok(cuGraphDestroy(child));
    ok(cuGraphLaunch(test_exec(graph, 0), NULL));
    ck_assert_uint_eq(test_read(p), 3);
    ok(cuGraphDestroy(graph));
    ok(cuGraphLaunch(test_exec(clone, 0), NULL));
    ck_assert_uint_eq(test_read(p), 6);
}
END_TEST

START_TEST(an_exec_is_updated_from_a_graph_of_its_shape)
{
    CUdeviceptr p = test_zeros(256), q = test_zeros(256);
    CUgraph graph, same, more, typed;
    CUgraphNode a, b, empty;
    CUgraphExec exec;
    CUgraphExecUpdateResultInfo info;

    ok(cuGraphCreate(&graph, 0));
    a = add_node(graph, p, 1, NULL, 0);
    add_node(graph, p, 1, &a, 1);
    exec = test_exec(graph, 0);
    ok(cuGraphCreate(&same, 0));
    a = add_node(same, q, 5, NULL, 0);
    add_node(same, q, 5, &a, 1);
    ok(cuGraphExecUpdate_v2(exec, same, &info));
    ck_assert_int_eq(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
    ok(cuGraphLaunch(exec, NULL));
    ck_assert_uint_eq(test_read(p), 0);
    ck_assert_uint_eq(test_read(q), 10);
    ok(cuGraphCreate(&more, 0));
    a = add_node(more, q, 1, NULL, 0);
    b = add_node(more, q, 1, NULL, 0);
    fails(cuGraphExecUpdate_v2(exec, more, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    ck_assert_int_eq(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    add_node(more, q, 1, &b, 1);
    fails(cuGraphExecUpdate_v2(exec, more, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    ck_assert_ptr_null(info.errorNode);
    ok(cuGraphCreate(&typed, 0));
    a = add_node(typed, q, 1, NULL, 0);
    ok(cuGraphAddEmptyNode(&empty, typed, &a, 1));
    fails(cuGraphExecUpdate_v2(exec, typed, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    ck_assert_int_eq(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
    ck_assert_ptr_eq(info.errorNode, empty);
    ok(cuGraphLaunch(exec, NULL));
    ck_assert_uint_eq(test_read(q), 20);
}
END_TEST

START_TEST(launches_of_one_exec_do_not_overlap)
{
    CUdeviceptr p = test_zeros(4);
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    uint32_t n = 200000;
    void *params[] = { &p, &n };
    CUDA_KERNEL_NODE_PARAMS_v2 slow = { .func = test_function("slow"),
                                        .gridDimX = 1,
                                        .gridDimY = 1,
                                        .gridDimZ = 1,
                                        .blockDimX = 1,
                                        .blockDimY = 1,
                                        .blockDimZ = 1,
                                        .kernelParams = params };
    CUstream streams[3] = { test_stream(), test_stream(), test_stream() };

    ok(cuGraphCreate(&graph, 0));
    ok(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &slow));
    add_node(graph, p, 0, &node, 1);
    exec = test_exec(graph, 0);
    for (int i = 0; i < 30; i++)
        ok(cuGraphLaunch(exec, streams[i % 3]));
    ok(cuCtxSynchronize());
    ck_assert_uint_eq(test_read(p), 200000);
}
END_TEST

static void count(void *counter)
{
    __atomic_fetch_add((int *)counter, 1, __ATOMIC_SEQ_CST);
}

START_TEST(user_objects_go_when_nobody_holds_them)
{
    static int destroyed;
    CUdeviceptr p = test_zeros(256);
    CUuserObject object;
    CUgraph graph;
    CUgraphExec exec;

    ok(cuUserObjectCreate(&object, &destroyed, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    ok(cuGraphCreate(&graph, 0));
    add_node(graph, p, 1, NULL, 0);
    ok(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    exec = test_exec(graph, 0);
    ok(cuGraphDestroy(graph));
    ok(cuGraphLaunch(exec, NULL));
    ok(cuCtxSynchronize());
    usleep(20000);
    ck_assert_int_eq(__atomic_load_n(&destroyed, __ATOMIC_SEQ_CST), 0);
    ok(cuGraphExecDestroy(exec));
    for (int i = 0; i < 1000 && !__atomic_load_n(&destroyed, __ATOMIC_SEQ_CST); i++)
        usleep(1000);
    ck_assert_int_eq(__atomic_load_n(&destroyed, __ATOMIC_SEQ_CST), 1);
}
END_TEST

static int becomes_one(int *counter)
{
    for (int i = 0; i < 1000 && !__atomic_load_n(counter, __ATOMIC_SEQ_CST); i++)
        usleep(1000);
    return __atomic_load_n(counter, __ATOMIC_SEQ_CST) == 1;
}

static CUgraph graph_with_object(CUdeviceptr p, int *destroyed)
{
    CUuserObject object;
    CUgraph graph;

    ok(cuUserObjectCreate(&object, destroyed, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    ok(cuGraphCreate(&graph, 0));
    add_node(graph, p, 1, NULL, 0);
    ok(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    return graph;
}

START_TEST(an_update_replaces_the_user_objects_of_an_exec)
{
    static int destroyed[3];
    CUdeviceptr p = test_zeros(256);
    CUgraph a = graph_with_object(p, &destroyed[0]), b = graph_with_object(p, &destroyed[1]);
    CUgraph parent, child = graph_with_object(p, &destroyed[2]);
    CUgraphNode node;
    CUgraphExec exec = test_exec(a, 0), nested;
    CUgraphExecUpdateResultInfo info;

    ok(cuGraphDestroy(a));
    ok(cuGraphExecUpdate_v2(exec, b, &info));
    ck_assert(becomes_one(&destroyed[0]));
    ok(cuGraphDestroy(b));
    ok(cuGraphCreate(&parent, 0));
    ok(cuGraphAddChildGraphNode(&node, parent, NULL, 0, child));
    ok(cuGraphDestroy(child));
    nested = test_exec(parent, 0);
    ok(cuGraphDestroy(parent));
    usleep(20000);
    ck_assert_int_eq(__atomic_load_n(&destroyed[1], __ATOMIC_SEQ_CST), 0);
    ck_assert_int_eq(__atomic_load_n(&destroyed[2], __ATOMIC_SEQ_CST), 0);
    ok(cuGraphExecDestroy(exec));
    ok(cuGraphExecDestroy(nested));
    ck_assert(becomes_one(&destroyed[1]) && becomes_one(&destroyed[2]));
}
END_TEST

START_TEST(a_child_graph_may_lose_nodes_and_gain_no_memory)
{
    CUdeviceptr p = test_zeros(256);
    CUgraph graph, child, inner;
    CUgraphNode node, nodes[2], alloc;
    size_t n = 2;
    CUDA_MEM_ALLOC_NODE_PARAMS memory = { .bytesize = 64 };

    memory.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    ok(cuGraphCreate(&child, 0));
    add_node(child, p, 1, NULL, 0);
    add_node(child, p, 2, NULL, 0);
    ok(cuGraphCreate(&graph, 0));
    ok(cuGraphAddChildGraphNode(&node, graph, NULL, 0, child));
    ok(cuGraphChildGraphNodeGetGraph(node, &inner));
    ok(cuGraphGetNodes(inner, nodes, &n));
    ok(cuGraphDestroyNode(nodes[1]));
    ok(cuGraphLaunch(test_exec(graph, 0), NULL));
    ck_assert_uint_eq(test_read(p), 1);
    fails(cuGraphAddMemAllocNode(&alloc, inner, NULL, 0, &memory), CUDA_ERROR_NOT_SUPPORTED);
    fails(cuGraphDestroy(inner), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(a_child_graph_that_was_moved_is_its_nodes_own)
{
    CUdeviceptr p = test_zeros(256);
    CUgraph graph, child, other, inner;
    CUgraphNode node, alloc;
    CUgraphExec exec;
    CUDA_MEM_ALLOC_NODE_PARAMS memory = { .bytesize = 64 };
    CUgraphNodeParams params = { .type = CU_GRAPH_NODE_TYPE_GRAPH };

    memory.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    ok(cuGraphCreate(&graph, 0));
    ok(cuGraphCreate(&other, 0));
    ok(cuGraphCreate(&child, 0));
    add_node(child, p, 3, NULL, 0);
    ok(cuGraphAddMemAllocNode(&alloc, child, NULL, 0, &memory));
    fails(cuGraphAddChildGraphNode(&node, graph, NULL, 0, child), CUDA_ERROR_NOT_SUPPORTED);
    params.graph.graph = child;
    params.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
    ok(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &params));
    ok(cuGraphChildGraphNodeGetGraph(node, &inner));
    ck_assert_ptr_eq(inner, child);
    fails(cuGraphDestroy(child), CUDA_ERROR_INVALID_VALUE);
    fails(cuGraphInstantiateWithFlags(&exec, child, 0), CUDA_ERROR_INVALID_VALUE);
    fails(cuGraphAddNode_v2(&node, other, NULL, NULL, 0, &params), CUDA_ERROR_INVALID_VALUE);
    ok(cuGraphLaunch(test_exec(graph, 0), NULL));
    ck_assert_uint_eq(test_read(p), 3);
    ok(cuGraphDestroy(graph));
}
END_TEST

START_TEST(host_and_event_nodes_run)
{
    static int called;
    CUgraph graph;
    CUgraphNode host, record;
    CUevent event;

    ok(cuEventCreate(&event, 0));
    ok(cuGraphCreate(&graph, 0));
    ok(cuGraphAddHostNode(&host, graph, NULL, 0,
                          &(CUDA_HOST_NODE_PARAMS){ .fn = count, .userData = &called }));
    ok(cuGraphAddEventRecordNode(&record, graph, &host, 1, event));
    ok(cuGraphLaunch(test_exec(graph, 0), NULL));
    ok(cuEventSynchronize(event));
    ck_assert_int_eq(called, 1);
}
END_TEST

START_TEST(nodes_of_every_kind_through_the_general_form)
{
    CUdeviceptr p = test_zeros(256);
    uint32_t n = 64, v = 3;
    void *params[3];
    CUgraph graph;
    CUgraphNode set, kernel;
    CUgraphNodeParams set_params = { .type = CU_GRAPH_NODE_TYPE_MEMSET },
                      kernel_params = { .type = CU_GRAPH_NODE_TYPE_KERNEL };
    CUDA_KERNEL_NODE_PARAMS_v2 add = add_params(&p, &n, &v, params);
    CUgraphExec exec;

    memcpy(&kernel_params.kernel, &add, sizeof(add));
    set_params.memset.dst = p;
    set_params.memset.elementSize = 4;
    set_params.memset.width = 64;
    set_params.memset.height = 1;
    set_params.memset.value = 4;
    ok(cuGraphCreate(&graph, 0));
    ok(cuGraphAddNode_v2(&set, graph, NULL, NULL, 0, &set_params));
    ok((cuGraphAddNode)(&kernel, graph, &set, 1, &kernel_params));
    exec = test_exec(graph, 0);
    ok(cuGraphLaunch(exec, NULL));
    ck_assert_uint_eq(test_read(p), 7);
    v = 30;
    ok(cuGraphExecNodeSetParams(exec, kernel, &kernel_params));
    ok(cuGraphLaunch(exec, NULL));
    ck_assert_uint_eq(test_read(p), 34);
}
END_TEST

START_TEST(memory_nodes_tie_a_graph_together)
{
    CUstream stream = test_stream();
    CUdeviceptr p, out = test_zeros(256);
    CUgraph graph, clone;
    CUgraphExec exec;
    CUgraphNode nodes[4], copy[2];
    CUgraphNodeType type;
    size_t n = 4;

    ok(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ok(cuMemAllocAsync(&p, 256, stream));
    ok(cuMemsetD32Async(p, 3, 64, stream));
    ok(cuMemcpyDtoDAsync_v2(out, p, 256, stream));
    ok(cuMemFreeAsync(p, stream));
    ok(cuStreamEndCapture(stream, &graph));
    ok(cuGraphGetNodes(graph, nodes, &n));
    ck_assert_uint_eq(n, 4);
    ok(cuGraphNodeGetType(nodes[0], &type));
    ck_assert_int_eq(type, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    fails(cuGraphDestroyNode(nodes[1]), CUDA_ERROR_NOT_SUPPORTED);
    copy[0] = nodes[1];
    copy[1] = nodes[2];
    fails((cuGraphRemoveDependencies)(graph, copy, copy + 1, 1), CUDA_ERROR_NOT_SUPPORTED);
    fails(cuGraphClone(&clone, graph), CUDA_ERROR_NOT_SUPPORTED);
    exec = test_exec(graph, 0);
    ok(cuGraphDestroy(graph));
    ok(cuGraphLaunch(exec, stream));
    ok(cuStreamSynchronize(stream));
    ck_assert_uint_eq(test_read(out), 3);
    ok(cuGraphExecDestroy(exec));
}
END_TEST

/* ---- capture ---- */

START_TEST(capture_makes_nodes_and_runs_nothing)
{
    CUdeviceptr p = test_zeros(256);
    CUstream stream = test_stream();
    CUstreamCaptureStatus status;
    CUgraph graph, seen;
    CUgraphExec exec;
    const CUgraphNode *deps;
    size_t n;
    cuuint64_t id;

    ok(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ok(test_launch_add(p, 64, 2, stream));
    ok(cuMemsetD32Async(p, 1, 1, stream));
    ok(cuStreamGetCaptureInfo_v2(stream, &status, &id, &seen, &deps, &n));
    ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    ck_assert_uint_eq(n, 1);
    fails(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    fails(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ck_assert_ptr_null(graph);

    ok(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ok(test_launch_add(p, 64, 2, stream));
    ok(test_launch_add(p, 64, 3, stream));
    ok(cuStreamEndCapture(stream, &graph));
    ok(cuGraphGetNodes(graph, NULL, &n));
    ck_assert_uint_eq(n, 2);
    ok(cuGraphGetEdges_v2(graph, NULL, NULL, NULL, &n));
    ck_assert_uint_eq(n, 1);
    ck_assert_uint_eq(test_read(p), 0);
    exec = test_exec(graph, 0);
    for (int i = 0; i < 10; i++)
        ok(cuGraphLaunch(exec, stream));
    ok(cuStreamSynchronize(stream));
    ck_assert_uint_eq(test_read(p), 50);
}
END_TEST

START_TEST(events_fork_and_join_a_capture)
{
    CUdeviceptr p = test_zeros(256), q = test_zeros(256);
    CUstream a = test_stream(), b = test_stream();
    CUstreamCaptureStatus status;
    CUevent fork, join;
    CUgraph graph;
    size_t n;

    ok(cuEventCreate(&fork, 0));
    ok(cuEventCreate(&join, 0));
    ok(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    ok(test_launch_add(p, 64, 1, a));
    ok(cuEventRecord(fork, a));
    ok(cuStreamWaitEvent(b, fork, 0));
    ok(cuStreamIsCapturing(b, &status));
    ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    ok(test_launch_add(q, 64, 1, b));
    ok(test_launch_add(p, 64, 1, a));
    ok(cuEventRecord(join, b));
    ok(cuStreamWaitEvent(a, join, 0));
    ok(cuStreamDestroy_v2(b)); /* joined: it may go */
    ok(test_launch_add(p, 64, 1, a));
    ok(cuStreamEndCapture(a, &graph));
    ok(cuGraphGetNodes(graph, NULL, &n));
    ck_assert_uint_eq(n, 4);
    ok(cuGraphGetEdges_v2(graph, NULL, NULL, NULL, &n));
    ck_assert_uint_eq(n, 4);
    ok(cuGraphLaunch(test_exec(graph, 0), a));
    ok(cuStreamSynchronize(a));
    ck_assert_uint_eq(test_read(p), 3);
    ck_assert_uint_eq(test_read(q), 1);
}
END_TEST

START_TEST(what_capture_cannot_hold_is_an_error_by_name)
{
    CUdeviceptr p = test_zeros(256), q;
    CUstream a = test_stream(), b = test_stream(), blocking;
    CUevent event, plain;
    CUgraph graph;

    ok(cuEventCreate(&event, 0));
    ok(cuEventCreate(&plain, 0));
    ok(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    fails(cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL),
          CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    fails(cuStreamEndCapture(a, &graph), CUDA_ERROR_ILLEGAL_STATE);

    ok(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    fails(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
    ok(test_launch_add(p, 64, 1, a));
    ok(cuEventRecord(event, a));
    ok(cuStreamWaitEvent(b, event, 0));
    ok(test_launch_add(p, 64, 1, b));
    fails(cuStreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);

    ok(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    fails(cuStreamWaitEvent(a, plain, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    fails(test_launch_add(p, 64, 1, a), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    fails(cuStreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    ok(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_RELAXED));
    ok(cuStreamBeginCapture_v2(b, CU_STREAM_CAPTURE_MODE_RELAXED));
    ok(cuEventRecord(event, b));
    fails(cuStreamWaitEvent(a, event, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
    fails(cuStreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    fails(cuStreamEndCapture(b, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    ok(cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    fails(test_launch_add(p, 64, 1, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    fails(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    ok(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    fails(cuMemAlloc_v2(&q, 64), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    fails(cuStreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    ok(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_RELAXED));
    ok(cuMemAlloc_v2(&q, 64));
    ok(cuStreamEndCapture(a, &graph));
}
END_TEST

static void *alloc_elsewhere(void *result)
{
    CUdeviceptr p;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    ok(cuCtxSetCurrent(test_ctx));
    if (*(int *)result)
        ok(cuThreadExchangeStreamCaptureMode(&mode));
    *(int *)result = cuMemAlloc_v2(&p, 64);
    return NULL;
}

START_TEST(a_global_capture_forbids_unsafe_calls_of_other_threads_unless_relaxed)
{
    CUstream stream = test_stream();
    CUgraph graph;
    pthread_t thread;
    int result = 1;

    ok(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    pthread_create(&thread, NULL, alloc_elsewhere, &result);
    pthread_join(thread, NULL);
    ck_assert_int_eq(result, CUDA_SUCCESS);
    ok(cuStreamEndCapture(stream, &graph));

    result = 0;
    ok(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    pthread_create(&thread, NULL, alloc_elsewhere, &result);
    pthread_join(thread, NULL);
    ck_assert_int_eq(result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    fails(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    result = 0;
    ok(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    pthread_create(&thread, NULL, alloc_elsewhere, &result);
    pthread_join(thread, NULL);
    ck_assert_int_eq(result, CUDA_SUCCESS);
    ok(cuStreamEndCapture(stream, &graph));
}
END_TEST

/* "All operations other than destroy and node removal are permitted": cuStreamGetCaptureInfo() */
START_TEST(a_graph_can_be_used_while_it_is_captured_but_not_destroyed)
{
    CUdeviceptr p = test_zeros(256);
    CUstream s = test_stream();
    CUstreamCaptureStatus status;
    CUgraph graph, again;
    CUgraphExec exec;
    const CUgraphNode *nodes;
    size_t n;

    ok(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    ok(test_launch_add(p, 64, 4, s));
    ok(cuStreamGetCaptureInfo_v2(s, &status, NULL, &graph, &nodes, &n));
    fails(cuGraphDestroy(graph), CUDA_ERROR_ILLEGAL_STATE);
    fails(cuGraphDestroyNode(nodes[0]), CUDA_ERROR_ILLEGAL_STATE);
    exec = test_exec(graph, 0);
    ok(cuStreamEndCapture(s, &again));
    ck_assert_ptr_eq(graph, again);
    ok(cuGraphLaunch(exec, s));
    ok(cuStreamSynchronize(s));
    ck_assert_uint_eq(test_read(p), 4);
    ok(cuGraphDestroy(graph));
}
END_TEST

START_TEST(capture_goes_into_a_given_graph_and_its_dependencies_can_be_set)
{
    CUdeviceptr p = test_zeros(256);
    CUstream stream = test_stream();
    CUgraph graph, out;
    CUgraphNode first, second;
    CUstreamCaptureStatus status;
    const CUgraphNode *deps;
    const CUgraphEdgeData *data;
    size_t n;

    ok(cuGraphCreate(&graph, 0));
    first = add_node(graph, p, 1, NULL, 0);
    ok(cuStreamBeginCaptureToGraph(stream, graph, &first, NULL, 1, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ok(test_launch_add(p, 64, 2, stream));
    ok(cuStreamGetCaptureInfo_v3(stream, &status, NULL, &out, &deps, &data, &n));
    ck_assert_ptr_eq(out, graph);
    ck_assert_uint_eq(n, 1);
    second = deps[0];
    ok((cuStreamUpdateCaptureDependencies)(stream, &first, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
    ok(cuStreamGetCaptureInfo_v3(stream, &status, NULL, &out, &deps, &data, &n));
    ck_assert_uint_eq(n, 2);
    ok((cuStreamUpdateCaptureDependencies)(stream, &second, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    ok(test_launch_add(p, 64, 3, stream));
    ok(cuStreamEndCapture(stream, &out));
    ck_assert_ptr_eq(out, graph);
    ok(cuGraphLaunch(test_exec(graph, 0), NULL));
    ck_assert_uint_eq(test_read(p), 6);
}
END_TEST

START_TEST(a_graph_launch_is_captured_as_a_child)
{
    CUdeviceptr p = test_zeros(256);
    CUstream stream = test_stream();
    CUgraph graph, outer;
    CUgraphNode node, nodes[1];
    CUgraphNodeType type;
    CUgraphExec exec;
    size_t n = 1;

    ok(cuGraphCreate(&graph, 0));
    node = add_node(graph, p, 4, NULL, 0);
    add_node(graph, p, 4, &node, 1);
    exec = test_exec(graph, 0);
    ok(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ok(cuGraphLaunch(exec, stream));
    ok(cuStreamEndCapture(stream, &outer));
    ok(cuGraphGetNodes(outer, nodes, &n));
    ok(cuGraphNodeGetType(nodes[0], &type));
    ck_assert_int_eq(type, CU_GRAPH_NODE_TYPE_GRAPH);
    ok(cuGraphLaunch(test_exec(outer, 0), stream));
    ok(cuStreamSynchronize(stream));
    ck_assert_uint_eq(test_read(p), 8);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("graphs");
    TCase *graphs = tcase_create("graphs"), *capture = tcase_create("capture");

    tcase_add_checked_fixture(graphs, test_setup_module, NULL);
    tcase_add_test(graphs, a_graph_runs_its_nodes_in_order);
    tcase_add_test(graphs, all_instantiate_forms_agree);
    tcase_add_test(graphs, a_cycle_cannot_be_instantiated);
    tcase_add_test(graphs, edges_can_be_asked_added_and_removed);
    tcase_add_test(graphs, programmatic_edges_need_the_queries_that_show_them);
    tcase_add_test(graphs, exec_parameters_reach_later_launches_only);
    tcase_add_test(graphs, node_parameters_can_be_read_and_set);
    tcase_add_test(graphs, nodes_can_be_switched_off_and_on);
    tcase_add_test(graphs, children_and_clones_are_copies);
    tcase_add_test(graphs, an_exec_is_updated_from_a_graph_of_its_shape);
    tcase_add_test(graphs, launches_of_one_exec_do_not_overlap);
    tcase_add_test(graphs, user_objects_go_when_nobody_holds_them);
    tcase_add_test(graphs, an_update_replaces_the_user_objects_of_an_exec);
    tcase_add_test(graphs, a_child_graph_may_lose_nodes_and_gain_no_memory);
    tcase_add_test(graphs, a_child_graph_that_was_moved_is_its_nodes_own);
    tcase_add_test(graphs, host_and_event_nodes_run);
    tcase_add_test(graphs, nodes_of_every_kind_through_the_general_form);
    tcase_add_test(graphs, memory_nodes_tie_a_graph_together);
    suite_add_tcase(suite, graphs);

    tcase_add_checked_fixture(capture, test_setup_module, NULL);
    tcase_add_test(capture, capture_makes_nodes_and_runs_nothing);
    tcase_add_test(capture, events_fork_and_join_a_capture);
    tcase_add_test(capture, what_capture_cannot_hold_is_an_error_by_name);
    tcase_add_test(capture, a_global_capture_forbids_unsafe_calls_of_other_threads_unless_relaxed);
    tcase_add_test(capture, a_graph_can_be_used_while_it_is_captured_but_not_destroyed);
    tcase_add_test(capture, capture_goes_into_a_given_graph_and_its_dependencies_can_be_set);
    tcase_add_test(capture, a_graph_launch_is_captured_as_a_child);
    suite_add_tcase(suite, capture);
    return test_run(suite);
}
