/* SPDX-License-Identifier: Apache-2.0 */
/* Own kernels are found by whole names, and a neighbour's name finds none. */
#include "operators.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *mangled, *entry; /* NULL: refused */
} names[] = {
    { "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_"
      "addIfEESt5arrayIPcLm3EEEEviT0_T1_",
      "add_f32_dense" },
    /* another type, another number of tensors, a functor that does not exist */
    { "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_"
      "addIsEESt5arrayIPcLm3EEEEviT0_T1_",
      NULL },
    { "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_"
      "addIfEESt5arrayIPcLm4EEEEviT0_T1_",
      NULL },
    { "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_"
      "subIfEESt5arrayIPcLm3EEEEviT0_T1_",
      NULL },
    { "_ZN2at6native29vectorized_elementwise_kernelILi4EZZZNS0_15exp_kernel_cudaERNS_"
      "18TensorIteratorBaseEENKUlvE0_clEvENKUlvE0_"
      "clEvEUlfE_St5arrayIPcLm2EEEEviT0_T1_",
      "exp_f32_dense" },
    /* the lambda beside it */
    { "_ZN2at6native29vectorized_elementwise_kernelILi4EZZZNS0_15exp_kernel_cudaERNS_"
      "18TensorIteratorBaseEENKUlvE0_clEvENKUlvE1_"
      "clEvEUlfE_St5arrayIPcLm2EEEEviT0_T1_",
      NULL },
    { "vectorized_elementwise_kernel", NULL },
    { "_Z", NULL },
    { "", NULL },
};

START_TEST(a_kernel_is_known_by_its_whole_name)
{
    struct operator found = { 0 };
    int result = operators_find(names[_i].mangled, &found);

    if (!names[_i].entry) {
        ck_assert_int_ne(result, 0);
        return;
    }
    ck_assert_int_eq(result, 0);
    ck_assert_str_eq(found.entry, names[_i].entry);
}
END_TEST

START_TEST(a_module_has_one_kernel)
{
    struct operator found = { 0 };
    char entry[128] = ".entry ";
    const char *at;

    ck_assert_int_eq(operators_find(names[0].mangled, &found), 0);
    ck_assert_uint_eq(strlen(found.image) + 1, found.size);
    at = strstr(found.image, strcat(entry, found.entry));
    ck_assert_ptr_nonnull(at);
    ck_assert_ptr_eq(strstr(found.image, ".entry"), at);
    ck_assert_ptr_null(strstr(at + 1, ".entry"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("operators");
    TCase *tests = tcase_create("names");
    SRunner *runner = srunner_create(suite);
    int failed;

    tcase_add_loop_test(tests, a_kernel_is_known_by_its_whole_name, 0,
                        sizeof(names) / sizeof(*names));
    tcase_add_test(tests, a_module_has_one_kernel);
    suite_add_tcase(suite, tests);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
