/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that are called: those in which threads wait, memory of each, and chains that are refused. */
#include "test_device.h"

/* out[tid]; the code in between is up to the kernel */
#define KERNEL(name, body)                                                                         \
    ".visible .entry " name "(.param .u64 out)\n{\n"                                               \
    ".reg .pred %p<4>; .reg .b32 %r<8>, %t, %x; .reg .b64 %d<4>;\n"                                \
    "ld.param.u64 %d1, [out]; mov.u32 %t, %tid.x; mul.wide.u32 %d2, %t, 4; add.s64 %d1, %d1, "     \
    "%d2;\n"                                                                                       \
    "mov.u32 %x, 0;\n" body "\nst.global.u32 [%d1], %x; ret;\n}\n"

/* { x = f(a) } as a compiler writes it */
#define CALL(guard, f, a, x)                                                                       \
    "{ .param .b32 p0; .param .b32 back; st.param.b32 [p0], " a "; " guard "call.uni (back), " f   \
    ", (p0); ld.param.b32 " x ", [back]; }\n"

static const char text[] = PTX_HEAD
    ".shared .align 4 .b32 module_tile[64];\n"
    /* the value of the neighbour to the right, by way of memory and a barrier */
    ".func (.param .b32 r) neighbour(.param .b32 v)\n{\n"
    ".reg .b32 %r<8>; .shared .align 4 .b32 tile[64];\n"
    "ld.param.b32 %r1, [v]; mov.u32 %r2, %tid.x; mov.u32 %r3, tile; shl.b32 %r4, %r2, 2; add.u32 "
    "%r4, %r3, %r4;\n"
    "bar.sync 0; st.shared.u32 [%r4], %r1; bar.sync 0; add.u32 %r5, %r2, 1; and.b32 %r5, %r5, 63; "
    "shl.b32 %r5, %r5, 2;\n"
    "add.u32 %r5, %r3, %r5; ld.shared.u32 %r6, [%r5]; st.param.b32 [r], %r6; ret;\n}\n"
    /* twice as far, with a value of its own kept in local memory over both waits */
    ".func (.param .b32 r) next_but_one(.param .b32 v)\n{\n"
    ".reg .b32 %r<8>; .reg .pred %p1; .local .align 4 .b32 kept[2];\n"
    "ld.param.b32 %r1, [v]; st.local.u32 [kept+4], %r1;\n" CALL("", "neighbour", "%r1", "%r2") CALL(
        "", "neighbour", "%r2",
        "%r3") "ld.local.u32 %r4, [kept+4]; shl.b32 %r4, %r4, 16; add.u32 %r3, %r3, %r4; "
               "st.param.b32 [r], %r3;\n"
               "setp.eq.u32 %p1, %r1, 1; @%p1 ret; add.u32 %r3, %r3, 1000; st.param.b32 [r], %r3; "
               "ret;\n}\n"
               ".func (.param .b32 r) warp_sum(.param .b32 v)\n{\n.reg .b32 %r<4>;\n"
               "ld.param.b32 %r1, [v]; redux.sync.add.u32 %r2, %r1, -1; st.param.b32 [r], %r2; "
               "ret;\n}\n"
               ".func (.param .b32 r) square(.param .b32 v)\n{\n.reg .b32 %r<4>; .local .align 16 "
               ".b8 depot[64];\n"
               "ld.param.b32 %r1, [v]; st.local.u32 [depot+60], %r1; mul.lo.u32 %r1, %r1, %r1; "
               "st.param.b32 [r], %r1; ret;\n}\n" KERNEL("once", CALL("", "neighbour", "%t", "%x"))
                   KERNEL("nested", CALL("", "next_but_one", "%t", "%x"))
                       KERNEL("loop",
                              "mov.u32 %r1, 0; mov.u32 %x, %t;\nL:" CALL(
                                  "", "neighbour", "%x",
                                  "%x") "add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 5; @%p1 bra L;")
    /* the second warp calls, the first does not */
    KERNEL("guarded",
           "setp.ge.u32 %p1, %t, 32; mov.u32 %x, 7;\n"
           "{ .param .b32 p0; .param .b32 back; st.param.b32 [p0], %t; st.param.b32 [back], %x;\n"
           "@%p1 call.uni (back), warp_sum, (p0); ld.param.b32 %x, [back]; }\n")
        KERNEL("plain", ".shared .align 4 .b32 mine[8];\n" CALL("", "square", "%t", "%x"))
            KERNEL("large", ".shared .align 4 .b32 mine[1000];\n st.shared.u32 [mine+3996], %t; "
                            "ld.shared.u32 %x, [mine+3996];")
                KERNEL("both", ".shared .align 4 .b32 mine[64];\n mov.u32 %r1, mine; mov.u32 %r2, "
                               "module_tile; sub.u32 %x, %r1, %r2;");

