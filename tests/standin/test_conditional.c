/* SPDX-License-Identifier: Apache-2.0 */
/* Conditional nodes: their bodies, the value that kernels set, what is refused. */
#include "test_standin.h"

/* choose(handle, v): sets the value to v.  count_down(handle, p): *p -= 1, and sets the value to it. */
static const char ptx[] =
    ".version 6.4\n.target sm_75\n.address_size 64\n"
    ".extern .func cudaGraphSetConditional(.param .b64 a, .param .b32 b);\n"
    ".visible .entry choose(.param .u64 h, .param .u32 v)\n{\n"
    " .reg .b32 %r<2>; .reg .b64 %d<2>;\n"
    " ld.param.u64 %d1, [h]; ld.param.u32 %r1, [v];\n"
    " { .param .b64 p0; st.param.b64 [p0], %d1; .param .b32 p1; st.param.b32 [p1], %r1;\n"
    "   call.uni cudaGraphSetConditional, (p0, p1); }\n ret;\n}\n"
    ".visible .entry count_down(.param .u64 h, .param .u64 p)\n{\n"
    " .reg .b32 %r<2>; .reg .b64 %d<3>;\n"
    " ld.param.u64 %d1, [h]; ld.param.u64 %d2, [p];\n"
    " ld.global.u32 %r1, [%d2]; sub.u32 %r1, %r1, 1; st.global.u32 [%d2], %r1;\n"
    " { .param .b64 p0; st.param.b64 [p0], %d1; .param .b32 p1; st.param.b32 [p1], %r1;\n"
    "   call.uni cudaGraphSetConditional, (p0, p1); }\n ret;\n}\n";

static CUmodule module;

static void setup(void)
{
    test_setup_module();
    ok(cuModuleLoadData(&module, ptx));
}

