/* SPDX-License-Identifier: Apache-2.0 */
/* cupti/judge by examples, and with input that no engine can send. tests/unit/test_judge_aims.c has how much it finds. */
#include "cupti/judge/budget.h"
#include "cupti/judge/fit.h"
#include "tests/unit/judge_kit.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t n_kinds = 20000;

static void check_same(struct judge_view a, struct judge_view b)
{
    ck_assert(a.state == b.state && a.is_slow == b.is_slow && a.expected_ns == b.expected_ns &&
              a.threshold_ns == b.threshold_ns && a.noise == b.noise && a.excess == b.excess);
}

/* Load stays what it is: one kind of it. */
static struct judge_turn plain_turn(struct made *m, double noise, uint64_t number)
{
    double time = 4e6 * (1 + noise * (made_number(m) + made_number(m) + made_number(m) - 1.5) * 2);
    return (struct judge_turn){ .number = number,
                                .load = { .rows = 8, .context = 4096, .decode = 8 },
                                .ns = { (int64_t)time, (int64_t)(time * 0.75) } };
}

START_TEST(one_fault_is_not_learned)
{
    struct made m = { .seed = 1 };
    struct judge *j = judge_new();
    struct judge_turn t = plain_turn(&m, 0.02, 0);
    for (uint64_t i = 0; i < 1000; i++) {
        t = plain_turn(&m, 0.02, i);
        judge_take(j, &t, answers);
    }
    double before = judge_ask(j, &t.load, JUDGE_TURN).expected_ns;
    t.ns[JUDGE_TURN] *= 100;
    ck_assert(take(j, &t, JUDGE_TURN).is_slow);
    double after = judge_ask(j, &t.load, JUDGE_TURN).expected_ns;
    ck_assert_double_le(fabs(after / before - 1), 0.005);
    judge_free(j);
}
END_TEST

/* ------------------------------------------------------------------------- by examples */

START_TEST(the_first_turns_are_judged_too)
{
    struct made m = { .seed = 2 };
    struct judge *j = judge_new();
    for (uint64_t i = 0; i < JUDGE_FIRST; i++) {
        struct judge_turn t = plain_turn(&m, 0.02, 7 * i);
        t.ns[JUDGE_TURN] *= i == 60 ? 2 : 1;
        ck_assert_int_eq(judge_ask(j, &t.load, JUDGE_TURN).state, JUDGE_UNKNOWN);
        ck_assert_uint_eq(judge_counts(j)->waiting, i);
        ck_assert_uint_eq(judge_take(j, &t, answers), i + 1 < JUDGE_FIRST ? 0 : JUDGE_FIRST);
    }
    for (uint64_t i = 0; i < JUDGE_FIRST; i++) {
        const struct judge_view *v = &answers[i].of[JUDGE_TURN];
        ck_assert_uint_eq(answers[i].number, 7 * i);
        ck_assert_int_eq(v->state, i < 8 ? JUDGE_RARE : JUDGE_JUDGED);
        ck_assert_int_eq(v->is_slow, i == 60);
        ck_assert_double_lt(fabs(v->expected_ns / 4e6 - 1), 0.02);
    }
    ck_assert_double_lt(fabs(answers[60].of[JUDGE_TURN].excess - 1), 0.1);
    ck_assert_uint_eq(judge_counts(j)->waiting, 0);
    ck_assert_uint_eq(judge_counts(j)->by_state[JUDGE_TURN][JUDGE_RARE], 8);
    ck_assert_uint_eq(judge_counts(j)->slow[JUDGE_TURN], 1);
    judge_free(j);
}
END_TEST

START_TEST(a_kind_seen_too_rarely_is_not_judged)
{
    struct made m = made_of(MADE_RISES, 0.02, 9);
    struct judge *j = taught(&m, 5000);
    struct judge_turn t = { .load = { .rows = 7, .context = 900, .prefill = 3, .decode = 4 } };
    double usual = judge_ask(j, &t.load, JUDGE_TURN).expected_ns;
    for (int i = 0; i < 8; i++) {
        struct judge_view wide = judge_ask(j, &t.load, JUDGE_TURN);
        ck_assert_int_eq(wide.state, JUDGE_RARE);
        t.ns[JUDGE_TURN] = (int64_t)usual;
        t.ns[JUDGE_BUSY] = -1;
        ck_assert_int_eq(take(j, &t, JUDGE_TURN).state, JUDGE_RARE);
        ck_assert(!answers[0].of[JUDGE_TURN].is_slow);
        ck_assert_int_eq(answers[0].of[JUDGE_BUSY].state, JUDGE_UNKNOWN);
    }
    struct judge_view v = judge_ask(j, &t.load, JUDGE_TURN);
    ck_assert_int_eq(v.state, JUDGE_JUDGED);
    t.ns[JUDGE_TURN] = (int64_t)(usual * 10);
    ck_assert(take(j, &t, JUDGE_TURN).is_slow);
    judge_free(j);
}
END_TEST

