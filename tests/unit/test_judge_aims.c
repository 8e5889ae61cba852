/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cupti/judge: how many slow turns it finds, and how many quiet ones it flags, on made turns (made_turns.h), of which it is known what they
 * should have taken; beside three simple methods. docs/measurements.md has the figures.
 */
#include "tests/unit/judge_kit.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int n_seeds = 2;

static const struct aim {
    double noise;
    double slower;  /* turns slower by this are found, */
    double found;   /* so many per cent of them */
    double flagged; /* per cent of quiet turns, at most */
    bool is_seen;   /* the judge says that it can see that much */
} aims[] = {
    { 0.01, 0.20, 99, 0.4, true }, { 0.02, 0.20, 99, 0.2, true },  { 0.03, 0.25, 99, 0.2, true },
    { 0.05, 0.50, 99, 0.2, true }, { 0.08, 0.50, 90, 0.2, false },
};

/* ------------------------------------------------------------------------- how much it finds */

struct tally {
    uint64_t turns, found, flagged, rare;
    double sees;   /* sum of excesses that it says it sees */
    uint64_t seen; /* turns slower by that much that it finds */
};

/* Each turn is asked for as it is, and slower by @slower; the judge learns it as it is. */
static void run_quiet(struct made *m, double slower, struct tally of[JUDGE_SERIES])
{
    struct judge *j = taught(m, COUNTED);
    struct judge_turn turn;
    for (int i = COUNTED; i < TURNS; i++) {
        bool is_slow[JUDGE_SERIES];
        made_turn(m, &turn);
        for (int s = 0; s < JUDGE_SERIES; s++) {
            struct judge_view v = judge_ask(j, &turn.load, s);
            double time = (double)turn.ns[s], sees = judge_sees(&v);
            is_slow[s] = time > v.threshold_ns;
            of[s].turns++;
            of[s].rare += v.state == JUDGE_RARE;
            of[s].found += time * (1 + slower) > v.threshold_ns;
            of[s].seen += time * (1 + sees) > v.threshold_ns;
            of[s].sees += sees;
            of[s].flagged += is_slow[s];
        }
        uint64_t fits = judge_counts(j)->fits;
        take(j, &turn, JUDGE_TURN);
        for (int s = 0; s < JUDGE_SERIES && fits == judge_counts(j)->fits; s++)
            ck_assert_int_eq(answers[0].of[s].is_slow, is_slow[s]);
    }
    judge_free(j);
}

/* Load rises from an eighth to full. */
START_TEST(slow_turns_are_found_and_quiet_ones_are_not_flagged)
{
    static const char *const words[] = { "turns", "device" };
    const struct aim *a = &aims[_i];
    struct tally of[JUDGE_SERIES] = { 0 };
    for (int seed = 1; seed <= n_seeds; seed++) {
        struct made m = made_of(MADE_RISES, a->noise, seed);
        run_quiet(&m, a->slower, of);
    }
    for (int s = 0; s < JUDGE_SERIES; s++) {
        const struct tally *t = &of[s];
        double sees = t->sees / (double)t->turns;
        printf("noise %.0f%%, %s: %.2f%% of +%.0f%% found, %.3f%% of quiet turns flagged, %.1f%% "
               "rare; sees +%.0f%% "
               "(found: %.2f%%)\n",
               100 * a->noise, words[s], SHARE(t->found, t->turns), 100 * a->slower,
               SHARE(t->flagged, t->turns), SHARE(t->rare, t->turns), 100 * sees,
               SHARE(t->seen, t->turns));
        ck_assert_double_ge(SHARE(t->found, t->turns), a->found);
        ck_assert_double_le(SHARE(t->flagged, t->turns), a->flagged);
        ck_assert_int_eq(sees <= a->slower, a->is_seen);
        ck_assert_double_ge(SHARE(t->seen, t->turns), 98);
        ck_assert_double_le(SHARE(t->rare, t->turns), 7);
    }
}
END_TEST

/* ------------------------------------------------------------------------- three simple methods */

/* All turns of a run, quiet. Each method sees all of them before it says which were slow, which no judge can. */
static struct known {
    double time, limit; /* limit: what the method says is slow */
    double tokens;      /* that are computed */
    bool is_prompt;
} known[TURNS];

static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double v[], size_t n, double q)
{
    qsort(v, n, sizeof *v, by_time);
    return v[(size_t)(q * (double)(n - 1))];
}

