/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of steps on their way to chunks: whatever the order in which records come, each is in one part of its step. */
#include "cupti/layouts.h"
#include "preload/trace/sums.h"

#include <dmi/trace.h>

#include <check.h>
#include <stdio.h>
#include <string.h>

#define STEPS 40u /* DMI_RAN_UNKNOWN and DMI_RAN_OUTSIDE among them */

static const char *const names[] = { "gemm", "norm", "dmi_open", "softmax" };
static struct trace_sums sums;
static struct ran_chunks chunks;
static uint64_t added[STEPS][4], seen[STEPS][4], parts[STEPS], n_busy[STEPS];
static uint64_t random_state = 1;

static uint64_t draw(uint64_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % below;
}

/* In the place of preload/trace/ran_chunks.c. */
void ran_chunks_sums(struct ran_chunks *to, struct aggregate *of, uint64_t step, size_t most)
{
    ck_assert(to == &chunks && most == SUMS_NAMES && step < STEPS && of->n_records);
    parts[step]++;
    n_busy[step] += of->n_records;
    for (size_t i = 0; i < of->n; i++)
        for (size_t k = 0; k < 4; k++)
            seen[step][k] += of->sums[i].name == names[k] ? of->sums[i].sum_ns : 0;
}

static void set_up(void)
{
    memset(added, 0, sizeof added);
    memset(seen, 0, sizeof seen);
    memset(parts, 0, sizeof parts);
    memset(n_busy, 0, sizeof n_busy);
}

static void tear_down(void)
{
    sums_deinit(&sums);
}

static void take(uint64_t step)
{
    uint64_t k = draw(4), ns = 1 + draw(1000);
    struct records_event e = { .kind = LAYOUTS_KERNEL,
                               .name = names[k],
                               .begin_ns = 5000 + draw(9000) };
    e.end_ns = e.begin_ns + ns;
    sums_take(&sums, &e, step);
    added[step][k] += ns;
}

/* @second: one in so many rounds writes what is of no step. */
static void rounds(unsigned n, unsigned second)
{
    for (unsigned i = 1; i <= n; i++)
        sums_round(&sums, i % second == 0, false, &chunks);
}

START_TEST(a_step_is_one_part_once_nothing_more_came)
{
    for (uint64_t step = DMI_RAN_FIRST; step < STEPS; step++) {
        take(step);
        sums_round(&sums, false, false, &chunks);
        take(step);                          /* the next round */
        take(step - (step > DMI_RAN_FIRST)); /* the other stream's are late by one */
    }
    ck_assert_uint_eq(parts[STEPS - 1], 0);
    rounds(4, 10);
    for (uint64_t step = DMI_RAN_FIRST; step < STEPS; step++)
        ck_assert_uint_eq(parts[step], 1);
    ck_assert_mem_eq(added, seen, sizeof added);
    take(5);
    rounds(4, 10);
    ck_assert_uint_eq(parts[5], 2); /* what comes later is another part */
    ck_assert_mem_eq(added, seen, sizeof added);
}
END_TEST

START_TEST(what_is_of_no_step_goes_once_a_second)
{
    for (unsigned i = 0; i < 60; i++) {
        take(DMI_RAN_OUTSIDE);
        take(DMI_RAN_UNKNOWN);
        sums_round(&sums, i % 20 == 19, false, &chunks);
    }
    ck_assert_uint_eq(parts[DMI_RAN_OUTSIDE], 3);
    ck_assert_uint_eq(parts[DMI_RAN_UNKNOWN], 3);
    ck_assert_mem_eq(added, seen, sizeof added);
}
END_TEST

START_TEST(each_record_is_in_one_part_in_any_order)
{
    char line[192];
    uint64_t n = 0, in_parts = 0, all[4] = { 0 };
    for (unsigned i = 0; i < 20000; i++) {
        take(draw(STEPS));
        n++;
        if (!draw(50))
            sums_round(&sums, !draw(5), false, &chunks);
    }
    sums_round(&sums, true, true, &chunks);
    ck_assert_mem_eq(added, seen, sizeof added);
    for (unsigned step = 0; step < STEPS; step++) {
        in_parts += n_busy[step];
        for (unsigned k = 0; k < 4; k++)
            all[k] += added[step][k];
    }
    ck_assert_uint_eq(in_parts, n);
    ck_assert_uint_eq(sums.no_memory, 0);
    ck_assert_uint_eq(sums.all.n_records, n);
    for (size_t i = 0; i < sums.all.n; i++)
        for (unsigned k = 0; k < 4; k++)
            ck_assert(sums.all.sums[i].name != names[k] || sums.all.sums[i].sum_ns == all[k]);
    sums_dearest(&sums, line, sizeof line);
    double share[3];
    char name[3][16];
    ck_assert_int_eq(sscanf(line, "%lf%% %15[^,], %lf%% %15[^,], %lf%% %15s", &share[0], name[0],
                            &share[1], name[1], &share[2], name[2]),
                     6);
    ck_assert(share[0] >= share[1] && share[1] >= share[2] && share[2] > 20 && share[0] < 30);
    ck_assert_str_ne(name[0], name[1]);
    char cut[8];
    sums_dearest(&sums, cut, sizeof cut);
    ck_assert_uint_lt(strlen(cut), sizeof cut);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("trace_sums");
    TCase *tc = tcase_create("sums");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, a_step_is_one_part_once_nothing_more_came);
    tcase_add_test(tc, what_is_of_no_step_goes_once_a_second);
    tcase_add_test(tc, each_record_is_in_one_part_in_any_order);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
