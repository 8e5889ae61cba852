/* SPDX-License-Identifier: Apache-2.0 */
/* Accounts of edits in requests that come, end and come again: what is due stays due, in their own accounts or in totals. */
#include "preload/edit/accounts.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 1700u /* requests at a time: nearly all accounts that there are */

static struct dmi_edit_accounts *file;
static uint64_t counts[3 * DMI_EDIT_ACCOUNTS], seen[3 * DMI_EDIT_ACCOUNTS];
static uint32_t n_notes;

static void count_note(const char *what, const char *more)
{
    ck_assert(*what && *more == ',');
    n_notes++;
}

static void start(void)
{
    file = calloc(1, sizeof *file + DMI_EDIT_ACCOUNTS * sizeof file->accounts[0]);
    ck_assert_ptr_nonnull(file);
    memset(counts, 0, sizeof counts);
    memset(seen, 0, sizeof seen);
    n_notes = 0;
    accounts_start(file, count_note);
}

static void end(void)
{
    accounts_reset();
    free(file);
}

static const struct edit_use *use_of(uint32_t i)
{
    static struct edit edits[2] = { { .name = (char *)"a" },
                                    { .name = (char *)"b", .aborts = true } };
    static const struct edit_use uses[2] = { { .edit = &edits[0], .uid = 1 },
                                             { .edit = &edits[1], .uid = 2 } };
    return &uses[i];
}

/* The request has 3 rows of each edit due; the device writes @written of those, one is missed of the second edit. */
static void serve(const char *id, uint64_t written)
{
    for (uint32_t e = 0; e < 2; e++) {
        int miss = EDIT_NO_MISS;
        uint32_t account = accounts_find(use_of(e), id, &miss);
        ck_assert(account != ACCOUNTS_NONE && miss == EDIT_NO_MISS);
        accounts_due(account, 3);
        if (e)
            accounts_missed(account, DMI_EDIT_MISS_CACHED, 1);
        counts[account] += written - e;
    }
}

static void settle(void)
{
    accounts_collect(counts, seen);
    accounts_settle();
}

static uint64_t sum_of(uint32_t e, uint64_t *written, uint64_t *missed)
{
    uint64_t due = 0, why[DMI_EDIT_MISS_COUNT] = { 0 };
    *written = 0;
    accounts_sum(use_of(e)->uid, &due, written, why);
    *missed = why[DMI_EDIT_MISS_CACHED];
    return due;
}

static void expect_sums(uint64_t n)
{
    uint64_t written, missed;
    ck_assert_uint_eq(sum_of(0, &written, &missed), 3 * n);
    ck_assert(written == 3 * n && !missed);
    ck_assert_uint_eq(sum_of(1, &written, &missed), 3 * n);
    ck_assert(written == 2 * n && missed == n);
}

START_TEST(thirty_thousand_requests)
{
    const uint32_t n = 30000;
    char id[32];
    start();
    for (uint32_t r = 0; r < n + BATCH; r++) {
        snprintf(id, sizeof id, "request-%u", r);
        if (r < n)
            serve(id, 3);
        snprintf(id, sizeof id, "request-%u", r - BATCH);
        if (r >= BATCH)
            accounts_end(id);
        if (r % 16 == 0)
            settle();
    }
    settle();
    expect_sums(n);
    ck_assert(file->ended == 2 * n && file->marked == n && n_notes == n);
    for (uint32_t i = 0; i < DMI_EDIT_ACCOUNTS; i++)
        ck_assert_uint_ne(file->accounts[i].state, DMI_EDIT_ACCOUNT_OPEN);
    end();
}
END_TEST

START_TEST(a_request_that_comes_again_before_all_is_known)
{
    start();
    serve("r", 2);
    accounts_end("r");
    settle(); /* a row of the first edit is still on its way */
    ck_assert_int_eq(accounts_aborting("r"), 1);
    serve("r", 4);
    settle();
    ck_assert_uint_eq(file->ended, 0);
    accounts_end("other");
    accounts_end("r");
    settle();
    ck_assert_uint_eq(file->ended, 2);
    ck_assert_int_eq(accounts_aborting("r"), 0);
    expect_sums(2);
    end();
}
END_TEST

START_TEST(a_source_is_noted_once)
{
    int miss = EDIT_NO_MISS;
    start();
    uint32_t account = accounts_find(use_of(0), "taker", &miss);
    for (int i = 0; i < 3; i++) {
        accounts_source(account, "clean", "donor");
        accounts_settle();
    }
    ck_assert_uint_eq(n_notes, 1);
    accounts_source(account, "clean", "another");
    accounts_finish();
    ck_assert_uint_eq(n_notes, 2);
    end();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("edit_accounts");
    TCase *tests = tcase_create("accounts");
    tcase_add_test(tests, thirty_thousand_requests);
    tcase_add_test(tests, a_request_that_comes_again_before_all_is_known);
    tcase_add_test(tests, a_source_is_noted_once);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
