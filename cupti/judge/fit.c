/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti/judge/fit.h"

#include <string.h>

/*
 * The first half of the rounds limits what an outlier weighs, so that a few loads of another kind still move the terms that only they have;
 * the second half rejects. Constants, in deviations: 95% efficient for a Gaussian. Source: Huber 1964; Beaton, Tukey 1974.
 */
#define ROUNDS 8
#define HUBER  1.345
#define TUKEY  4.685

#define GAUSSIAN  1.4826 /* a Gaussian's standard deviation over its median distance from the mean */
#define STILLNESS 1e-4   /* the least deviation: times that are equal leave none */
#define RIDGE     5e-4   /* of each term's square: terms that say the same share what they say */

struct fit_load fit_load(const struct load *load)
{
    return (struct fit_load){ (float)load->rows, (float)load->context, (float)load->prefill,
                              (float)load->decode, (float)load->drafts };
}

static void terms_of(const struct fit_load *l, double x[FIT_TERMS])
{
    x[0] = 1;
    x[1] = l->prefill > 0;
    x[2] = (double)l->rows;
    x[3] = (double)l->context;
    x[4] = (double)l->prefill;
    x[5] = (double)l->decode;
    x[6] = (double)l->drafts;
}

static double plane_at(const double by[FIT_TERMS], const double x[FIT_TERMS])
{
    double sum = 0;
    for (int i = 0; i < FIT_TERMS; i++)
        sum += by[i] * x[i];
    return sum;
}

double fit_at(const struct fit *f, const struct fit_load *load)
{
    double x[FIT_TERMS], most = f->least;
    terms_of(load, x);
    for (int p = 0; p < FIT_PLANES; p++) {
        double at = plane_at(f->by[p], x);
        most = at > most ? at : most;
    }
    return most;
}

static void swap(float *a, float *b)
{
    float t = *a;
    *a = *b;
    *b = t;
}

/* Wirth's selection. Source: Wirth, Algorithms + Data Structures = Programs, 1976, 2.3.4 */
float fit_middle(float v[], size_t n)
{
    ptrdiff_t middle = (ptrdiff_t)(n / 2), from = 0, to = (ptrdiff_t)n - 1;
    while (from < to) {
        float pivot = v[middle];
        ptrdiff_t i = from, j = to;
        do {
            while (v[i] < pivot)
                i++;
            while (v[j] > pivot)
                j--;
            if (i <= j)
                swap(&v[i++], &v[j--]);
        } while (i <= j);
        if (j < middle)
            from = i;
        if (middle < i)
            to = j;
    }
    return n ? v[middle] : 0;
}

double fit_deviation(float v[], size_t n)
{
    for (size_t i = 0; i < n; i++)
        v[i] = v[i] < 0 ? -v[i] : v[i];
    double deviation = GAUSSIAN * (double)fit_middle(v, n);
    return deviation > STILLNESS ? deviation : STILLNESS;
}

/* Sums of weighted products: of terms, and of a term and the time. */
struct normal {
    double a[FIT_TERMS][FIT_TERMS], b[FIT_TERMS]; /* a: its lower half */
};

static void normal_add(struct normal *m, const double x[FIT_TERMS], double time, double weight)
{
    for (int i = 0; i < FIT_TERMS; i++) {
        for (int j = 0; j <= i; j++)
            m->a[i][j] += weight * x[i] * x[j];
        m->b[i] += weight * x[i] * time;
    }
}

/* What the sums leave open stays as @by was. a = L D L^T, which takes no root; a becomes L. */
static void normal_solve(struct normal *m, const double ridge[FIT_TERMS], double by[FIT_TERMS])
{
    double d[FIT_TERMS];
    for (int i = 0; i < FIT_TERMS; i++) {
        double *row = m->a[i];
        m->b[i] += ridge[i] * by[i];
        d[i] = row[i] + ridge[i];
        for (int j = 0; j < i; j++) {
            for (int k = 0; k < j; k++)
                row[j] -= row[k] * m->a[j][k] * d[k];
            row[j] = d[j] > 0 ? row[j] / d[j] : 0;
            d[i] -= row[j] * row[j] * d[j];
            m->b[i] -= row[j] * m->b[j];
        }
    }
    for (int i = FIT_TERMS - 1; i >= 0; i--) {
        if (!(d[i] > 0))
            continue;
        by[i] = m->b[i] / d[i];
        for (int j = i + 1; j < FIT_TERMS; j++)
            by[i] -= m->a[j][i] * by[j];
    }
}

/* All planes. A plane of few times stays near what it was: the ridge is a part of the squares of all. */
static void normal_solve_all(struct normal m[FIT_PLANES], struct fit *f)
{
    double ridge[FIT_TERMS] = { 0 };
    for (int p = 0; p < FIT_PLANES; p++)
        for (int i = 0; i < FIT_TERMS; i++)
            ridge[i] += RIDGE * m[p].a[i][i];
    for (int p = 0; p < FIT_PLANES; p++)
        normal_solve(&m[p], ridge, f->by[p]);
}

