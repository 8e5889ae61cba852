/* SPDX-License-Identifier: Apache-2.0 */
/* Moments, sketches and channels of analyze/: against sums in long double and sorted values, and each instruction set against the portable form. */
#include "analyze/channels.h"
#include "analyze/moments.h"
#include "analyze/sketch.h"
#include "analyze/tile.h"

#include "core/cleanup.h"
#include "storage/codec/cpu.h"
#include "storage/elements.h"

#include <dmi/dtype.h>

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- values */

enum kind { NORMAL, FAR_FROM_ZERO, ONE_HUGE, SPARSE, INTEGERS, TINY, N_KINDS };

static double uniform(unsigned short state[3])
{
    return erand48(state) - 0.5;
}

static double normal(unsigned short state[3])
{
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += uniform(state);
    return sum;
}

static double value_of(enum kind kind, size_t i, unsigned short state[3])
{
    double v = normal(state);
    switch (kind) {
    case NORMAL: return (double)(float)v;
    case FAR_FROM_ZERO: return 1e6 + v;
    case ONE_HUGE: return i == 507 ? 23338 : v;
    case SPARSE: return v > 1 ? v : 0;
    case INTEGERS: return floor(8 * v);
    default: return v * 1e-39; /* no normal float */
    }
}

static double *values_of(enum kind kind, size_t n, unsigned short seed)
{
    unsigned short state[3] = { seed, (unsigned short)kind, 7 };
    double *v = calloc(n + 1, sizeof *v);
    ck_assert_ptr_nonnull(v);
    for (size_t i = 0; i < n; i++)
        v[i] = value_of(kind, i, state);
    return v;
}

/* Those that this processor can run; the first is the portable one. Return: how many. */
static size_t kernels(const struct tile_kernel *all[3])
{
    size_t n = 0;
    all[n++] = &tile_portable;
#ifdef __x86_64__
    if (has_avx2())
        all[n++] = &tile_avx2;
    if (has_avx512())
        all[n++] = &tile_avx512;
#endif
    ck_assert_ptr_eq(all[n - 1], tile_best());
    return n;
}

/* From an odd address on, with an infinity and a NaN. */
START_TEST(elements_widen_to_their_values)
{
    enum { N = 133 };
    const struct tile_kernel *all[3];
    size_t n_all = kernels(all);
    _cleanup_(freep) double *v = values_of((enum kind)_i, N, 23);
    uint8_t narrow[4 * N + 1], upper[2 * N + 1];
    double want[N], got[N];
    v[3] = INFINITY;
    v[4] = NAN;
    for (size_t i = 0; i < N; i++) {
        float f = (float)v[i];
        memcpy(narrow + 1 + 4 * i, &f, sizeof f);
        memcpy(upper + 1 + 2 * i, narrow + 3 + 4 * i, 2);
    }
    for (size_t k = 0; k < n_all; k++) {
        elements_to_double(DMI_DTYPE_F32, narrow + 1, N, want);
        all[k]->from_f32(narrow + 1, N, got);
        ck_assert_mem_eq(got, want, sizeof want);
        elements_to_double(DMI_DTYPE_BF16, upper + 1, N, want);
        all[k]->from_bf16(upper + 1, N, got);
        ck_assert_mem_eq(got, want, sizeof want);
    }
}
END_TEST

/* ------------------------------------------------------------------------- moments */

static void add_tiles(struct moments *to, const double *v, size_t n, size_t tile)
{
    struct moments part;
    for (size_t i = 0; i < n; i += tile) {
        moments_of(tile_best(), v + i, n - i < tile ? n - i : tile, &part);
        moments_merge(to, &part);
    }
}

static void expect_close(double got, long double want, double tolerance, const char *what)
{
    double off = (double)fabsl((long double)got - want);
    ck_assert_msg(off <= tolerance * (double)fabsl(want) + 1e-300, "%s: %.17g, not %.17Lg", what,
                  got, want);
}

static void expect_moments(const struct moments *m, const double *v, size_t n)
{
    long double sum = 0, m2 = 0, m4 = 0, squares = 0;
    double peak = 0;
    uint64_t n_zero = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (long double)v[i];
        squares += (long double)v[i] * (long double)v[i];
        peak = fmax(peak, fabs(v[i]));
        n_zero += v[i] == 0;
    }
    long double mean = sum / (long double)n;
    for (size_t i = 0; i < n; i++) {
        long double d = (long double)v[i] - mean;
        m2 += d * d;
        m4 += d * d * d * d;
    }
    ck_assert_uint_eq(m->n, n);
    ck_assert_uint_eq(m->n_zero, n_zero);
    ck_assert_double_eq(moments_peak(m), peak);
    long double sd = sqrtl(m2 / (long double)n);
    ck_assert_double_le((double)fabsl((long double)m->mean - mean),
                        1e-12 * (double)sd + 1e-15 * fabs(m->mean));
    expect_close(moments_sd(m), sd, 1e-9, "sd");
    expect_close(moments_norm(m), sqrtl(squares), 1e-12, "norm");
    if (m2 > 0)
        expect_close(moments_kurtosis(m), (long double)n * m4 / (m2 * m2), 1e-8, "kurtosis");
}

