/* SPDX-License-Identifier: Apache-2.0 */
/* vprintf: format and packed arguments in device memory, against the C library's own. */
#include "test_device.h"

static const char text[] = PTX_HEAD
    ".extern .func (.param .b32 func_retval0) vprintf(.param .b64 p0, .param .b64 p1);\n"
    ".global .align 1 .b8 hello[6] = {37, 105, 58, 37, 115, 10};\n"
    ".global .align 1 .b8 zero[1];\n"
    ".visible .entry print(.param .u64 format, .param .u64 values, .param .u64 out)\n"
    "{ .reg .b64 %d<9>; .reg .b32 %r<3>;\n"
    "ld.param.u64 %d1, [format]; ld.param.u64 %d2, [values]; ld.param.u64 %d3, [out];\n"
    "{ .param .b64 p0; .param .b64 p1; .param .b32 back; st.param.b64 [p0], %d1; st.param.b64 "
    "[p1], "
    "%d2;\n"
    "call.uni (back), vprintf, (p0, p1); ld.param.b32 %r1, [back]; }\n"
    "st.global.u32 [%d3], %r1; ret; }\n"
    /* as compilers write it: arguments in local memory; from a function, around a barrier */
    ".func say(.param .b32 v)\n{ .local .align 16 .b8 depot[16]; .reg .b64 %d<5>; .reg .b32 "
    "%r<3>;\n"
    "ld.param.u32 %r1, [v]; st.local.u32 [depot], %r1; mov.u64 %d1, hello; cvta.global.u64 %d2, "
    "%d1;\n"
    "add.s64 %d4, %d2, 0; st.local.u64 [depot+8], %d4; mov.u64 %d3, depot; cvta.local.u64 %d3, "
    "%d3;\n"
    "{ .param .b64 p0; .param .b64 p1; .param .b32 back; st.param.b64 [p0], %d2; st.param.b64 "
    "[p1], "
    "%d3;\n"
    "call.uni (back), vprintf, (p0, p1); }\nret; }\n"
    ".visible .entry threads()\n{ .reg .b32 %r1;\nmov.u32 %r1, %tid.x;\n"
    "{ .param .b32 p0; st.param.b32 [p0], %r1; call.uni say, (p0); }\nbar.sync 0;\n"
    "{ .param .b32 p0; st.param.b32 [p0], %r1; call.uni say, (p0); }\nret; }\n";

static struct ptx_module *module;
static char printed[8192];
static size_t n_printed;
static void *owner_seen;

static void take(void *owner, const char *bytes, size_t n)
{
    owner_seen = owner;
    ck_assert_uint_lt(n_printed + n, sizeof printed);
    memcpy(printed + n_printed, bytes, n);
    n_printed += n;
    printed[n_printed] = 0;
}

/* Arguments as a compiler packs them, each at a multiple of its size; what is printed for them; what is returned */
struct row {
    const char *format;
    char kinds[5]; /* i: 32 bits, l: 64 bits, d: double, s: text */
    long long i[4];
    double d[4];
    const char *s;
    const char *want;
    int result;
};

static const struct row rows[] = {
    { "plain\n", "", { 0 }, { 0 }, NULL, "plain\n", 0 },
    { "100%% of %d", "i", { -5 }, { 0 }, NULL, "100% of -5", 1 },
    { "%5d|%-5d|%05d|%+d", "iiii", { 42, 42, 42, 42 }, { 0 }, NULL, "   42|42   |00042|+42", 4 },
    { "%ld %lld %lu %llx",
      "llll",
      { -1, 1ll << 40, -1, -1 },
      { 0 },
      NULL,
      "-1 1099511627776 18446744073709551615 ffffffffffffffff",
      4 },
    { "%d %ld %d", "ili", { 1, 2, 3 }, { 0 }, NULL, "1 2 3", 3 },
    { "%f %e %g %a",
      "dddd",
      { 0 },
      { 1.5, -2.25e10, 1e-5, 1 },
      NULL,
      "1.500000 -2.250000e+10 1e-05 0x1p+0",
      4 },
    { "%d %.3f %8.2f", "idd", { 7 }, { 0, 3.14159, 2.5 }, NULL, "7 3.142     2.50", 3 },
    { "<%s> <%10s> <%.2s>", "sss", { 0 }, { 0 }, "text", "<text> <      text> <te>", 3 },
    { "%hd %hhu", "ii", { 0x12345, 0x1ff }, { 0 }, NULL, "9029 255", 2 },
    { "%p", "l", { 0x7f0012345678 }, { 0 }, NULL, "0x7f0012345678", 1 },
    { "%q %d", "i", { 9 }, { 0 }, NULL, "%q 9", 1 },
    { "at the end: %", "", { 0 }, { 0 }, NULL, "at the end: %", 0 },
    { "%-08.3lld!", "l", { 12 }, { 0 }, NULL, "012     !", 1 },
};

