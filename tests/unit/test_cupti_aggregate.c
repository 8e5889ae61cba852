/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of records, beside a list of the same records that is walked naively. */
#include "cupti/aggregate.h"
#include "cupti/layouts.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N     5000
#define NAMES 300

static char names[NAMES][16];
static struct records_event all[N];
static struct aggregate a;
static uint64_t random_state;

static uint64_t draw(uint64_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % below;
}

static void set_up(void)
{
    for (int i = 0; i < NAMES; i++)
        snprintf(names[i], sizeof names[i], i % 50 ? "kernel%d" : "dmi_copy%d", i);
}

static void tear_down(void)
{
    aggregate_deinit(&a);
}

/* @n_names: of kernels. Times overlap, and rise mostly. */
static void make(uint64_t seed, uint64_t n_names)
{
    static const uint32_t kinds[] = { LAYOUTS_KERNEL, LAYOUTS_KERNEL, LAYOUTS_KERNEL,
                                      LAYOUTS_COPY,   LAYOUTS_SET,    LAYOUTS_COPY_PEER };
    random_state = seed;
    aggregate_clear(&a);
    for (uint64_t i = 0; i < N; i++) {
        struct records_event *e = &all[i];
        bool kernel = (e->kind = kinds[draw(6)]) == LAYOUTS_KERNEL;
        e->how = e->kind == LAYOUTS_COPY ? 1 + (uint32_t)draw(3) : 0;
        e->device = (uint32_t)draw(2);
        e->registers = kernel ? (uint32_t)draw(200) : 0;
        e->begin_ns = 1000000 + 300 * i - draw(2000);
        e->end_ns = e->begin_ns + draw(500);
        e->bytes = kernel ? 0 : draw(100000);
        e->name = kernel && draw(20) ? names[draw(n_names)] : NULL;
        ck_assert(aggregate_add(&a, e));
    }
    ck_assert_uint_eq(a.n_records, N);
}

static bool is_of(const struct records_event *e, const struct aggregate_sum *s)
{
    return e->kind == s->kind && e->how == s->how && e->device == s->device && e->name == s->name;
}

static void expect(const struct aggregate_sum *s)
{
    struct aggregate_sum want = { .n = 0 };
    for (size_t i = 0; i < N; i++) {
        const struct records_event *e = &all[i];
        uint64_t ns = e->end_ns - e->begin_ns;
        if (!is_of(e, s))
            continue;
        want.n++;
        want.sum_ns += ns;
        want.bytes += e->bytes;
        want.most_ns = ns > want.most_ns ? ns : want.most_ns;
        want.registers = e->registers > want.registers ? e->registers : want.registers;
    }
    ck_assert(s->n == want.n && s->sum_ns == want.sum_ns && s->bytes == want.bytes &&
              s->most_ns == want.most_ns && s->registers == want.registers);
}

static uint64_t kernels(bool own)
{
    uint64_t n = 0;
    for (size_t i = 0; i < N; i++)
        n += all[i].kind == LAYOUTS_KERNEL && records_is_own(all[i].name) == own;
    return n;
}

START_TEST(sums_are_those_of_the_records)
{
    for (uint64_t seed = 1; seed < 20; seed++) {
        uint64_t n = 0;
        make(seed, 1 + seed * seed % NAMES);
        aggregate_order(&a);
        for (size_t i = 0; i < a.n; i++) {
            expect(&a.sums[i]);
            n += a.sums[i].n;
            ck_assert(!i || a.sums[i - 1].sum_ns >= a.sums[i].sum_ns);
        }
        ck_assert_uint_eq(n, N);
    }
}
END_TEST

