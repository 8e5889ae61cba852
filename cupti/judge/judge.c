/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti/judge/judge.h"

#include "cupti/judge/fit.h"
#include "cupti/judge/levels.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#define WINDOW 2048  /* turns that a fit is to */
#define EVERY  1024  /* turns between fits; at first they double from JUDGE_FIRST */
#define FEW    8     /* turns before which a kind of load is rare */
#define ENOUGH 32    /* turns of a phase that show its noise */
#define FADES  4     /* fits in which about two thirds of an old noise fade */
#define STILL  0.005 /* the least noise: a device that always takes the same time has none */
#define ABSENT 1e30f

/*
 * Thresholds, in deviations. A slow turn raises its threshold by GAIN, others lower it, so that a share of QUIET would be slow: a Gaussian's
 * beyond 3 deviations. The bounds and the gain were found by simulation (docs/judging.md): without the upper bound, faults that come often
 * raise the threshold until they are not seen.
 */
#define LEAST      3.0
#define MOST       6.0
#define LEAST_RARE 4.5
#define MOST_RARE  9.0
#define GAIN       0.2
#define QUIET      0.0014

/*
 * Levels, as ratios. A slow turn raises a level by STEP: 355 of them in a row double it. The first turn of a kind moves the kind's level by
 * STEP_FIRST at most, the second by half of that, and so on; by STEP_ALONE where no neighbour was known, as the fit alone may be far off.
 */
#define STEP       (1 / 512.0)
#define STEP_FIRST (1 / 32.0)
#define STEP_ALONE 0.5
#define SLOWLY     128 /* turns that the level of all kinds follows */
#define IN_A_ROW   16  /* slow turns; more of them move the level of all kinds alone */

/* One of the two times of turns. */
struct series {
    struct fit fit;
    double level;              /* of all kinds of load: times over fit and level of their kind */
    double noise[LOAD_PHASES]; /* robust deviation of times over what was expected, by phase */
    double threshold;          /* in deviations */
    double rare;               /* the same of rare kinds */
    uint64_t in_a_row;         /* slow turns of kinds that are not rare, up to now */
};

struct judge {
    struct series of[JUDGE_SERIES];
    struct levels levels;
    struct usual usual;
    struct judge_counts counts;
    uint64_t n; /* turns that were learned, or wait; number I is at I % WINDOW */
    struct fit_load loads[WINDOW];
    uint8_t phases[WINDOW];
    /* Over the level of all kinds as it was, which a change for good moves: the fit sees no step. 0: absent. */
    float times[JUDGE_SERIES][WINDOW];
    float residuals[JUDGE_SERIES][WINDOW]; /* time over expected, less 1; or ABSENT */
    struct judge_turn waiting[JUDGE_FIRST];
    float work[2 * WINDOW];
};

static_assert(sizeof(struct judge) <= JUDGE_BYTES, "a judge is as large as its header says");
static_assert(LEVELS_SERIES == JUDGE_SERIES, "a level is of each series");

struct judge *judge_new(void)
{
    struct judge *j = calloc(1, sizeof *j);
    for (int s = 0; j && s < JUDGE_SERIES; s++)
        j->of[s] = (struct series){ .level = 1, .threshold = LEAST, .rare = LEAST_RARE };
    return j;
}

void judge_free(struct judge *j)
{
    free(j);
}

const struct usual *judge_usual(const struct judge *j)
{
    return &j->usual;
}

const struct judge_counts *judge_counts(const struct judge *j)
{
    return &j->counts;
}

double judge_sees(const struct judge_view *v)
{
    double least = 1 - 2.326 * v->noise; /* 1 in 100 is below this */
    if (!(v->expected_ns > 0) || least <= 0)
        return INFINITY;
    return v->threshold_ns / v->expected_ns / least - 1;
}

static double bounded(double v, double least, double most)
{
    return v < least ? least : v > most ? most : v;
}

/* @level, @n: of the load's kind. */
static struct judge_view expect(const struct series *s, const struct load *load, double level,
                                unsigned n)
{
    struct fit_load small = fit_load(load);
    if (!(s->fit.least > 0))
        return (struct judge_view){ .state = JUDGE_UNKNOWN };
    double noise = s->noise[load_phase(load)], threshold = s->threshold;
    if (n < FEW) {
        /* levels of kinds differ by as much as the fit is off */
        noise = s->fit.deviation > noise ? s->fit.deviation : noise;
        threshold = s->rare;
    }
    double expected = s->level * level * fit_at(&s->fit, &small);
    return (struct judge_view){
        .state = n < FEW ? JUDGE_RARE : JUDGE_JUDGED,
        .expected_ns = expected,
        .threshold_ns = expected * (1 + threshold * noise),
        .noise = noise,
    };
}

