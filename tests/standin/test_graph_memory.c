/* SPDX-License-Identifier: Apache-2.0 */
/* What graphs allocate, what execs cost and hold: memory nodes, memory of nodes, user objects. */
#include "test_standin.h"

#include <stdbool.h>
#include <unistd.h>

static CUgraphNode add_alloc(CUgraph graph, size_t bytes, CUdeviceptr *p)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .poolProps = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                       .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } },
        .bytesize = bytes,
    };
    CUgraphNode node;

    ok(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
    *p = params.dptr;
    return node;
}

static CUgraphNode add_poke(CUgraph graph, CUdeviceptr p, uint32_t v, const CUgraphNode *deps,
                            size_t n_deps)
{
    void *values[] = { &p, &v };
    CUDA_KERNEL_NODE_PARAMS_v2 params = { .func = test_function("poke"),
                                          .gridDimX = 1,
                                          .gridDimY = 1,
                                          .gridDimZ = 1,
                                          .blockDimX = 1,
                                          .blockDimY = 1,
                                          .blockDimZ = 1,
                                          .kernelParams = values };
    CUgraphNode node;

    ok(cuGraphAddKernelNode_v2(&node, graph, deps, n_deps, &params));
    return node;
}

static uint64_t graph_memory(CUgraphMem_attribute which)
{
    uint64_t value;

    ok(cuDeviceGetGraphMemAttribute(0, which, &value));
    return value;
}

START_TEST(an_allocation_lives_from_its_launch_to_its_free)
{
    CUgraph graph = test_graph();
    CUdeviceptr p, base;
    CUgraphNode alloc = add_alloc(graph, 1 << 20, &p);
    CUgraphExec exec;
    size_t before = test_free_bytes(), size;

    add_poke(graph, p, 5, &alloc, 1);
    exec = test_exec(graph, 0);
    fails(cuMemGetAddressRange_v2(&base, &size, p), CUDA_ERROR_NOT_FOUND);
    fails(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
    ck_assert_uint_ge(test_free_bytes(), before - (1 << 19)); /* no memory yet */
    ok(cuGraphLaunch(exec, NULL));
    ok(cuMemGetAddressRange_v2(&base, &size, p + 4));
    ck_assert_uint_eq(base, p);
    ck_assert_uint_eq(size, 1 << 20);
    ck_assert_uint_eq(test_read(p), 5);
    fails(cuGraphLaunch(exec, NULL), CUDA_ERROR_INVALID_VALUE); /* it has not been freed */
    ok(cuGraphExecDestroy(exec));
    ok(cuGraphDestroy(graph));
    ck_assert_uint_eq(test_read(p), 5); /* it outlives its graph */
    ok(cuMemFreeAsync(p, NULL));
    fails(cuMemFreeAsync(p, NULL), CUDA_ERROR_INVALID_VALUE);
    ok(cuCtxSynchronize());
    ck_assert_uint_eq(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 1 << 20);
    ok(cuDeviceGraphMemTrim(0));
    ck_assert_uint_eq(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0);
    ck_assert_uint_eq(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), 1 << 20);
    ck_assert_uint_eq(test_free_bytes(), before);
}
END_TEST

