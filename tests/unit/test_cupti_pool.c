/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers for CUPTI: there is always one, none is two threads', each comes back once and zeroed. Runs under ThreadSanitizer, too. */
#include "cupti/pool.h"

#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define N_THREADS 4u
#define N_EACH    500u

static bool is_zero(const uint8_t *buffer, size_t n)
{
    return !*buffer && !memcmp(buffer, buffer + 1, n - 1);
}

static void give_back(uint8_t *buffer)
{
    struct pool_full full;
    ck_assert(pool_fill(buffer, 0) && pool_next(&full) && full.buffer == buffer);
    pool_give(full.buffer);
}

/* The first test: later ones have memory that is mapped already. */
START_TEST(without_memory_there_is_the_reserve)
{
    struct rlimit before, none;
    size_t n, again;
    ck_assert(!getrlimit(RLIMIT_AS, &before));
    none = before;
    none.rlim_cur = 0;
    ck_assert(!setrlimit(RLIMIT_AS, &none));
    uint8_t *reserve = pool_take(&n), *same = pool_take(&again);
    ck_assert(!setrlimit(RLIMIT_AS, &before));
    ck_assert(reserve && n >= 4096 && n < POOL_BUFFER_BYTES && same == reserve && !again);
    give_back(reserve);
}
END_TEST

START_TEST(there_is_always_a_buffer)
{
    uint8_t *all[POOL_BUFFERS];
    size_t n;
    for (unsigned i = 0; i < POOL_BUFFERS; i++) {
        all[i] = pool_take(&n);
        ck_assert(all[i] && n == POOL_BUFFER_BYTES && !((uintptr_t)all[i] % 4096));
        ck_assert(pool_owns(all[i]) && is_zero(all[i], n));
        for (unsigned k = 0; k < i; k++)
            ck_assert_ptr_ne(all[k], all[i]);
    }
    uint8_t *reserve = pool_take(&n);
    ck_assert(reserve && n && n < POOL_BUFFER_BYTES && is_zero(reserve, n));
    ck_assert(pool_take(&n) == reserve && !n); /* its first owner writes it */
    give_back(reserve);
    ck_assert(pool_take(&n) == reserve && n);
    give_back(reserve);
    for (unsigned i = 0; i < POOL_BUFFERS; i++)
        give_back(all[i]);
}
END_TEST

START_TEST(they_come_back_in_order_and_zeroed)
{
    static uint8_t foreign[64];
    struct pool_full full;
    uint8_t *all[3];
    size_t n;
    for (int i = 0; i < 3; i++)
        all[i] = pool_take(&n);
    for (int i = 2; i >= 0; i--) {
        memset(all[i], 0xa5, (size_t)i + 1);
        ck_assert(pool_fill(all[i], (size_t)i + 1));
    }
    ck_assert(!pool_fill(foreign, 1) && !pool_owns(foreign) && !pool_owns(NULL));
    ck_assert(pool_fill(all[0], 77)); /* given back twice: as the first time */
    for (int i = 2; i >= 0; i--) {
        ck_assert(pool_next(&full) && full.buffer == all[i] && full.n_valid == (size_t)i + 1);
        pool_give(full.buffer);
        ck_assert(is_zero(all[i], 64));
    }
    ck_assert(!pool_next(&full));
}
END_TEST

static atomic_uint n_left; /* threads that fill */

static void *fill(void *arg)
{
    uint32_t thread = (uint32_t)(uintptr_t)arg;
    for (uint32_t i = 0; i < N_EACH; i++) {
        size_t n;
        uint8_t *buffer;
        uint32_t words[2] = { thread, i };
        while (!(buffer = pool_take(&n)) || !n) /* the reserve is another thread's */
            sched_yield();
        ck_assert(is_zero(buffer, 64));
        for (int k = 0; k < 8; k++)
            memcpy(buffer + 8 * k, words, sizeof words);
        ck_assert(pool_fill(buffer, 64));
    }
    atomic_fetch_sub(&n_left, 1);
    return NULL;
}

/* Return: 1: a buffer came, and is one thread's; each thread's come in its order. */
static unsigned walk(uint32_t next[N_THREADS])
{
    struct pool_full full;
    uint32_t words[2];
    if (!pool_next(&full))
        return 0;
    memcpy(words, full.buffer, sizeof words);
    ck_assert(full.n_valid == 64 && words[0] < N_THREADS && words[1] == next[words[0]]);
    for (int k = 0; k < 8; k++)
        ck_assert(!memcmp(full.buffer + 8 * k, words, sizeof words));
    next[words[0]] = words[1] + 1;
    pool_give(full.buffer);
    return 1;
}

START_TEST(threads_fill_and_one_walks)
{
    pthread_t threads[N_THREADS];
    uint32_t next[N_THREADS] = { 0 };
    unsigned n = 0, more;
    n_left = N_THREADS;
    for (uintptr_t i = 0; i < N_THREADS; i++)
        ck_assert(!pthread_create(&threads[i], NULL, fill, (void *)i));
    do {
        bool last = !n_left;
        n += more = walk(next);
        if (last && !more)
            break;
    } while (true);
    for (unsigned i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    ck_assert_uint_eq(n, N_THREADS * N_EACH);
}
END_TEST

START_TEST(a_child_has_none_of_its_parents)
{
    struct pool_full full;
    size_t n;
    uint8_t *buffer = pool_take(&n);
    memset(buffer, 1, 64);
    ck_assert(pool_fill(buffer, 64));
    pool_reset();
    ck_assert(!pool_next(&full) && pool_take(&n) == buffer && is_zero(buffer, n));
    give_back(buffer);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cupti_pool");
    TCase *c = tcase_create("pool");
    tcase_add_test(c, without_memory_there_is_the_reserve);
    tcase_add_test(c, there_is_always_a_buffer);
    tcase_add_test(c, they_come_back_in_order_and_zeroed);
    tcase_add_test(c, threads_fill_and_one_walks);
    tcase_add_test(c, a_child_has_none_of_its_parents);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
