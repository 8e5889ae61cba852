/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/expr.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct expr_var vars[] = { { "max_context", 512 },
                                        { "big", INT64_MAX },
                                        { "minus", -3 } };
#define N_VARS (sizeof vars / sizeof *vars)

/* A launch: grid 2x3x4, block 32x8x1, 100 bytes of shared memory, occurrence 7, and this buffer. */
static const uint32_t grid[3] = { 2, 3, 4 }, block[3] = { 32, 8, 1 };
static const unsigned char buffer[32] = { 0xff, 0x80, 0xfe, 0xff, 0x01, 0x02, 0x03, 0x04,
                                          0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                                          0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x80 };
static const struct {
    uint32_t offset, size;
} args[] = { { 0, 4 }, { 4, 4 }, { 8, 8 }, { 16, 16 } };

static int read_param(void *ctx, struct expr_ref ref, void *dst, size_t n)
{
    (void)ctx;
    size_t from = ref.offset, end = sizeof buffer;
    if (ref.arg >= 0) {
        if ((size_t)ref.arg >= sizeof args / sizeof *args)
            return -1;
        from += args[ref.arg].offset;
        end = args[ref.arg].offset + args[ref.arg].size;
    }
    if (from + n > end)
        return -1;
    memcpy(dst, buffer + from, n);
    return 0;
}

static const struct expr_env env = {
    .grid = grid, .block = block, .shared_bytes = 100, .occ = 7, .param = read_param
};

static const struct value_row {
    const char *text;
    int64_t value;
    int rc;
} value_rows[] = {
    { "0", 0, 0 },
    { "42", 42, 0 },
    { "0x1F", 31, 0 },
    { "0Xff", 255, 0 },
    { "007", 7, 0 },
    { " \t 1\n+\r2 ", 3, 0 },
    { "9223372036854775807", INT64_MAX, 0 },
    { "0x7fffffffffffffff", INT64_MAX, 0 },
    { "-9223372036854775807 - 1", INT64_MIN, 0 },
    { "1 + 2 * 3", 7, 0 },
    { "(1 + 2) * 3", 9, 0 },
    { "10 - 3 - 2", 5, 0 },
    { "100 / 10 / 5", 2, 0 },
    { "2 * 7 % 4", 2, 0 },
    { "7 / 2", 3, 0 },
    { "-7 / 2", -3, 0 },
    { "7 / -2", -3, 0 },
    { "-7 % 2", -1, 0 },
    { "7 % -2", 1, 0 },
    { "- - 5", 5, 0 },
    { "3 - -2", 5, 0 },
    { "-(2 + 3)", -5, 0 },
    { "(-9223372036854775807 - 1) % -1", 0, 0 },
    { "min(3, 2)", 2, 0 },
    { "max(3, 2, 9, 4)", 9, 0 },
    { "min(1, max(2, 3), -4)", -4, 0 },
    { "ceil_div(7, 2)", 4, 0 },
    { "ceil_div(8, 2)", 4, 0 },
    { "ceil_div(-7, 2)", -3, 0 },
    { "ceil_div(7, -2)", -3, 0 },
    { "ceil_div(-7, -2)", 4, 0 },
    { "ceil_div(0, 5)", 0, 0 },
    { "max_context", 512, 0 },
    { "max_context * minus", -1536, 0 },
    { "big", INT64_MAX, 0 },
    { "grid.x", 2, 0 },
    { "grid.y * block.x + grid.z", 100, 0 },
    { "block.y + block.z", 9, 0 },
    { "shared / 4", 25, 0 },
    { "occ", 7, 0 },
    { "occ * 2 + 1", 15, 0 },
    { "-occ", -7, 0 },
    { "occ - grid.x * (occ - 3)", -1, 0 },
    { "min(occ, 3)", 3, 0 },
    { "ceil_div(occ, grid.x)", 4, 0 },
    { "occ + (2 + 3)", 12, 0 },
    { "2 + 3 + occ", 12, 0 },
    { "arg[0].i8", -1, 0 },
    { "arg[0].u8", 255, 0 },
    { "arg[0][1].i8", -128, 0 },
    { "arg[0].i16", -32513, 0 },
    { "arg[0].u16", 0x80ff, 0 },
    { "arg[0].i32", -98049, 0 },
    { "arg[0].u32", 0xfffe80ff, 0 },
    { "arg[1].i32", 0x04030201, 0 },
    { "arg[1][2].u16", 0x0403, 0 },
    { "arg[2].i64", -1, 0 },
    { "arg[2][4].i32", -1, 0 },
    { "arg[3].u8", 5, 0 },
    { "param[4].i32", 0x04030201, 0 },
    { "param[16].i32", 5, 0 },
    { "param[2 * 8].i32 + 1", 6, 0 },
    { "1 + arg[1 + 2][max_context - 512].u8", 6, 0 },
    { "arg[1].i32 * 256", 0x0403020100, 0 },
    /* what only the launch shows */
    { "arg[2].u64", 0, EXPR_E_OVERFLOW },
    { "param[16].u64", 0, EXPR_E_OVERFLOW },
    { "arg[9].i32", 0, EXPR_E_PARAM },
    { "arg[1].i64", 0, EXPR_E_PARAM },
    { "arg[1][4].i8", 0, EXPR_E_PARAM },
    { "param[30].i32", 0, EXPR_E_PARAM },
    { "arg[255].u8", 0, EXPR_E_PARAM },
    { "param[32767].u8", 0, EXPR_E_PARAM },
    { "1 / (occ - 7)", 0, EXPR_E_DIVIDE },
    { "1 % (occ - 7)", 0, EXPR_E_DIVIDE },
    { "ceil_div(1, occ - 7)", 0, EXPR_E_DIVIDE },
    { "big + occ", 0, EXPR_E_OVERFLOW },
    { "-big - occ", 0, EXPR_E_OVERFLOW },
    { "big * occ", 0, EXPR_E_OVERFLOW },
    { "-(-big - occ / 7)", 0, EXPR_E_OVERFLOW },
    { "(-big - occ / 7) / (occ - 8)", 0, EXPR_E_OVERFLOW },
    { "ceil_div(-big - occ / 7, occ - 8)", 0, EXPR_E_OVERFLOW },
    { "(-big - occ / 7) % (occ - 8)", 0, 0 },
};

