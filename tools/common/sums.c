/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/sums.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

int row_pair_reserve(struct row_pair *p, uint64_t width)
{
    if (width <= p->room)
        return 0;
    double *captured = realloc(p->captured, width * sizeof *captured);
    p->captured = captured ? captured : p->captured;
    double *reference = captured ? realloc(p->reference, width * sizeof *reference) : NULL;
    p->reference = reference ? reference : p->reference;
    if (!reference)
        return -ENOMEM;
    p->room = width;
    return 0;
}

void row_pair_deinit(struct row_pair *p)
{
    free(p->captured);
    free(p->reference);
}

struct sums sums_of(const double *x, const double *reference, uint64_t n)
{
    struct sums s = { .n = n };
    for (uint64_t i = 0; i < n; i++) {
        if (x[i] == reference[i] ? isinf(x[i]) : isnan(x[i]) && isnan(reference[i]))
            continue;
        double e = x[i] - reference[i], far = isnan(e) ? INFINITY : fabs(e);
        s.err2 += e * e;
        s.ref2 += reference[i] * reference[i];
        s.cap2 += x[i] * x[i];
        s.dot += x[i] * reference[i];
        s.abs += far;
        s.greatest = far > s.greatest ? far : s.greatest;
    }
    return s;
}

void sums_add(struct sums *to, const struct sums *more)
{
    to->err2 += isnan(more->err2) ? INFINITY : more->err2;
    to->ref2 += more->ref2;
    to->cap2 += more->cap2;
    to->dot += more->dot;
    to->abs += more->abs;
    to->greatest = more->greatest > to->greatest ? more->greatest : to->greatest;
    to->n += more->n;
}

double sums_error(double err2, double base2)
{
    if (!isfinite(err2))
        return INFINITY; /* NaN or infinity on one side is a difference, not a comparison that fails */
    return err2 > 0 ? sqrt(err2 / base2) : 0;
}

double sums_cosine(const struct sums *s)
{
    double n = sqrt(s->cap2) * sqrt(s->ref2);
    if (!isfinite(s->err2) || !isfinite(n))
        return 0;
    return n > 0 ? s->dot / n : s->err2 > 0 ? 0 : 1;
}