START_TEST(moments_are_those_of_long_doubles)
{
    static const size_t sizes[] = { 1, 2, 7, 8, 9, 511, 512, 513, 5000 };
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        _cleanup_(freep) double *v = values_of((enum kind)_i, sizes[s], 3);
        struct moments m = { 0 };
        add_tiles(&m, v, sizes[s], MOMENTS_TILE);
        expect_moments(&m, v, sizes[s]);
        struct moments small = { 0 };
        add_tiles(&small, v, sizes[s], 100);
        expect_moments(&small, v, sizes[s]);
    }
}
END_TEST

START_TEST(moments_have_the_bits_of_the_portable_form)
{
    const struct tile_kernel *all[3];
    size_t n_all = kernels(all);
    for (size_t n = 1; n <= MOMENTS_TILE; n += n < 40 ? 1 : 59) {
        _cleanup_(freep) double *v = values_of((enum kind)_i, n, 5);
        struct moments a, b;
        moments_of(all[0], v, n, &a);
        for (size_t k = 1; k < n_all; k++) {
            moments_of(all[k], v, n, &b);
            ck_assert_mem_eq(&a, &b, sizeof a);
        }
    }
}
END_TEST

START_TEST(moments_of_nothing_are_not_numbers)
{
    const double three[] = { 3, 3, 3 };
    struct moments none = { 0 }, m;
    ck_assert(isnan(moments_sd(&none)) && isnan(moments_kurtosis(&none)) &&
              isnan(moments_peak(&none)));
    moments_of(tile_best(), three, 3, &m);
    struct moments before = m;
    moments_merge(&m, &none);
    ck_assert_mem_eq(&m, &before, sizeof m);
    moments_merge(&none, &m);
    ck_assert_mem_eq(&none, &before, sizeof m);
    ck_assert_double_eq(moments_sd(&m), 0);
    ck_assert(isnan(moments_kurtosis(&m)));

    struct moments one, of_one;
    moments_of(tile_best(), three, 1, &one);
    moments_of_one(3, &of_one);
    ck_assert_mem_eq(&one, &of_one, sizeof one);
    moments_of_one(0, &of_one);
    ck_assert_uint_eq(of_one.n_zero, 1);
}
END_TEST

/* ------------------------------------------------------------------------- the sketch */

static int by_value(const void *pa, const void *pb)
{
    double a = *(const double *)pa, b = *(const double *)pb;
    return a < b ? -1 : a > b;
}

static void expect_within(double got, double want)
{
    double allowed = fabs(want) * SKETCH_ERROR * (1 + 1e-4) + 1e-40;
    ck_assert_msg(fabs(got - want) <= allowed, "%.9g, not %.9g", got, want);
}

static void expect_quantiles(const struct sketch *s, double *sorted, size_t n)
{
    static const double asked[] = { 0, 0.001, 0.01, 0.25, 0.5, 0.75, 0.99, 0.999, 1 };
    qsort(sorted, n, sizeof *sorted, by_value);
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++)
        expect_within(sketch_quantile(s, asked[i]),
                      sorted[(size_t)floor(asked[i] * (double)(n - 1))]);
    for (size_t i = 0; i < n; i++)
        sorted[i] = fabs(sorted[i]);
    qsort(sorted, n, sizeof *sorted, by_value);
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++)
        expect_within(sketch_magnitude(s, asked[i]),
                      sorted[(size_t)floor(asked[i] * (double)(n - 1))]);
}

START_TEST(quantiles_are_within_the_error_that_is_said)
{
    static const size_t sizes[] = { 1, 2, 63, 64, 65, 20000 };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        _cleanup_(sketch_deinit) struct sketch s = { 0 };
        _cleanup_(freep) double *v = values_of((enum kind)_i, sizes[i], 11);
        ck_assert_int_eq(sketch_add(&s, v, sizes[i]), 0);
        ck_assert_uint_eq(s.n, sizes[i]);
        expect_quantiles(&s, v, sizes[i]);
    }
}
END_TEST