START_TEST(value_is_as_in_the_table)
{
    const struct value_row *row = &value_rows[_i];
    struct expr_error error = { 0 };
    struct expr *e = NULL;
    int rc = expr_parse(row->text, strlen(row->text), vars, N_VARS, &error, &e);
    ck_assert_msg(rc == 0, "%s: %s at %zu", row->text, error.msg, error.offset);
    int64_t value = -77;
    rc = expr_eval(e, &env, &value);
    ck_assert_msg(rc == row->rc, "%s: returned %d, expected %d", row->text, rc, row->rc);
    ck_assert_msg(value == (rc ? -77 : row->value), "%s: %" PRId64, row->text, value);
    expr_free(e);
}
END_TEST

static const struct error_row {
    const char *text;
    size_t offset;
    const char *part; /* of the message */
} error_rows[] = {
    { "", 0, "found the end; expected a number, a name" },
    { "   ", 3, "found the end" },
    { "1 +", 3, "found the end; expected a number" },
    { "+1", 0, "found \"+\"; expected a number" },
    { "1 2", 2, "found \"2\"; expected an operator or the end" },
    { "(1", 2, "expected an operator or \")\"" },
    { "1)", 1, "found \")\"; expected an operator or the end" },
    { "1 & 2", 2, "found '&'" },
    { "1 << 2", 2, "found '<'" },
    { "1 \xc3\xa4", 2, "byte 0xc3" },
    { "1.5", 1, "found \".\"; expected an operator or the end" },
    { "12ab", 2, "found 'a' in a number" },
    { "0x", 0, "without digits" },
    { "0xg", 0, "without digits" },
    { "9223372036854775808", 0, "above 9223372036854775807" },
    { "1 + 0x8000000000000000", 4, "above 9223372036854775807" },
    { "max_contxt + 1", 0, "did you mean \"max_context\"?" },
    { "1 + ocs", 4, "did you mean \"occ\"?" },
    { "zzzzzz", 0, "expected a variable of vars:, grid" },
    { "grid", 4, "found the end; expected \".x\"" },
    { "grid.w", 5, "found \"w\"; expected \".x\"" },
    { "grid.x.y", 6, "expected an operator" },
    { "arg", 3, "expected \"[\"" },
    { "arg[0]", 6, "expected a type" },
    { "arg[0].f32", 7, "found \"f32\"; expected a type" },
    { "arg[0].i33", 7, "did you mean \"i32\"?" },
    { "arg[-1].i32", 4, "found index -1; expected 0 to 255" },
    { "arg[256].i32", 4, "found index 256" },
    { "arg[occ].i32", 4, "depends on the launch" },
    { "arg[0][40000].i32", 7, "found index 40000; expected 0 to 32767" },
    { "arg[0", 5, "expected \"]\"" },
    { "param.i32", 5, "expected \"[\"" },
    { "min(1)", 5, "a second value" },
    { "min 1, 2", 4, "expected \"(\"" },
    { "min()", 4, "found \")\"; expected a number" },
    { "max(1, 2", 8, "expected \",\" or \")\"" },
    { "ceil_div(1, 2, 3)", 13, "takes two values" },
    { "1 / 0", 2, "division by zero" },
    { "1 % (2 - 2)", 2, "division by zero" },
    { "occ / 0", 4, "division by zero" },
    { "ceil_div(occ, 0)", 0, "division by zero" },
    { "big + 1", 4, "does not fit in 64 bits" },
    { "-big - 2", 5, "does not fit" },
    { "big * 2", 4, "does not fit" },
    { "-(-big - 1)", 0, "does not fit" },
    { "(-big - 1) / -1", 11, "does not fit" },
};