START_TEST(the_device_s_time_is_judged_by_itself)
{
    struct made m = { .seed = 3 };
    struct judge *j = judge_new();
    struct judge_turn t;
    for (uint64_t i = 0; i < 2000; i++) { /* it is known from turn 700 on */
        t = plain_turn(&m, 0.02, i);
        t.ns[JUDGE_BUSY] = i < 700 ? -1 : t.ns[JUDGE_BUSY];
        judge_take(j, &t, answers);
        if (i >= JUDGE_FIRST && i < 1023)
            ck_assert_int_eq(answers[0].of[JUDGE_BUSY].state, JUDGE_UNKNOWN);
    }
    ck_assert_int_eq(answers[0].of[JUDGE_BUSY].state, JUDGE_JUDGED);
    t.ns[JUDGE_BUSY] += t.ns[JUDGE_BUSY] / 3;
    ck_assert(take(j, &t, JUDGE_BUSY).is_slow);
    ck_assert(!answers[0].of[JUDGE_TURN].is_slow);
    ck_assert_double_lt(fabs(answers[0].of[JUDGE_BUSY].expected_ns / 3e6 - 1), 0.02);
    judge_free(j);
}
END_TEST

/* A cached token is not computed: a prompt whose tokens are not in the cache takes longer, and that is load. */
START_TEST(a_cache_miss_is_load)
{
    struct made m = { .seed = 4 };
    struct judge *j = judge_new();
    uint64_t flagged = 0;
    for (uint64_t i = 0; i < 6000; i++) {
        bool is_miss = i % 50 == 0;
        uint64_t prefill = i % 10 ? 0 : is_miss ? 512 : 16; /* of a prompt of 512 */
        struct judge_turn t = plain_turn(&m, 0.02, i);
        t.load.prefill = prefill;
        t.load.rows += (uint32_t)prefill;
        t.load.context += i % 10 ? 0 : 512;
        t.ns[JUDGE_TURN] += (int64_t)(8000 * prefill);
        judge_take(j, &t, answers);
        flagged += i >= COUNTED && answers[0].of[JUDGE_TURN].is_slow;
    }
    ck_assert_double_le(SHARE(flagged, 6000 - COUNTED), 0.3);
    judge_free(j);
}
END_TEST

/* Turns that compute prompts have four times the noise of others: those are not flagged, and these are found as ever. */
START_TEST(each_phase_has_its_own_noise)
{
    struct made m = { .seed = 6 };
    struct judge *j = judge_new();
    uint64_t flagged = 0, found = 0, asked = 0;
    for (uint64_t i = 0; i < 8000; i++) {
        bool is_prompt = i % 7 == 0;
        struct judge_turn t = plain_turn(&m, is_prompt ? 0.08 : 0.02, i);
        t.load.prefill = is_prompt ? 64 : 0;
        if (i >= COUNTED && !is_prompt) {
            struct judge_view v = judge_ask(j, &t.load, JUDGE_TURN);
            asked++;
            found += (double)t.ns[JUDGE_TURN] * 1.2 > v.threshold_ns;
        }
        judge_take(j, &t, answers);
        flagged += i >= COUNTED && answers[0].of[JUDGE_TURN].is_slow;
    }
    ck_assert_double_le(SHARE(flagged, 8000 - COUNTED), 0.2);
    ck_assert_double_ge(SHARE(found, asked), 99.5);
    judge_free(j);
}
END_TEST

START_TEST(times_that_never_vary_need_no_noise)
{
    struct made m = { .seed = 7 };
    struct judge *j = judge_new();
    struct judge_turn t;
    for (uint64_t i = 0; i < 3000; i++) {
        t = plain_turn(&m, 0, i);
        judge_take(j, &t, answers);
        ck_assert(!answers[0].of[JUDGE_TURN].is_slow);
    }
    t.ns[JUDGE_TURN] += t.ns[JUDGE_TURN] / 20;
    ck_assert(take(j, &t, JUDGE_TURN).is_slow);
    judge_free(j);
}
END_TEST

