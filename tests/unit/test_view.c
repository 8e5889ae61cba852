/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a site of a HookSpec to the strided gather of one launch (preload/capture/view.c): read as include/dmi/ring.h
 * defines a gather, it must give the elements that the site's dimensions name, in their order.
 */
#include "policy/spec.h"
#include "preload/capture/view.h"

#include <dmi/dtype.h>

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_ARGS 8
#define BASE   0x7f0000001000ull /* where the tensor's memory would begin; never followed */

static const uint32_t grid[3] = { 4, 5, 6 }, block[3] = { 32, 2, 1 };

/* arg[i] is the i-th of these 8-byte values. */
static int read_arg(void *ctx, struct expr_ref ref, void *dst, size_t n)
{
    const uint64_t *args = ctx;
    if (ref.arg < 0 || ref.arg >= N_ARGS || ref.offset + n > sizeof *args)
        return -EINVAL;
    memcpy(dst, (const char *)&args[ref.arg] + ref.offset, n);
    return 0;
}

/* A spec with one site whose body is @site. */
static struct spec *spec_of(const char *site)
{
    char text[2048];
    int n = snprintf(
        text, sizeof text,
        "hookspec: 1\nname: test\nforward:\n  - {kind: all, begin: {kernel: '^k$'}}\nsites:\n"
        "  - {name: x, kernel: '^k$', %s}\n",
        site);
    struct spec_errors errors = { 0 };
    struct spec *spec = NULL;
    int r = spec_parse("test.yaml", text, (size_t)n, NULL, 0, &errors, &spec);
    for (size_t i = 0; i < errors.n_lines; i++)
        fprintf(stderr, "%s\n", errors.lines[i]);
    spec_errors_deinit(&errors);
    ck_assert_int_eq(r, 0);
    return spec;
}

static int view_at(const char *site, uint64_t *args, struct tensor_view *view)
{
    struct spec *spec = spec_of(site);
    struct expr_env env = {
        .grid = grid, .block = block, .occ = 3, .param = read_arg, .param_ctx = args
    };
    int r = view_of_site(&spec->sites[0], &env, view);
    spec_free(spec);
    return r;
}

/* Byte addresses of all bytes of a gather, in their order. Return: how many. */
static size_t addresses(const struct dmi_gather *g, uint64_t *out, size_t max)
{
    size_t n = 0;
    for (uint32_t a = 0; a < g->count[0]; a++)
        for (uint32_t b = 0; b < g->count[1]; b++)
            for (uint32_t c = 0; c < g->count[2]; c++)
                for (uint32_t d = 0; d < g->count[3]; d++)
                    for (uint32_t i = 0; i < g->run_bytes; i++) {
                        ck_assert_uint_lt(n, max);
                        int64_t row = !g->rows_inner ? a * g->stride[0]
                                                     : a / g->rows_inner * g->stride_outer +
                                                           a % g->rows_inner * g->stride[0];
                        out[n++] = g->src +
                                   (uint64_t)(row + b * g->stride[1] + c * g->stride[2] +
                                              d * g->stride[3]) +
                                   i;
                    }
    return n;
}

/* The same from the dimensions that were asked for: the first is the slowest. */
static size_t wanted(uint64_t src, uint32_t n_dims, const uint32_t *count, const int64_t *stride,
                     uint32_t elem, uint64_t *out)
{
    size_t n = 0, n_elements = 1;
    for (uint32_t i = 0; i < n_dims; i++)
        n_elements *= count[i];
    for (size_t k = 0; k < n_elements; k++) {
        uint64_t at = src;
        size_t rest = k;
        for (uint32_t i = n_dims; i-- > 0; rest /= count[i])
            at += (uint64_t)((int64_t)(rest % count[i]) * stride[i]);
        for (uint32_t b = 0; b < elem; b++)
            out[n++] = at + b;
    }
    return n;
}