START_TEST(error_says_what_and_where)
{
    const struct error_row *row = &error_rows[_i];
    struct expr_error error = { .offset = 999 };
    struct expr *e = NULL;
    int rc = expr_parse(row->text, strlen(row->text), vars, N_VARS, &error, &e);
    ck_assert_msg(rc == EXPR_E_SYNTAX, "%s: returned %d", row->text, rc);
    ck_assert_ptr_null(e);
    ck_assert_msg(strstr(error.msg, row->part), "%s: \"%s\" lacks \"%s\"", row->text, error.msg,
                  row->part);
    ck_assert_msg(error.offset == row->offset, "%s: at %zu, expected %zu (%s)", row->text,
                  error.offset, row->offset, error.msg);
}
END_TEST

static const struct {
    const char *text;
    int rc;
    struct expr_ref ref;
    const char *part;
} ref_rows[] = {
    { "arg[0]", 0, { 0, 0 }, NULL },
    { " arg[ 12 ] ", 0, { 12, 0 }, NULL },
    { "arg[2][24]", 0, { 2, 24 }, NULL },
    { "arg[0x2][8*3]", 0, { 2, 24 }, NULL },
    { "param[16]", 0, { -1, 16 }, NULL },
    { "param[max_context]", 0, { -1, 512 }, NULL },
    { "", EXPR_E_SYNTAX, { 0 }, "expected arg[INDEX]" },
    { "12", EXPR_E_SYNTAX, { 0 }, "expected arg[INDEX]" },
    { "args[0]", EXPR_E_SYNTAX, { 0 }, "did you mean \"arg\"?" },
    { "arg[0] + 4", EXPR_E_SYNTAX, { 0 }, "belong in offset:" },
    { "arg[0].u64", EXPR_E_SYNTAX, { 0 }, "found \".\"" },
    { "arg[occ]", EXPR_E_SYNTAX, { 0 }, "depends on the launch" },
    { "param[1][2]", EXPR_E_SYNTAX, { 0 }, "found \"[\"" },
};

START_TEST(place_of_pointer_is_as_in_the_table)
{
    struct expr_error error = { 0 };
    struct expr_ref ref = { -5, 5 };
    int rc =
        expr_parse_ref(ref_rows[_i].text, strlen(ref_rows[_i].text), vars, N_VARS, &error, &ref);
    ck_assert_msg(rc == ref_rows[_i].rc, "%s: %d %s", ref_rows[_i].text, rc, error.msg);
    if (rc) {
        ck_assert_msg(strstr(error.msg, ref_rows[_i].part), "%s: %s", ref_rows[_i].text, error.msg);
        ck_assert_int_eq(ref.arg, -5);
    } else {
        ck_assert_int_eq(ref.arg, ref_rows[_i].ref.arg);
        ck_assert_uint_eq(ref.offset, ref_rows[_i].ref.offset);
    }
}
END_TEST