/* The ratios of times and predictions. Return: how many; absent times have none. */
static size_t ratios_of(const float predicted[], const float times[], size_t n, float ratios[])
{
    size_t n_ratios = 0;
    for (size_t i = 0; i < n; i++)
        if (times[i] > 0)
            ratios[n_ratios++] = times[i] / predicted[i];
    return n_ratios;
}

static double deviation_from(const float predicted[], const float times[], size_t n, float work[])
{
    n = ratios_of(predicted, times, n, work);
    for (size_t i = 0; i < n; i++)
        work[i] -= 1;
    return fit_deviation(work, n);
}

static double weight_of(double residual, double deviation, bool rejects)
{
    double r = residual / deviation;
    if (!rejects)
        return r > HUBER || r < -HUBER ? HUBER / (r < 0 ? -r : r) : 1;
    r /= TUKEY;
    return r * r < 1 ? (1 - r * r) * (1 - r * r) : 0;
}

/*
 * One round: each plane is fitted to the loads at which it is the greater one. Source: Magnani, Boyd, Convex piecewise-linear fitting, 2009.
 * @start: planes that it stays near where times say little; @predicted: by the round before, then by this one
 */
static void fit_round(struct fit *f, const struct fit *start, const struct fit_load loads[],
                      const float times[], size_t n, bool rejects, float predicted[],
                      float ratios[])
{
    struct normal m[FIT_PLANES] = { 0 };
    double least = 0, x[FIT_TERMS];
    for (size_t i = 0; i < n; i++) {
        double time = (double)times[i], at = (double)predicted[i];
        double weight = time > 0 ? weight_of(time / at - 1, f->deviation, rejects) : 0;
        if (!(weight > 0))
            continue;
        terms_of(&loads[i], x);
        normal_add(&m[plane_at(f->by[1], x) > plane_at(f->by[0], x)], x, time, weight / (at * at));
        least = least > 0 && least < time ? least : time;
    }
    *f = (struct fit){ .least = least / 2 };
    memcpy(f->by, start->by, sizeof f->by);
    normal_solve_all(m, f);
    for (size_t i = 0; i < n; i++)
        predicted[i] = (float)fit_at(f, &loads[i]);
    f->deviation = deviation_from(predicted, times, n, ratios);
}

/* Planes to begin with: one through the loads with fewer rows than the mean, one through the others. */
static void begin(struct fit *f, const struct fit_load loads[], const float times[], size_t n)
{
    struct normal all = { 0 }, m[FIT_PLANES] = { 0 };
    double rows = 0, x[FIT_TERMS], least = 0;
    for (size_t i = 0; i < n; i++)
        rows += (double)loads[i].rows / (double)n;
    for (size_t i = 0; i < n; i++) {
        double time = (double)times[i];
        if (!(time > 0))
            continue;
        least = least > 0 && least < time ? least : time;
        terms_of(&loads[i], x);
        normal_add(&all, x, time, 1 / (time * time));
        normal_add(&m[(double)loads[i].rows > rows], x, time, 1 / (time * time));
    }
    double ridge[FIT_TERMS];
    for (int i = 0; i < FIT_TERMS; i++)
        ridge[i] = RIDGE * all.a[i][i];
    normal_solve(&all, ridge, f->by[0]);
    memcpy(f->by[1], f->by[0], sizeof f->by[0]);
    normal_solve_all(m, f);
    f->least = least / 2;
}

/* All rounds, from the planes of @start. Return: by how much its predictions are off on average; what is off by more than half counts as half. */
static double fit_from(struct fit *f, const struct fit *start, const struct fit_load loads[],
                       const float times[], size_t n, float predicted[], float ratios[])
{
    *f = *start;
    for (size_t i = 0; i < n; i++)
        predicted[i] = (float)fit_at(f, &loads[i]);
    f->deviation = deviation_from(predicted, times, n, ratios);
    for (int i = 0; i < ROUNDS; i++)
        fit_round(f, start, loads, times, n, i >= ROUNDS / 2, predicted, ratios);
    double off = 0;
    for (size_t i = 0; i < n; i++) {
        float r = times[i] > 0 ? times[i] / predicted[i] - 1 : 0;
        off += (double)(r > 0.5F || r < -0.5F ? 0.5F : r < 0 ? -r : r);
    }
    return off;
}

/* From new planes, and from those of before: either may end in a lesser place. */
void fit_again(struct fit *f, const struct fit_load loads[], const float times[], size_t n,
               float work[])
{
    struct fit start = { 0 }, fresh, before = *f;
    begin(&start, loads, times, n);
    double off = fit_from(&fresh, &start, loads, times, n, work, work + n);
    if (!(before.least > 0) || off <= fit_from(f, &before, loads, times, n, work, work + n))
        *f = fresh;
}
