/* SPDX-License-Identifier: Apache-2.0 */
/* read/selection.c over policy/interval.c: the table of selections.def, and what several options come to. */
#include "read/selection.h"

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N 10 /* layers, or rows */

static const struct row {
    bool layers;
    const char *text, *means;
} rows[] = {
#define LAYERS(text, means) { true, text, means },
#define SLICES(text, means) { false, text, means },
#include "selections.def"
};

#define N_ROWS (int)(sizeof rows / sizeof rows[0])

/* "7 8 9" */
struct listing {
    char text[128];
    bool has[N];
};

static void list(struct listing *l, int i)
{
    size_t n = strlen(l->text);
    if (!l->has[i])
        snprintf(l->text + n, sizeof l->text - n, n ? " %d" : "%d", i);
    l->has[i] = true;
}

static int layers_of(const char *text, struct err *err, struct listing *out)
{
    struct selection select = { .n_of_model = N };
    int r = selection_add_layers(err, "--layers", text, &select);
    for (size_t w = 0; !r && w < select.n_layers; w++)
        for (int i = 0; i < N; i++)
            if (layer_word_has(&select.layers[w], i, N))
                list(out, i);
    for (int i = 0; !r && i < N; i++)
        ck_assert(selection_wants_layer(&select, i) == out->has[i]);
    return r;
}

static int slices_listed(const char *text, struct err *err, struct listing *out)
{
    struct slices slices = { 0 };
    int r = slices_add(err, "--rows", text, true, &slices);
    struct ranges ranges = slices_of(&slices, N);
    for (size_t k = 1; !r && k < ranges.n; k++)
        ck_assert(ranges.all[k - 1].end < ranges.all[k].first);
    for (int i = 0; !r && i < N; i++)
        if (ranges_have(&ranges, i))
            list(out, i);
    return r;
}

START_TEST(a_text_means_what_the_table_says)
{
    const struct row *row = &rows[_i];
    struct err err = { 0 };
    struct listing got = { "", { false } };
    int r = (row->layers ? layers_of : slices_listed)(row->text, &err, &got);
    if (*row->means != '!')
        ck_assert_msg(!r && !strcmp(got.text, row->means), "'%s': '%s', not '%s'; %s", row->text,
                      got.text, row->means, err.msg);
    else
        ck_assert_msg(r == -EINVAL && strstr(err.msg, row->means + 1), "'%s': %d, %s", row->text, r,
                      err.msg);
}
END_TEST

START_TEST(what_is_said_again_adds_up)
{
    struct selection s = { .n_of_model = N };
    struct err err = { 0 };
    ck_assert_int_eq(selection_add_layers(&err, "--layers", "0", &s), 0);
    ck_assert_int_eq(selection_add_layers(&err, "--layers", "5-6,last", &s), 0);
    ck_assert_int_eq(selection_add_tokens(&err, "--tokens", "2:4", &s), 0);
    ck_assert_int_eq(selection_add_tokens(&err, "--tokens", "-1,all", &s), 0);
    ck_assert_int_eq(selection_add_name(&s.requests, "a", 1), 0);
    ck_assert_int_eq(selection_add_name(&s.requests, "b,c", 3), 0);
    for (int i = 0; i < N; i++)
        ck_assert(selection_wants_layer(&s, i) == (i == 0 || i == 5 || i == 6 || i == 9));
    struct ranges r = selection_ranges(&s, NULL, NULL, 0, N);
    ck_assert(r.n == 1 && r.all[0].first == 0 && r.all[0].end == INT64_MAX);
    s.n_tokens = 2;
    r = selection_ranges(&s, NULL, NULL, 0, N);
    ck_assert(r.n == 2 && r.all[0].first == 2 && r.all[0].end == 4 && r.all[1].first == N - 1);
    ck_assert(selection_wants_request(&s, "b,c", 3) && selection_wants_request(&s, "a", 1));
    ck_assert(!selection_wants_request(&s, "b", 1) && selection_wants_request(&s, NULL, 0));
    selection_deinit(&s);
    ck_assert(selection_is_all(&s));
}
END_TEST

START_TEST(more_words_than_are_kept_are_an_error)
{
    char text[4 * SELECTION_MOST_RANGES] = "1";
    struct err err = { 0 };
    struct slices slices = { 0 };
    for (int i = 0; i < SELECTION_MOST_RANGES; i++)
        strcat(text, ",1");
    ck_assert_int_eq(slices_add(&err, "--rows", text, true, &slices), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "more than 64"));
}
END_TEST

START_TEST(steps_are_not_counted_from_the_end)
{
    struct err err = { 0 };
    struct slices slices = { 0 };
    ck_assert_int_eq(slices_add(&err, "--step", "-1", false, &slices), -EINVAL);
    ck_assert_int_eq(slices_add(&err, "--step", "4,7:", false, &slices), 0);
    ck_assert(slices_have(&slices, 4) && !slices_have(&slices, 5) && slices_have(&slices, 1000));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("selection");
    TCase *tc = tcase_create("selection");
    tcase_add_loop_test(tc, a_text_means_what_the_table_says, 0, N_ROWS);
    tcase_add_test(tc, what_is_said_again_adds_up);
    tcase_add_test(tc, more_words_than_are_kept_are_an_error);
    tcase_add_test(tc, steps_are_not_counted_from_the_end);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
