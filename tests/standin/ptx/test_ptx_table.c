/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What single instructions compute: one row a case, written from the PTX ISA. A row is an instruction
 * on inputs %d1.. (also as %r1, %h1, %f1, %g1: their low bits) whose result is %r0, %h0, %d0, %f0, %g0
 * or %p0, as `out` says. All rows are one module with a kernel for each text, so one compilation.
 */
#include "test_device.h"

#include <math.h>

/* Bits, written as what they mean where that reads better. */
union bits {
    uint64_t u;
    float f;
    double d;
};
/* clang-format off */
#define F(x) {.f = (x)}
#define D(x) {.d = (x)}
/* clang-format on */
#define NAN32  0x7fffffffu
#define NAN64  0x7fffffffffffffffull
#define QNAN   0x7fc00001u /* some other NaN */
#define INF32  0x7f800000u
#define NINF32 0xff800000u
#define SUB32  0x00000001u
#define M1     0xffffffffffffffffull
#define ANY    0x5ca1ab1e5ca1ab1eull /* the ISA leaves it open */

struct row {
    char out;         /* r h d f g p */
    const char *code; /* NULL: as in the row above */
    union bits in[4], want;
};

#pragma GCC diagnostic ignored "-Wmissing-braces"
static const struct row rows[] = {
#include "test_ptx_rows.inc"
};
#define N_ROWS (sizeof rows / sizeof rows[0])

static struct ptx_module *module;
static const struct ptx_kernel *kernels[N_ROWS];

static const char prologue[] =
    ".visible .entry k%zu(.param .u64 buf)\n{\n"
    ".reg .pred %%p<8>;\n.reg .b16 %%h<12>;\n.reg .b32 %%r<12>;\n.reg .b64 %%d<12>;\n"
    ".reg .f32 %%f<12>;\n.reg .f64 %%g<12>;\n.reg .b64 %%at;\n"
    "ld.param.u64 %%at, [buf];\n"
    "ld.global.v2.b64 {%%d1, %%d2}, [%%at];\nld.global.v2.b64 {%%d3, %%d4}, [%%at+16];\n";
static const char per_input[] = "cvt.u32.u64 %%r%d, %%d%d;\ncvt.u16.u64 %%h%d, %%d%d;\n"
                                "mov.b32 %%f%d, %%r%d;\nmov.b64 %%g%d, %%d%d;\n";

static void put_kernel(FILE *f, size_t i, const char *code, char out)
{
    fprintf(f, prologue, i);
    for (int k = 1; k <= 4; k++)
        fprintf(f, per_input, k, k, k, k, k, k, k, k);
    fprintf(f, "%s\n", code);
    switch (out) {
    case 'r': fprintf(f, "cvt.u64.u32 %%d0, %%r0;\n"); break;
    case 'h': fprintf(f, "cvt.u64.u16 %%d0, %%h0;\n"); break;
    case 'f': fprintf(f, "mov.b32 %%r0, %%f0;\ncvt.u64.u32 %%d0, %%r0;\n"); break;
    case 'g': fprintf(f, "mov.b64 %%d0, %%g0;\n"); break;
    case 'p': fprintf(f, "selp.b64 %%d0, 1, 0, %%p0;\n"); break;
    default: break;
    }
    fprintf(f, "st.global.b64 [%%at+64], %%d0;\nret;\n}\n");
}

static void load_rows(void)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    fputs(PTX_HEAD, f);
    fputs(".visible .const .align 8 .u64 table[2] = {0x1122334455667788, 7};\n", f);
    for (size_t i = 0; i < N_ROWS; i++)
        if (rows[i].code)
            put_kernel(f, i, rows[i].code, rows[i].out);
    fclose(f);
    module = device_load(text);
    free(text);
    ptx_module_bind(module, 0, DEVICE_BASE + 4096);
    memcpy(device_at(DEVICE_BASE + 4096), ptx_module_global(module, 0)->init, 16);
    size_t k = 0;
    for (size_t i = 0; i < N_ROWS; i++)
        kernels[i] = rows[i].code ? ptx_module_kernel(module, k++) : kernels[i - 1];
    DEVICE_MUST(k == ptx_module_n_kernels(module), "kernels are missing");
}

START_TEST(each_row_gives_what_the_isa_says)
{
    size_t i = (size_t)_i, named = i;
    uint64_t buffer[16] = { 0 }, got, address = DEVICE_BASE + 256;
    while (!rows[named].code)
        named--;
    memcpy(buffer, rows[i].in, sizeof rows[i].in);
    memcpy(device_at(address), buffer, sizeof buffer);
    ck_assert_int_eq(device_run(kernels[i], 1, 1, &address), PTX_OK);
    memcpy(&got, device_at(address + 64), 8);
    ck_assert_msg(got == rows[i].want.u || rows[i].want.u == ANY,
                  "%s on %llx %llx %llx %llx: %llx, expected %llx", rows[named].code,
                  (unsigned long long)rows[i].in[0].u, (unsigned long long)rows[i].in[1].u,
                  (unsigned long long)rows[i].in[2].u, (unsigned long long)rows[i].in[3].u,
                  (unsigned long long)got, (unsigned long long)rows[i].want.u);
}
END_TEST

int main(void)
{
    device_fresh_cache();
    load_rows();
    Suite *s = suite_create("ptx_table");
    TCase *t = tcase_create("rows");
    tcase_add_loop_test(t, each_row_gives_what_the_isa_says, 0, (int)N_ROWS);
    suite_add_tcase(s, t);
    SRunner *runner = srunner_create(s);
    /* the rows cannot harm each other, and a process for each costs more than all of them */
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    ptx_module_free(module);
    device_remove_cache();
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