/* functions that registers name: by mov, from tables in constant and global memory, with and without waiting */
static const char pointers[] = PTX_HEAD
    ".visible .func (.param .b32 r) twice(.param .b32 v);\n"
    ".visible .func (.param .b32 r) square(.param .b32 v);\n"
    ".visible .func (.param .b32 r) sum(.param .b32 v);\n"
    ".visible .func (.param .b32 r) third(.param .b64 v, .param .b32 w);\n"
    ".const .align 8 .u64 table[4] = {twice, square, sum, 0};\n"
    ".visible .global .align 8 .u64 rest[2] = {7, third};\n"
    ".visible .func (.param .b32 r) third(.param .b64 v, .param .b32 w)\n{ .reg .b32 %r1; "
    "ld.param.u32 "
    "%r1, [w]; st.param.b32 [r], %r1; ret; }\n"
    ".visible .func (.param .b32 r) twice(.param .b32 v)\n{ .reg .b32 %r1; ld.param.u32 %r1, [v]; "
    "add.u32 %r1, %r1, %r1; st.param.b32 [r], %r1; ret; }\n"
    ".visible .func (.param .b32 r) square(.param .b32 v)\n{ .reg .b32 %r1; .local .b8 l[400]; "
    "ld.param.u32 %r1, [v]; mul.lo.u32 %r1, %r1, %r1; st.param.b32 [r], %r1; ret; }\n"
    ".visible .func (.param .b32 r) sum(.param .b32 v)\n{ .reg .b32 %r<3>; ld.param.u32 %r1, [v]; "
    "redux.sync.add.u32 %r2, %r1, -1; st.param.b32 [r], %r2; ret; }\n"
    ".visible .func nothing() { ret; }\n"
#define INDIRECT(guard, a, x)                                                                      \
    "{ .param .b32 p0; .param .b32 back; st.param.b32 [p0], " a "; st.param.b32 [back], 55;\n"     \
    "proto: .callprototype (.param .b32 _) _ (.param .b32 _);\n" guard                             \
    "call (back), %d3, (p0), proto; ld.param.b32 " x ", [back]; }\n"
    /* which entry of the table is found where the result goes */
    KERNEL("from_table",
           ".reg .b32 %w; mov.u64 %d3, table; ld.global.u32 %w, [%d1]; mul.wide.u32 "
           "%d2, %w, 8; add.s64 %d3, %d3, %d2; ld.const.u64 %d3, [%d3];\n" INDIRECT("", "%t", "%x"))
        KERNEL("guarded",
               "mov.u64 %d3, square; setp.lt.u32 %p1, %t, 40;\n" INDIRECT("@%p1 ", "%t", "%x"))
            KERNEL("either", "setp.lt.u32 %p1, %t, 40; @%p1 mov.u64 %d3, twice; @!%p1 mov.u64 %d3, "
                             "square;\n" INDIRECT("", "%t", "%x"))
                KERNEL("other_arguments", "ld.global.u64 %d3, [rest+8];\n" INDIRECT("", "%t", "%x"))
                    KERNEL("without", "mov.u64 %d3, nothing; P: .callprototype _ (); call %d3, P; "
                                      "call %d3, (), P; mov.u32 %x, 3;");

