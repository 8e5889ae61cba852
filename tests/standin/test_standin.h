/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_standin.h - what the stand-in's tests share: kernels as PTX text, a context for each test
 *
 * The tests use the driver as any client does, by its exported names.
 */
#ifndef TESTS_STANDIN_TEST_STANDIN_H
#define TESTS_STANDIN_TEST_STANDIN_H

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL /* every variant by its own name */
#endif
#include <check.h>
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ok(call)            ck_assert_int_eq((call), CUDA_SUCCESS)
#define fails(call, result) ck_assert_int_eq((call), (result))

/*
 * add(u64 p, u32 n, u32 v): p[i] += v for i < n.   poke(u64 p, u32 v): *p = v.
 * slow(u64 p, u32 n): counts to n, then *p = n.    bump(): counter += 1, a module variable that starts at 5.
 */
static const char test_ptx[] =
    ".version 6.4\n.target sm_75\n.address_size 64\n"
    ".visible .global .align 4 .u32 counter = 5;\n"
    ".visible .entry add(.param .u64 p, .param .u32 n, .param .u32 v)\n{\n"
    " .reg .pred %q; .reg .b32 %r<8>; .reg .b64 %d<4>;\n"
    " ld.param.u64 %d1, [p]; ld.param.u32 %r1, [n]; ld.param.u32 %r2, [v];\n"
    " mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;\n"
    " mad.lo.s32 %r6, %r3, %r4, %r5; setp.ge.u32 %q, %r6, %r1; @%q bra done;\n"
    " mul.wide.u32 %d2, %r6, 4; add.u64 %d1, %d1, %d2;\n"
    " ld.global.u32 %r7, [%d1]; add.u32 %r7, %r7, %r2; st.global.u32 [%d1], %r7;\n"
    "done: ret;\n}\n"
    ".visible .entry poke(.param .u64 p, .param .u32 v)\n{\n"
    " .reg .b32 %r<2>; .reg .b64 %d<2>;\n"
    " ld.param.u64 %d1, [p]; ld.param.u32 %r1, [v]; st.global.u32 [%d1], %r1; ret;\n}\n"
    ".visible .entry slow(.param .u64 p, .param .u32 n)\n{\n"
    " .reg .pred %q; .reg .b32 %r<4>; .reg .b64 %d<2>;\n"
    " ld.param.u64 %d1, [p]; ld.param.u32 %r1, [n]; mov.u32 %r2, 0;\n"
    "again: st.volatile.global.u32 [%d1], %r2; add.u32 %r2, %r2, 1;\n"
    " setp.lt.u32 %q, %r2, %r1; @%q bra again; st.volatile.global.u32 [%d1], %r2; ret;\n}\n"
    ".visible .entry bump()\n{\n .reg .b32 %r<2>;\n atom.global.add.u32 %r1, [counter], 1; "
    "ret;\n}\n";

static CUcontext test_ctx __attribute__((unused));
static CUmodule test_module __attribute__((unused));

static inline void test_setup(void)
{
    ok(cuInit(0));
    ok(cuCtxCreate_v2(&test_ctx, 0, 0));
}

static inline void test_setup_module(void)
{
    test_setup();
    ok(cuModuleLoadData(&test_module, test_ptx));
}

static inline CUfunction test_function(const char *name)
{
    CUfunction function;

    ok(cuModuleGetFunction(&function, test_module, name));
    return function;
}

static inline CUresult test_launch_add(CUdeviceptr p, uint32_t n, uint32_t v, CUstream stream)
{
    void *params[] = { &p, &n, &v };

    return cuLaunchKernel(test_function("add"), (n + 63) / 64, 1, 1, 64, 1, 1, 0, stream, params,
                          NULL);
}

static inline CUresult test_launch_poke(CUdeviceptr p, uint32_t v, CUstream stream)
{
    void *params[] = { &p, &v };

    return cuLaunchKernel(test_function("poke"), 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}

static inline CUresult test_launch_slow(CUdeviceptr p, uint32_t n, CUstream stream)
{
    void *params[] = { &p, &n };

    return cuLaunchKernel(test_function("slow"), 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}

/* Waits: a memset of device memory does not wait, and other streams are not ordered after it. */
static inline CUdeviceptr test_zeros(size_t n_bytes)
{
    CUdeviceptr p;

    ok(cuMemAlloc_v2(&p, n_bytes));
    ok(cuMemsetD8_v2(p, 0, n_bytes));
    ok(cuStreamSynchronize(NULL));
    return p;
}

static inline uint32_t test_read(CUdeviceptr p)
{
    uint32_t value;

    ok(cuMemcpyDtoH_v2(&value, p, sizeof(value)));
    return value;
}

static inline size_t test_free_bytes(void)
{
    size_t n, total;

    ok(cuMemGetInfo_v2(&n, &total));
    return n;
}

static inline CUstream test_stream(void)
{
    CUstream stream;

    ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static inline CUgraph test_graph(void)
{
    CUgraph graph;

    ok(cuGraphCreate(&graph, 0));
    return graph;
}

static inline CUgraphExec test_exec(CUgraph graph, unsigned long long flags)
{
    CUgraphExec exec;

    ok(cuGraphInstantiateWithFlags(&exec, graph, flags));
    return exec;
}

/* Host functions: one does nothing, one waits until somebody opens the gate. */
static inline void test_nothing(void *unused)
{
    (void)unused;
}

static int test_gate_open __attribute__((unused));

static inline void test_gate(void *unused)
{
    (void)unused;
    while (!__atomic_load_n(&test_gate_open, __ATOMIC_SEQ_CST))
        usleep(100);
}

static inline int test_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    int failed;

    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