/* The most time stays, the others become one; nothing is counted twice, and DMI's own and copies are not among them. */
START_TEST(a_fold_keeps_the_dearest_names_and_the_whole)
{
    static struct aggregate before;
    make(7, NAMES);
    for (size_t i = 0; i < a.n; i++)
        ck_assert(aggregate_merge(&before, &a.sums[i]));
    aggregate_order(&before);
    aggregate_fold(&a, 16);
    uint64_t n = 0, own = 0, named = 0, least = UINT64_MAX, left_out = 0;
    for (size_t i = 0; i < a.n; i++) {
        const struct aggregate_sum *s = &a.sums[i];
        bool counts = s->kind == LAYOUTS_KERNEL && !records_is_own(s->name);
        n += s->n;
        own += s->kind == LAYOUTS_KERNEL && records_is_own(s->name) ? s->n : 0;
        named += counts;
        least = counts && s->sum_ns < least ? s->sum_ns : least;
        if (s->kind)
            expect(s);
        else
            left_out = s->n;
    }
    ck_assert_uint_eq(n, N);
    ck_assert_uint_eq(named, 16);
    ck_assert_uint_eq(own, kernels(true));
    uint64_t beyond = 0, seen = 0;
    for (size_t i = 0; i < before.n; i++) {
        const struct aggregate_sum *s = &before.sums[i];
        if (s->kind != LAYOUTS_KERNEL || records_is_own(s->name) || seen++ < 16)
            continue;
        beyond += s->n;
        ck_assert_uint_le(s->sum_ns, least);
    }
    ck_assert_uint_gt(beyond, 0);
    ck_assert_uint_eq(left_out, beyond);
    ck_assert_uint_eq(before.n_records, N);
    aggregate_deinit(&before);
}
END_TEST

static void add_span(uint64_t begin, uint64_t end)
{
    const struct records_event e = { .kind = LAYOUTS_KERNEL, .begin_ns = begin, .end_ns = end };
    ck_assert(aggregate_add(&a, &e));
}

START_TEST(time_in_which_something_ran)
{
    static const struct {
        uint64_t spans[5][2];
        size_t n;
        struct aggregate_busy want;
    } rows[] = {
        { { { 10, 20 } }, 1, { 10, 20, 10, 0 } },
        { { { 10, 20 }, { 20, 25 }, { 30, 31 } }, 3, { 10, 31, 16, 5 } },
        { { { 10, 20 }, { 12, 15 }, { 19, 40 } }, 3, { 10, 40, 30, 0 } },
        { { { 50, 60 }, { 10, 20 }, { 15, 30 } }, 3, { 10, 60, 30, 20 } },
        { { { 10, 90 }, { 20, 30 }, { 5, 8 }, { 95, 96 } }, 4, { 5, 96, 84, 5 } },
        { { { 10, 10 }, { 13, 13 } }, 2, { 10, 13, 0, 3 } },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        aggregate_clear(&a);
        for (size_t k = 0; k < rows[i].n; k++)
            add_span(rows[i].spans[k][0], rows[i].spans[k][1]);
        struct aggregate_busy b = aggregate_busy(&a);
        ck_assert_mem_eq(&b, &rows[i].want, sizeof b);
    }
}
END_TEST

/* By a bit a nanosecond. */
START_TEST(busy_time_of_many_records)
{
    static uint8_t runs[1000000 + 300 * N + 1000];
    for (uint64_t seed = 1; seed < 5; seed++) {
        uint64_t busy = 0, longest = 0, idle = 0, first = UINT64_MAX, last = 0;
        make(seed, 3);
        memset(runs, 0, sizeof runs);
        for (size_t i = 0; i < N; i++) {
            memset(runs + all[i].begin_ns, 1, all[i].end_ns - all[i].begin_ns);
            first = all[i].begin_ns < first ? all[i].begin_ns : first;
            last = all[i].end_ns > last ? all[i].end_ns : last;
        }
        for (uint64_t t = first; t < last; t++) {
            idle = runs[t] ? 0 : idle + 1;
            busy += runs[t];
            longest = idle > longest ? idle : longest;
        }
        struct aggregate_busy b = aggregate_busy(&a);
        ck_assert(b.begin_ns == first && b.end_ns == last && b.busy_ns == busy);
        ck_assert_uint_le(b.longest_ns, longest); /* a record of no time parts a gap */
        ck_assert_uint_ge(2 * b.longest_ns, longest);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cupti_aggregate");
    TCase *tc = tcase_create("aggregate");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, sums_are_those_of_the_records);
    tcase_add_test(tc, a_fold_keeps_the_dearest_names_and_the_whole);
    tcase_add_test(tc, time_in_which_something_ran);
    tcase_add_test(tc, busy_time_of_many_records);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
