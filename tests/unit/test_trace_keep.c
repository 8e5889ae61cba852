/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of the last steps' records, and the question that is asked of it from other threads. */
#include "core/atomic.h"
#include "cupti/layouts.h"
#include "preload/trace/keep.h"
#include "preload/trace/recent.h"
#include "preload/trace/stepring.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ASKERS  4
#define ASKS    200
#define RECORDS 3u /* of a step */

static struct recent recent;
static uint64_t n_steps; /* that have ended; atomic */

/* In the place of preload/trace/stepring.c. */
uint64_t stepring_numbered(void)
{
    return atomic_load_acquire(&n_steps);
}

static void tear_down(void)
{
    recent_deinit(&recent);
    keep_reset();
    n_steps = 0;
}

/* ------------------------------------------------------------------------- the ring */

#define MOST 4096

static uint64_t of[MOST]; /* the step of each record, which its begin says the place of */
static bool gone_out[MOST];
static uint64_t n_made, n_handed;

static void add(uint64_t number)
{
    const struct records_event e = { .kind = LAYOUTS_KERNEL, .begin_ns = n_made };
    ck_assert_uint_lt(n_made, MOST);
    of[n_made++] = number;
    recent_add(&recent, &e, number);
}

static void hand(void *ctx, const struct records_event *event, uint64_t number)
{
    const uint64_t *window = ctx;
    ck_assert_uint_eq(number, of[event->begin_ns]);
    ck_assert(number >= window[0] && number < window[1]);
    ck_assert(!gone_out[event->begin_ns]); /* none twice */
    gone_out[event->begin_ns] = true;
    n_handed++;
}

/* The steps that the ring holds whole, by the list. */
static uint64_t whole_from(uint64_t room)
{
    uint64_t whole = 0;
    for (uint64_t i = 0; i + room < n_made; i++)
        whole = of[i] + 1 > whole ? of[i] + 1 : whole;
    return whole;
}

START_TEST(steps_that_are_stored_are_whole_and_stored_once)
{
    uint64_t state = 7, room = 1 + 13 * (uint64_t)_i;
    n_made = n_handed = 0;
    memset(gone_out, 0, sizeof gone_out);
    ck_assert_int_eq(recent_init(&recent, room * sizeof(struct recent_record)), 0);
    ck_assert_uint_eq(recent.room, room);
    for (uint64_t step = 0; step < 300; step++) {
        for (uint64_t i = 0; i < 1 + step % 5; i++)
            add(step);
        if (step && step % 3 == 0)
            add(step - 1); /* of another stream, late */
        state = state * 6364136223846793005u + 1;
        if (state >> 33 & 7)
            continue;
        uint64_t first = recent.whole, window[] = { first, step + 1 }, want = 0, had = 0;
        ck_assert_uint_eq(first, whole_from(room));
        for (uint64_t i = 0; i < n_made; i++) {
            want += of[i] >= first;
            had += of[i] >= first && gone_out[i];
        }
        n_handed = 0;
        recent_store(&recent, first, step + 1, hand, window);
        ck_assert_uint_eq(n_handed, want - had);
    }
    uint64_t unasked = 0, out = 0;
    for (uint64_t i = 0; i < n_made; i++) {
        unasked += i + room < n_made && !gone_out[i];
        out += gone_out[i];
    }
    ck_assert_uint_eq(recent.gone, unasked);
    ck_assert_uint_eq(recent.stored, out);
}
END_TEST

START_TEST(too_little_memory_holds_one_record)
{
    ck_assert_int_eq(recent_init(&recent, 1), 0);
    ck_assert_uint_eq(recent.room, 1);
    recent_deinit(&recent);
    ck_assert_int_lt(recent_init(&recent, UINT64_MAX / 2), 0);
    ck_assert_ptr_null(recent.records);
}
END_TEST

/* ------------------------------------------------------------------------- the question */

static int stops;               /* atomic */
static uint64_t n_done, n_busy; /* answers; atomic */

static void count(void *ctx, const struct records_event *event, uint64_t number)
{
    (void)event, (void)number;
    ++*(uint64_t *)ctx;
}