/* Requests with drafts beside others; and an engine that says nothing of its batches. */
START_TEST(drafts_and_engines_that_say_nothing_are_judged)
{
    for (int says = 0; says < 2; says++) {
        struct made m = made_of(MADE_WANDERS, 0.03, 11);
        m.has_drafts = true;
        struct judge *j = judge_new();
        uint64_t flagged = 0;
        for (int i = 0; i < 5000; i++) {
            struct judge_turn t, plain = plain_turn(&m, 0.03, (uint64_t)i);
            made_turn(&m, &t);
            plain.load = (struct load){ 0 };
            judge_take(j, says ? &t : &plain, answers);
            flagged += i >= COUNTED && answers[0].of[JUDGE_TURN].is_slow;
        }
        ck_assert_double_le(SHARE(flagged, 5000 - COUNTED), 0.5);
        ck_assert_uint_ge(judge_counts(j)->by_state[JUDGE_TURN][JUDGE_JUDGED], says ? 3500 : 4992);
        judge_free(j);
    }
}
END_TEST

START_TEST(the_same_turns_get_the_same_answers)
{
    struct made m = made_of(MADE_RISES, 0.03, 12), again = m;
    struct judge *a = taught(&m, 3000), *b = taught(&again, 3000);
    for (int i = 0; i < 2000; i++) {
        struct judge_turn t;
        made_turn(&m, &t);
        check_same(take(a, &t, JUDGE_TURN), take(b, &t, JUDGE_TURN));
    }
    judge_free(a);
    judge_free(b);
}
END_TEST

/* A step that is still open is asked for by its phase and rows. */
START_TEST(a_step_that_is_open_for_long_hangs)
{
    struct made m = { .seed = 8 };
    struct judge *j = judge_new();
    struct judge_turn t = plain_turn(&m, 0.02, 0);
    const struct usual *u = judge_usual(j);
    ck_assert(!usual_hangs(u, &t.load, UINT64_MAX)); /* nothing is known of it */
    for (uint64_t i = 0; i < 1000; i++) {
        t = plain_turn(&m, 0.02, i);
        t.ns[JUDGE_TURN] *= i % 100 == 99 ? 1000 : 1;
        judge_take(j, &t, answers);
    }
    ck_assert_double_lt(fabs((double)usual_ns(u, &t.load) / 4e6 - 1), 0.05);
    ck_assert(!usual_hangs(u, &t.load, USUAL_HANGS_NS - 1));
    ck_assert(usual_hangs(u, &t.load, USUAL_HANGS_NS));
    t.load.rows = 12; /* near 8 */
    ck_assert(usual_hangs(u, &t.load, USUAL_HANGS_NS));
    t.load.rows = 4096;
    ck_assert_uint_eq(usual_ns(u, &t.load), 0);
    for (uint64_t i = 0; i < 2500; i++) {
        t = plain_turn(&m, 0.02, i);
        t.load.prefill = 100000;
        t.ns[JUDGE_TURN] = 500000000;
        judge_take(j, &t, answers);
    }
    ck_assert(
        !usual_hangs(u, &t.load, 40000000000)); /* long, but not a hundred times its half second */
    ck_assert(usual_hangs(u, &t.load, 51000000000));
    judge_free(j);
}
END_TEST

/* ------------------------------------------------------------------------- what no engine can send */

static void check_sums(const struct judge *j)
{
    const struct judge_counts *c = judge_counts(j);
    for (int s = 0; s < JUDGE_SERIES; s++) {
        uint64_t sum = c->waiting;
        for (int k = 0; k < JUDGE_STATES; k++)
            sum += c->by_state[s][k];
        ck_assert_uint_eq(sum, c->turns);
    }
}

static void check_finite(size_t n)
{
    for (size_t i = 0; i < n; i++) {
        for (int s = 0; s < JUDGE_SERIES; s++) {
            const struct judge_view *v = &answers[i].of[s];
            ck_assert(isfinite(v->expected_ns) && isfinite(v->threshold_ns) && isfinite(v->noise) &&
                      isfinite(v->excess));
            ck_assert(v->expected_ns >= 0 && v->threshold_ns >= v->expected_ns && v->noise >= 0);
            ck_assert(!isnan(judge_sees(v)));
        }
    }
}

