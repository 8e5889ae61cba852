/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/moments.h"

#include "analyze/tile.h"

#include <assert.h>
#include <math.h>

static_assert(TILE_LANES == 8, "sum_of() adds eight");

/* ------------------------------------------------------------------------- a tile */

static double sum_of(const double lanes[TILE_LANES])
{
    return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) +
           ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

static double not_negative(double v)
{
    return v < 0 ? 0 : v;
}

/*
 * From powers of value - shift to powers of value - mean. The shift is one of the values, so m2 is at least the square of its distance from
 * the mean: what is subtracted is at most n times what is left, and takes three of the sixteen digits from a tile.
 */
static void centre(const struct tile_sums *s, double shift, struct moments *out)
{
    double n = (double)out->n, d1 = sum_of(s->d1), d2 = sum_of(s->d2), d3 = sum_of(s->d3),
           d4 = sum_of(s->d4), off = d1 / n;
    out->mean = shift + off;
    out->m2 = not_negative(d2 - off * d1);
    out->m3 = d3 - off * (3 * d2 - 2 * off * d1);
    out->m4 = not_negative(d4 - off * (4 * d3 - off * (6 * d2 - 3 * off * d1)));
}

void moments_of(const struct tile_kernel *kernel, const double *values, size_t n,
                struct moments *out)
{
    struct tile_sums sums;
    kernel->sums(values, n, &sums);
    *out = (struct moments){ .n = n, .least = values[0], .most = values[0] };
    for (size_t l = 0; l < TILE_LANES; l++) {
        out->n_zero += (uint64_t)sums.n_zero[l];
        out->least = sums.least[l] < out->least ? sums.least[l] : out->least;
        out->most = sums.most[l] > out->most ? sums.most[l] : out->most;
    }
    centre(&sums, values[0], out);
}

void moments_of_one(double value, struct moments *out)
{
    *out = (struct moments){
        .n = 1, .n_zero = value == 0, .mean = value, .least = value, .most = value
    };
}

/* ------------------------------------------------------------------------- several */

void moments_merge(struct moments *to, const struct moments *part)
{
    if (!to->n || !part->n) {
        *to = part->n ? *part : *to;
        return;
    }
    double a = (double)to->n, b = (double)part->n, ab = a * b;
    double d = part->mean - to->mean, dn = d / (a + b), m2 = d * dn * ab;
    to->m4 += part->m4 + m2 * dn * dn * (a * a - ab + b * b) +
              6 * dn * dn * (a * a * part->m2 + b * b * to->m2) +
              4 * dn * (a * part->m3 - b * to->m3);
    to->m3 += part->m3 + m2 * dn * (a - b) + 3 * dn * (a * part->m2 - b * to->m2);
    to->m2 += part->m2 + m2;
    to->mean += dn * b;
    to->n += part->n;
    to->n_zero += part->n_zero;
    to->least = part->least < to->least ? part->least : to->least;
    to->most = part->most > to->most ? part->most : to->most;
}

double moments_sd(const struct moments *m)
{
    return m->n ? sqrt(m->m2 / (double)m->n) : NAN;
}

double moments_kurtosis(const struct moments *m)
{
    return m->m2 > 0 ? (double)m->n * m->m4 / (m->m2 * m->m2) : NAN;
}

double moments_norm(const struct moments *m)
{
    return sqrt(m->m2 + (double)m->n * m->mean * m->mean);
}

double moments_peak(const struct moments *m)
{
    return m->n ? fmax(fabs(m->least), fabs(m->most)) : NAN;
}
