/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/statistics.h"

#include "storage/elements.h"

#include <dmi/dtype.h>

#include <math.h>

static void add(struct statistics *s, double v)
{
    s->n_nan += isnan(v);
    s->n_infinite += isinf(v) != 0;
    if (!isfinite(v))
        return;
    s->least = !s->n || v < s->least ? v : s->least;
    s->most = !s->n || v > s->most ? v : s->most;
    s->sum += v;
    s->squares += v * v;
    s->n++;
}

void statistics_add(struct statistics *s, const double *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        add(s, values[i]);
}

void statistics_take(struct statistics *s, uint32_t dtype, const uint8_t *data, uint64_t n)
{
    double v[STATISTICS_AT_A_TIME];
    uint32_t n_element = dmi_dtype_bytes(dtype);
    for (uint64_t i = 0, k; i < n; i += k) {
        k = n - i < STATISTICS_AT_A_TIME ? n - i : STATISTICS_AT_A_TIME;
        elements_to_double(dtype, data + i * n_element, k, v);
        statistics_add(s, v, k);
    }
}

double statistics_mean(const struct statistics *s)
{
    return s->n ? s->sum / (double)s->n : 0;
}

double statistics_greatest(const struct statistics *s)
{
    return fabs(s->least) > fabs(s->most) ? fabs(s->least) : fabs(s->most);
}