static uint64_t any(struct made *m)
{
    static const uint64_t some[] = { 0,         1, UINT32_MAX, UINT64_C(1) << 31, UINT64_C(1) << 32,
                                     UINT64_MAX };
    double way = made_number(m);
    return way < 0.3 ? some[(size_t)(made_number(m) * 6)]
                     : (uint64_t)(made_number(m) * ldexp(1, (int)(made_number(m) * 64)));
}

START_TEST(nothing_that_comes_breaks_it)
{
    for (uint64_t seed = 1; seed <= 2; seed++) {
        struct made m = { .seed = seed };
        struct judge *j = judge_new();
        uint64_t wild = 0, no_time = 0;
        for (int i = 0; i < 10000; i++) {
            struct judge_turn t = { .number = any(&m),
                                    .load = { (uint32_t)any(&m), any(&m), any(&m), any(&m),
                                              any(&m) },
                                    .ns = { (int64_t)any(&m), (int64_t)any(&m) } };
            t.ns[JUDGE_TURN] = made_number(&m) < 0.1 ? -t.ns[JUDGE_TURN] : t.ns[JUDGE_TURN];
            check_finite(judge_take(j, &t, answers));
            check_sums(j);
        }
        wild = judge_counts(j)->by_state[JUDGE_TURN][JUDGE_WILD];
        no_time = judge_counts(j)->by_state[JUDGE_TURN][JUDGE_NO_TIME];
        ck_assert_uint_gt(wild, 500);
        ck_assert_uint_gt(no_time, 500);
        judge_free(j);
    }
}
END_TEST

/* Clocks that jump and wild loads between turns of an engine: these are judged as ever. */
START_TEST(what_is_wild_is_counted_and_not_learned)
{
    static const struct judge_turn wild[] = {
        { .load = { 8, 4096, 0, 8, 0 }, .ns = { 0, 0 } },
        { .load = { 8, 4096, 0, 8, 0 }, .ns = { -5000000, 1 } },
        { .load = { 8, 4096, 0, 8, 0 }, .ns = { INT64_MIN, INT64_MIN } },
        { .load = { 8, 4096, 0, 8, 0 }, .ns = { INT64_MAX, INT64_MAX } },
        { .load = { 8, UINT64_C(1) << 32, 0, 8, 0 }, .ns = { 4000000, 3000000 } },
        { .load = { UINT32_MAX, 4096, UINT64_C(1) << 32, 8, 0 }, .ns = { 4000000, 3000000 } },
    };
    static const enum judge_state states[] = { JUDGE_NO_TIME, JUDGE_NO_TIME, JUDGE_NO_TIME,
                                               JUDGE_WILD,    JUDGE_WILD,    JUDGE_WILD };
    struct made m = made_of(MADE_RISES, 0.02, 13), again = m;
    struct judge *a = taught(&m, COUNTED), *b = taught(&again, COUNTED);
    for (int i = 0; i < 3000; i++) {
        struct judge_turn t;
        made_turn(&m, &t);
        check_same(take(a, &t, JUDGE_TURN), take(b, &t, JUDGE_TURN));
        ck_assert_int_eq(take(b, &wild[i % 6], JUDGE_TURN).state, states[i % 6]);
    }
    ck_assert_uint_eq(judge_counts(b)->by_state[JUDGE_TURN][JUDGE_NO_TIME], 1500);
    ck_assert_uint_eq(judge_counts(b)->by_state[JUDGE_TURN][JUDGE_WILD], 1500);
    check_sums(b);
    judge_free(a);
    judge_free(b);
}
END_TEST

