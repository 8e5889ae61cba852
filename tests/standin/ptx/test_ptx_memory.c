/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses: what a kernel may touch and what it may not, module variables, parameters. */
#include "test_device.h"

#include <signal.h>

static const char text[] = PTX_HEAD
    ".visible .global .align 4 .u32 counter = 5;\n"
    ".visible .const .align 4 .f32 weights[3] = {0f3F800000, -2.5, 0.25};\n"
    ".global .align 1 .b8 message[8] = {104, 105, -1};\n"
    ".visible .global .align 8 .u64 pointers[3] = {counter, generic(message)+2, 7};\n"
    ".global .align 2 .b16 matrix[2][2] = {{1, 2}, {3, -4}};\n"
    ".global .align 16 .b8 zeros[64];\n"
    ".extern .global .align 4 .b8 elsewhere[16];\n"
    ".visible .entry load(.param .u64 from, .param .u64 to)\n{ .reg .b64 %d<4>; .reg .b32 %r1;\n"
    "ld.param.u64 %d1, [from]; ld.param.u64 %d2, [to]; ld.global.u32 %r1, [%d1]; st.global.u32 "
    "[%d2], %r1; ret; }\n"
    ".visible .entry load_generic(.param .u64 from, .param .u64 to)\n{ .reg .b64 %d<4>; .reg .b32 "
    "%r1;\n"
    "ld.param.u64 %d1, [from]; ld.param.u64 %d2, [to]; ld.u32 %r1, [%d1]; st.u32 [%d2], %r1; ret; "
    "}\n"
    ".visible .entry load4(.param .u64 from)\n{ .reg .b64 %d1; .reg .b32 %r<5>;\n"
    "ld.param.u64 %d1, [from]; ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d1]; ret; }\n"
    ".visible .entry add_atomic(.param .u64 at)\n{ .reg .b64 %d1; .reg .b32 %r1;\n"
    "ld.param.u64 %d1, [at]; atom.global.add.u32 %r1, [%d1], 1; ret; }\n"
    ".visible .entry shared_at(.param .u32 at)\n{ .shared .align 4 .b32 s[4]; .reg .b32 %r<3>;\n"
    "ld.param.u32 %r1, [at]; st.shared.u32 [%r1], 1; ret; }\n"
    ".visible .entry local_at(.param .u64 at)\n{ .local .align 4 .b32 l[4]; .reg .b64 %d<3>;\n"
    "ld.param.u64 %d1, [at]; mov.u64 %d2, l; add.u64 %d1, %d1, %d2; st.local.u32 [%d1], 1; ret; }\n"
    /* sum of all that the variables hold, each read on its own way */
    ".visible .entry variables(.param .u64 out)\n{ .reg .b64 %d<8>; .reg .b32 %r<8>; .reg .f32 "
    "%f<4>; ld.param.u64 %d1, [out];\n"
    "ld.global.u32 %r1, [counter]; st.global.u32 [%d1], %r1;\n"
    "ld.const.f32 %f1, [weights+4]; st.global.f32 [%d1+4], %f1;\n"
    "ld.global.u64 %d2, [pointers+8]; ld.global.s8 %r2, [%d2]; st.global.u32 [%d1+8], %r2;\n"
    "ld.global.u64 %d2, [pointers]; ld.u32 %r3, [%d2]; st.global.u32 [%d1+12], %r3;\n"
    "mov.u64 %d3, matrix; ld.global.s16 %r4, [%d3+6]; st.global.u32 [%d1+16], %r4;\n"
    "ld.global.u32 %r5, [elsewhere]; st.global.u32 [%d1+20], %r5;\n"
    "mov.u64 %d4, pointers; cvta.global.u64 %d4, %d4; ld.u64 %d5, [%d4+16]; cvt.u32.u64 %r6, %d5; "
    "st.global.u32 [%d1+24], %r6;\n"
    "atom.global.add.u32 %r7, [counter], 1; ret; }\n"
    ".visible .entry parameters(.param .u64 out, .param .b8 a, .param .b16 b, .param .align 8 .b8 "
    "s[12], .param .f32 f, .param .u64 .ptr .global .align 16 p)\n"
    "{ .reg .b64 %d<8>; .reg .b32 %r<8>; .reg .f32 %f1; ld.param.u64 %d1, [out]; ld.param.s8 %r1, "
    "[a]; ld.param.u16 %r2, [b];\n"
    "ld.param.v2.u32 {%r3, %r4}, [s]; ld.param.u32 %r5, [s+8]; ld.param.f32 %f1, [f]; ld.param.u64 "
    "%d2, [p];\n"
    "st.global.u32 [%d1], %r1; st.global.u32 [%d1+4], %r2; st.global.u32 [%d1+8], %r3; "
    "st.global.u32 [%d1+12], %r4; st.global.u32 [%d1+16], %r5;\n"
    "st.global.f32 [%d1+20], %f1; st.global.u64 [%d1+24], %d2; ret; }\n"
    ".visible .entry limits() .maxntid 32, 4, 1 .minnctapersm 1\n{ .local .b8 l[40]; .shared .b8 "
    "s[24]; .reg .b64 %d1; mov.u64 %d1, l; ret; }\n";

