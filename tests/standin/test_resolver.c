/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuGetProcAddress against the toolkit: oracle.inc holds what cudaTypedefs.h says of names and versions,
 * made by gen_oracle.py independently of driver.def; the address must be the exported symbol's.
 */
#include "test_standin.h"

#include <dlfcn.h>

/* Every typedef: name, version, per-thread; several versions of a name in rising order. */
static const struct {
    const char *name;
    int version;
    int per_thread;
    int nth; /* among the versions of its kind, from 1 */
} oracle[] = {
#include "oracle.inc"
};

static void *lib;

static void *exported(const char *name, int nth, const char *suffix)
{
    char symbol[128];

    if (nth > 1)
        snprintf(symbol, sizeof(symbol), "%s_v%d%s", name, nth, suffix);
    else
        snprintf(symbol, sizeof(symbol), "%s%s", name, suffix);
    return dlsym(lib, symbol);
}

/* Per-thread symbols carry the number of their legacy form, which may be any. */
static int is_per_thread(const char *name, const void *pfn)
{
    for (int nth = 1; nth < 5; nth++) {
        if (pfn == exported(name, nth, "_ptsz") || pfn == exported(name, nth, "_ptds"))
            return 1;
    }
    return 0;
}

/* The number of @name's newest legacy variant not above @version, 0: there is none. */
static int newest(const char *name, int version)
{
    int nth = 0;

    for (size_t i = 0; i < sizeof(oracle) / sizeof(oracle[0]); i++) {
        if (strcmp(oracle[i].name, name) == 0 && !oracle[i].per_thread &&
            oracle[i].version <= version && oracle[i].nth > nth)
            nth = oracle[i].nth;
    }
    return nth;
}

/* Asked for @version, a driver answers with what it had by then, if it has it. */
static void expect(const char *name, int version, int driver)
{
    CUdriverProcAddressQueryResult status;
    void *pfn = &pfn;
    int nth = newest(name, version < driver ? version : driver);

    ok(cuGetProcAddress_v2(name, &pfn, version, 0, &status));
    ck_assert_msg(pfn == (nth ? exported(name, nth, "") : NULL), "%s at %d", name, version);
    ck_assert_msg(status == (nth                    ? CU_GET_PROC_ADDRESS_SUCCESS
                             : newest(name, driver) ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                                    : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND),
                  "%s at %d: status %d", name, version, (int)status);
}

START_TEST(every_typedef_resolves_to_its_export)
{
    int driver;

    ok(cuDriverGetVersion(&driver));
    for (size_t i = 0; i < sizeof(oracle) / sizeof(oracle[0]); i++) {
        CUdriverProcAddressQueryResult status;
        void *pfn = NULL;

        if (!oracle[i].per_thread) {
            expect(oracle[i].name, oracle[i].version, driver);
        } else if (oracle[i].version <= driver) {
            ok(cuGetProcAddress_v2(oracle[i].name, &pfn, oracle[i].version, 2, &status));
            ck_assert_msg(pfn != NULL && status == 0, "%s at %d", oracle[i].name,
                          oracle[i].version);
            ck_assert_msg(is_per_thread(oracle[i].name, pfn), "%s at %d", oracle[i].name,
                          oracle[i].version);
        }
    }
}
END_TEST

START_TEST(one_version_less_gives_the_variant_before)
{
    int driver;

    ok(cuDriverGetVersion(&driver));
    for (size_t i = 0; i < sizeof(oracle) / sizeof(oracle[0]); i++) {
        if (!oracle[i].per_thread)
            expect(oracle[i].name, oracle[i].version - 1, driver);
    }
}
END_TEST