static int print(uint64_t format, uint64_t values, int *result)
{
    uint64_t p[] = { format, values, DEVICE_BASE + 8192 };
    struct ptx_grid grid = { .grid = { 1, 1, 1 }, .block = { 1, 1, 1 }, .owner = &n_printed };
    n_printed = 0;
    printed[0] = 0;
    int r = ptx_launch(device_kernel(module, "print"), &grid, p, NULL);
    memcpy(result, device_at(p[2]), 4);
    return r;
}

START_TEST(each_conversion_takes_its_argument)
{
    const struct row *row = &rows[_i];
    unsigned char *values = device_at(DEVICE_BASE + 4096);
    size_t at = 0;
    int result;
    strcpy(device_at(DEVICE_BASE), row->format);
    if (row->s)
        strcpy(device_at(DEVICE_BASE + 2048), row->s);
    for (int k = 0; row->kinds[k]; k++) {
        size_t n = row->kinds[k] == 'i' ? 4 : 8;
        uint64_t string = DEVICE_BASE + 2048;
        const void *from = row->kinds[k] == 'd'   ? (const void *)&row->d[k]
                           : row->kinds[k] == 's' ? (const void *)&string
                                                  : (const void *)&row->i[k];
        at = (at + n - 1) & ~(n - 1);
        memcpy(values + at, from, n);
        at += n;
    }
    ck_assert_int_eq(print(DEVICE_BASE, at ? DEVICE_BASE + 4096 : 0, &result), PTX_OK);
    ck_assert_str_eq(printed, row->want);
    ck_assert_int_eq(result, row->result);
    ck_assert_ptr_eq(owner_seen, &n_printed);
}
END_TEST

START_TEST(six_arguments_and_widths_from_arguments)
{
    int values[] = { -1, -1, 8, 255, 255, 'c' }, result;
    strcpy(device_at(DEVICE_BASE), "%i|%u|%o|%x|%X|%c");
    memcpy(device_at(DEVICE_BASE + 4096), values, sizeof values);
    ck_assert_int_eq(print(DEVICE_BASE, DEVICE_BASE + 4096, &result), PTX_OK);
    ck_assert_str_eq(printed, "-1|4294967295|10|ff|FF|c");
    ck_assert_int_eq(result, 6);
    struct {
        int w1, v1, w2, v2, precision;
        double f;
    } stars = { 5, 42, -4, 7, 2, 1.2345 };
    strcpy(device_at(DEVICE_BASE), "%*d|%*d|%.*f");
    memcpy(device_at(DEVICE_BASE + 4096), &stars, sizeof stars);
    ck_assert_int_eq(print(DEVICE_BASE, DEVICE_BASE + 4096, &result), PTX_OK);
    ck_assert_str_eq(printed, "   42|7   |1.23");
    ck_assert_int_eq(result, 6);
}
END_TEST

START_TEST(what_cannot_be_printed)
{
    int result;
    ck_assert_int_eq(print(0, 0, &result), PTX_OK); /* no format */
    ck_assert_int_eq(result, -1);
    ck_assert_int_eq(print(16, 0, &result), PTX_E_FAULT);
    strcpy(device_at(DEVICE_BASE), "%d");
    ck_assert_int_eq(print(DEVICE_BASE, 0, &result), PTX_E_FAULT);
    strcpy(device_at(DEVICE_BASE), "%s");
    memset(device_at(DEVICE_BASE + 4096), 0, 8);
    ck_assert_int_eq(print(DEVICE_BASE, DEVICE_BASE + 4096, &result), PTX_OK);
    ck_assert_str_eq(printed, "(null)");
    strcpy(device_at(DEVICE_BASE), "%2000000000d");
    ck_assert_int_eq(print(DEVICE_BASE, DEVICE_BASE + 4096, &result), PTX_OK);
    ck_assert_int_eq(result, -2);
    ck_assert_uint_eq(n_printed, 0);
}
END_TEST

START_TEST(every_thread_prints_for_itself)
{
    char want[256] = "";
    for (int t = 0; t < 6; t++)
        sprintf(want + strlen(want), "%d:%%i:%%s\n\n", t % 3);
    n_printed = 0;
    ck_assert_int_eq(device_run(device_kernel(module, "threads"), 1, 3, NULL), PTX_OK);
    ck_assert_str_eq(printed, want);
}
END_TEST

int main(void)
{
    device_fresh_cache();
    module = device_load(text);
    for (size_t i = 0; i < ptx_module_n_globals(module); i++) {
        /* the text has no end of its own: a zero follows it */
        const struct ptx_global *g = ptx_module_global(module, i);
        uint64_t at = DEVICE_BASE + (1 << 20) + 6 * i;
        ptx_module_bind(module, i, at);
        memcpy(device_at(at), g->init ? g->init : (const unsigned char *)"", g->size);
    }
    ptx_print = take;
    Suite *s = suite_create("ptx_print");
    TCase *t = tcase_create("print");
    tcase_add_loop_test(t, each_conversion_takes_its_argument, 0,
                        (int)(sizeof rows / sizeof rows[0]));
    tcase_add_test(t, six_arguments_and_widths_from_arguments);
    tcase_add_test(t, what_cannot_be_printed);
    tcase_add_test(t, every_thread_prints_for_itself);
    suite_add_tcase(s, t);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    ptx_module_free(module);
    device_remove_cache();
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