/* Steps come while questions do. */
static void *collect(void *arg)
{
    (void)arg;
    while (!atomic_load_acquire(&stops)) {
        struct keep_window asked;
        uint64_t number = n_steps, n = 0;
        const struct records_event e = { .kind = LAYOUTS_KERNEL, .begin_ns = number };
        for (unsigned i = 0; i < RECORDS; i++)
            recent_add(&recent, &e, number);
        atomic_store_release(&n_steps, number + 1);
        if (!keep_asked(&asked))
            continue;
        struct keep_answer answer = { .window = asked };
        if (answer.window.first < recent.whole)
            answer.window.first = recent.whole < asked.end ? recent.whole : asked.end;
        recent_store(&recent, answer.window.first, asked.end, count, &n);
        answer.records = n;
        keep_done(&answer);
    }
    return NULL;
}

static bool doze(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
    return true;
}

static void *ask(void *arg)
{
    for (unsigned i = 0; i < ASKS; i++) {
        struct keep_answer a = keep_ask(1 + i % 7, doze);
        if (a.state == KEEP_BUSY) {
            __atomic_fetch_add(&n_busy, 1, __ATOMIC_RELAXED);
            continue;
        }
        ck_assert_int_eq(a.state, KEEP_DONE);
        ck_assert_uint_le(a.window.end - a.window.first, 1 + i % 7);
        ck_assert_uint_le(a.records, RECORDS * (1 + i % 7));
        __atomic_fetch_add(&n_done, 1, __ATOMIC_RELAXED);
    }
    return arg;
}

START_TEST(threads_ask_and_one_answers)
{
    pthread_t collector, askers[ASKERS];
    ck_assert_int_eq(recent_init(&recent, 64 * sizeof(struct recent_record)), 0);
    keep_use(true);
    pthread_create(&collector, NULL, collect, NULL);
    for (int i = 0; i < ASKERS; i++)
        pthread_create(&askers[i], NULL, ask, NULL);
    for (int i = 0; i < ASKERS; i++)
        pthread_join(askers[i], NULL);
    atomic_store_release(&stops, 1);
    pthread_join(collector, NULL);
    ck_assert_uint_eq(n_done + n_busy, ASKERS * ASKS);
    ck_assert_uint_gt(n_done, 0);
}
END_TEST

static void *ask_once(void *arg)
{
    *(struct keep_answer *)arg = keep_ask(0, doze);
    return NULL;
}

START_TEST(who_waits_is_told_when_the_trace_ends)
{
    pthread_t asker;
    struct keep_answer answer;
    struct keep_window asked;
    ck_assert_int_eq(keep_ask(1, doze).state, KEEP_OFF);
    keep_use(true);
    pthread_create(&asker, NULL, ask_once, &answer);
    while (!keep_asked(&asked))
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    ck_assert_int_eq(keep_ask(1, doze).state, KEEP_BUSY);
    keep_use(false);
    pthread_join(asker, NULL);
    ck_assert_int_eq(answer.state, KEEP_OFF);
}
END_TEST

static bool leave(void)
{
    return false;
}

START_TEST(who_is_to_end_waits_no_longer)
{
    struct keep_window asked;
    keep_use(true);
    ck_assert_int_eq(keep_ask(1, leave).state, KEEP_ENDS);
    ck_assert(keep_asked(&asked)); /* it is stored all the same */
    ck_assert_int_eq(keep_ask(1, leave).state, KEEP_BUSY);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("trace_keep");
    TCase *tc = tcase_create("keep");
    tcase_add_checked_fixture(tc, NULL, tear_down);
    tcase_add_loop_test(tc, steps_that_are_stored_are_whole_and_stored_once, 0, 12);
    tcase_add_test(tc, too_little_memory_holds_one_record);
    tcase_add_test(tc, threads_ask_and_one_answers);
    tcase_add_test(tc, who_waits_is_told_when_the_trace_ends);
    tcase_add_test(tc, who_is_to_end_waits_no_longer);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
