/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/layout.h"

#include "core/cleanup.h"
#include "storage/elements.h"

#include <dmi/dtype.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define AROUND      ((uint64_t)4 << 20) /* bytes on each side in which other chunks are looked for */
#define MIN_CHUNK   8u
#define ROW_ERROR   0.1f  /* of a row that is still the row: norm over norm */
#define WHOLE_ERROR 1e-7f /* of integers, that the reference has as floats */

float layout_row_limit(const struct probe *p, uint32_t site, uint32_t dtype)
{
    const struct ref_site *s = &p->ref->sites[site];
    if (s->whole)
        return WHOLE_ERROR;
    if (s->width < PROBE_FEWEST && p->usual > 0)
        return p->usual +
               view_rounding(DMI_DTYPE_BF16); /* an f32 is no worse than its upper half */
    return ROW_ERROR + view_rounding(dtype);
}

/* @n elements at @address as floats. Return: false where the recording does not say all. */
static bool read_values(const struct probe *p, uint32_t dtype, uint64_t address, uint32_t n,
                        uint64_t time, double *out)
{
    size_t size = dmi_dtype_bytes(dtype);
    uint8_t one[8]; /* elements that lie apart are many */
    _cleanup_(freep) uint8_t *more = n > 1 ? malloc(n * size + 1) : NULL;
    uint8_t *raw = n > 1 ? more : one;
    if (!raw || memory_read(p->memory, address, n * size, time, raw, NULL) != n * size)
        return false;
    elements_to_double(dtype, raw, n, out);
    return true;
}

/* Sums of squares of errors and values. */
struct distance {
    double error, norm;
};

static void add_distance(const double *values, const float *row, uint32_t n, float scale,
                         struct distance *d)
{
    for (uint32_t i = 0; i < n; i++) {
        double want = (double)row[i] * scale, e = values[i] - want;
        d->error += e * e;
        d->norm += want * want;
    }
}

int64_t layout_slot(const struct probe *p, uint64_t list, uint32_t dtype, uint32_t index,
                    uint64_t time)
{
    uint32_t size = dmi_dtype_bytes(dtype);
    union {
        int32_t narrow;
        int64_t wide;
    } slot;
    if (memory_read(p->memory, list + (uint64_t)index * size, size, time, &slot, NULL) != size)
        return -1;
    int64_t value = size == sizeof slot.narrow ? slot.narrow : slot.wide;
    return value < 0 ? -1 : value;
}

/* Where row @index begins. Return: false where its slot is not known. */
static bool row_place(const struct probe *p, const struct layout *l, uint32_t index, uint64_t time,
                      uint64_t *at)
{
    int64_t slot =
        l->list_dtype ? layout_slot(p, l->list, l->list_dtype, index, time) : (int64_t)index;
    *at = l->address + (uint64_t)l->row_stride * (uint64_t)slot;
    return slot >= 0;
}

bool layout_row(const struct probe *p, const struct layout *l, uint32_t index, uint32_t width,
                uint64_t time, double *out)
{
    uint64_t at;
    if (!row_place(p, l, index, time, &at))
        return false;
    for (uint32_t c = 0, done = 0; done < width; c++) {
        uint32_t n = width - done < l->chunk ? width - done : l->chunk;
        if (!read_values(p, l->dtype, at + (uint64_t)(l->chunk_stride * (int64_t)c), n, time,
                         out + done))
            return false;
        done += n;
    }
    return true;
}

/* Of the first @width values of each row. */
static float error_of(const struct probe *p, const struct layout *l, const struct subject *s,
                      uint32_t width)
{
    double limit = layout_row_limit(p, s->site, l->dtype);
    struct distance all = { 0 };
    bool any = false;
    _cleanup_(freep) double *values = malloc((width + 1) * sizeof *values);
    for (uint32_t r = 0; values && r < s->n_rows; r++) {
        const float *row = activations_row(p->ref, s->site, s->layer, s->rows[r]);
        struct distance one = { 0 };
        if (!row)
            continue; /* the reference lacks this token */
        if (!layout_row(p, l, r, width, s->time, values))
            return INFINITY;
        add_distance(values, row, width, l->scale, &one);
        if (!(one.error <= limit * limit * one.norm))
            return INFINITY;
        all.error += one.error;
        all.norm += one.norm;
        any = true;
    }
    if (!any)
        return INFINITY;
    return all.norm > 0 ? (float)sqrt(all.error / all.norm) : 0; /* zeros, all of them right */
}