static struct ptx_module *module;

static int run_at(const char *name, uint64_t from, struct ptx_fault *fault)
{
    uint64_t params[] = { from, DEVICE_BASE + 4096 };
    struct ptx_grid grid = { .grid = { 1, 1, 1 }, .block = { 1, 1, 1 } };
    return ptx_launch(device_kernel(module, name), &grid, params, fault);
}

START_TEST(addresses_outside_fault_by_name)
{
    static const uint64_t bad[] = { 0,
                                    4,
                                    DEVICE_BASE - 4,
                                    DEVICE_BASE + DEVICE_BYTES,
                                    DEVICE_BASE + DEVICE_BYTES + 4,
                                    0xfffffffffffffffcull };
    static const char *const kernels[] = { "load", "load_generic", "add_atomic" };
    ck_assert_int_eq(run_at("load", DEVICE_BASE, NULL), PTX_OK);
    ck_assert_int_eq(run_at("load", DEVICE_BASE + DEVICE_BYTES - 4, NULL), PTX_OK);
    for (size_t k = 0; k < 3; k++)
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            struct ptx_fault fault = { 0 };
            ck_assert_int_eq(run_at(kernels[k], bad[i], &fault), PTX_E_FAULT);
            ck_assert_uint_eq(fault.address, bad[i]);
            ck_assert_str_eq(fault.kernel, kernels[k]);
        }
    /* the alias is where device memory really is; a kernel must not use it */
    ck_assert_int_eq(run_at("load", (uint64_t)(uintptr_t)device_memory, NULL), PTX_E_FAULT);
    ck_assert_int_eq(run_at("load4", DEVICE_BASE + DEVICE_BYTES - 16, NULL), PTX_OK);
    ck_assert_int_eq(run_at("load4", DEVICE_BASE + DEVICE_BYTES, NULL), PTX_E_FAULT);
}
END_TEST

START_TEST(misaligned_accesses_fault)
{
    struct ptx_fault fault;
    ck_assert_int_eq(run_at("load", DEVICE_BASE + 2, &fault), PTX_E_FAULT);
    ck_assert_uint_eq(fault.address, DEVICE_BASE + 2);
    ck_assert_int_eq(run_at("load_generic", DEVICE_BASE + 1, NULL), PTX_E_FAULT);
    ck_assert_int_eq(run_at("load4", DEVICE_BASE + 8, NULL), PTX_E_FAULT);
    ck_assert_int_eq(run_at("add_atomic", DEVICE_BASE + 2, NULL), PTX_E_FAULT);
    ck_assert_int_eq(run_at("shared_at", 2, NULL), PTX_E_FAULT);
}
END_TEST

START_TEST(shared_and_local_memory_have_ends)
{
    ck_assert_int_eq(run_at("shared_at", 12, NULL), PTX_OK);
    /* a block gets whole units of 128 bytes (cuda_occupancy.h, compute capability 8 and later) */
    ck_assert_int_eq(run_at("shared_at", 124, NULL), PTX_OK);
    ck_assert_int_eq(run_at("shared_at", 128, NULL), PTX_E_FAULT);
    ck_assert_int_eq(run_at("shared_at", 1 << 20, NULL), PTX_E_FAULT);
    ck_assert_int_eq(run_at("shared_at", 0xfffffffc, NULL), PTX_E_FAULT);
    ck_assert_int_eq(run_at("local_at", 12, NULL), PTX_OK);
    ck_assert_int_eq(run_at("local_at", 16, NULL), PTX_E_FAULT);
    ck_assert_int_eq(run_at("local_at", (uint64_t)-4, NULL), PTX_E_FAULT);
}
END_TEST