struct judge_view judge_ask(const struct judge *j, const struct load *load,
                            enum judge_series series)
{
    struct load_kind of = load_kind(load);
    const struct level *l = levels_find(&j->levels, of);
    float level = l ? l->level[series] : levels_near(&j->levels, of, series).level;
    return expect(&j->of[series], load, (double)level, l ? l->n[series] : 0);
}

/* A slow turn raises a threshold, others lower it. Its bounds keep frequent faults in sight, and a quiet machine quiet. */
static void settle(double *threshold, double least, double most, bool is_slow)
{
    *threshold = bounded(*threshold + GAIN * (is_slow - QUIET), least, most);
}

/* By how much a time moves the level of a kind that is rare. */
static double first_step(const struct level *l, int series, double excess)
{
    double most = l->is_alone[series] ? STEP_ALONE : STEP_FIRST;
    return bounded(excess, -most / (1 + most), most) / (l->n[series] + 1);
}

/*
 * Levels follow a time that is not slow by a part of its distance. A slow one moves them by a fixed step, however slow it is: one fault is not
 * learned, and what lasts is.
 */
static void follow(struct series *s, struct level *l, int series, const struct judge_view *v)
{
    double of_kind = v->excess / (l->n[series] + 2), of_all = v->excess / SLOWLY;
    if (l->n[series] < FEW) {
        of_kind = first_step(l, series, v->excess);
        of_all = 0;
    } else if (v->is_slow) {
        of_all = STEP;
        of_kind = ++s->in_a_row > IN_A_ROW ? 0 : STEP;
    } else {
        s->in_a_row = 0;
    }
    l->level[series] = (float)bounded((double)l->level[series] * (1 + of_kind), 1e-12, 1e12);
    s->level = bounded(s->level * (1 + of_all), 1e-12, 1e12);
    l->n[series] += l->n[series] < LEVELS_FOLLOWS;
}

/* Return: nanoseconds; 0: absent. */
static double time_of(const struct judge_turn *turn, int series)
{
    int64_t ns = turn->ns[series];
    return ns > 0 && ns <= JUDGE_MOST_NS ? (double)ns : 0;
}

/* The time of turn number @i in the series, as far as there is one. */
static struct judge_view judge_time(struct judge *j, const struct judge_turn *turn, struct level *l,
                                    int series, uint64_t i)
{
    struct series *s = &j->of[series];
    double time = time_of(turn, series);
    struct judge_view v = expect(s, &turn->load, (double)l->level[series], l->n[series]);
    if (v.state == JUDGE_UNKNOWN || !(time > 0))
        return (struct judge_view){ .state = JUDGE_UNKNOWN };
    v.excess = time / v.expected_ns - 1;
    v.is_slow = time > v.threshold_ns;
    if (v.state == JUDGE_RARE) {
        settle(&s->rare, LEAST_RARE, MOST_RARE, v.is_slow);
    } else {
        j->residuals[series][i % WINDOW] = (float)v.excess;
        settle(&s->threshold, LEAST, MOST, v.is_slow);
    }
    follow(s, l, series, &v);
    return v;
}

static void count(struct judge_counts *counts, const struct judge_answer *a)
{
    for (int s = 0; s < JUDGE_SERIES; s++) {
        counts->by_state[s][a->of[s].state]++;
        counts->slow[s] += a->of[s].is_slow;
    }
}

static struct judge_answer judge_learned(struct judge *j, const struct judge_turn *turn, uint64_t i)
{
    struct judge_answer a = { .number = turn->number };
    struct level *l = levels_take(&j->levels, &turn->load);
    for (int s = 0; s < JUDGE_SERIES; s++)
        a.of[s] = judge_time(j, turn, l, s, i);
    usual_learn(&j->usual, &turn->load, (uint64_t)turn->ns[JUDGE_TURN], a.of[JUDGE_TURN].is_slow);
    count(&j->counts, &a);
    return a;
}