static struct expr *parsed(const char *text)
{
    struct expr_error error;
    struct expr *e = NULL;
    ck_assert_int_eq(expr_parse(text, strlen(text), vars, N_VARS, &error, &e), 0);
    return e;
}

START_TEST(constants_are_told_from_what_launches_decide)
{
    static const struct {
        const char *text;
        unsigned uses;
    } rows[] = {
        { "3 * max_context", 0 },        { "occ", EXPR_USES_OCC },
        { "shared", EXPR_USES_LAUNCH },  { "grid.x * occ", EXPR_USES_LAUNCH | EXPR_USES_OCC },
        { "block.z", EXPR_USES_LAUNCH }, { "arg[0].i32", EXPR_USES_LAUNCH },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct expr *e = parsed(rows[i].text);
        ck_assert_uint_eq(expr_uses(e), rows[i].uses);
        ck_assert_int_eq(expr_is_constant(e), rows[i].uses == 0);
        ck_assert_int_eq(expr_constant(e), rows[i].uses ? 0 : 1536);
        expr_free(e);
    }
}
END_TEST

START_TEST(launch_without_parameters_is_an_error_not_a_crash)
{
    struct expr_env bare = { .grid = grid, .block = block };
    struct expr *e = parsed("arg[0].i32");
    int64_t v;
    ck_assert_int_eq(expr_eval(e, &bare, &v), EXPR_E_PARAM);
    expr_free(e);
}
END_TEST

START_TEST(shared_memory_beyond_63_bits_is_an_overflow)
{
    struct expr_env huge = { .grid = grid, .block = block, .shared_bytes = UINT64_MAX };
    struct expr *e = parsed("shared");
    int64_t v;
    ck_assert_int_eq(expr_eval(e, &huge, &v), EXPR_E_OVERFLOW);
    expr_free(e);
}
END_TEST

START_TEST(product_multiplies_and_reports_overflow)
{
    struct expr *a = parsed("occ + 1"), *b = parsed("64"), *c = parsed("big"), *p = NULL;
    const struct expr *factors[] = { a, b, c };
    int64_t v;
    ck_assert_int_eq(expr_product(factors, 2, 4, &p), 0);
    ck_assert_int_eq(expr_eval(p, &env, &v), 0);
    ck_assert_int_eq(v, 8 * 64 * 4);
    ck_assert_uint_eq(expr_uses(p), EXPR_USES_OCC);
    expr_free(p);
    p = NULL;
    ck_assert_int_eq(expr_product(factors, 0, 4, &p), 0);
    ck_assert_int_eq(expr_constant(p), 4);
    expr_free(p);
    p = NULL;
    ck_assert_int_eq(expr_product(factors, 3, 4, &p), EXPR_E_OVERFLOW);
    ck_assert_ptr_null(p);
    expr_free(a);
    expr_free(b);
    expr_free(c);
}
END_TEST

