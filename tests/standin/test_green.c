/* SPDX-License-Identifier: Apache-2.0 */
/* Green contexts: resources, streams, what runs in them and what outlives them. */
#include "test_standin.h"

static CUcontext primary;

static void setup(void)
{
    ok(cuInit(0));
    ok(cuDevicePrimaryCtxRetain(&primary, 0));
    ok(cuCtxSetCurrent(primary));
    ok(cuModuleLoadData(&test_module, test_ptx));
}

static CUgreenCtx new_green(void)
{
    CUdevResource all, half;
    CUdevResourceDesc desc;
    CUgreenCtx green;
    unsigned n = 1;

    ok(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    ok(cuDevSmResourceSplitByCount(&half, &n, &all, NULL, 0, 4));
    ok(cuDevResourceGenerateDesc(&desc, &half, 1));
    ok(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    return green;
}

static CUstream green_stream(CUgreenCtx green)
{
    CUstream stream;

    ok(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    return stream;
}

START_TEST(multiprocessors_are_split_in_groups)
{
    CUdevResource all, groups[4], rest, seen;
    CUdevResourceDesc desc;
    CUgreenCtx green;
    CUcontext ctx;
    unsigned n;

    fails(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_INVALID),
          CUDA_ERROR_INVALID_RESOURCE_TYPE);
    ok(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    ck_assert_uint_eq(all.sm.smCount, 8);
    ok(cuDevSmResourceSplitByCount(NULL, &n, &all, NULL, 0, 3));
    ck_assert_uint_eq(n, 2); /* at least four in a group */
    n = 1;
    ok(cuDevSmResourceSplitByCount(groups, &n, &all, &rest, 0, 5));
    ck_assert_uint_eq(groups[0].sm.smCount, 6);
    ck_assert_uint_eq(rest.sm.smCount, 2);
    n = 4;
    ok(cuDevSmResourceSplitByCount(groups, &n, &all, &rest,
                                   CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING, 1));
    ck_assert_uint_eq(n, 4);
    ck_assert_uint_eq(groups[3].sm.smCount, 2);
    fails(cuDevSmResourceSplitByCount(groups, &n, &all, &rest, 0, 9), CUDA_ERROR_INVALID_VALUE);
    seen = groups[0];
    fails(cuDevSmResourceSplitByCount(&rest, &n, &seen, NULL, 0, 2),
          CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    ok(cuDevResourceGenerateDesc(&desc, groups, 3));
    fails(cuGreenCtxCreate(&green, desc, 0, 0), CUDA_ERROR_INVALID_VALUE);
    ok(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    ok(cuGreenCtxGetDevResource(green, &seen, CU_DEV_RESOURCE_TYPE_SM));
    ck_assert_uint_eq(seen.sm.smCount, 6);
    ok(cuCtxFromGreenCtx(&ctx, green));
    ok(cuCtxGetDevResource(ctx, &seen, CU_DEV_RESOURCE_TYPE_SM));
    ck_assert_uint_eq(seen.sm.smCount, 6);
    ok(cuCtxGetDevResource(primary, &seen, CU_DEV_RESOURCE_TYPE_SM));
    ck_assert_uint_eq(seen.sm.smCount, 8);
    groups[1] = all;
    fails(cuDevResourceGenerateDesc(&desc, groups, 2), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
}
END_TEST

START_TEST(a_stream_says_whose_it_is)
{
    CUgreenCtx green = new_green(), seen_green;
    CUstream stream = green_stream(green), plain, inside;
    CUcontext ctx, seen;
    unsigned long long id, primary_id, green_id;

    ok(cuCtxFromGreenCtx(&ctx, green));
    ck_assert_ptr_ne(ctx, primary);
    ok((cuStreamGetCtx)(stream, &seen));
    ck_assert_ptr_eq(seen, ctx);
    ok(cuStreamGetCtx_v2(stream, &seen, &seen_green));
    ck_assert_ptr_eq(seen, primary);
    ck_assert_ptr_eq(seen_green, green);
    ok(cuStreamGetGreenCtx(stream, &seen_green));
    ck_assert_ptr_eq(seen_green, green);
    ok(cuStreamCreate(&plain, CU_STREAM_NON_BLOCKING));
    ok(cuStreamGetCtx_v2(plain, &seen, &seen_green));
    ck_assert_ptr_eq(seen, primary);
    ck_assert_ptr_null(seen_green);
    ok(cuCtxGetId(ctx, &id));
    ok(cuCtxGetId(primary, &primary_id));
    ck_assert_uint_ne(id, primary_id);
    ok(cuGreenCtxGetId(green, &green_id));
    fails(cuGreenCtxGetId(NULL, &id), CUDA_ERROR_INVALID_CONTEXT);
    ok(cuCtxSetCurrent(ctx));
    ok(cuGreenCtxGetId(NULL, &id));
    ck_assert_uint_eq(id, green_id);
    ok(cuStreamCreate(&inside, CU_STREAM_NON_BLOCKING));
    ok((cuStreamGetCtx)(inside, &seen));
    ck_assert_ptr_eq(seen, ctx);
    ok(cuStreamGetGreenCtx(NULL, &seen_green));
    ck_assert_ptr_eq(seen_green, green);
    fails(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_DEFAULT, 0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(memory_is_the_primary_contexts)
{
    CUgreenCtx green = new_green();
    CUcontext ctx, seen;
    CUdeviceptr p;

    ok(cuCtxFromGreenCtx(&ctx, green));
    ok(cuCtxSetCurrent(ctx));
    ok(cuMemAlloc_v2(&p, 256));
    ok(cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_CONTEXT, p));
    ck_assert_ptr_eq(seen, primary);
    ok(cuMemsetD32_v2(p, 5, 64));
    ok(cuCtxSynchronize());
    fails(cuCtxDestroy_v2(ctx), CUDA_ERROR_INVALID_CONTEXT);
    ok(cuGreenCtxDestroy(green));
    fails(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    ok(cuCtxSetCurrent(primary));
    ck_assert_uint_eq(test_read(p), 5);
}
END_TEST

START_TEST(streams_end_with_their_context)
{
    CUgreenCtx green = new_green();
    CUstream stream = green_stream(green), gone = green_stream(green);

    ok(cuStreamDestroy_v2(gone));
    ok(cuGreenCtxDestroy(green));
    fails(cuStreamSynchronize(stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    fails(cuStreamQuery(stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    fails(cuStreamDestroy_v2(stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    ok(cuCtxSynchronize());
}
END_TEST

static CUresult poke(CUfunction function, CUdeviceptr p, uint32_t v, CUstream stream)
{
    void *params[] = { &p, &v };

    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}

START_TEST(libraries_run_everywhere_and_modules_where_they_were_loaded)
{
    CUgreenCtx green = new_green();
    CUstream stream = green_stream(green);
    CUdeviceptr p = test_zeros(12), global, same;
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    CUmodule module;
    CUcontext ctx;
    size_t size;

    ok(cuLibraryLoadData(&library, test_ptx, NULL, NULL, 0, NULL, NULL, 0));
    ok(cuLibraryGetKernel(&kernel, library, "poke"));
    ok(cuLibraryGetGlobal(&global, &size, library, "counter"));
    ok(poke((CUfunction)kernel, p, 1, stream));
    ok(cuKernelGetFunction(&function, kernel));
    ok(poke(function, p + 4, 2, stream));
    fails(poke(test_function("poke"), p, 3, stream), CUDA_ERROR_INVALID_HANDLE);
    ok(cuCtxFromGreenCtx(&ctx, green));
    ok(cuCtxSetCurrent(ctx));
    ok(cuLibraryGetGlobal(&same, &size, library, "counter"));
    ck_assert_uint_eq(same, global);
    ok(cuModuleLoadData(&module, test_ptx));
    ok(cuModuleGetFunction(&function, module, "poke"));
    ok(poke(function, p + 8, 4, stream));
    ok(cuStreamSynchronize(stream));
    ok(cuCtxSetCurrent(primary));
    for (unsigned i = 0; i < 3; i++)
        ck_assert_uint_eq(test_read(p + 4 * i), 1u << i);
}
END_TEST

START_TEST(a_primary_contexts_functions_run_where_that_is_chosen)
{
    CUdeviceptr p;
    CUgreenCtx green;
    CUstream stream;

    setenv("DMI_STANDIN_GREEN_FUNCTIONS", "any", 1);
    setup();
    p = test_zeros(4);
    green = new_green();
    stream = green_stream(green);
    ok(poke(test_function("poke"), p, 3, stream));
    ok(cuStreamSynchronize(stream));
    ck_assert_uint_eq(test_read(p), 3);
}
END_TEST

START_TEST(events_and_synchronisation_reach_into_green_contexts)
{
    CUgreenCtx green = new_green(), other = new_green();
    CUstream a = green_stream(green), b = green_stream(other), later;
    CUevent event, of_all;

    ok(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    ok(cuEventCreate(&of_all, CU_EVENT_DISABLE_TIMING));
    ok(cuLaunchHostFunc(a, test_gate, NULL));
    ok(cuGreenCtxRecordEvent(green, event));
    fails(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    ok(cuGreenCtxWaitEvent(other, event));
    ok(cuEventRecord(of_all, b)); /* an event of the primary context on a green stream */
    fails(cuEventQuery(of_all), CUDA_ERROR_NOT_READY);
    later = green_stream(other);
    ok(cuEventRecord(of_all, later));
    fails(cuStreamQuery(later), CUDA_ERROR_NOT_READY);
    ok(cuCtxRecordEvent(primary, of_all));
    fails(cuEventQuery(of_all), CUDA_ERROR_NOT_READY);
    __atomic_store_n(&test_gate_open, 1, __ATOMIC_SEQ_CST);
    ok(cuCtxSynchronize()); /* of the primary context: green ones too */
    ok(cuEventQuery(of_all));
    ok(cuStreamQuery(later));
    ok(cuStreamQuery(a));
}
END_TEST

START_TEST(a_fault_in_a_green_context_is_the_primary_contexts)
{
    CUgreenCtx green = new_green();
    CUstream stream = green_stream(green);
    CUlibrary library;
    CUkernel kernel;

    ok(cuLibraryLoadData(&library, test_ptx, NULL, NULL, 0, NULL, NULL, 0));
    ok(cuLibraryGetKernel(&kernel, library, "poke"));
    ok(poke((CUfunction)kernel, 64, 1, stream));
    fails(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    fails(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("green");
    TCase *green = tcase_create("green"), *modes = tcase_create("modes");

    tcase_add_checked_fixture(green, setup, NULL);
    tcase_add_test(green, multiprocessors_are_split_in_groups);
    tcase_add_test(green, a_stream_says_whose_it_is);
    tcase_add_test(green, memory_is_the_primary_contexts);
    tcase_add_test(green, streams_end_with_their_context);
    tcase_add_test(green, libraries_run_everywhere_and_modules_where_they_were_loaded);
    tcase_add_test(green, events_and_synchronisation_reach_into_green_contexts);
    tcase_add_test(green, a_fault_in_a_green_context_is_the_primary_contexts);
    suite_add_tcase(suite, green);
    tcase_add_test(modes, a_primary_contexts_functions_run_where_that_is_chosen);
    suite_add_tcase(suite, modes);
    return test_run(suite);
}
