/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is kept of functions (preload/function/functions.c) over a driver of this file: nothing of those whose modules are
 * gone, and no handle is asked by the wrong call.
 */
#include "preload/base/driver.h"
#include "preload/function/functions.h"
#include "preload/session/session.h"

#include <check.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- in the library's place ---- */

struct driver driver_table;
static struct spec *spec;
static unsigned n_asked, n_wrong;

struct run *session_run(void)
{
    return (struct run *)&session;
}

void run_problem(struct run *run, const char *site, const char *reason, const char *sentence)
{
    (void)run, (void)site, (void)reason, (void)sentence;
}

void *driver_real_dlsym(void *handle, const char *name)
{
    (void)handle, (void)name;
    return NULL;
}

/* What is kept hangs on tables in mapped memory, where LeakSanitizer does not look. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:functions_add\nleak:functions_lookup\n";
}

/* ---- a driver: handles below 1 << 30 are functions, those above are kernels ---- */

static bool is_kernel(const void *handle)
{
    return (uintptr_t)handle >> 30;
}

static CUresult name_of(const char **name, const void *handle, bool kernel)
{
    n_asked++;
    n_wrong += is_kernel(handle) != kernel;
    *name = (uintptr_t)handle % 2 ? "block" : "other";
    return CUDA_SUCCESS;
}

static CUresult function_name(const char **name, CUfunction f)
{
    return name_of(name, f, false);
}

static CUresult kernel_name(const char **name, CUkernel k)
{
    return name_of(name, k, true);
}

static CUstreamCaptureMode mode; /* of the thread */

static CUresult exchange_mode(CUstreamCaptureMode *other)
{
    CUstreamCaptureMode before = mode;
    mode = *other;
    *other = before;
    return CUDA_SUCCESS;
}