static void check_view(const struct tensor_view *view, uint64_t src, uint32_t n_dims,
                       const uint32_t *count, const int64_t *stride, uint32_t elem)
{
    static uint64_t got[1 << 17], want[1 << 17];
    size_t n = wanted(src, n_dims, count, stride, elem, want);
    ck_assert_uint_eq(view->n_bytes, n);
    ck_assert_uint_eq(addresses(&view->gather, got, sizeof got / sizeof *got), n);
    ck_assert_int_eq(memcmp(got, want, n * sizeof *got), 0);
    uint64_t low = UINT64_MAX, high = 0;
    for (size_t i = 0; i < n; i++) {
        low = want[i] < low ? want[i] : low;
        high = want[i] > high ? want[i] : high;
    }
    ck_assert_uint_eq(view->first, low);
    ck_assert_uint_eq(view->n_touched, high - low + 1);
    ck_assert_uint_eq(view->n_dims, n_dims);
    ck_assert_int_eq(memcmp(view->dims, count, n_dims * sizeof *count), 0);
    /* what the copy kernel moves at once must divide every address and length that it uses */
    uint32_t access = view->gather.access;
    ck_assert(access >= 1 && access <= 16 && (access & (access - 1)) == 0);
    ck_assert_uint_eq(view->gather.run_bytes % access, 0);
    ck_assert_uint_eq(view->gather.src % access, 0);
    for (uint32_t i = 0; i < DMI_RING_DIMS; i++)
        if (view->gather.count[i] > 1)
            ck_assert_int_eq(view->gather.stride[i] % (int64_t)access, 0);
}

START_TEST(sites_as_engines_have_them)
{
    static const struct {
        const char *site;
        uint64_t src;
        uint32_t elem, n_dims, count[4];
        int64_t stride[4];
        uint32_t run_bytes, access; /* 0: any */
    } rows[] = {
        /* [rows][576], packed: a run a row */
        { "pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: 'arg[3].i32'}, {count: 576}]",
          BASE,
          4,
          2,
          { 7, 576 },
          { 2304, 4 },
          2304,
          16 },
        /* [heads][32][64]: rows inside, stored with the row first */
        { "pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: 'arg[3].i32', stride: 64*4}, "
          "{count: 9, stride: 32*64*4}, {count: 64}]",
          BASE,
          4,
          3,
          { 7, 9, 64 },
          { 256, 8192, 4 },
          256,
          16 },
        /* one row of a cache [k, v][head][position][64] */
        { "pointer: 'arg[0]', offset: '(3*256 + arg[3].i32)*64*4', dtype: f32, dims: [{row: true, "
          "count: 1, stride: 64*4}, {count: 3, stride: 256*64*4}, {count: 64}]",
          BASE + (3 * 256 + 7) * 256,
          4,
          3,
          { 1, 3, 64 },
          { 256, 65536, 4 },
          256,
          16 },
        /* the last row only, of 16-bit elements, at an odd place */
        { "pointer: 'arg[1]', offset: '(arg[3].i32 - 1) * 10', dtype: bf16, dims: [{row: true, "
          "count: 1}, {count: 5}]",
          BASE + 2 + 60,
          2,
          2,
          { 1, 5 },
          { 10, 2 },
          10,
          2 },
        /* sizes from the launch itself */
        { "pointer: 'arg[0]', dtype: u8, dims: [{row: true, count: grid.x}, {count: block.x}, "
          "{count: occ}]",
          BASE,
          1,
          3,
          { 4, 32, 3 },
          { 96, 3, 1 },
          96,
          16 },
        /* a by-value structure's member: arg[4] holds an address after 0 bytes */
        { "pointer: 'arg[4][0]', dtype: i64, dims: [{row: true, count: 3, stride: 16}]",
          BASE + 8,
          8,
          1,
          { 3 },
          { 16 },
          8,
          8 },
    };
    uint64_t args[N_ARGS] = { BASE, BASE + 2, 0, 7, BASE + 8 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tensor_view view;
        ck_assert_int_eq(view_at(rows[i].site, args, &view), 0);
        check_view(&view, rows[i].src, rows[i].n_dims, rows[i].count, rows[i].stride, rows[i].elem);
        ck_assert_uint_eq(view.gather.run_bytes, rows[i].run_bytes);
        ck_assert_uint_eq(view.gather.access, rows[i].access);
    }
}
END_TEST