/* Return: the deviation of the window's residuals of a phase, of all where it is LOAD_PHASES; 0: there are too few. */
static double noise_of(struct judge *j, int series, size_t n, unsigned phase)
{
    size_t n_residuals = 0;
    for (size_t i = 0; i < n; i++)
        if ((phase == LOAD_PHASES || j->phases[i] == phase) && j->residuals[series][i] < ABSENT)
            j->work[n_residuals++] = j->residuals[series][i];
    return n_residuals < ENOUGH ? 0 : fit_deviation(j->work, n_residuals);
}

/* A phase that is too seldom in the window has the noise of all, or its own of before, of which less and less remains. */
static void measure_noise(struct judge *j, int series, size_t n)
{
    struct series *s = &j->of[series];
    double all = noise_of(j, series, n, LOAD_PHASES);
    all = all > 0 ? all : s->fit.deviation;
    for (unsigned phase = 0; phase < LOAD_PHASES; phase++) {
        double noise = noise_of(j, series, n, phase), before = s->noise[phase];
        if (!(noise > 0))
            noise = before > 0 ? before + (all - before) / FADES : all;
        s->noise[phase] = noise > STILL ? noise : STILL;
    }
}

/* A fit to the last turns. */
static void fit_series(struct judge *j, int series)
{
    struct series *s = &j->of[series];
    size_t n = j->n < WINDOW ? j->n : WINDOW, n_times = 0;
    for (size_t i = 0; i < n; i++)
        n_times += j->times[series][i] > 0;
    if (n_times < JUDGE_FIRST)
        return;
    struct fit before = s->fit;
    fit_again(&s->fit, j->loads, j->times[series], n, j->work);
    if (before.least > 0)
        levels_rebase(&j->levels, series, &before, &s->fit);
    measure_noise(j, series, n);
    j->counts.fits++;
}

static bool is_time_to_fit(uint64_t n)
{
    return n % EVERY == 0 || (n < EVERY && n >= JUDGE_FIRST && (n & (n - 1)) == 0);
}

/* What is wrong with a turn that no engine can have run; JUDGE_JUDGED: nothing. */
static enum judge_state check(const struct judge_turn *t)
{
    const struct load *l = &t->load;
    if (t->ns[JUDGE_TURN] <= 0)
        return JUDGE_NO_TIME;
    bool is_wild = t->ns[JUDGE_TURN] > JUDGE_MOST_NS || l->rows > JUDGE_MOST_TOKENS ||
                   l->context > JUDGE_MOST_TOKENS || l->prefill > JUDGE_MOST_TOKENS ||
                   l->decode > JUDGE_MOST_TOKENS || l->drafts > JUDGE_MOST_TOKENS;
    return is_wild ? JUDGE_WILD : JUDGE_JUDGED;
}

static void note(struct judge *j, const struct judge_turn *turn, uint64_t i)
{
    j->loads[i % WINDOW] = fit_load(&turn->load);
    j->phases[i % WINDOW] = (uint8_t)load_phase(&turn->load);
    for (int s = 0; s < JUDGE_SERIES; s++) {
        j->times[s][i % WINDOW] = (float)(time_of(turn, s) / j->of[s].level);
        j->residuals[s][i % WINDOW] = ABSENT;
    }
    if (i < JUDGE_FIRST)
        j->waiting[i] = *turn;
}

size_t judge_take(struct judge *j, const struct judge_turn *turn, struct judge_answer answers[])
{
    enum judge_state state = check(turn);
    j->counts.turns++;
    if (state != JUDGE_JUDGED) {
        answers[0] = (struct judge_answer){ .number = turn->number };
        answers[0].of[JUDGE_TURN].state = state;
        answers[0].of[JUDGE_BUSY].state = state;
        count(&j->counts, &answers[0]);
        return 1;
    }
    uint64_t i = j->n++;
    note(j, turn, i);
    if (is_time_to_fit(j->n))
        for (int s = 0; s < JUDGE_SERIES; s++)
            fit_series(j, s);
    j->counts.waiting = j->n < JUDGE_FIRST ? j->n : 0;
    if (j->n < JUDGE_FIRST)
        return 0;
    size_t n = j->n > JUDGE_FIRST ? 1 : JUDGE_FIRST;
    for (size_t k = 0; k < n; k++)
        answers[k] = judge_learned(j, n > 1 ? &j->waiting[k] : turn, n > 1 ? k : i);
    j->counts.forgotten = j->levels.forgotten;
    return n;
}