static CUgraphNode add_kernel(CUgraph graph, CUfunction function, void **values,
                              const CUgraphNode *deps, size_t n_deps)
{
    CUDA_KERNEL_NODE_PARAMS_v2 params = { .func = function,
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

static CUfunction own(const char *name)
{
    CUfunction function;

    ok(cuModuleGetFunction(&function, module, name));
    return function;
}

static CUgraphNode add_add(CUgraph graph, CUdeviceptr p, uint32_t v)
{
    uint32_t one = 1;

    return add_kernel(graph, test_function("add"), (void *[]){ &p, &one, &v }, NULL, 0);
}

static CUgraphNode add_choose(CUgraph graph, CUgraphConditionalHandle handle, uint32_t v)
{
    return add_kernel(graph, own("choose"), (void *[]){ &handle, &v }, NULL, 0);
}

static CUgraphConditionalHandle new_handle(CUgraph graph, unsigned initial, unsigned flags)
{
    CUgraphConditionalHandle handle;

    ok(cuGraphConditionalHandleCreate(&handle, graph, test_ctx, initial, flags));
    return handle;
}

static CUresult try_conditional(CUgraph graph, CUgraphConditionalHandle handle,
                                CUgraphConditionalNodeType type, unsigned n, const CUgraphNode *dep,
                                CUgraphNode *node, CUgraph **bodies)
{
    CUgraphNodeParams params = { .type = CU_GRAPH_NODE_TYPE_CONDITIONAL };
    CUresult res;

    params.conditional.handle = handle;
    params.conditional.type = type;
    params.conditional.size = n;
    params.conditional.ctx = test_ctx;
    res = cuGraphAddNode_v2(node, graph, dep, NULL, dep != NULL, &params);
    *bodies = params.conditional.phGraph_out;
    return res;
}

static CUgraph *add_conditional(CUgraph graph, CUgraphConditionalHandle handle,
                                CUgraphConditionalNodeType type, unsigned n, const CUgraphNode *dep)
{
    CUgraphNode node;
    CUgraph *bodies;

    ok(try_conditional(graph, handle, type, n, dep, &node, &bodies));
    return bodies;
}

START_TEST(if_and_else_follow_the_value)
{
    CUdeviceptr p = test_zeros(8);
    CUgraph graph = test_graph(), *bodies;
    CUgraphConditionalHandle handle = new_handle(graph, 0, 0);
    uint32_t v = 1;
    CUgraphNode first = add_choose(graph, handle, v);
    CUDA_KERNEL_NODE_PARAMS_v2 params;
    CUgraphExec exec;

    bodies = add_conditional(graph, handle, CU_GRAPH_COND_TYPE_IF, 2, &first);
    add_add(bodies[0], p, 1);
    add_add(bodies[1], p + 4, 1);
    exec = test_exec(graph, 0);
    ok(cuGraphKernelNodeGetParams_v2(first, &params));
    for (int i = 0; i < 4; i++) {
        v = i == 3 ? 0 : (uint32_t)i + 1;
        params.kernelParams = (void *[]){ &handle, &v };
        ok(cuGraphExecKernelNodeSetParams_v2(exec, first, &params));
        ok(cuGraphLaunch(exec, NULL));
    }
    ck_assert_uint_eq(test_read(p), 3);
    ck_assert_uint_eq(test_read(p + 4), 1);
}
END_TEST

START_TEST(a_while_body_runs_until_the_value_is_zero)
{
    CUdeviceptr p = test_zeros(8);
    uint64_t rest = p + 4;
    CUgraph graph = test_graph(), *bodies;
    CUgraphConditionalHandle handle = new_handle(graph, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
    CUgraphNode step;
    CUgraphExec exec;

    bodies = add_conditional(graph, handle, CU_GRAPH_COND_TYPE_WHILE, 1, NULL);
    step = add_add(bodies[0], p, 2);
    add_kernel(bodies[0], own("count_down"), (void *[]){ &handle, &rest }, &step, 1);
    exec = test_exec(graph, 0);
    for (int i = 0; i < 2; i++) {
        ok(cuMemsetD32Async(rest, 10, 1, NULL));
        ok(cuGraphLaunch(exec, NULL));
    }
    ok(cuGraphDestroy(graph)); /* bodies go with it; what is queued goes on */
    ok(cuGraphExecDestroy(exec));
    ck_assert_uint_eq(test_read(p), 40);
}
END_TEST

START_TEST(a_switch_takes_one_of_its_bodies)
{
    CUdeviceptr p = test_zeros(16);

    for (uint32_t v = 0; v < 4; v++) {
        CUgraph graph = test_graph(), *bodies;
        CUgraphConditionalHandle handle = new_handle(graph, 0, 0);
        CUgraphNode first = add_choose(graph, handle, v);

        bodies = add_conditional(graph, handle, CU_GRAPH_COND_TYPE_SWITCH, 3, &first);
        for (unsigned i = 0; i < 3; i++)
            add_add(bodies[i], p + 4 * i, v + 1);
        ok(cuGraphLaunch(test_exec(graph, 0), NULL));
    }
    ck_assert_uint_eq(test_read(p), 1);
    ck_assert_uint_eq(test_read(p + 4), 2);
    ck_assert_uint_eq(test_read(p + 8), 3);
    ck_assert_uint_eq(test_read(p + 12), 0);
}
END_TEST

START_TEST(bodies_are_captured_and_nest)
{
    CUdeviceptr p = test_zeros(8);
    CUgraph graph = test_graph(), *outer, *inner, seen;
    CUgraphConditionalHandle a = new_handle(graph, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
    CUgraphConditionalHandle b = new_handle(graph, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
    CUstream stream;
    CUgraphExec exec;
    CUgraphNode node;
    uint64_t rest = p + 4;

    ok(cuMemsetD32_v2(rest, 3, 1));
    ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    outer = add_conditional(graph, a, CU_GRAPH_COND_TYPE_WHILE, 1, NULL);
    node = add_kernel(outer[0], own("count_down"), (void *[]){ &a, &rest }, NULL, 0);
    inner = add_conditional(outer[0], b, CU_GRAPH_COND_TYPE_IF, 1, &node);
    ok(cuStreamBeginCaptureToGraph(stream, inner[0], NULL, NULL, 0,
                                   CU_STREAM_CAPTURE_MODE_RELAXED));
    ok(test_launch_add(p, 1, 5, stream));
    ok(test_launch_add(p, 1, 5, stream));
    ok(cuStreamEndCapture(stream, &seen));
    ck_assert_ptr_eq(seen, inner[0]);
    exec = test_exec(graph, 0);
    ok(cuGraphLaunch(exec, stream));
    ok(cuStreamSynchronize(stream));
    ck_assert_uint_eq(test_read(p), 30);
}
END_TEST

START_TEST(parameters_in_a_body_are_those_of_the_launch)
{
    CUdeviceptr p = test_zeros(8), q = p + 4;
    CUgraph graph = test_graph(), *bodies;
    CUgraphConditionalHandle handle = new_handle(graph, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
    CUDA_KERNEL_NODE_PARAMS_v2 params;
    CUgraphNode node;
    CUgraphExec exec;
    uint32_t one = 1;

    bodies = add_conditional(graph, handle, CU_GRAPH_COND_TYPE_IF, 1, NULL);
    node = add_add(bodies[0], p, 1);
    exec = test_exec(graph, 0);
    ok(cuGraphKernelNodeGetParams_v2(node, &params));
    ok(cuGraphLaunch(exec, NULL));
    params.kernelParams = (void *[]){ &q, &one, &one };
    ok(cuGraphExecKernelNodeSetParams_v2(exec, node, &params));
    ok(cuGraphLaunch(exec, NULL));
    ck_assert_uint_eq(test_read(p), 1);
    ck_assert_uint_eq(test_read(q), 1);
}
END_TEST

START_TEST(an_update_takes_over_handle_and_bodies)
{
    CUdeviceptr p = test_zeros(8);
    CUgraph graphs[2];
    CUgraphExecUpdateResultInfo info;
    CUgraphExec exec;

    for (unsigned i = 0; i < 2; i++) {
        CUgraphConditionalHandle handle;
        CUgraphNode first;
        CUgraph *bodies;

        graphs[i] = test_graph();
        handle = new_handle(graphs[i], 0, 0);
        first = add_choose(graphs[i], handle, 1);
        bodies = add_conditional(graphs[i], handle, CU_GRAPH_COND_TYPE_IF, 1, &first);
        add_add(bodies[0], p + 4 * i, 7);
    }
    exec = test_exec(graphs[0], 0);
    ok(cuGraphExecUpdate_v2(exec, graphs[1], &info));
    ok(cuGraphDestroy(graphs[0]));
    ok(cuGraphDestroy(graphs[1]));
    ok(cuGraphLaunch(exec, NULL));
    ck_assert_uint_eq(test_read(p), 0);
    ck_assert_uint_eq(test_read(p + 4), 7);
}
END_TEST

START_TEST(what_cuda_h_rules_out_is_an_error)
{
    CUgraph graph = test_graph(), parent = test_graph(), clone, *bodies, *none;
    CUgraphConditionalHandle handle = new_handle(graph, 0, 0), spare;
    CUDA_GRAPH_INSTANTIATE_PARAMS params = { 0 };
    CUgraphNode node, host;
    CUgraphExec exec;

    fails(cuGraphConditionalHandleCreate(&spare, graph, test_ctx, 0, 2), CUDA_ERROR_INVALID_VALUE);
    fails(try_conditional(graph, handle, CU_GRAPH_COND_TYPE_WHILE, 2, NULL, &node, &none),
          CUDA_ERROR_INVALID_VALUE);
    fails(try_conditional(graph, handle, CU_GRAPH_COND_TYPE_IF, 3, NULL, &node, &none),
          CUDA_ERROR_INVALID_VALUE);
    fails(try_conditional(graph, 17, CU_GRAPH_COND_TYPE_IF, 1, NULL, &node, &none),
          CUDA_ERROR_INVALID_VALUE);
    fails(cuGraphInstantiateWithParams(&exec, graph, &params), CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(params.result_out, CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED);
    bodies = add_conditional(graph, handle, CU_GRAPH_COND_TYPE_IF, 1, NULL);
    fails(try_conditional(graph, handle, CU_GRAPH_COND_TYPE_IF, 1, NULL, &node, &none),
          CUDA_ERROR_INVALID_VALUE); /* one node a handle */
    fails(cuGraphDestroy(bodies[0]), CUDA_ERROR_INVALID_VALUE);
    fails(cuGraphClone(&clone, graph), CUDA_ERROR_NOT_SUPPORTED);
    fails(cuGraphAddChildGraphNode(&node, parent, NULL, 0, graph), CUDA_ERROR_NOT_SUPPORTED);
    ok(cuGraphAddHostNode(&host, bodies[0], NULL, 0,
                          &(CUDA_HOST_NODE_PARAMS){ .fn = test_nothing }));
    fails(cuGraphInstantiateWithParams(&exec, graph, &params), CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(params.result_out, CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE);
    ck_assert_ptr_eq(params.hErrNode_out, host);
}
END_TEST

START_TEST(a_kernel_that_sets_an_unknown_handle_fails)
{
    uint64_t handle = 17;
    uint32_t v = 1;
    void *params[] = { &handle, &v };

    ok(cuLaunchKernel(own("choose"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    fails(cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
}
END_TEST

START_TEST(a_loop_ends_when_the_context_fails)
{
    CUgraph graph = test_graph(), *bodies;
    CUgraphConditionalHandle handle = new_handle(graph, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);

    bodies = add_conditional(graph, handle, CU_GRAPH_COND_TYPE_WHILE, 1, NULL);
    add_add(bodies[0], 64, 1);
    ok(cuGraphLaunch(test_exec(graph, 0), NULL));
    fails(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("conditional");
    TCase *cond = tcase_create("conditional");

    tcase_add_checked_fixture(cond, setup, NULL);
    tcase_add_test(cond, if_and_else_follow_the_value);
    tcase_add_test(cond, a_while_body_runs_until_the_value_is_zero);
    tcase_add_test(cond, a_switch_takes_one_of_its_bodies);
    tcase_add_test(cond, bodies_are_captured_and_nest);
    tcase_add_test(cond, parameters_in_a_body_are_those_of_the_launch);
    tcase_add_test(cond, an_update_takes_over_handle_and_bodies);
    tcase_add_test(cond, what_cuda_h_rules_out_is_an_error);
    tcase_add_test(cond, a_kernel_that_sets_an_unknown_handle_fails);
    tcase_add_test(cond, a_loop_ends_when_the_context_fails);
    suite_add_tcase(suite, cond);
    return test_run(suite);
}