START_TEST(a_use_after_the_free_node_faults)
{
    CUgraph graph = test_graph();
    CUdeviceptr p;
    CUgraphNode alloc = add_alloc(graph, 4096, &p), poke, end;
    CUgraphExec exec;

    poke = add_poke(graph, p, 5, &alloc, 1);
    ok(cuGraphAddMemFreeNode(&end, graph, &poke, 1, p));
    fails(cuGraphAddMemFreeNode(&end, graph, &poke, 1, p), CUDA_ERROR_INVALID_VALUE);
    fails(cuGraphAddMemFreeNode(&end, graph, NULL, 0, p + 8), CUDA_ERROR_INVALID_VALUE);
    fails(cuGraphAddMemFreeNode(&end, test_graph(), NULL, 0, p), CUDA_ERROR_INVALID_VALUE);
    exec = test_exec(graph, 0);
    for (int i = 0; i < 3; i++)
        ok(cuGraphLaunch(exec, NULL));
    ok(cuCtxSynchronize());
    fails(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
    ok(test_launch_poke(p, 1, NULL));
    fails(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

START_TEST(another_graph_can_free_and_a_flag_frees_by_itself)
{
    CUgraph graph = test_graph(), other = test_graph();
    CUdeviceptr p;
    CUgraphNode alloc = add_alloc(graph, 4096, &p), end;
    CUgraphExec exec, frees;

    add_poke(graph, p, 5, &alloc, 1);
    ok(cuGraphAddMemFreeNode(&end, other, NULL, 0, p));
    fails(cuGraphAddMemFreeNode(&end, graph, &alloc, 1, p), CUDA_ERROR_INVALID_VALUE);
    exec = test_exec(graph, 0);
    frees = test_exec(other, 0);
    for (int i = 0; i < 2; i++) {
        ok(cuGraphLaunch(exec, NULL));
        ck_assert_uint_eq(test_read(p), 5);
        ok(cuGraphLaunch(frees, NULL));
    }
    fails(cuGraphInstantiateWithFlags(&frees, graph, 0), CUDA_ERROR_INVALID_VALUE);
    ok(cuGraphExecDestroy(exec)); /* one at a time */
    exec = test_exec(graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    for (int i = 0; i < 3; i++)
        ok(cuGraphLaunch(exec, NULL));
    ck_assert_uint_eq(test_read(p), 5);
    ok(cuMemFree_v2(p));
}
END_TEST

START_TEST(memory_of_a_launch_can_be_missing)
{
    CUgraph graph;
    CUdeviceptr p, q;
    CUgraphExec exec;

    setenv("DMI_STANDIN_MEMORY", "4M", 1);
    test_setup_module();
    graph = test_graph();
    add_alloc(graph, 3 << 20, &p);
    exec = test_exec(graph, 0);
    ok(cuMemAlloc_v2(&q, 2 << 20));
    fails(cuGraphUpload(exec, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    fails(cuGraphLaunch(exec, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    ok(cuMemFree_v2(q));
    ok(cuGraphUpload(exec, NULL));
    ok(cuGraphLaunch(exec, NULL));
}
END_TEST

START_TEST(nodes_cost_memory_until_the_exec_ends)
{
    CUDA_GRAPH_INSTANTIATE_PARAMS params = { 0 };
    CUgraph graph, parent;
    CUgraphNode node;
    CUgraphExec exec, more;
    CUdeviceptr p;
    size_t before;

    setenv("DMI_STANDIN_MEMORY", "4M", 1);
    setenv("DMI_STANDIN_NODE_BYTES", "64K", 1);
    test_setup_module();
    p = test_zeros(4);
    graph = test_graph();
    for (int i = 0; i < 30; i++)
        node = add_poke(graph, p, 1, &node, i > 0);
    before = test_free_bytes();
    exec = test_exec(graph, 0);
    ck_assert_uint_eq(test_free_bytes(), before - 30 * 65536);
    parent = test_graph();
    ok(cuGraphAddChildGraphNode(&node, parent, NULL, 0, graph));
    more = test_exec(parent, 0);
    ck_assert_uint_eq(test_free_bytes(), before - 61 * 65536);
    fails(cuGraphInstantiateWithParams(&more, parent, &params), CUDA_ERROR_OUT_OF_MEMORY);
    ck_assert_int_eq(params.result_out, CUDA_GRAPH_INSTANTIATE_ERROR);
    ok(cuGraphLaunch(exec, NULL));
    ok(cuGraphExecDestroy(exec));
    ok(cuGraphExecDestroy(more));
    ck_assert_uint_eq(test_free_bytes(), before);
}
END_TEST

/* ---- user objects: whose references a clone's are ---- */

static void count(void *counter)
{
    __atomic_fetch_add((int *)counter, 1, __ATOMIC_SEQ_CST);
}

static bool fires(int *counter)
{
    for (int i = 0; i < 1000 && !__atomic_load_n(counter, __ATOMIC_SEQ_CST); i++)
        usleep(1000);
    return __atomic_load_n(counter, __ATOMIC_SEQ_CST) == 1;
}

static bool stays(int *counter)
{
    usleep(20000);
    return __atomic_load_n(counter, __ATOMIC_SEQ_CST) == 0;
}

/* A clone that gives its references up, while the original keeps its own. */
static void clone_lets_go(const char *mode, int *counter)
{
    CUuserObject object;
    CUgraph graph, clone;

    setenv("DMI_STANDIN_CLONE_USERS", mode, 1);
    test_setup_module();
    graph = test_graph();
    ok(cuUserObjectCreate(&object, counter, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    ok(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    ok(cuGraphClone(&clone, graph));
    ok(cuGraphReleaseUserObject(clone, object, 1));
}

START_TEST(a_clones_references_can_be_copies)
{
    static int destroyed;

    clone_lets_go("copy", &destroyed);
    ck_assert(stays(&destroyed));
}
END_TEST

START_TEST(a_clones_references_can_be_shared)
{
    static int destroyed;

    clone_lets_go("share", &destroyed);
    ck_assert(fires(&destroyed));
}
END_TEST

START_TEST(shared_references_live_as_long_as_one_that_shares_them)
{
    static int destroyed;
    CUuserObject object;
    CUgraph graph, parent;
    CUgraphNode node;
    CUgraphExec exec;

    setenv("DMI_STANDIN_CLONE_USERS", "share", 1);
    test_setup_module();
    graph = test_graph();
    parent = test_graph();
    ok(cuUserObjectCreate(&object, &destroyed, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    ok(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    ok(cuGraphAddChildGraphNode(&node, parent, NULL, 0, graph));
    exec = test_exec(parent, 0);
    ok(cuGraphDestroy(graph));
    ok(cuGraphDestroy(parent));
    ok(cuGraphLaunch(exec, NULL));
    ok(cuCtxSynchronize());
    ck_assert(stays(&destroyed));
    ok(cuGraphExecDestroy(exec));
    ck_assert(fires(&destroyed));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("graph memory");
    TCase *memory = tcase_create("memory"), *modes = tcase_create("modes");

    tcase_add_checked_fixture(memory, test_setup_module, NULL);
    tcase_add_test(memory, an_allocation_lives_from_its_launch_to_its_free);
    tcase_add_test(memory, a_use_after_the_free_node_faults);
    tcase_add_test(memory, another_graph_can_free_and_a_flag_frees_by_itself);
    suite_add_tcase(suite, memory);
    tcase_add_test(modes, memory_of_a_launch_can_be_missing);
    tcase_add_test(modes, nodes_cost_memory_until_the_exec_ends);
    tcase_add_test(modes, a_clones_references_can_be_copies);
    tcase_add_test(modes, a_clones_references_can_be_shared);
    tcase_add_test(modes, shared_references_live_as_long_as_one_that_shares_them);
    suite_add_tcase(suite, modes);
    return test_run(suite);
}
