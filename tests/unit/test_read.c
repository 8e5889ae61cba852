/* SPDX-License-Identifier: Apache-2.0 */
/* read/: the order of rows, names as UTF-8, the map. */
#include "storage/map.h"
#include "read/stretches.h"
#include "read/utf8.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- stretches */

#define MOST_POSITIONS 64

/* Who owns each position, and by which row: the latest record that has it. */
struct owners {
    size_t record[MOST_POSITIONS];
    uint32_t row[MOST_POSITIONS];
    bool owned[MOST_POSITIONS];
};

static void own(struct owners *o, const struct stretch *p)
{
    for (uint32_t i = 0; i < p->n_rows; i++) {
        int64_t at = p->position + i;
        if (o->owned[at] && o->record[at] > p->record)
            continue;
        o->owned[at] = true;
        o->record[at] = p->record;
        o->row[at] = p->first_row + i;
    }
}

START_TEST(the_latest_record_owns_a_position)
{
    uint64_t state = (uint64_t)_i + 1;
    for (int round = 0; round < 2000; round++) {
        size_t n = 1 + (size_t)(round % 9);
        struct stretch *stretches = calloc(n, sizeof *stretches);
        struct owners want = { 0 }, got = { 0 };
        uint64_t n_all = 0, n_superseded = 0, n_left = 0;
        ck_assert_ptr_nonnull(stretches);
        for (size_t i = 0; i < n; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            uint32_t n_rows = 1 + (uint32_t)(state >> 60) % 8;
            stretches[i] =
                (struct stretch){ .record = i,
                                  .first_row = (uint32_t)(state >> 40) % 5,
                                  .n_rows = n_rows,
                                  .position = (int64_t)((state >> 33) % (MOST_POSITIONS - 8)) };
            n_all += n_rows;
            own(&want, &stretches[i]);
        }
        ck_assert_int_eq(stretches_arrange(&stretches, &n, 1000, false, &n_superseded), 0);
        for (size_t i = 0; i < n; i++) {
            ck_assert(!i ||
                      stretches[i].position >= stretches[i - 1].position + stretches[i - 1].n_rows);
            own(&got, &stretches[i]);
            n_left += stretches[i].n_rows;
        }
        ck_assert_uint_eq(n_all, n_left + n_superseded);
        ck_assert_mem_eq(&want, &got, sizeof want);
        free(stretches);
    }
}
END_TEST

/* A random mixture again, of which some are rejected: nothing is lost, and what counts is what counts without the rest. */
START_TEST(rows_that_do_not_count_stay_beside_flagged)
{
    uint64_t state = (uint64_t)_i + 77;
    for (int round = 0; round < 2000; round++) {
        size_t n = 1 + (size_t)(round % 9), n_all = 0;
        struct stretch *stretches = calloc(n, sizeof *stretches);
        struct owners want = { 0 }, got = { 0 };
        uint32_t left[MOST_POSITIONS][16] = { 0 }; /* rows by position and record */
        uint64_t n_superseded = 0, n_flagged = 0;
        for (size_t i = 0; i < n; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            stretches[i] = (struct stretch){
                .record = i,
                .n_rows = 1 + (uint32_t)(state >> 60) % 8,
                .position = (int64_t)((state >> 33) % (MOST_POSITIONS - 8)),
                .flags = (state >> 50) % 4 ? 0 : STRETCH_REJECTED,
            };
            n_all += stretches[i].n_rows;
            for (uint32_t k = 0; k < stretches[i].n_rows; k++)
                left[stretches[i].position + k][i]++;
            if (!stretches[i].flags)
                own(&want, &stretches[i]);
        }
        ck_assert_int_eq(stretches_arrange(&stretches, &n, 1000, true, &n_superseded), 0);
        ck_assert_uint_eq(stretches_rows(stretches, n), n_all);
        for (size_t i = 0; i < n; i++) {
            ck_assert(!i || stretches[i].position >=
                                stretches[i - 1].position + stretches[i - 1].n_rows - 1);
            for (uint32_t k = 0; k < stretches[i].n_rows; k++)
                ck_assert_uint_eq(left[stretches[i].position + k][stretches[i].record]--, 1);
            n_flagged += stretches[i].flags == STRETCH_SUPERSEDED ? stretches[i].n_rows : 0;
            if (!stretches[i].flags)
                own(&got, &stretches[i]);
        }
        ck_assert_mem_eq(&want, &got, sizeof want);
        ck_assert_uint_eq(n_flagged, n_superseded);
        free(stretches);
    }
}
END_TEST