START_TEST(unknown_and_suffixed_names_are_not_found)
{
    static const char *const names[] = { "cuMemAlloc_v2", "cuLaunchKernel_ptsz", "cuNothing", "",
                                         "memcpy" };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
        void *pfn = &pfn;

        ok(cuGetProcAddress_v2(names[i], &pfn, 13000, 0, &status));
        ck_assert_ptr_null(pfn);
        ck_assert_int_eq(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
        pfn = &pfn;
        fails((cuGetProcAddress)(names[i], &pfn, 13000, 0), CUDA_ERROR_NOT_FOUND);
        ck_assert_ptr_eq(pfn, &pfn);
    }
}
END_TEST

START_TEST(flags_choose_the_default_stream)
{
    void *pfn[4];

    for (cuuint64_t flags = 0; flags < 4; flags++)
        ok(cuGetProcAddress_v2("cuLaunchKernel", &pfn[flags], 13000, flags, NULL));
    ck_assert_ptr_eq(pfn[0], pfn[1]);
    ck_assert_ptr_eq(pfn[2], pfn[3]);
    ck_assert_ptr_eq(pfn[0], dlsym(lib, "cuLaunchKernel"));
    ck_assert_ptr_eq(pfn[2], dlsym(lib, "cuLaunchKernel_ptsz"));
    fails(cuGetProcAddress_v2("cuLaunchKernel", &pfn[0], 13000, 4, NULL), CUDA_ERROR_INVALID_VALUE);
    /* what has no per-thread variant is the same either way */
    ok(cuGetProcAddress_v2("cuMemAlloc", &pfn[0], 13000, 2, NULL));
    ck_assert_ptr_eq(pfn[0], dlsym(lib, "cuMemAlloc_v2"));
}
END_TEST

START_TEST(instantiate_is_the_five_argument_one_from_11000_on)
{
    void *pfn;

    ok(cuGetProcAddress_v2("cuGraphInstantiate", &pfn, 13000, 0, NULL));
    ck_assert_ptr_eq(pfn, dlsym(lib, "cuGraphInstantiate_v2"));
    ok(cuGetProcAddress_v2("cuGraphInstantiate", &pfn, 10010, 0, NULL));
    ck_assert_ptr_eq(pfn, dlsym(lib, "cuGraphInstantiate"));
}
END_TEST

START_TEST(the_resolver_resolves_itself)
{
    void *pfn;

    ok(cuGetProcAddress_v2("cuGetProcAddress", &pfn, 12000, 0, NULL));
    ck_assert_ptr_eq(pfn, dlsym(lib, "cuGetProcAddress_v2"));
    ok(cuGetProcAddress_v2("cuGetProcAddress", &pfn, 11030, 0, NULL));
    ck_assert_ptr_eq(pfn, dlsym(lib, "cuGetProcAddress"));
}
END_TEST

START_TEST(there_is_no_export_table)
{
    static const CUuuid id = { { 0x42 } };
    const void *table = &table;

    fails(cuGetExportTable(&table, &id), CUDA_ERROR_NOT_FOUND);
    ck_assert_ptr_null(table);
}
END_TEST

START_TEST(entries_not_implemented_say_so)
{
    CUexternalMemory memory;
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = { 0 };

    test_setup();
    fails(cuImportExternalMemory(&memory, &desc), CUDA_ERROR_NOT_SUPPORTED);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("resolver");
    TCase *tcase = tcase_create("resolver");

    lib = dlopen("libcuda.so.1", RTLD_NOW);
    tcase_add_test(tcase, every_typedef_resolves_to_its_export);
    tcase_add_test(tcase, one_version_less_gives_the_variant_before);
    tcase_add_test(tcase, unknown_and_suffixed_names_are_not_found);
    tcase_add_test(tcase, flags_choose_the_default_stream);
    tcase_add_test(tcase, instantiate_is_the_five_argument_one_from_11000_on);
    tcase_add_test(tcase, the_resolver_resolves_itself);
    tcase_add_test(tcase, there_is_no_export_table);
    tcase_add_test(tcase, entries_not_implemented_say_so);
    suite_add_tcase(suite, tcase);
    return test_run(suite);
}