float layout_error(const struct probe *p, const struct layout *l, const struct subject *s)
{
    return error_of(p, l, s, p->ref->sites[s->site].width);
}

float layout_prefix_error(const struct probe *p, const struct layout *l, const struct subject *s)
{
    uint32_t width = p->ref->sites[s->site].width;
    struct layout flat = *l;
    flat.chunk = width;
    return error_of(p, &flat, s, width < PROBE_VALUES ? width : PROBE_VALUES);
}

/* ------------------------------------------------------------------------- chunks */

/* Memory around a row, as numbers. */
struct neighbourhood {
    uint64_t address;
    double *values;
    size_t n;
    uint32_t size;
    float limit; /* error of what may begin there */
};

static bool read_around(const struct probe *p, const struct layout *l, uint64_t first,
                        uint64_t base, uint64_t n_bytes, uint64_t time, struct neighbourhood *a)
{
    a->size = dmi_dtype_bytes(l->dtype);
    a->limit = PROBE_ERROR + view_rounding(l->dtype);
    uint64_t from = first - base > AROUND ? first - AROUND : base;
    uint64_t end = base + n_bytes - first > AROUND ? first + AROUND : base + n_bytes;
    from += (first - from) % a->size;
    a->address = from;
    a->n = (end - from) / a->size;
    a->values = malloc((a->n + 1) * sizeof *a->values);
    _cleanup_(freep) uint8_t *raw = malloc(a->n * a->size + 1);
    if (!a->values || !raw)
        return false;
    memory_read(p->memory, from, a->n * a->size, time, raw, NULL);
    elements_to_double(l->dtype, raw, a->n, a->values);
    return true;
}

static bool begins_at(const struct neighbourhood *a, size_t i, const float *row, uint32_t n,
                      float scale)
{
    double limit = a->limit;
    struct distance d = { 0 };
    if (i + n > a->n)
        return false;
    add_distance(a->values + i, row, n, scale, &d);
    return d.norm > 0 && d.error <= limit * limit * d.norm;
}

/* The second chunk lies where its values are; the nearest place at which all rows are right counts. */
static bool find_stride(const struct probe *p, struct layout *l, const struct subject *s,
                        uint64_t first, const float *row, const struct neighbourhood *a)
{
    uint32_t n = l->chunk < PROBE_VALUES ? l->chunk : PROBE_VALUES;
    size_t at = (first - a->address) / a->size;
    for (size_t distance = 1; distance < a->n; distance++)
        for (int sign = 1; sign >= -1; sign -= 2) {
            if (sign > 0 ? at + distance >= a->n : distance > at)
                continue;
            size_t i = sign > 0 ? at + distance : at - distance;
            if (!begins_at(a, i, row + l->chunk, n, l->scale))
                continue;
            l->chunk_stride = sign * (int64_t)distance * a->size;
            if (isfinite(layout_error(p, l, s)))
                return true;
        }
    return false;
}

/* Are the first @n values of @row side by side? */
static bool is_packed(const struct probe *p, const struct layout *l, const struct subject *s,
                      uint64_t first, const float *row, uint32_t n, double *room)
{
    double limit = layout_row_limit(p, s->site, l->dtype);
    struct distance d = { 0 };
    if (!read_values(p, l->dtype, first, n, s->time, room))
        return false;
    add_distance(room, row, n, l->scale, &d);
    return d.error <= limit * limit * d.norm;
}

bool layout_find_chunks(const struct probe *p, struct layout *l, const struct subject *s,
                        uint64_t base, uint64_t n_bytes)
{
    uint32_t width = p->ref->sites[s->site].width;
    const float *row = activations_row(p->ref, s->site, s->layer, s->rows[0]);
    _cleanup_(freep) double *room = malloc((width + 1) * sizeof *room);
    l->chunk = width;
    l->n_chunks = 1;
    l->chunk_stride = 0;
    if (isfinite(layout_error(p, l, s)))
        return true;
    uint64_t first;
    if (!row_place(p, l, 0, s->time, &first))
        return false;
    for (uint32_t n = 2; row && room && width / n >= MIN_CHUNK; n++) {
        if (width % n || !is_packed(p, l, s, first, row, width / n, room))
            continue;
        struct neighbourhood a = { 0 };
        l->chunk = width / n;
        l->n_chunks = n;
        bool found = read_around(p, l, first, base, n_bytes, s->time, &a) &&
                     find_stride(p, l, s, first, row, &a);
        free(a.values);
        if (found)
            return true;
    }
    return false;
}