START_TEST(what_cannot_be_read_is_refused_by_name)
{
    static const struct {
        const char *site;
        uint64_t arg0;
        int result;
        uint32_t rows; /* that are still told, for the count of what is lost */
    } rows[] = {
        { "pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: 'arg[3].i32'}]", 0,
          VIEW_E_POINTER, 7 },
        { "pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: 'arg[3].i32'}]", UINT64_MAX - 4,
          VIEW_E_POINTER, 7 },
        { "pointer: 'arg[9]', dtype: f32, dims: [{row: true, count: 'arg[3].i32'}]", BASE,
          VIEW_E_PARAM, 7 },
        { "pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: 'arg[9].i32'}]", BASE,
          VIEW_E_PARAM, 0 },
        { "pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: '0 - arg[3].i32'}]", BASE,
          VIEW_E_EXPR, 0 },
        { "pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: '1 / arg[2].i32'}]", BASE,
          VIEW_E_EXPR, 0 },
        { "pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: 'arg[3].i32 * 1099511627776'}]",
          BASE, VIEW_E_EXPR, 0 },
        { "pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: 'arg[3].i32 * 268435456'}, "
          "{count: 4}]",
          BASE, VIEW_E_TOO_LARGE, 7u << 28 },
        { "pointer: 'arg[0]', offset: 'arg[5].i64 + arg[5].i64', dtype: f32, dims: [{row: true, "
          "count: 1}]",
          BASE, VIEW_E_EXPR, 1 },
        { "pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: 3, stride: 'arg[5].i64'}]",
          BASE, VIEW_E_EXPR, 3 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t args[N_ARGS] = { rows[i].arg0, 0, 0, 7, 0, INT64_MAX };
        struct tensor_view view;
        ck_assert_msg(view_at(rows[i].site, args, &view) == rows[i].result, "row %zu", i);
        ck_assert_msg(view.dims[0] == rows[i].rows, "row %zu: %u rows", i, view.dims[0]);
    }
}
END_TEST

#define SLOTS(more)                                                                                \
    "pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: 'arg[3].i32', slots: {pointer: "     \
    "'arg[1]', dtype: i32" more "}}, {count: 16}]"

/* How many slots of 64 bytes a site has in @room bytes. */
START_TEST(a_paged_cache_ends_with_its_memory)
{
    static const struct {
        const char *site;
        uint64_t room, n_slots;
        int64_t page; /* bytes from a page to the next */
    } rows[] = {
        { SLOTS(""), 64, 1, 0 },
        { SLOTS(""), 63, 0, 0 },
        { SLOTS(""), 64 * 10 + 63, 10, 0 },
        { SLOTS(""), UINT64_MAX - BASE, UINT32_MAX, 0 },
        { SLOTS(", block: 4, block_stride: 1000"), 255, 0, 1000 },
        { SLOTS(", block: 4, block_stride: 1000"), 256, 4, 1000 },
        { SLOTS(", block: 4, block_stride: 1000"), 1255, 4, 1000 },
        { SLOTS(", block: 4, block_stride: 1000"), 1256, 8, 1000 },
        { SLOTS(", block: 4, block_stride: 100"), 356, 8, 100 }, /* pages may overlap */
        { SLOTS(", block: 4, block_stride: 1000"), UINT64_MAX - BASE, UINT32_MAX, 1000 },
    };
    uint64_t args[N_ARGS] = { BASE, BASE + 1024, 0, 5 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tensor_view view;
        ck_assert_int_eq(view_at(rows[i].site, args, &view), 0);
        ck_assert_uint_eq(view.n_list_bytes, 20);
        ck_assert_uint_eq(view.gather.slots, BASE + 1024);
        ck_assert_uint_eq(view.first, BASE);
        ck_assert_uint_eq(view.n_touched, 64);
        ck_assert_int_eq(view_limit(&view, BASE + rows[i].room), rows[i].n_slots > 0);
        ck_assert_msg(view.gather.n_slots == rows[i].n_slots, "row %zu: %u", i,
                      view.gather.n_slots);
        ck_assert_uint_eq(view.gather.rows_inner, rows[i].page ? 4 : 0);
        ck_assert_int_eq(view.gather.stride_outer, rows[i].page);
        ck_assert_uint_eq(view.n_touched, rows[i].n_slots ? rows[i].room : 64);
    }
}
END_TEST

START_TEST(a_paged_cache_that_cannot_be_is_refused)
{
    static const struct {
        const char *site;
        uint64_t list;
        int result;
    } rows[] = {
        { SLOTS(""), 0, VIEW_E_POINTER },
        { SLOTS(""), BASE + 2, VIEW_E_POINTER }, /* no i32 lies there */
        { SLOTS(", block: 'arg[2].i32', block_stride: 64"), BASE, VIEW_E_EXPR },
        { SLOTS(", block: 4, block_stride: 'arg[2].i32'"), BASE, VIEW_E_EXPR },
        { SLOTS(", block: 4, block_stride: 'arg[9].i32'"), BASE, VIEW_E_PARAM },
        { "pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: 3, slots: {pointer: 'arg[9]', "
          "dtype: i64}}]",
          BASE, VIEW_E_PARAM },
        { "pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: 3, stride: 'arg[2].i32', "
          "slots: "
          "{pointer: 'arg[1]', dtype: i64}}]",
          BASE, VIEW_E_EXPR },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t args[N_ARGS] = { BASE, rows[i].list, 0, 5 };
        struct tensor_view view;
        ck_assert_msg(view_at(rows[i].site, args, &view) == rows[i].result, "row %zu", i);
    }
}
END_TEST

START_TEST(no_rows_is_no_error_and_nothing_to_read)
{
    uint64_t args[N_ARGS] = { 0 };
    struct tensor_view view;
    ck_assert_int_eq(
        view_at(
            "pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: 'arg[3].i32'}, {count: 4}]",
            args, &view),
        0);
    ck_assert_uint_eq(view.n_bytes, 0);
}
END_TEST

/* What a tap of these dimensions is to be, rows first. */
static void check_tap(const struct dmi_tap *tap, uint32_t elem)
{
    static uint64_t got[1 << 17], want[1 << 17];
    uint32_t count[4], n_rows = 1, n_row_dims = 0, n = 0;
    int64_t stride[4];
    struct tensor_view view;
    for (int rows = 1; rows >= 0; rows--)
        for (uint32_t d = 0; d < tap->n_dims; d++)
            if ((int)(tap->row_dims >> d & 1) == rows) {
                n_rows *= rows ? (uint32_t)tap->count[d] : 1;
                n_row_dims += (uint32_t)rows;
                count[n] = (uint32_t)tap->count[d];
                stride[n++] = tap->stride[d];
            }
    ck_assert_int_eq(view_of_tap(tap, &view), 0);
    size_t bytes = wanted((uint64_t)(uintptr_t)tap->data, n, count, stride, elem, want);
    ck_assert_uint_eq(view.n_bytes, bytes);
    ck_assert_uint_eq(addresses(&view.gather, got, sizeof got / sizeof *got), bytes);
    ck_assert_int_eq(memcmp(got, want, bytes * sizeof *got), 0);
    ck_assert_uint_eq(view.dims[0], n_rows);
    ck_assert_uint_eq(view.n_dims, n - n_row_dims + 1);
    ck_assert_uint_eq(view.row_bytes, bytes / n_rows);
    for (uint32_t d = 1; d < view.n_dims; d++)
        ck_assert_uint_eq(view.dims[d], count[d + n_row_dims - 1]);
    for (size_t i = 0; i < bytes; i++)
        ck_assert(want[i] >= view.first && want[i] < view.first + view.n_touched);
    uint64_t access = view.gather.access;
    ck_assert_uint_eq((view.gather.src | (uint64_t)view.gather.run_bytes) % access, 0);
    ck_assert(!view.gather.rows_inner || view.gather.stride_outer % (int64_t)access == 0);
}

/* Taps of one or two row dimensions, which may be any, and may lie as one. */
START_TEST(random_taps_are_read_rows_first)
{
    unsigned seed = (unsigned)_i + 1;
    struct dmi_tap tap = { .data = (const void *)(uintptr_t)BASE,
                           .dtype = rand_r(&seed) % 2 ? DMI_DTYPE_F32 : DMI_DTYPE_BF16,
                           .n_dims = 1 + (uint32_t)rand_r(&seed) % 4 };
    uint32_t elem = dmi_dtype_bytes(tap.dtype);
    int64_t packed = elem;
    for (uint32_t d = tap.n_dims; d-- > 0;) {
        tap.count[d] = 1 + (uint64_t)rand_r(&seed) % 6;
        tap.stride[d] = rand_r(&seed) % 3 ? packed : (int64_t)(rand_r(&seed) % 60) * elem;
        packed *= (int64_t)tap.count[d];
    }
    tap.row_dims = 1u << rand_r(&seed) % tap.n_dims | 1u << rand_r(&seed) % tap.n_dims;
    check_tap(&tap, elem);
}
END_TEST

START_TEST(taps_that_cannot_be_read_are_refused)
{
    static const struct {
        struct dmi_tap tap;
        int result;
    } rows[] = {
        { { .count = { 1ull << 32, 4 }, .stride = { 16, 4 } }, VIEW_E_TOO_LARGE },
        { { .count = { 1u << 31, 4 }, .stride = { 16, 4 } }, VIEW_E_TOO_LARGE },
        { { .count = { 3, 4 }, .stride = { INT64_MAX, 4 } }, VIEW_E_EXPR },
        { { .count = { 2, 4 }, .stride = { INT64_MAX - 64, 4 } }, VIEW_E_POINTER },
    };
    struct tensor_view view;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dmi_tap tap = rows[i].tap;
        tap.data = (const void *)(uintptr_t)(UINT64_MAX / 2 + 1024);
        tap.dtype = DMI_DTYPE_F32;
        tap.n_dims = 2;
        tap.row_dims = 1;
        ck_assert_msg(view_of_tap(&tap, &view) == rows[i].result, "row %zu", i);
    }
    struct dmi_tap null = {
        .dtype = DMI_DTYPE_F32, .n_dims = 1, .row_dims = 1, .count = { 3 }, .stride = { 4 }
    };
    ck_assert_int_eq(view_of_tap(&null, &view), VIEW_E_POINTER);
}
END_TEST