START_TEST(same_programs_are_the_same_whatever_their_spelling)
{
    static const struct {
        const char *a, *b;
        int same;
    } rows[] = {
        { "occ", "(occ)", 1 },
        { "occ * 4", "occ * (2 + 2)", 1 },
        { "arg[1].i32", "arg[1][0].i32", 1 },
        { "arg[1].i32", "arg[1].u32", 0 },
        { "arg[1].i32", "arg[1][4].i32", 0 },
        { "grid.x", "grid.y", 0 },
        { "occ + 1", "1 + occ", 0 },
        { "3", "4", 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct expr *a = parsed(rows[i].a), *b = parsed(rows[i].b);
        ck_assert_int_eq(expr_same(a, b), rows[i].same);
        expr_free(a);
        expr_free(b);
    }
    ck_assert(expr_same(NULL, NULL));
}
END_TEST

/* "((((...1...))))" and others of a given size */
static int parse_repeated(const char *open, size_t n, const char *middle, const char *close,
                          struct expr_error *error)
{
    size_t size = n * (strlen(open) + strlen(close)) + strlen(middle) + 1;
    char *text = calloc(1, size);
    for (size_t i = 0; i < n; i++)
        strcat(text, open);
    strcat(text, middle);
    for (size_t i = 0; i < n; i++)
        strcat(text, close);
    struct expr *e = NULL;
    int rc = expr_parse(text, strlen(text), vars, N_VARS, error, &e);
    int64_t v;
    if (!rc)
        ck_assert_int_eq(expr_eval(e, &env, &v), 0);
    expr_free(e);
    free(text);
    return rc;
}

START_TEST(limits_hold_and_what_is_below_them_works)
{
    struct expr_error error;
    ck_assert_int_eq(parse_repeated("(", EXPR_MAX_DEPTH - 1, "1", ")", &error), 0);
    ck_assert_int_eq(parse_repeated("(", EXPR_MAX_DEPTH, "1", ")", &error), EXPR_E_SYNTAX);
    ck_assert_ptr_nonnull(strstr(error.msg, "nested"));
    ck_assert_int_eq(parse_repeated("-", EXPR_MAX_DEPTH, "1", "", &error), EXPR_E_SYNTAX);
    ck_assert_int_eq(parse_repeated("min(1,", 2000, "1", "", &error), EXPR_E_SYNTAX);
    /* a pending operand, and a pending product, for each pair of parentheses */
    ck_assert_int_eq(parse_repeated("occ-1*(", EXPR_MAX_DEPTH - 1, "1", ")", &error), 0);
    ck_assert_int_eq(parse_repeated("occ+grid.x/9*(", EXPR_MAX_DEPTH - 1, "0", ")", &error), 0);
    /* constants fold, so they are no operations; occ is one */
    ck_assert_int_eq(parse_repeated("1+", 2000, "1", "", &error), 0);
    ck_assert_int_eq(parse_repeated("occ+", EXPR_MAX_OPS / 2 - 1, "1", "", &error), 0);
    ck_assert_int_eq(parse_repeated("occ+", EXPR_MAX_OPS / 2, "1", "", &error), EXPR_E_SYNTAX);
    ck_assert_ptr_nonnull(strstr(error.msg, "operations"));
    ck_assert_int_eq(parse_repeated(" ", EXPR_MAX_TEXT, "1", "", &error), EXPR_E_SYNTAX);
    ck_assert_ptr_nonnull(strstr(error.msg, "characters"));
}
END_TEST

START_TEST(text_needs_no_end_mark)
{
    struct expr_error error;
    struct expr *e = NULL;
    int64_t v;
    ck_assert_int_eq(expr_parse("12345", 2, NULL, 0, &error, &e), 0);
    ck_assert_int_eq(expr_eval(e, &env, &v), 0);
    ck_assert_int_eq(v, 12);
    expr_free(e);
    ck_assert_int_eq(expr_parse("1\0+", 3, NULL, 0, &error, &e), EXPR_E_SYNTAX);
    ck_assert_uint_eq(error.offset, 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy/expr");
    TCase *tc = tcase_create("expr");
    tcase_add_loop_test(tc, value_is_as_in_the_table, 0, sizeof value_rows / sizeof *value_rows);
    tcase_add_loop_test(tc, error_says_what_and_where, 0, sizeof error_rows / sizeof *error_rows);
    tcase_add_loop_test(tc, place_of_pointer_is_as_in_the_table, 0,
                        sizeof ref_rows / sizeof *ref_rows);
    tcase_add_test(tc, constants_are_told_from_what_launches_decide);
    tcase_add_test(tc, launch_without_parameters_is_an_error_not_a_crash);
    tcase_add_test(tc, shared_memory_beyond_63_bits_is_an_overflow);
    tcase_add_test(tc, product_multiplies_and_reports_overflow);
    tcase_add_test(tc, same_programs_are_the_same_whatever_their_spelling);
    tcase_add_test(tc, limits_hold_and_what_is_below_them_works);
    tcase_add_test(tc, text_needs_no_end_mark);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