/* Either may load the function, which a thread that captures in another mode may not do. */
static CUresult function_param(CUfunction f, size_t i, size_t *offset, size_t *size)
{
    n_wrong += is_kernel(f) || mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    *offset = i * 8, *size = 8;
    return i < 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult kernel_param(CUkernel k, size_t i, size_t *offset, size_t *size)
{
    n_wrong += !is_kernel(k) || mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    *offset = i * 8, *size = 8;
    return i < 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* As drivers do, of a kernel: an error, where other calls fault. */
static CUresult function_attribute(int *value, CUfunction_attribute attribute, CUfunction f)
{
    (void)attribute;
    *value = 1;
    return is_kernel(f) ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

static const void *handle(unsigned i)
{
    return (const void *)(uintptr_t)i;
}

static const void *kernel(unsigned i)
{
    return handle((1u << 30) + i);
}

static void setup(void)
{
    static const char text[] =
        "hookspec: 1\nsites:\n  - {name: x, kernel: '^block$', pointer: 'arg[0]', dtype: u8, "
        "dims: [{row: true, count: 1}]}\n";
    struct spec_errors errors = { 0 };
    ck_assert_int_eq(spec_parse("test", text, strlen(text), NULL, 0, &errors, &spec), 0);
    spec_errors_deinit(&errors);
    session.spec = spec;
    driver_table.cuThreadExchangeStreamCaptureMode = exchange_mode;
    driver_table.cuFuncGetAttribute = function_attribute;
    driver_table.cuFuncGetName = function_name;
    driver_table.cuKernelGetName = kernel_name;
    driver_table.cuFuncGetParamInfo = function_param;
    driver_table.cuKernelGetParamInfo = kernel_param;
    functions_reset();
    mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    n_asked = n_wrong = 0;
}

static void teardown(void)
{
    ck_assert_int_eq(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    ck_assert_uint_eq(n_wrong, 0);
    spec_free(spec);
}

/* ---- ---- */

START_TEST(modules_that_come_and_go_leave_nothing)
{
    size_t before = 0;
    for (unsigned round = 0; round < 300; round++) {
        const void *module = handle(1000000 + round), *library = handle(2000000 + round);
        functions_note_module(module, library);
        for (unsigned i = 0; i < 100; i++)
            functions_add(spec, handle(round * 200 + 2 * i), FUNC_FUNCTION, "other", module);
        functions_drop_owner(library);
        ck_assert_ptr_null(functions_find(handle(round * 200 + 2)));
        if (round == 20)
            before = mallinfo2().uordblks;
    }
    size_t after = mallinfo2().uordblks;
    ck_assert_msg(after < before + 4096, "%zu bytes, then %zu", before, after);
}
END_TEST

START_TEST(a_module_that_was_a_librarys_is_its_own_after_a_load)
{
    functions_note_module(handle(10), handle(20));
    functions_note_module(handle(10), NULL);
    functions_add(spec, handle(1), FUNC_FUNCTION, "block", handle(10));
    functions_drop_owner(handle(20));
    ck_assert_ptr_nonnull(functions_find(handle(1)));
    functions_drop_owner(handle(10));
    ck_assert_ptr_null(functions_find(handle(1)));
}
END_TEST

START_TEST(each_handle_is_asked_as_what_it_is)
{
    functions_add(spec, handle(1), FUNC_FUNCTION, "block", handle(10));
    functions_add(spec, kernel(1), FUNC_KERNEL, NULL, handle(20));
    functions_add_of_kernel(spec, (CUfunction)handle(3), (CUkernel)kernel(1));
    ck_assert_int_eq(functions_lookup(kernel(1), FUNC_UNKNOWN)->match.n_sites, 1);
    ck_assert_int_eq(functions_lookup(handle(3), FUNC_UNKNOWN)->match.n_sites, 1);
    ck_assert_uint_eq(n_asked,
                      1);       /* the kernel, of its name; the function made of it has the same */
    functions_drop_functions(); /* some context ended */
    ck_assert_int_eq(functions_lookup(handle(1), FUNC_UNKNOWN)->match.n_sites, 1);
    ck_assert_int_eq(functions_lookup(kernel(1), FUNC_UNKNOWN)->match.n_sites, 1);
    ck_assert_int_eq(functions_lookup(kernel(5), FUNC_KERNEL)->match.n_sites, 1);
    ck_assert_int_eq(functions_lookup(handle(5), FUNC_FUNCTION)->match.n_sites, 1);
    ck_assert_int_eq(functions_lookup(handle(7), FUNC_UNKNOWN)->match.n_sites, 1);
    n_asked = 0;
    ck_assert_ptr_eq(functions_lookup(kernel(7), FUNC_UNKNOWN), &func_unmatched);
    ck_assert_ptr_eq(functions_lookup(NULL, FUNC_UNKNOWN), &func_unmatched);
    ck_assert_uint_eq(n_asked, 0);
    ck_assert_uint_eq(n_wrong, 0);
}
END_TEST

/* A call that failed once: who is looked up by name is known by it all the same. */
START_TEST(a_name_that_could_not_be_had_may_come_later)
{
    driver_table.cuFuncGetName = NULL;
    ck_assert_ptr_eq(functions_add(spec, handle(1), FUNC_FUNCTION, NULL, handle(10)),
                     &func_unmatched);
    ck_assert_int_eq(
        functions_add(spec, handle(1), FUNC_FUNCTION, "block", handle(10))->match.n_sites, 1);
    ck_assert_int_eq(functions_find(handle(1))->match.n_sites, 1);
}
END_TEST

/* Drivers before 12.3: what was looked up once needs no second question. */
START_TEST(names_survive_the_end_of_a_context_where_nobody_can_be_asked)
{
    driver_table.cuFuncGetName = NULL;
    driver_table.cuKernelGetName = NULL;
    functions_add(spec, handle(1), FUNC_FUNCTION, "block", handle(10));
    functions_add(spec, handle(2), FUNC_FUNCTION, "other", handle(10));
    functions_add(spec, kernel(1), FUNC_KERNEL, "block", handle(20));
    functions_add_of_kernel(spec, (CUfunction)handle(3), (CUkernel)kernel(1));
    functions_drop_functions();
    ck_assert_int_eq(functions_lookup(handle(1), FUNC_UNKNOWN)->match.n_sites, 1);
    ck_assert_ptr_eq(functions_lookup(handle(2), FUNC_UNKNOWN), &func_unmatched);
    ck_assert_int_eq(functions_lookup(handle(3), FUNC_UNKNOWN)->match.n_sites, 1);
    functions_drop_owner(handle(10));
    ck_assert_ptr_eq(functions_lookup(handle(1), FUNC_UNKNOWN), &func_unmatched);
    functions_drop_owner(handle(20));
    ck_assert_ptr_eq(functions_lookup(handle(3), FUNC_UNKNOWN), &func_unmatched);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("functions");
    TCase *functions = tcase_create("functions");
    tcase_add_checked_fixture(functions, setup, teardown);
    tcase_add_test(functions, modules_that_come_and_go_leave_nothing);
    tcase_add_test(functions, a_module_that_was_a_librarys_is_its_own_after_a_load);
    tcase_add_test(functions, each_handle_is_asked_as_what_it_is);
    tcase_add_test(functions, a_name_that_could_not_be_had_may_come_later);
    tcase_add_test(functions, names_survive_the_end_of_a_context_where_nobody_can_be_asked);
    suite_add_tcase(suite, functions);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