START_TEST(random_shapes_are_read_in_their_order)
{
    static const struct {
        const char *name;
        uint32_t bytes;
    } types[] = { { "f32", 4 }, { "bf16", 2 }, { "u8", 1 }, { "i64", 8 } };
    unsigned seed = (unsigned)_i + 1;
    uint32_t n_dims = 1 + (uint32_t)rand_r(&seed) % 4, count[4];
    int64_t stride[4];
    size_t type = (size_t)rand_r(&seed) % 4;
    uint32_t elem = types[type].bytes;
    int64_t packed = elem;
    char site[512];
    for (uint32_t i = n_dims; i-- > 0;) {
        count[i] = 1 + (uint32_t)rand_r(&seed) % 7;
        /* packed more often than not, so that runs of several dimensions occur */
        stride[i] = rand_r(&seed) % 3 ? packed : (int64_t)(rand_r(&seed) % 60) * elem;
        packed *= count[i];
    }
    int n =
        snprintf(site, sizeof site, "pointer: 'arg[0]', offset: 'arg[1].i64', dtype: %s, dims: [",
                 types[type].name);
    for (uint32_t i = 0; i < n_dims; i++)
        n += snprintf(site + n, sizeof site - (size_t)n, "%s{%scount: %u, stride: %lld}",
                      i ? ", " : "", i ? "" : "row: true, ", count[i], (long long)stride[i]);
    snprintf(site + n, sizeof site - (size_t)n, "]");
    uint64_t offset = (uint64_t)rand_r(&seed) % 100 * elem;
    uint64_t args[N_ARGS] = { BASE, offset };
    struct tensor_view view;
    ck_assert_int_eq(view_at(site, args, &view), 0);
    check_view(&view, BASE + offset, n_dims, count, stride, elem);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gather");
    TCase *tests = tcase_create("gather");
    tcase_add_test(tests, sites_as_engines_have_them);
    tcase_add_test(tests, what_cannot_be_read_is_refused_by_name);
    tcase_add_test(tests, a_paged_cache_ends_with_its_memory);
    tcase_add_test(tests, a_paged_cache_that_cannot_be_is_refused);
    tcase_add_test(tests, no_rows_is_no_error_and_nothing_to_read);
    tcase_add_loop_test(tests, random_shapes_are_read_in_their_order, 0, 100);
    tcase_add_loop_test(tests, random_taps_are_read_rows_first, 0, 100);
    tcase_add_test(tests, taps_that_cannot_be_read_are_refused);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