/* Turns of loads that come once each, between others: those others are judged. */
START_TEST(a_million_kinds_of_load_take_no_more_memory)
{
    uint64_t judged = 0;
    struct made m = { .seed = 14 };
    struct judge *j = judge_new();
    for (uint64_t i = 0; i < n_kinds; i++) {
        struct judge_turn t = plain_turn(&m, 0.02, i);
        if (i % 2) {
            t.load.rows = (uint32_t)(made_number(&m) * ldexp(1, (int)(made_number(&m) * 31)));
            t.load.context = (uint64_t)(made_number(&m) * ldexp(1, (int)(made_number(&m) * 31)));
            t.load.prefill = (uint64_t)(made_number(&m) * ldexp(1, (int)(made_number(&m) * 31)));
        }
        check_finite(judge_take(j, &t, answers));
        judged += i % 2 == 0 && answers[0].of[JUDGE_TURN].state == JUDGE_JUDGED;
    }
    ck_assert_uint_ge(judged, n_kinds / 2 - JUDGE_FIRST);
    ck_assert_uint_gt(judge_counts(j)->forgotten, n_kinds / 4);
    struct judge_turn t = plain_turn(&m, 0.02, 0);
    t.ns[JUDGE_TURN] += t.ns[JUDGE_TURN] / 2;
    ck_assert(take(j, &t, JUDGE_TURN).is_slow);
    check_sums(j);
    judge_free(j);
}
END_TEST

/* ------------------------------------------------------------------------- the fit */

static double line(const struct load *l)
{
    return 1e6 + 2000.0 * l->rows + 3.0 * (double)l->context + (l->prefill ? 4e5 : 0);
}

/* A quarter of all times are five times what they should be. */
START_TEST(outliers_do_not_move_a_fit)
{
    enum { N = 600 };
    static struct fit_load loads[N];
    static float times[N], work[2 * N];
    struct made m = { .seed = 15 };
    struct fit f = { 0 };
    for (int i = 0; i < N; i++) {
        struct load l = { .rows = 1 + (uint32_t)(made_number(&m) * 1000),
                          .context = (uint64_t)(made_number(&m) * 1e5),
                          .prefill = made_number(&m) < 0.3 ? 200 : 0,
                          .decode = 10 };
        loads[i] = fit_load(&l);
        times[i] = (float)(line(&l) * (1 + 0.01 * (made_number(&m) - 0.5)) * (i % 4 ? 1 : 5));
    }
    times[7] = 0;
    for (int again = 0; again < 2; again++) {
        fit_again(&f, loads, times, N, work);
        for (uint32_t rows = 1; rows < 1000; rows += 37) {
            struct load l = {
                .rows = rows, .context = 90 * rows, .prefill = rows % 2 ? 200 : 0, .decode = 10
            };
            struct fit_load small = fit_load(&l);
            ck_assert_double_lt(fabs(fit_at(&f, &small) / line(&l) - 1), 0.003);
        }
        ck_assert_double_lt(f.deviation, 0.01);
    }
}
END_TEST

START_TEST(a_median_is_the_middle_one)
{
    float work[101], v[101];
    struct made m = { .seed = 16 };
    for (size_t n = 0; n <= 101; n++) {
        for (size_t i = 0; i < n; i++)
            work[i] = v[i] = (float)(int)(made_number(&m) * (n % 2 ? 10 : 1e6));
        float middle = fit_middle(work, n);
        size_t below = 0, above = 0;
        for (size_t i = 0; i < n; i++) {
            below += v[i] < middle;
            above += v[i] > middle;
        }
        ck_assert(below <= n / 2 && above <= (n ? n - n / 2 - 1 : 0));
    }
}
END_TEST

/* ------------------------------------------------------------------------- which steps are kept */

static uint64_t given_way[BUDGET_MOST];
static size_t n_given_way;

static void give_way(void *arg, uint64_t step)
{
    ck_assert_ptr_eq(arg, given_way);
    given_way[n_given_way++ % BUDGET_MOST] = step;
}

START_TEST(a_budget_keeps_the_slowest)
{
    struct budget b = { 0 };
    for (uint64_t i = 0; i < 33; i++) /* 99 steps */
        ck_assert(budget_offer(&b, 10 * i + 5, 100 + (double)i, 1000, give_way, given_way));
    ck_assert(!budget_offer(&b, 500, 50, 1000, give_way, given_way));
    ck_assert_uint_eq(n_given_way, 0);
    ck_assert(budget_offer(&b, 600, 1000, 1000, give_way, given_way));
    ck_assert_uint_eq(n_given_way, 1);
    ck_assert_uint_eq(given_way[0], 5);
    ck_assert(budget_keeps(&b, 599) && budget_keeps(&b, 601) && !budget_keeps(&b, 602));
    ck_assert(!budget_keeps(&b, 5) && !budget_keeps(&b, 4) && budget_keeps(&b, 14));
    ck_assert(!budget_offer(&b, 600, 5000, 1000, NULL, NULL)); /* numbers rise */
    ck_assert(budget_offer(&b, 700, 1, 10300, NULL, NULL));    /* 1% of 300 more */
    ck_assert_uint_eq(b.offered, 37);
    ck_assert_uint_eq(b.kept, 34);
    ck_assert_uint_eq(b.refused, 3);
}
END_TEST