static void by_quantile(void)
{
    static double times[TURNS];
    for (int i = 0; i < TURNS; i++)
        times[i] = known[i].time;
    double limit = quantile(times, TURNS, 0.99);
    for (int i = 0; i < TURNS; i++)
        known[i].limit = limit;
}

static void by_deviations(void)
{
    double sum = 0, squares = 0;
    for (int i = 0; i < TURNS; i++)
        sum += known[i].time;
    for (int i = 0; i < TURNS; i++)
        squares += (known[i].time - sum / TURNS) * (known[i].time - sum / TURNS);
    for (int i = 0; i < TURNS; i++)
        known[i].limit = sum / TURNS + 3 * sqrt(squares / TURNS);
}

struct point {
    double tokens, time;
};

static int by_tokens(const void *a, const void *b)
{
    const struct point *x = a, *y = b;
    return (x->tokens > y->tokens) - (x->tokens < y->tokens);
}

/* Least squares through those of @n points that lie within 5% of the line through two of them that most of them are near. */
static void ransac(const struct point p[], size_t n, struct made *m, double *at_0, double *slope)
{
    size_t most = 0;
    double best_0 = 0, best_slope = 0;
    for (int round = 0; round < 500; round++) {
        size_t a = (size_t)(made_number(m) * (double)n), b = (size_t)(made_number(m) * (double)n),
               near = 0;
        if (p[a].tokens == p[b].tokens)
            continue;
        double s = (p[b].time - p[a].time) / (p[b].tokens - p[a].tokens),
               o = p[a].time - s * p[a].tokens;
        for (size_t i = 0; i < n; i++)
            near += fabs(o + s * p[i].tokens - p[i].time) < 0.05 * p[i].time;
        if (near > most) {
            most = near;
            best_0 = o;
            best_slope = s;
        }
    }
    double c = 0, x = 0, y = 0, xx = 0, xy = 0;
    for (size_t i = 0; i < n; i++) {
        if (fabs(best_0 + best_slope * p[i].tokens - p[i].time) >= 0.05 * p[i].time)
            continue;
        c++;
        x += p[i].tokens;
        y += p[i].time;
        xx += p[i].tokens * p[i].tokens;
        xy += p[i].tokens * p[i].time;
    }
    double d = c * xx - x * x;
    *slope = d > 0 ? (c * xy - x * y) / d : best_slope;
    *at_0 = d > 0 ? (y - *slope * x) / c : best_0;
}

/* The line of StriaTrace: prefill and decode apart; the P99 of times by the number of tokens; a line through these by RANSAC. */
static void by_line(void)
{
    enum { BINS = 32 };
    static struct point all[TURNS];
    static double times[TURNS];
    struct made m = { .seed = 5 };
    for (int is_prompt = 0; is_prompt < 2; is_prompt++) {
        struct point p99[BINS];
        size_t n = 0, n_bins = 0;
        for (int i = 0; i < TURNS; i++)
            if (known[i].is_prompt == is_prompt)
                all[n++] = (struct point){ known[i].tokens, known[i].time };
        qsort(all, n, sizeof *all, by_tokens);
        for (size_t bin = 0; bin < BINS; bin++) {
            size_t from = bin * n / BINS, to = (bin + 1) * n / BINS;
            for (size_t i = from; i < to; i++)
                times[i - from] = all[i].time;
            if (to > from)
                p99[n_bins++] =
                    (struct point){ all[(from + to) / 2].tokens, quantile(times, to - from, 0.99) };
        }
        double at_0 = 0, slope = 0;
        ransac(p99, n_bins, &m, &at_0, &slope);
        for (int i = 0; i < TURNS; i++)
            if (known[i].is_prompt == is_prompt)
                known[i].limit = at_0 + slope * known[i].tokens;
    }
}

static const struct simple {
    const char *name;
    void (*decide)(void);
} simple[] = {
    { "P99 of all turns", by_quantile },
    { "mean + 3 deviations", by_deviations },
    { "P99 line over tokens", by_line },
};

#define N_SIMPLE ((int)(sizeof simple / sizeof *simple))

static void learn_all(struct made *m)
{
    for (int i = 0; i < TURNS; i++) {
        struct judge_turn t;
        made_turn(m, &t);
        known[i] = (struct known){ .time = (double)t.ns[JUDGE_TURN],
                                   .tokens = (double)(t.load.prefill + t.load.decode),
                                   .is_prompt = t.load.prefill > 0 };
    }
}