START_TEST(host_memory_only_where_mapped)
{
    static _Alignas(64) uint32_t host[16] = { 42, 43 };
    uint64_t at = (uint64_t)(uintptr_t)host;
    uint32_t got;
    ck_assert_int_eq(run_at("load", at, NULL), PTX_E_FAULT);
    device_host_ok = at;
    device_host_bytes = 8;
    ck_assert_int_eq(run_at("load", at + 4, NULL), PTX_OK);
    memcpy(&got, device_at(DEVICE_BASE + 4096), 4);
    ck_assert_uint_eq(got, 43);
    ck_assert_int_eq(run_at("load_generic", at, NULL), PTX_OK);
    ck_assert_int_eq(run_at("load", at + 8, NULL), PTX_E_FAULT);
    ck_assert_int_eq(run_at("load4", at, NULL), PTX_E_FAULT);
    ck_assert_int_eq(run_at("add_atomic", at, NULL), PTX_OK);
    ck_assert_uint_eq(host[0], 43);
    device_host_bytes = 0;
}
END_TEST

static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)context;
    ptx_signal((uint64_t)(uintptr_t)info->si_addr);
    _exit(100 + number); /* no kernel ran here */
}

START_TEST(a_page_that_is_gone_is_a_fault_of_the_kernel)
{
    struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO };
    struct ptx_fault fault = { 0 };
    uint64_t at = DEVICE_BASE + (1 << 20);
    ck_assert_int_eq(sigaction(SIGSEGV, &action, NULL), 0);
    ck_assert_int_eq(mprotect(device_at(at), 4096, PROT_NONE), 0);
    for (int again = 0; again < 3; again++) {
        ck_assert_int_eq(run_at("load", at + 8, &fault), PTX_E_FAULT);
        ck_assert_uint_eq(fault.address, at + 8); /* as the kernel knows it */
        ck_assert_str_eq(fault.kernel, "load");
    }
    ck_assert_int_eq(mprotect(device_at(at), 4096, PROT_READ | PROT_WRITE), 0);
    ck_assert_int_eq(run_at("load", at + 8, &fault), PTX_OK);
}
END_TEST

START_TEST(a_signal_outside_kernels_is_left_alone)
{
    run_at("load", DEVICE_BASE, NULL);
    ptx_signal(12345); /* returns */
}
END_TEST

static void write_word(void *context, uint64_t address, uint64_t value)
{
    (void)context;
    memcpy(device_at(address), &value, sizeof value);
}

START_TEST(variables_have_values_and_addresses)
{
    static const struct {
        const char *name;
        size_t size, align;
        bool constant, external, init;
    } want[] = {
        { "counter", 4, 4, false, false, true },    { "weights", 12, 4, true, false, true },
        { "message", 8, 1, false, false, true },    { "pointers", 24, 8, false, false, true },
        { "matrix", 8, 2, false, false, true },     { "zeros", 64, 16, false, false, false },
        { "elsewhere", 16, 4, false, true, false },
    };
    uint64_t at = DEVICE_BASE + 8192, out = DEVICE_BASE + 4096;
    ck_assert_uint_eq(ptx_module_n_globals(module), 7);
    for (size_t i = 0; i < 7; i++) {
        const struct ptx_global *g = ptx_module_global(module, i);
        ck_assert_str_eq(g->name, want[i].name);
        ck_assert_uint_eq(g->size, want[i].size);
        ck_assert_uint_eq(g->align, want[i].align);
        ck_assert_int_eq(g->constant, want[i].constant);
        ck_assert_int_eq(g->external, want[i].external);
        ck_assert_int_eq(g->init != NULL, want[i].init);
        ptx_module_bind(module, i, at);
        memset(device_at(at), 0, g->size);
        if (g->init)
            memcpy(device_at(at), g->init, g->size);
        at += 256;
    }
    ptx_module_init_addresses(module, write_word, NULL);
    memcpy(device_at(DEVICE_BASE + 8192 + 6 * 256), &(uint32_t){ 77 }, 4);
    uint32_t got[7];
    float f;
    ck_assert_int_eq(device_run(device_kernel(module, "variables"), 1, 1, &out), PTX_OK);
    memcpy(got, device_at(out), sizeof got);
    memcpy(&f, &got[1], 4);
    ck_assert_uint_eq(got[0], 5);
    ck_assert(f == -2.5f);
    ck_assert_int_eq((int)got[2], -1);
    ck_assert_uint_eq(got[3], 5);
    ck_assert_int_eq((int)got[4], -4);
    ck_assert_uint_eq(got[5], 77);
    ck_assert_uint_eq(got[6], 7);
    ck_assert_int_eq(device_run(device_kernel(module, "variables"), 1, 1, &out), PTX_OK);
    memcpy(got, device_at(out), 4);
    ck_assert_uint_eq(got[0], 6);
}
END_TEST