static const struct ptx_module *module;

static const uint32_t *run(const char *name)
{
    uint64_t out = DEVICE_BASE;
    ck_assert_int_eq(device_run(device_kernel(module, name), 1, 64, &out), PTX_OK);
    return device_at(DEVICE_BASE);
}

static int load(const char *ptx, char *log, size_t n_log)
{
    struct ptx_module *m = NULL;
    int r = ptx_module_load(ptx, strlen(ptx), NULL, &m, log, n_log);
    if (r == PTX_OK)
        ptx_module_free(m);
    return r;
}

START_TEST(a_called_function_may_hold_a_barrier)
{
    const uint32_t *out = run("once");
    for (uint32_t t = 0; t < 64; t++)
        ck_assert_uint_eq(out[t], (t + 1) & 63);
}
END_TEST

START_TEST(calls_within_calls_keep_each_threads_values)
{
    const uint32_t *out = run("nested");
    for (uint32_t t = 0; t < 64; t++)
        ck_assert_uint_eq(out[t], ((t + 2) & 63) + (t << 16) + (t == 1 ? 0 : 1000));
}
END_TEST

START_TEST(a_loop_calls_again)
{
    const uint32_t *out = run("loop");
    for (uint32_t t = 0; t < 64; t++)
        ck_assert_uint_eq(out[t], (t + 5) & 63);
}
END_TEST

START_TEST(a_guarded_call_is_left_out)
{
    const uint32_t *out = run("guarded");
    for (uint32_t t = 0; t < 64; t++)
        ck_assert_uint_eq(out[t], t < 32 ? 7 : (32 + 63) * 16);
}
END_TEST

START_TEST(a_function_that_does_not_wait_is_called)
{
    const uint32_t *out = run("plain");
    for (uint32_t t = 0; t < 64; t++)
        ck_assert_uint_eq(out[t], t * t);
}
END_TEST

static void write_word(void *context, uint64_t address, uint64_t value)
{
    (void)context;
    memcpy(device_at(address), &value, sizeof value);
}

/* The kernel's 64 results; each found @which where its result goes */
static int run_pointers(const char *name, uint32_t which, uint32_t *out)
{
    static struct ptx_module *m;
    uint64_t at = DEVICE_BASE;
    if (!m) {
        m = device_load(pointers);
        for (size_t i = 0; i < ptx_module_n_globals(m); i++) {
            const struct ptx_global *g = ptx_module_global(m, i);
            ptx_module_bind(m, i, DEVICE_BASE + 4096 + 256 * i);
            memcpy(device_at(DEVICE_BASE + 4096 + 256 * i), g->init, g->size);
        }
        ptx_module_init_addresses(m, write_word, NULL);
    }
    for (unsigned t = 0; t < 64; t++)
        ((uint32_t *)device_at(at))[t] = which;
    int r = device_run(device_kernel(m, name), 1, 64, &at);
    memcpy(out, device_at(at), 256);
    return r;
}

START_TEST(a_register_says_which_function)
{
    uint32_t out[64];
    for (uint32_t which = 0; which < 3; which++) {
        ck_assert_int_eq(run_pointers("from_table", which, out), PTX_OK);
        for (uint32_t t = 0; t < 64; t++)
            ck_assert_uint_eq(out[t], which == 0   ? 2 * t
                                      : which == 1 ? t * t
                                                   : (t / 32 * 64 + 31) * 16);
    }
    ck_assert_int_eq(run_pointers("guarded", 0, out), PTX_OK);
    ck_assert_uint_eq(out[39], 39 * 39);
    ck_assert_uint_eq(out[40], 55);
    ck_assert_int_eq(run_pointers("either", 0, out), PTX_OK);
    ck_assert_uint_eq(out[39], 2 * 39);
    ck_assert_uint_eq(out[40], 40 * 40);
    ck_assert_int_eq(run_pointers("without", 0, out), PTX_OK);
    ck_assert_uint_eq(out[63], 3);
}
END_TEST

