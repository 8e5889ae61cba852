/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/channels.h"

#include "storage/codec/cpu.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#define INLINE static inline __attribute__((always_inline))

int channels_init(struct channels *c, size_t n)
{
    *c = (struct channels){ .n = n };
    c->mean = calloc(n + 1, sizeof *c->mean);
    c->m2 = calloc(n + 1, sizeof *c->m2);
    c->peak = calloc(n + 1, sizeof *c->peak);
    if (c->mean && c->m2 && c->peak)
        return 0;
    channels_deinit(c);
    return -ENOMEM;
}

void channels_deinit(struct channels *c)
{
    free(c->mean);
    free(c->m2);
    free(c->peak);
    free(c->n_bad);
    *c = (struct channels){ 0 };
}

void channels_begin_row(struct channels *c)
{
    c->n_rows++;
}

/* ------------------------------------------------------------------------- sums */

/* One value of a channel, the count-th, where @part is 1 / count. Both instruction sets and the slow way round as this does. */
INLINE void add_value(double *mean, double *m2, double *peak, double value, double part)
{
    double d = value - *mean;
    *mean += d * part;
    *m2 += d * (value - *mean);
    *peak = fabs(value) > *peak ? fabs(value) : *peak;
}

/* The compiler vectorises it (at -O3) for the instructions of the function that it is in. */
INLINE void add_all(double *restrict mean, double *restrict m2, double *restrict peak,
                    const double *restrict values, size_t n, double part)
{
    for (size_t i = 0; i < n; i++)
        add_value(&mean[i], &m2[i], &peak[i], values[i], part);
}

static void add_plain(double *mean, double *m2, double *peak, const double *values, size_t n,
                      double part)
{
    add_all(mean, m2, peak, values, n, part);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void add_avx2(double *mean, double *m2, double *peak,
                                                     const double *values, size_t n, double part)
{
    add_all(mean, m2, peak, values, n, part);
}
#else
#define add_avx2 add_plain
#endif

/* Where some channel lacks values, each has a count of its own. */
static void add_by_count(struct channels *c, size_t first, const double *values, size_t n)
{
    for (size_t i = first; i < first + n; i++) {
        double value = values[i - first];
        if (!isfinite(value))
            c->n_bad[i]++;
        else
            add_value(&c->mean[i], &c->m2[i], &c->peak[i], value,
                      1.0 / (double)channels_count(c, i));
    }
}

static void add(struct channels *c, size_t first, const double *values, size_t n, bool fast)
{
    if (c->n_bad)
        add_by_count(c, first, values, n);
    else
        (fast ? add_avx2 : add_plain)(c->mean + first, c->m2 + first, c->peak + first, values, n,
                                      1.0 / (double)c->n_rows);
}

void channels_add(struct channels *c, size_t first, const double *values, size_t n)
{
    add(c, first, values, n, has_avx2());
}

void channels_add_portable(struct channels *c, size_t first, const double *values, size_t n)
{
    add(c, first, values, n, false);
}

int channels_add_bad(struct channels *c, size_t first, const double *values, size_t n)
{
    if (!c->n_bad && !(c->n_bad = calloc(c->n + 1, sizeof *c->n_bad)))
        return -ENOMEM;
    add_by_count(c, first, values, n);
    return 0;
}

uint64_t channels_count(const struct channels *c, size_t i)
{
    return c->n_rows - (c->n_bad ? c->n_bad[i] : 0);
}

double channels_sd(const struct channels *c, size_t i)
{
    uint64_t n = channels_count(c, i);
    return n ? sqrt(c->m2[i] / (double)n) : NAN;
}

double channels_rms(const struct channels *c, size_t i)
{
    uint64_t n = channels_count(c, i);
    return n ? sqrt(c->mean[i] * c->mean[i] + c->m2[i] / (double)n) : NAN;
}

/* ------------------------------------------------------------------------- what stands out */

static int by_value(const void *pa, const void *pb)
{
    double a = *(const double *)pa, b = *(const double *)pb;
    return a < b ? -1 : a > b;
}

static double median_of(double *values, size_t n)
{
    if (!n)
        return NAN;
    qsort(values, n, sizeof *values, by_value);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

struct robust robust_of(double *values, double *scratch, size_t n)
{
    struct robust r = { .median = median_of(values, n) };
    for (size_t i = 0; i < n; i++)
        scratch[i] = fabs(values[i] - r.median);
    r.sd = 1.4826 * median_of(scratch, n);
    return r;
}

void channels_scores(const struct channels *c, double *scores, double *scratch)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++) {
        scores[i] = channels_rms(c, i);
        if (isfinite(scores[i]))
            scratch[n++] = scores[i];
    }
    struct robust r = robust_of(scratch, scratch + c->n, n);
    for (size_t i = 0; i < c->n; i++)
        scores[i] = r.sd > 0 ? (scores[i] - r.median) / r.sd : NAN;
}