/* Random steps, often one after another: what is kept is counted by hand. */
START_TEST(a_budget_is_never_spent_twice)
{
    static bool is_kept[60000 + 2], is_slow[60000 + 2];
    struct made m = { .seed = 17 + (uint64_t)_i };
    struct budget b = { 0 };
    uint64_t n_kept_slow = 0, way = 0;
    memset(is_slow, 0, sizeof is_slow);
    for (uint64_t step = 0; step < 60000; step++) {
        if (made_number(&m) >= (made_number(&m) < 0.5 ? 0.02 : 0.5 * (double)_i))
            continue;
        n_given_way = 0;
        double excess = floor(100 * made_number(&m) * made_number(&m));
        is_slow[step] = budget_offer(&b, step, excess, step + 1, give_way, given_way);
        n_kept_slow += is_slow[step];
        for (size_t i = 0; i < n_given_way; i++) {
            ck_assert(is_slow[given_way[i]]);
            is_slow[given_way[i]] = false;
            n_kept_slow--;
        }
        way += n_given_way;
        ck_assert_uint_eq(b.kept, n_kept_slow);
        ck_assert_uint_eq(b.offered, b.kept + b.refused);
        ck_assert_uint_le(b.used, 100 + (step + 1 > 10000 ? (step + 1 - 10000) / 100 : 0));
    }
    uint64_t n = 0;
    for (uint64_t step = 0; step < 60001; step++) {
        is_kept[step] = is_slow[step] || is_slow[step + 1] || (step && is_slow[step - 1]);
        n += is_kept[step];
    }
    ck_assert_uint_eq(n, b.used);
    ck_assert_uint_gt(way, 10);
}
END_TEST

/* More slow steps than may give way: the oldest settle. */
START_TEST(a_long_run_keeps_more_than_may_give_way)
{
    struct budget b = { 0 };
    uint64_t step = 0;
    for (int i = 0; i < 3000; i++, step += 500)
        ck_assert(budget_offer(&b, step, 10, 10000000, give_way, given_way));
    ck_assert_uint_eq(b.kept, 3000);
    ck_assert_uint_eq(b.used, 8999);
    ck_assert_uint_lt(b.n, BUDGET_MOST);
    ck_assert(budget_offer(&b, step, 10, 10000000, give_way, given_way));
    ck_assert(!budget_keeps(&b, step + 2) && budget_keeps(&b, step + 1));
}
END_TEST

/* test_judge [KINDS] */
int main(int argc, char **argv)
{
    if (argc > 1)
        n_kinds = strtoull(argv[1], NULL, 10);
    Suite *suite = suite_create("judge");
    TCase *t = tcase_create("judge");
    tcase_set_timeout(t, 300);
    tcase_add_test(t, one_fault_is_not_learned);
    tcase_add_test(t, the_first_turns_are_judged_too);
    tcase_add_test(t, a_kind_seen_too_rarely_is_not_judged);
    tcase_add_test(t, the_device_s_time_is_judged_by_itself);
    tcase_add_test(t, a_cache_miss_is_load);
    tcase_add_test(t, each_phase_has_its_own_noise);
    tcase_add_test(t, times_that_never_vary_need_no_noise);
    tcase_add_test(t, drafts_and_engines_that_say_nothing_are_judged);
    tcase_add_test(t, the_same_turns_get_the_same_answers);
    tcase_add_test(t, a_step_that_is_open_for_long_hangs);
    tcase_add_test(t, nothing_that_comes_breaks_it);
    tcase_add_test(t, what_is_wild_is_counted_and_not_learned);
    tcase_add_test(t, a_million_kinds_of_load_take_no_more_memory);
    tcase_add_test(t, outliers_do_not_move_a_fit);
    tcase_add_test(t, a_median_is_the_middle_one);
    tcase_add_test(t, a_budget_keeps_the_slowest);
    tcase_add_loop_test(t, a_budget_is_never_spent_twice, 0, 3);
    tcase_add_test(t, a_long_run_keeps_more_than_may_give_way);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
