/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/channels.h"

#include "analyze/tile.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int channels_init(struct channels *c, size_t n)
{
    *c = (struct channels){ .n = n };
    c->shift = calloc(n + 1, sizeof *c->shift);
    c->sum = calloc(n + 1, sizeof *c->sum);
    c->squares = calloc(n + 1, sizeof *c->squares);
    c->peak = calloc(n + 1, sizeof *c->peak);
    if (!c->shift || !c->sum || !c->squares || !c->peak) {
        channels_deinit(c);
        return -ENOMEM;
    }
    for (size_t i = 0; i < n; i++)
        c->peak[i] = -1;
    return 0;
}

void channels_deinit(struct channels *c)
{
    free(c->shift);
    free(c->sum);
    free(c->squares);
    free(c->peak);
    free(c->n_bad);
    *c = (struct channels){ 0 };
}

void channels_begin_rows(struct channels *c, size_t n_rows)
{
    c->n_rows += n_rows;
}

/* ------------------------------------------------------------------------- sums */

/* One value of a channel, as kernels add it. */
static void add_value(struct channels *c, size_t i, double value)
{
    if (c->peak[i] < 0)
        c->shift[i] = value;
    double d = value - c->shift[i];
    c->sum[i] += d;
    c->squares[i] += d * d;
    c->peak[i] = fabs(value) > c->peak[i] ? fabs(value) : c->peak[i];
}

/* Where some channel lacks values, each has a count of its own. */
static void add_by_count(struct channels *c, size_t first, const double *values, size_t n)
{
    for (size_t i = first; i < first + n; i++)
        if (isfinite(values[i - first]))
            add_value(c, i, values[i - first]);
        else
            c->n_bad[i]++;
}

/* While no value was bad, channels of a part have values from the same row on. */
void channels_add(const struct tile_kernel *kernel, struct channels *c, size_t first,
                  const double *values, size_t stride, size_t n_rows, size_t n)
{
    const struct tile_channels to = { c->shift + first, c->sum + first, c->squares + first,
                                      c->peak + first };
    for (size_t r = 0; c->n_bad && r < n_rows; r++)
        add_by_count(c, first, values + r * stride, n);
    if (c->n_bad)
        return;
    if (c->peak[first] < 0)
        memcpy(c->shift + first, values, n * sizeof *values);
    kernel->channels(&to, values, stride, n_rows, n);
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

double channels_mean(const struct channels *c, size_t i)
{
    uint64_t n = channels_count(c, i);
    return n ? c->shift[i] + c->sum[i] / (double)n : NAN;
}

double channels_sd(const struct channels *c, size_t i)
{
    uint64_t n = channels_count(c, i);
    double m2 = c->squares[i] - c->sum[i] / (double)n * c->sum[i];
    return n ? sqrt(fmax(m2, 0) / (double)n) : NAN;
}

double channels_rms(const struct channels *c, size_t i)
{
    double mean = channels_mean(c, i), sd = channels_sd(c, i);
    return sqrt(mean * mean + sd * sd);
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