/* Elements as a run has them, from an odd address on. */
START_TEST(keys_count_as_their_values_do)
{
    enum { N = 777 };
    _cleanup_(sketch_deinit) struct sketch narrow = { 0 }, halves = { 0 }, values = { 0 };
    _cleanup_(freep) double *v = values_of((enum kind)_i, N, 19);
    uint8_t wide[4 * N + 1], upper[2 * N + 1];
    for (size_t i = 0; i < N; i++) {
        float f = (float)v[i];
        memcpy(wide + 1 + 4 * i, &f, sizeof f);
        memcpy(upper + 1 + 2 * i, wide + 3 + 4 * i, 2);
    }
    ck_assert_int_eq(sketch_add(&values, v, N), 0);
    ck_assert_int_eq(sketch_add_keys(&narrow, wide + 3, 4, N), 0);
    ck_assert_int_eq(sketch_add_keys(&halves, upper + 1, 2, N), 0);
    ck_assert_uint_eq(narrow.n, N);
    ck_assert_mem_eq(values.recent, narrow.recent, SKETCH_BUCKETS * sizeof *values.recent);
    ck_assert_mem_eq(values.recent, halves.recent, SKETCH_BUCKETS * sizeof *values.recent);
}
END_TEST

/* Near the end of what a recent count holds, which takes four thousand million values to reach. */
START_TEST(counts_go_on_beyond_32_bits)
{
    const double many[] = { 2 }, more[] = { -1, 2, 3, 3 };
    _cleanup_(sketch_deinit) struct sketch s = { 0 };
    ck_assert_int_eq(sketch_add(&s, many, 1), 0);
    uint32_t *count = s.recent;
    while (!*count)
        count++;
    *count = UINT32_MAX - 1;
    s.n = s.n_recent = UINT32_MAX - 1;
    ck_assert_int_eq(sketch_add(&s, more, 4), 0);
    ck_assert_uint_eq(s.n, (uint64_t)UINT32_MAX + 3);
    ck_assert_ptr_nonnull(s.earlier);
    expect_within(sketch_quantile(&s, 0), -1);
    expect_within(sketch_quantile(&s, 0.5), 2);
    expect_within(sketch_quantile(&s, 1), 3);
    expect_within(sketch_magnitude(&s, 0.5), 2);
}
END_TEST

START_TEST(doubles_that_no_float_holds_are_the_largest)
{
    const double v[] = { 1e300, -1e300, 1e300 };
    _cleanup_(sketch_deinit) struct sketch s = { 0 };
    ck_assert(isnan(sketch_quantile(&s, 0.5)) && isnan(sketch_magnitude(&s, 0.5)));
    ck_assert_int_eq(sketch_add(&s, v, 3), 0);
    ck_assert_double_gt(sketch_quantile(&s, 1), 3.4e38);
    ck_assert_double_lt(sketch_quantile(&s, 0), -3.4e38);
}
END_TEST

/* ------------------------------------------------------------------------- channels */

enum { WIDTH = 37, ROWS = 500 };

static void expect_channel(const struct channels *c, size_t channel, const double *v)
{
    long double sum = 0, m2 = 0;
    double peak = 0;
    size_t n = 0;
    for (size_t r = 0; r < ROWS; r++)
        if (isfinite(v[r * WIDTH + channel])) {
            sum += (long double)v[r * WIDTH + channel];
            peak = fmax(peak, fabs(v[r * WIDTH + channel]));
            n++;
        }
    long double mean = sum / (long double)n;
    for (size_t r = 0; r < ROWS; r++)
        if (isfinite(v[r * WIDTH + channel]))
            m2 += ((long double)v[r * WIDTH + channel] - mean) *
                  ((long double)v[r * WIDTH + channel] - mean);
    ck_assert_uint_eq(channels_count(c, channel), n);
    ck_assert_double_eq(c->peak[channel], peak);
    long double variance = m2 / (long double)n;
    expect_close(channels_sd(c, channel), sqrtl(variance), 1e-9, "sd");
    expect_close(channels_mean(c, channel), mean, 1e-9, "mean");
    expect_close(channels_rms(c, channel), sqrtl(variance + mean * mean), 1e-12, "rms");
}

/*
 * Rows in parts of @part channels, @together of them at a time; what is not finite makes the parts of its rows bad ones.
 */
static void add_rows(const struct tile_kernel *kernel, struct channels *c, const double *v,
                     size_t part, size_t together)
{
    for (size_t r = 0, some; r < ROWS; r += some) {
        some = ROWS - r < together ? ROWS - r : together;
        channels_begin_rows(c, some);
        for (size_t i = 0, n; i < WIDTH; i += n) {
            const double *at = v + r * WIDTH + i;
            bool bad = false;
            n = WIDTH - i < part ? WIDTH - i : part;
            for (size_t k = 0; k < some * n; k++)
                bad |= !isfinite(at[k / n * WIDTH + k % n]);
            for (size_t k = 0; bad && k < some; k++)
                ck_assert_int_eq(channels_add_bad(c, i, at + k * WIDTH, n), 0);
            if (!bad)
                channels_add(kernel, c, i, at, WIDTH, some, n);
        }
    }
}