START_TEST(pieces_are_cut_to_ranges)
{
    static const struct stretch pieces[] = {
        { 0, 5, 4, 0, 0 }, { 1, 0, 3, 4, 0 }, { 2, 9, 9, -1, 0 }, { 3, 2, 4, 7, STRETCH_REJECTED }
    };
    static const struct range one = { 2, 9 }, two[] = { { 1, 2 }, { 3, 8 } };
    struct stretch *s = malloc(sizeof pieces);
    size_t n = 4;
    memcpy(s, pieces, sizeof pieces);
    ck_assert_int_eq(stretches_clip(&s, &n, &one, 1), 0);
    ck_assert(n == 3 && stretches_rows(s, n) == 7);
    ck_assert(s[0].first_row == 7 && s[0].n_rows == 2 && s[0].position == 2);
    ck_assert(s[2].first_row == 2 && s[2].n_rows == 2 && s[2].flags);
    ck_assert_int_eq(stretches_clip(&s, &n, two, 2), 0);
    ck_assert(n == 3 && stretches_rows(s, n) == 5 && s[0].position == 3 && s[0].n_rows == 1);
    ck_assert_int_eq(stretches_clip(&s, &n, NULL, 0), 0);
    ck_assert(!n);
    free(s);
    s = malloc(sizeof pieces);
    n = 1;
    memcpy(s, pieces, sizeof *s);
    ck_assert_int_eq(stretches_clip(&s, &n, two, 2), 0);
    ck_assert(n == 2 && s[0].first_row == 6 && s[1].first_row == 8 && s[1].position == 3);
    free(s);
}
END_TEST

/* ------------------------------------------------------------------------- UTF-8 */

static const struct {
    const char *s, *printable, *valid;
    size_t columns;
} strings[] = {
    { "plain", "plain", "plain", 5 },
    { "caf\xc3\xa9", "caf\xc3\xa9", "caf\xc3\xa9", 4 },
    { "a\nb\tc\x7f", "a?b?c?", "a\nb\tc\x7f", 6 },
    { "\x1b[31m", "?[31m", "\x1b[31m", 5 },
    { "\xc2\x9b", "?", "\xc2\x9b", 1 },         /* C1: CSI in one character */
    { "\xe2\x80\xae", "?", "\xe2\x80\xae", 1 }, /* right-to-left override */
    { "\xe2\x80\xa8", "?", "\xe2\x80\xa8", 1 }, /* line separator */
    { "\xff", "?", "\xef\xbf\xbd", 1 },
    { "\xc0\xaf", "??", "\xef\xbf\xbd\xef\xbf\xbd", 2 },                  /* overlong */
    { "\xed\xa0\x80", "???", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 3 }, /* surrogate */
    { "\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80", 1 },
    { "\xf4\x90\x80\x80", "????", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 4 },
    { "\xe2\x82", "??", "\xef\xbf\xbd\xef\xbf\xbd", 2 }, /* cut */
};

START_TEST(what_is_no_utf8_or_moves_a_cursor_is_replaced)
{
    struct text printable = { 0 }, valid = { 0 };
    const char *s = strings[_i].s;
    utf8_add_printable(&printable, s, strlen(s));
    utf8_add_valid(&valid, s, strlen(s));
    ck_assert_str_eq(printable.data, strings[_i].printable);
    ck_assert_str_eq(valid.data, strings[_i].valid);
    ck_assert_uint_eq(utf8_columns(printable.data, printable.n), strings[_i].columns);
    text_deinit(&printable);
    text_deinit(&valid);
}
END_TEST

START_TEST(nul_ends_no_name)
{
    struct text valid = { 0 };
    utf8_add_valid(&valid, "a\0b", 3);
    ck_assert_str_eq(valid.data, "a\xef\xbf\xbd"
                                 "b");
    text_deinit(&valid);
}
END_TEST

/* ------------------------------------------------------------------------- map */

START_TEST(a_map_keeps_what_was_put)
{
    enum { N = 5000 };
    static char keys[N][8];
    struct map map = { 0 };
    ck_assert_uint_eq(map_get(&map, "x", 1), MAP_NONE);
    for (size_t i = 0; i < N; i++) {
        size_t n = (size_t)snprintf(keys[i], sizeof keys[i], "%zu", i);
        size_t *value = map_at(&map, keys[i], n);
        ck_assert_ptr_nonnull(value);
        ck_assert_uint_eq(*value, MAP_NONE);
        *value = i;
    }
    for (size_t i = 0; i < N; i++)
        ck_assert_uint_eq(map_get(&map, keys[i], strlen(keys[i])), i);
    ck_assert_uint_eq(map_get(&map, "12", 1), 1);
    ck_assert_uint_eq(map_get(&map, "", 0), MAP_NONE);
    map_deinit(&map);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("read");
    TCase *tc = tcase_create("read");
    tcase_add_loop_test(tc, the_latest_record_owns_a_position, 0, 5);
    tcase_add_loop_test(tc, rows_that_do_not_count_stay_beside_flagged, 0, 5);
    tcase_add_test(tc, pieces_are_cut_to_ranges);
    tcase_add_loop_test(tc, what_is_no_utf8_or_moves_a_cursor_is_replaced, 0,
                        sizeof strings / sizeof strings[0]);
    tcase_add_test(tc, nul_ends_no_name);
    tcase_add_test(tc, a_map_keeps_what_was_put);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