START_TEST(a_register_that_names_no_such_function_traps)
{
    uint32_t out[64];
    ck_assert_int_eq(run_pointers("from_table", 3, out), PTX_E_TRAP); /* NULL */
    ck_assert_int_eq(run_pointers("other_arguments", 0, out), PTX_E_TRAP);
}
END_TEST

START_TEST(a_kernel_has_the_shared_memory_that_it_names)
{
    ck_assert_uint_eq(ptx_kernel_info(device_kernel(module, "plain"))->static_shared, 32);
    ck_assert_uint_eq(ptx_kernel_info(device_kernel(module, "large"))->static_shared, 4000);
    ck_assert_uint_eq(ptx_kernel_info(device_kernel(module, "guarded"))->static_shared, 0);
    /* after the module's own: module_tile, and the tile of neighbour() */
    ck_assert_uint_eq(ptx_kernel_info(device_kernel(module, "both"))->static_shared, 512 + 256);
    ck_assert_uint_eq(run("both")[0], 512);
    ck_assert_uint_eq(run("large")[9], 9);
}
END_TEST

START_TEST(a_kernel_has_the_local_memory_of_its_deepest_call)
{
    ck_assert_uint_eq(ptx_kernel_info(device_kernel(module, "plain"))->local_bytes, 64);
    ck_assert_uint_ge(ptx_kernel_info(device_kernel(module, "nested"))->local_bytes, 8);
    ck_assert_uint_eq(ptx_kernel_info(device_kernel(module, "large"))->local_bytes, 0);
}
END_TEST

START_TEST(recursion_is_refused_by_name)
{
    char log[512] = "";
    ck_assert_int_eq(load(PTX_HEAD
                          ".func f();\n.func g() { call f; ret; }\n.func f() { call g; ret; }\n"
                          ".entry k() { call f; ret; }\n",
                          log, sizeof log),
                     PTX_E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(log, "recursion"));
}
END_TEST

START_TEST(calls_that_multiply_end_soon)
{
    char log[512] = "", *ptx = NULL;
    size_t n;
    FILE *f = open_memstream(&ptx, &n);
    fputs(PTX_HEAD ".func f0() { bar.sync 0; ret; }\n", f);
    for (int i = 1; i < 40; i++)
        fprintf(f, ".func f%d() { call f%d; call f%d; ret; }\n", i, i - 1, i - 1);
    fputs(".entry k() { call f39; ret; }\n", f);
    fclose(f);
    ck_assert_int_eq(load(ptx, log, sizeof log), PTX_E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(log, "multiply"));
    free(ptx);
}
END_TEST

START_TEST(too_much_shared_memory_is_refused)
{
    char log[512] = "";
    ck_assert_int_eq(load(PTX_HEAD
                          ".entry big() { .shared .b8 x[300000]; st.shared.u8 [x], 0; ret; }\n",
                          log, sizeof log),
                     PTX_E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(log, "big"));
}
END_TEST

int main(void)
{
    device_fresh_cache();
    module = device_load(text);
    Suite *suite = suite_create("ptx_calls");
    TCase *tc = tcase_create("calls");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_called_function_may_hold_a_barrier);
    tcase_add_test(tc, calls_within_calls_keep_each_threads_values);
    tcase_add_test(tc, a_loop_calls_again);
    tcase_add_test(tc, a_guarded_call_is_left_out);
    tcase_add_test(tc, a_function_that_does_not_wait_is_called);
    tcase_add_test(tc, a_register_says_which_function);
    tcase_add_test(tc, a_register_that_names_no_such_function_traps);
    tcase_add_test(tc, a_kernel_has_the_shared_memory_that_it_names);
    tcase_add_test(tc, a_kernel_has_the_local_memory_of_its_deepest_call);
    tcase_add_test(tc, recursion_is_refused_by_name);
    tcase_add_test(tc, calls_that_multiply_end_soon);
    tcase_add_test(tc, too_much_shared_memory_is_refused);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    device_remove_cache();
    return failed ? 1 : 0;
}