/* At 2% noise and +20%: each finds less, or flags far more. */
START_TEST(three_simple_methods_do_worse)
{
    static const char *const words[] = { "load rises", "load wanders" };
    const struct aim *a = &aims[1];
    struct tally judged[JUDGE_SERIES] = { 0 }, simply[N_SIMPLE] = { 0 };
    for (int seed = 1; seed <= n_seeds; seed++) {
        struct made m = made_of((enum made_way)_i, a->noise, seed), again = m;
        run_quiet(&m, a->slower, judged);
        learn_all(&again);
        for (int k = 0; k < N_SIMPLE; k++) {
            simple[k].decide();
            for (int i = COUNTED; i < TURNS; i++) {
                simply[k].turns++;
                simply[k].found += known[i].time * (1 + a->slower) > known[i].limit;
                simply[k].flagged += known[i].time > known[i].limit;
            }
        }
    }
    double found = SHARE(judged->found, judged->turns),
           flagged = SHARE(judged->flagged, judged->turns);
    printf("%s: the judge finds %.2f%% and flags %.3f%%", words[_i], found, flagged);
    for (int k = 0; k < N_SIMPLE; k++) {
        double less = SHARE(simply[k].found, simply[k].turns),
               more = SHARE(simply[k].flagged, simply[k].turns);
        printf("; %s %.1f%%, %.2f%%", simple[k].name, less, more);
        ck_assert(less < found - 10 || (less < found && more > 4 * flagged));
    }
    printf("\n");
    ck_assert_double_ge(found, 98.5);
}
END_TEST

/* ------------------------------------------------------------------------- faults that come often, or stay */

/* 10 of 500 turns take 30% longer. */
START_TEST(bursts_that_are_2_percent_of_all_turns_are_found)
{
    uint64_t slow = 0, found = 0;
    for (int seed = 1; seed <= n_seeds; seed++) {
        struct made m = made_of(MADE_RISES, 0.01 * (1 + _i), seed);
        struct judge *j = taught(&m, COUNTED);
        struct judge_turn t;
        for (int i = COUNTED; i < TURNS; i++) {
            m.by = i % 500 < 10 ? 1.3 : 1;
            made_turn(&m, &t);
            bool is_slow = take(j, &t, JUDGE_TURN).is_slow;
            slow += m.by > 1;
            found += m.by > 1 && is_slow;
        }
        judge_free(j);
    }
    printf("bursts at noise %d%%: %.2f%% found\n", 1 + _i, SHARE(found, slow));
    ck_assert_double_ge(SHARE(found, slow), 99);
}
END_TEST

/* Turns take twice as long from the middle on. */
START_TEST(a_level_that_doubles_for_good_is_followed)
{
    uint64_t most = 0;
    for (int seed = 1; seed <= n_seeds; seed++) {
        struct made m = made_of(MADE_RISES, aims[_i].noise, seed);
        struct judge *j = taught(&m, TURNS / 2);
        struct judge_turn t;
        uint64_t flagged = 0, late = 0;
        m.by = 2;
        for (int i = TURNS / 2; i < TURNS; i++) {
            made_turn(&m, &t);
            bool is_slow = take(j, &t, JUDGE_TURN).is_slow;
            ck_assert(i >= TURNS / 2 + 20 || is_slow);
            flagged += is_slow;
            late += is_slow && i >= TURNS / 2 + 4096;
        }
        judge_free(j);
        most = flagged > most ? flagged : most;
        ck_assert_uint_le(flagged, 1000);
        ck_assert_double_le(SHARE(late, TURNS / 2 - 4096), 1);
    }
    printf("doubled at noise %.0f%%: %d turns flagged at most\n", 100 * aims[_i].noise, (int)most);
}
END_TEST

/* test_judge_aims [SEEDS] */
int main(int argc, char **argv)
{
    const char *seeds = getenv("DMI_TEST_SEEDS");
    if (seeds || argc > 1)
        n_seeds = atoi(seeds ? seeds : argv[1]);
    Suite *suite = suite_create("judge_aims");
    TCase *t = tcase_create("aims");
    tcase_set_timeout(t, 900);
    tcase_add_loop_test(t, slow_turns_are_found_and_quiet_ones_are_not_flagged, 0,
                        sizeof aims / sizeof *aims);
    tcase_add_loop_test(t, three_simple_methods_do_worse, MADE_RISES, MADE_WANDERS + 1);
    tcase_add_loop_test(t, bursts_that_are_2_percent_of_all_turns_are_found, 0, 2);
    tcase_add_loop_test(t, a_level_that_doubles_for_good_is_followed, 0, 3);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
