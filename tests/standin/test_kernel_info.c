/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels say of themselves: when it can be asked, and how much shared memory there is. */
#include "test_standin.h"

START_TEST(a_kernels_parameters_are_known_in_a_context)
{
    CUlibrary library;
    CUkernel kernel;
    size_t offset, size;

    ok(cuInit(0));
    ok(cuLibraryLoadData(&library, test_ptx, NULL, NULL, 0, NULL, NULL, 0));
    ok(cuLibraryGetKernel(&kernel, library, "add"));
    fails(cuKernelGetParamInfo(kernel, 1, &offset, &size), CUDA_ERROR_INVALID_CONTEXT);
    ok(cuCtxCreate_v2(&test_ctx, 0, 0));
    ok(cuKernelGetParamInfo(kernel, 1, &offset, &size));
    ck_assert_uint_eq(offset, 8);
    ck_assert_uint_eq(size, 4);
    fails(cuKernelGetParamInfo(kernel, 3, &offset, &size), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(shared_memory_is_what_a_block_may_have)
{
    CUfunction add;
    size_t n;
    int most, of_multiprocessor;

    test_setup_module();
    add = test_function("add");
    ok(cuDeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 0));
    ok(cuDeviceGetAttribute(&of_multiprocessor,
                            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 0));
    ok(cuOccupancyAvailableDynamicSMemPerBlock(&n, add, 1, 256));
    ck_assert_uint_eq(n, (size_t)most);
    ok(cuOccupancyAvailableDynamicSMemPerBlock(&n, add, 8, 32));
    ck_assert_uint_le(8 * n, (size_t)of_multiprocessor);
    ok(cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000));
    ok(cuOccupancyAvailableDynamicSMemPerBlock(&n, add, 1, 256));
    ck_assert_uint_eq(n, 100000);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernel info");
    TCase *info = tcase_create("info");

    tcase_add_test(info, a_kernels_parameters_are_known_in_a_context);
    tcase_add_test(info, shared_memory_is_what_a_block_may_have);
    suite_add_tcase(suite, info);
    return test_run(suite);
}
