/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/base/handles.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>

#define N_KEYS 5000

static struct handles table = HANDLES_INIT;

static const void *handle_of(uintptr_t i)
{
    return (const void *)(0x7f0000000000 + i * 64);
}

static void *value_of(uintptr_t i)
{
    return (void *)(i * 16 + 1);
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

START_TEST(what_is_kept_is_found_and_what_is_taken_is_not)
{
    void *model[N_KEYS] = { 0 };
    uint64_t random = 7;
    for (int i = 0; i < 200000; i++) {
        uintptr_t key = next_random(&random) % N_KEYS;
        void *value = next_random(&random) % 3 ? value_of(next_random(&random) % 1000) : NULL;
        ck_assert_ptr_eq(handles_find(&table, handle_of(key)), model[key]);
        if (value != model[key] || !value)
            ck_assert_ptr_eq(handles_set(&table, handle_of(key), value), model[key]);
        model[key] = value;
    }
    for (uintptr_t key = 0; key < N_KEYS; key++)
        ck_assert_ptr_eq(handles_find(&table, handle_of(key)), model[key]);
}
END_TEST

START_TEST(places_are_used_again)
{
    /* 100,000 handles, a hundred at a time: the table stays as small as a hundred need */
    for (uintptr_t i = 0; i < 100000; i++) {
        ck_assert_ptr_null(handles_set(&table, handle_of(i), value_of(i)));
        if (i >= 100)
            ck_assert_ptr_eq(handles_set(&table, handle_of(i - 100), NULL), value_of(i - 100));
    }
    ck_assert_uint_eq(table.n, 100);
    ck_assert_uint_le(table.slots->bits, 10);
    uint32_t n_free = 0;
    for (uint32_t i = 0; i < 1u << table.slots->bits; i++)
        n_free += !table.slots->entries[i].handle;
    ck_assert_uint_gt(n_free, 100); /* a search for what is not there ends early */
}
END_TEST

START_TEST(it_grows_with_what_is_kept)
{
    for (uintptr_t i = 0; i < 60000; i++)
        ck_assert_ptr_null(handles_set(&table, handle_of(i), value_of(i)));
    for (uintptr_t i = 0; i < 60000; i++)
        ck_assert_ptr_eq(handles_find(&table, handle_of(i)), value_of(i));
}
END_TEST

static void count(const void *handle, void *value, void *ctx)
{
    ck_assert_ptr_eq(handles_find(&table, handle), value);
    ck_assert_ptr_eq(handles_set(&table, handle, NULL), value);
    ++*(unsigned *)ctx;
}

START_TEST(each_may_take_away_what_it_is_given)
{
    unsigned n = 0;
    for (uintptr_t i = 0; i < 3000; i++)
        handles_set(&table, handle_of(i), value_of(i));
    handles_each(&table, count, &n);
    ck_assert_uint_eq(n, 3000);
    ck_assert_uint_eq(table.n, 0);
}
END_TEST

/*
 * Readers of handles that come and go, in places that others get meanwhile, see theirs or nothing. All begin their
 * search at one place of a table of 1024.
 */
#define N_RIVALS 40
static const void *rivals[N_RIVALS];
static int over;

static void find_rivals(void)
{
    uintptr_t handle = 0x7f0000000000;
    for (int n = 0; n < N_RIVALS; handle += 64)
        if (handle * 0x9E3779B97F4A7C15u >> 54 == 77)
            rivals[n++] = (const void *)handle;
}

static void *read_on(void *arg)
{
    uint64_t random = (uintptr_t)arg, wrong = 0;
    while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
        uintptr_t key = next_random(&random) % N_RIVALS;
        void *value = handles_find(&table, rivals[key]);
        wrong += value && value != value_of(key);
    }
    return (void *)(uintptr_t)wrong;
}

START_TEST(readers_never_see_the_value_of_another_handle)
{
    pthread_t readers[2];
    uint64_t random = 3;
    find_rivals();
    for (uintptr_t i = 0; i < 2; i++)
        pthread_create(&readers[i], NULL, read_on, (void *)(i + 1));
    for (int i = 0; i < 60000; i++) {
        uintptr_t key = next_random(&random) % N_RIVALS;
        handles_set(&table, rivals[key], value_of(key));
        for (int k = 0; k < 3; k++)
            handles_set(&table, rivals[next_random(&random) % N_RIVALS], NULL);
    }
    __atomic_store_n(&over, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 2; i++) {
        void *wrong;
        pthread_join(readers[i], &wrong);
        ck_assert_ptr_null(wrong);
    }
}
END_TEST

/* Each test has a table of its own also where all run in one process. */
static void fresh_table(void)
{
    table = (struct handles)HANDLES_INIT;
    over = 0;
}

int main(void)
{
    Suite *suite = suite_create("handles");
    TCase *tcase = tcase_create("handles");
    tcase_add_checked_fixture(tcase, fresh_table, NULL);
    tcase_add_test(tcase, what_is_kept_is_found_and_what_is_taken_is_not);
    tcase_add_test(tcase, places_are_used_again);
    tcase_add_test(tcase, it_grows_with_what_is_kept);
    tcase_add_test(tcase, each_may_take_away_what_it_is_given);
    tcase_add_test(tcase, readers_never_see_the_value_of_another_handle);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
