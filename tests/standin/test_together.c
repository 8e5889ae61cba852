/* SPDX-License-Identifier: Apache-2.0 */
/* Cooperative launches: blocks run at once and may wait for each other. */
#include "test_standin.h"

/*
 * meet(u64 p): as grid.sync() of cooperative_groups: block b writes b + 1 to p[b], meets the others by way of the word at
 * 4 of the workspace whose address is %envreg1:%envreg2, and reads p[(b + 1) % n] into p[n + b].
 * leave(u64 p): the last block traps, the others wait for ever.
 */
#define MEET                                                                                       \
    " mov.u32 %r1, %envreg1; mov.u32 %r2, %envreg2; mov.b64 %d2, {%r2, %r1}; add.s64 %d2, %d2, "   \
    "4;\n"                                                                                         \
    " atom.add.release.gpu.u32 %r3, [%d2], 1;\n"                                                   \
    "L: ld.acquire.gpu.u32 %r3, [%d2]; setp.lt.u32 %q, %r3, %n; @%q bra L;\n"
static const char ptx[] =
    ".version 6.4\n.target sm_75\n.address_size 64\n"
    ".visible .entry meet(.param .u64 p)\n{\n .reg .pred %q; .reg .b32 %r<9>, %b, %n; .reg .b64 "
    "%d<5>;\n"
    " ld.param.u64 %d1, [p]; mov.u32 %b, %ctaid.x; mov.u32 %n, %nctaid.x; mul.wide.u32 %d3, %b, "
    "4;\n"
    " add.s64 %d3, %d3, %d1; add.u32 %r4, %b, 1; st.global.u32 [%d3], %r4;\n" MEET
    " rem.u32 %r5, %r4, %n; mul.wide.u32 %d4, %r5, 4; add.s64 %d4, %d4, %d1; ld.global.u32 %r6, "
    "[%d4];\n"
    " mul.wide.u32 %d4, %n, 4; add.s64 %d4, %d4, %d3; st.global.u32 [%d4], %r6; ret;\n}\n"
    ".visible .entry leave(.param .u64 p)\n{\n .reg .pred %q, %w; .reg .b32 %r<9>, %b, %n; .reg "
    ".b64 %d<5>;\n"
    " mov.u32 %b, %ctaid.x; mov.u32 %n, %nctaid.x; sub.u32 %r5, %n, 1; setp.eq.u32 %w, %b, %r5; "
    "@%w trap;\n" MEET " ret;\n}\n";

static CUfunction meet, leave;

static void setup(void)
{
    CUmodule module;

    test_setup();
    ok(cuModuleLoadData(&module, ptx));
    ok(cuModuleGetFunction(&meet, module, "meet"));
    ok(cuModuleGetFunction(&leave, module, "leave"));
}

static CUresult launch(CUfunction f, CUdeviceptr p, unsigned n, CUstream stream)
{
    void *params[] = { &p };

    return cuLaunchCooperativeKernel(f, n, 1, 1, 1, 1, 1, 0, stream, params);
}

static void check_met(CUdeviceptr p, unsigned n)
{
    for (unsigned b = 0; b < n; b++)
        ck_assert_uint_eq(test_read(p + 4 * (n + b)), (b + 1) % n + 1);
}

START_TEST(blocks_meet)
{
    CUdeviceptr p;

    setup();
    p = test_zeros(4096);
    for (unsigned n = 1; n <= 128; n *= 2) {
        ok(launch(meet, p, n, NULL));
        ok(cuCtxSynchronize());
        check_met(p, n);
    }
}
END_TEST

START_TEST(more_blocks_than_fit_are_refused)
{
    CUdeviceptr p;
    int each, n_sm;

    setup();
    p = test_zeros(65536);
    ok(cuOccupancyMaxActiveBlocksPerMultiprocessor(&each, meet, 1, 0));
    ok(cuDeviceGetAttribute(&n_sm, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    fails(launch(meet, p, (unsigned)(each * n_sm) + 1, NULL),
          CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    ok(launch(meet, p, (unsigned)(each * n_sm), NULL));
    ok(cuCtxSynchronize());
    check_met(p, (unsigned)(each * n_sm));
}
END_TEST

START_TEST(a_trap_in_one_block_ends_all)
{
    setup();
    ok(launch(leave, 0, 8, NULL));
    fails(cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
}
END_TEST

START_TEST(an_ordinary_launch_has_no_workspace)
{
    CUdeviceptr p;
    void *params[] = { &p };

    setup();
    p = test_zeros(4096);
    ok(cuLaunchKernel(meet, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    fails(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

START_TEST(a_graph_keeps_what_is_cooperative)
{
    CUgraph graph;
    CUgraphExec exec;
    CUstream stream;
    CUdeviceptr p;

    setup();
    p = test_zeros(4096);
    ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ok(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ok(launch(meet, p, 16, stream));
    ok(cuStreamEndCapture(stream, &graph));
    ok(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 3; i++)
        ok(cuGraphLaunch(exec, stream));
    ok(cuStreamSynchronize(stream));
    check_met(p, 16);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("together");
    TCase *tcase = tcase_create("together");

    tcase_add_test(tcase, blocks_meet);
    tcase_add_test(tcase, more_blocks_than_fit_are_refused);
    tcase_add_test(tcase, a_trap_in_one_block_ends_all);
    tcase_add_test(tcase, an_ordinary_launch_has_no_workspace);
    tcase_add_test(tcase, a_graph_keeps_what_is_cooperative);
    suite_add_tcase(suite, tcase);
    return test_run(suite);
}
