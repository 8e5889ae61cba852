/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/probe.h"

#include "core/cleanup.h"
#include "core/grow.h"
#include "core/sorted.h"

#include <dmi/dtype.h>

#include <math.h>
#include <stdlib.h>

/* ------------------------------------------------------------------------- looking */

/* Of @n values: norm over norm, INFINITY where it is beyond @limit. */
static float probe_error(const float *values, const float *row, uint32_t n, float scale,
                         float limit)
{
    double error = 0, norm = 0;
    for (uint32_t i = 0; i < n; i++)
        norm += (double)row[i] * row[i];
    norm *= (double)scale * scale;
    double most = (double)limit * limit * norm;
    for (uint32_t i = 0; i < n && error <= most; i++) {
        double e = values[i] - (double)row[i] * scale;
        error += e * e;
    }
    return norm > 0 && error <= most ? (float)sqrt(error / norm) : INFINITY;
}

int probe_pattern(const struct memory_view *v, size_t i, const struct index_pattern *p, float scale,
                  float limit, uint32_t launch, struct hits *out)
{
    const float *values = v->values + (i - p->anchor);
    float error = probe_error(values, p->values, p->n, scale, limit);
    if (!isfinite(error))
        return 0;
    return PUSH(out->at, out->n, out->room, 4096,
                (struct hit){ .launch = launch,
                              .tensor = p->tensor,
                              .row = p->number,
                              .dtype = v->dtype,
                              .address = v->address + (i - p->anchor) * v->size,
                              .error = error });
}

static int hit_order(const void *pa, const void *pb)
{
    const struct hit *a = pa, *b = pb;
    ORDER(a, b, launch);
    ORDER(a, b, address);
    return a->tensor < b->tensor ? -1 : a->tensor > b->tensor;
}

void probe_sort(struct hits *hits)
{
    if (hits->n)
        qsort(hits->at, hits->n, sizeof *hits->at, hit_order);
}

static int float_order(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

float probe_median(float *values, size_t n)
{
    qsort(values, n, sizeof *values, float_order);
    return values[n / 2];
}

float probe_usual_error(const struct hits *hits)
{
    _cleanup_(freep) float *errors = malloc((hits->n + 1) * sizeof *errors);
    for (size_t i = 0; errors && i < hits->n; i++)
        errors[i] = hits->at[i].error;
    return errors && hits->n ? 10 * probe_median(errors, hits->n) + 1e-3f : 1;
}

/* ------------------------------------------------------------------------- another scale */

/* That which makes @n values nearest to the row's: coarse types round each of them. */
static float nearest_scale(const float *values, const float *row, uint32_t n)
{
    double both = 0, norm = 0;
    for (uint32_t i = 0; i < n; i++) {
        both += (double)values[i] * row[i];
        norm += (double)row[i] * row[i];
    }
    return norm > 0 ? (float)(both / norm) : 0;
}

/* The scale that the two largest agree on and all 16 bear out, 0: none. */
static float scale_at(const struct memory_view *v, size_t i, const struct index_pattern *p)
{
    float rounding = view_rounding(v->dtype);
    if (i < p->anchor || i - p->anchor + p->n > v->n)
        return 0;
    const float *values = v->values + (i - p->anchor);
    float scale = values[p->anchor] / p->values[p->anchor];
    if (!isfinite(scale) || fabsf(scale) < 1e-15f ||
        fabsf(values[p->second] - p->values[p->second] * scale) >
            (PROBE_ERROR + 2 * rounding) * fabsf(values[p->anchor]))
        return 0;
    scale = nearest_scale(values, p->values, p->n);
    return isfinite(probe_error(values, p->values, p->n, scale, PROBE_ERROR / 2 + rounding)) ? scale
                                                                                             : 0;
}

static float scale_in(const struct probe *p, const struct rec_run *run,
                      const struct index_pattern *row)
{
    _cleanup_(freep) uint8_t *changed = view_changes(p->memory, run);
    float found = 0;
    for (uint32_t d = 1; changed && d < DMI_DTYPE_COUNT && found == 0; d++) {
        struct memory_view v;
        if (!(p->types & VIEW_TYPE(d)))
            continue;
        if (!view_open(run, changed, d, &v))
            for (size_t at = 0; at < v.n && found == 0; at++)
                found = v.fresh[at] ? scale_at(&v, at, row) : 0;
        view_deinit(&v);
    }
    return found;
}

float probe_scale(const struct probe *p, uint32_t first, uint32_t end, const float *row)
{
    struct index_pattern pattern = { .values = row, .n = PROBE_VALUES };
    float found = 0;
    index_find_anchors(&pattern);
    for (uint32_t i = first; i < end && i < p->rec->n_launches && found == 0; i++) {
        const struct rec_launch *l = &p->rec->launches[i];
        for (size_t k = 0; k < l->n_runs && found == 0; k++)
            found = scale_in(p, &p->rec->runs[l->first_run + k], &pattern);
    }
    return found;
}
