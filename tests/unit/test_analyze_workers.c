/* SPDX-License-Identifier: Apache-2.0 */
/* analyze/workers.c: each queue in its order, copies, failures. */
#include "analyze/workers.h"

#include <dmi/dtype.h>

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { N = 3, EACH = 500, WIDTH = 7 };

/* What the threads have seen: each has its own. */
struct seen {
    uint64_t next[N];
    int wrong[N];
    uint64_t fails_at; /* row; 0: none */
};

static int look(void *arg, size_t worker, const struct dmi_read_stretch *s)
{
    struct seen *seen = arg;
    uint8_t wanted[WIDTH];
    memset(wanted, (int)(s->first % 251), sizeof wanted);
    seen->wrong[worker] |= s->first != seen->next[worker]++ || s->tensor != worker ||
                           (s->first % 5 == 4 ? s->data != NULL : memcmp(s->data, wanted, WIDTH));
    return seen->fails_at && s->first == seen->fails_at ? -77 : 0;
}

/* Puts rows into all queues, each row's bytes into the same buffer. Return: what workers_put() returned. */
static int put_all(struct workers *w)
{
    uint8_t data[WIDTH];
    int r = 0;
    for (uint64_t i = 0; !r && i < EACH; i++)
        for (size_t k = 0; !r && k < workers_count(w); k++) {
            memset(data, (int)(i % 251), sizeof data);
            r = workers_put(w, k,
                            &(struct dmi_read_stretch){ .tensor = k,
                                                        .first = i,
                                                        .n_rows = 1,
                                                        .width = WIDTH,
                                                        .dtype = DMI_DTYPE_U8,
                                                        .data = i % 5 == 4 ? NULL : data });
        }
    return r;
}

START_TEST(each_queue_is_worked_off_in_its_order)
{
    struct seen seen = { 0 };
    struct workers *w = workers_start(N, look, &seen);
    ck_assert_ptr_nonnull(w);
    ck_assert_uint_eq(workers_count(w), N);
    ck_assert_int_eq(put_all(w), 0);
    ck_assert_int_eq(workers_end(w), 0);
    for (size_t k = 0; k < N; k++) {
        ck_assert_uint_eq(seen.next[k], EACH);
        ck_assert_int_eq(seen.wrong[k], 0);
    }
}
END_TEST

START_TEST(a_failure_ends_the_work_and_is_returned)
{
    struct seen seen = { .fails_at = 100 };
    struct workers *w = workers_start(N, look, &seen);
    ck_assert_int_eq(put_all(w), -77);
    ck_assert_int_eq(workers_end(w), -77);
    for (size_t k = 0; k < N; k++)
        ck_assert_uint_le(seen.next[k], 101); /* nothing is worked on after it */
}
END_TEST

START_TEST(a_failure_at_the_end_is_returned)
{
    struct seen seen = { .fails_at = EACH - 1 };
    struct workers *w = workers_start(1, look, &seen);
    ck_assert_int_eq(put_all(w), 0);
    ck_assert_int_eq(workers_end(w), -77);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("analyze_workers");
    TCase *tc = tcase_create("workers");
    tcase_add_test(tc, each_queue_is_worked_off_in_its_order);
    tcase_add_test(tc, a_failure_ends_the_work_and_is_returned);
    tcase_add_test(tc, a_failure_at_the_end_is_returned);
    suite_add_tcase(s, tc);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