START_TEST(parameters_lie_as_in_the_packed_buffer)
{
    static const struct ptx_param_info want[] = { { 0, 8, 8 },   { 8, 1, 1 },  { 10, 2, 2 },
                                                  { 16, 12, 8 }, { 28, 4, 4 }, { 32, 8, 8 } };
    const struct ptx_kernel *kernel = device_kernel(module, "parameters");
    const struct ptx_kernel_info *info = ptx_kernel_info(kernel);
    ck_assert_uint_eq(info->n_params, 6);
    ck_assert_uint_eq(info->params_bytes, 40);
    for (unsigned i = 0; i < 6; i++) {
        ck_assert_uint_eq(info->params[i].offset, want[i].offset);
        ck_assert_uint_eq(info->params[i].size, want[i].size);
        ck_assert_uint_eq(info->params[i].align, want[i].align);
    }
    struct {
        uint64_t out;
        int8_t a;
        uint16_t b;
        _Alignas(8) uint32_t s[3];
        float f;
        uint64_t p;
    } params = { DEVICE_BASE + 4096, -3, 40000, { 1, 2, 3 }, 1.5f, 99 };
    ck_assert_uint_eq(sizeof params, 40);
    ck_assert_int_eq(device_run(kernel, 1, 1, &params), PTX_OK);
    int32_t got[8];
    memcpy(got, device_at(params.out), sizeof got);
    ck_assert_int_eq(got[0], -3);
    ck_assert_int_eq(got[1], 40000);
    ck_assert_int_eq(got[2], 1);
    ck_assert_int_eq(got[3], 2);
    ck_assert_int_eq(got[4], 3);
    ck_assert_int_eq(got[5], 0x3fc00000);
    ck_assert_int_eq(got[6], 99);
}
END_TEST

START_TEST(kernels_say_what_they_need)
{
    const struct ptx_kernel_info *info = ptx_kernel_info(device_kernel(module, "limits"));
    ck_assert_uint_eq(info->max_threads, 128);
    ck_assert_uint_ge(info->local_bytes, 40);
    ck_assert_uint_lt(info->local_bytes, 128);
    ck_assert_uint_ge(info->static_shared, 24); /* its own, not those of other kernels */
    ck_assert_uint_le(info->static_shared, 32);
    ck_assert_uint_eq(ptx_kernel_info(device_kernel(module, "load"))->static_shared, 0);
    ck_assert_uint_eq(info->n_params, 0);
}
END_TEST

int main(void)
{
    device_fresh_cache();
    module = device_load(text);
    Suite *s = suite_create("ptx_memory");
    TCase *t = tcase_create("memory");
    tcase_add_test(t, addresses_outside_fault_by_name);
    tcase_add_test(t, misaligned_accesses_fault);
    tcase_add_test(t, shared_and_local_memory_have_ends);
    tcase_add_test(t, host_memory_only_where_mapped);
    tcase_add_test(t, a_page_that_is_gone_is_a_fault_of_the_kernel);
    tcase_add_test(t, a_signal_outside_kernels_is_left_alone);
    tcase_add_test(t, variables_have_values_and_addresses);
    tcase_add_test(t, parameters_lie_as_in_the_packed_buffer);
    tcase_add_test(t, kernels_say_what_they_need);
    suite_add_tcase(s, t);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    ptx_module_free(module);
    device_remove_cache();
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