static void expect_same(const struct channels *a, const struct channels *b)
{
    ck_assert_mem_eq(a->shift, b->shift, WIDTH * sizeof *a->shift);
    ck_assert_mem_eq(a->sum, b->sum, WIDTH * sizeof *a->sum);
    ck_assert_mem_eq(a->squares, b->squares, WIDTH * sizeof *a->squares);
    ck_assert_mem_eq(a->peak, b->peak, WIDTH * sizeof *a->peak);
}

START_TEST(channels_are_those_of_long_doubles_in_whatever_parts)
{
    const struct tile_kernel *all[3];
    size_t n_all = kernels(all);
    _cleanup_(channels_deinit) struct channels c = { 0 };
    _cleanup_(freep) double *v = values_of((enum kind)(_i % N_KINDS), WIDTH * ROWS, 17);
    if (_i >= N_KINDS) /* some that are not finite, one channel without any */
        for (size_t r = 0; r < ROWS; r++) {
            v[r * WIDTH + 5] = r % 3 ? v[r * WIDTH + 5] : NAN;
            v[r * WIDTH + 6] = r == 499 ? -INFINITY : v[r * WIDTH + 6];
        }
    ck_assert_int_eq(channels_init(&c, WIDTH), 0);
    add_rows(all[0], &c, v, WIDTH, 1);
    for (size_t k = 0; k < n_all; k++)
        for (size_t together = 1; together <= 5; together++) {
            _cleanup_(channels_deinit) struct channels other = { 0 };
            ck_assert_int_eq(channels_init(&other, WIDTH), 0);
            add_rows(all[k], &other, v, together == 3 ? WIDTH : 2 + 3 * together, together);
            expect_same(&c, &other);
        }
    for (size_t i = 0; i < WIDTH; i++)
        expect_channel(&c, i, v);
}
END_TEST

START_TEST(a_channel_stands_out_by_robust_deviations)
{
    double values[] = { 5, 1, 4, 2, 3 }, scratch[5];
    struct robust r = robust_of(values, scratch, 5);
    ck_assert_double_eq(r.median, 3);
    ck_assert_double_eq(r.sd, 1.4826); /* distances 0 1 1 2 2 */
    ck_assert(isnan(robust_of(values, scratch, 0).median));

    const double row[] = { 1, 2, -3, 4, 100, NAN };
    double scores[6], room[12];
    _cleanup_(channels_deinit) struct channels c = { 0 }, flat = { 0 };
    ck_assert_int_eq(channels_init(&c, 6) | channels_init(&flat, 5), 0);
    channels_begin_rows(&c, 1);
    ck_assert_int_eq(channels_add_bad(&c, 0, row, 6), 0);
    channels_scores(&c, scores, room);
    ck_assert_double_eq_tol(scores[4], 97 / 1.4826, 1e-12);
    ck_assert_double_eq_tol(scores[0], -2 / 1.4826, 1e-12);
    ck_assert(isnan(scores[5]));

    channels_begin_rows(&flat, 1);
    channels_add(tile_best(), &flat, 0, (const double[]){ 2, 2, 2, 2, 9 }, 5, 1, 5);
    channels_scores(&flat, scores, room);
    for (size_t i = 0; i < 5; i++)
        ck_assert(
            isnan(scores[i])); /* more than half are equal: there is no spread to measure by */
}
END_TEST

/* ------------------------------------------------------------------------- main */

int main(void)
{
    Suite *s = suite_create("analyze_statistics");
    TCase *tc = tcase_create("statistics");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, elements_widen_to_their_values, 0, N_KINDS);
    tcase_add_loop_test(tc, moments_are_those_of_long_doubles, 0, N_KINDS);
    tcase_add_loop_test(tc, moments_have_the_bits_of_the_portable_form, 0, N_KINDS);
    tcase_add_test(tc, moments_of_nothing_are_not_numbers);
    tcase_add_loop_test(tc, quantiles_are_within_the_error_that_is_said, 0, N_KINDS);
    tcase_add_loop_test(tc, keys_count_as_their_values_do, 0, N_KINDS);
    tcase_add_test(tc, counts_go_on_beyond_32_bits);
    tcase_add_test(tc, doubles_that_no_float_holds_are_the_largest);
    tcase_add_loop_test(tc, channels_are_those_of_long_doubles_in_whatever_parts, 0, 2 * N_KINDS);
    tcase_add_test(tc, a_channel_stands_out_by_robust_deviations);
    suite_add_tcase(s, tc);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
