/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/probe.h"

#include "core/cleanup.h"
#include "core/grow.h"
#include "storage/elements.h"

#include <dmi/dtype.h>

#include <math.h>
#include <string.h>

#define PER_OCTAVE 64                     /* buckets: 1.1% each */
#define OCTAVES    160                    /* from 2^-80 on */
#define N_BUCKETS  (PER_OCTAVE * OCTAVES) /* per sign */
#define PREFIX_MAX 0.06f                  /* error of a beginning that is looked at further */

static const uint32_t dtypes[] = { DMI_DTYPE_F32, DMI_DTYPE_F16, DMI_DTYPE_BF16 };

/* A row's beginning in the index. */
struct entry {
    const float *row;
    uint32_t tensor, number;
    uint16_t anchor, second; /* its two largest */
    uint16_t n;
};

struct index {
    struct entry *entries;
    size_t n, room;
    uint32_t *first; /* [2 * N_BUCKETS + 1]: of each bucket in order[] */
    uint32_t *order;
    float scale;
};

/* The values that one launch wrote in one run, as one type. */
struct view {
    uint32_t launch, dtype, size;
    uint64_t address;
    float *values;
    uint8_t *fresh; /* the element changed */
    size_t n;
};

/* ------------------------------------------------------------------------- the index */

/* Return: -1 for zero and what is no number. */
static int bucket_of(float v)
{
    if (!(fabsf(v) > 1e-24f) || !(fabsf(v) < 1e24f))
        return -1;
    return (int)((log2f(fabsf(v)) + OCTAVES / 2) * PER_OCTAVE) + (v < 0 ? N_BUCKETS : 0);
}

static void find_anchors(struct entry *e)
{
    for (uint16_t i = 1; i < e->n; i++) {
        if (fabsf(e->row[i]) > fabsf(e->row[e->anchor])) {
            e->second = e->anchor;
            e->anchor = i;
        } else if (e->second == e->anchor || fabsf(e->row[i]) > fabsf(e->row[e->second])) {
            e->second = i;
        }
    }
}

static int collect(const struct probe *p, struct index *index)
{
    for (uint32_t t = 0; t < p->ref->n_tensors; t++) {
        const struct ref_tensor *tensor = &p->ref->tensors[t];
        const struct ref_site *site = &p->ref->sites[tensor->site];
        if (site->whole || tensor->width < 8 || (p->site >= 0 && tensor->site != (uint32_t)p->site))
            continue;
        uint32_t first = p->ref->requests[tensor->request].first_row;
        for (uint32_t r = 0; r < tensor->n_rows; r++) {
            if (p->ref->same_as[first + r] != first + r)
                continue;
            struct entry e = { .row = tensor->values + (size_t)r * tensor->width,
                               .tensor = t,
                               .number = first + r };
            e.n = (uint16_t)(tensor->width < PROBE_VALUES ? tensor->width : PROBE_VALUES);
            find_anchors(&e);
            if (bucket_of(e.row[e.anchor] * index->scale) < 0)
                continue;
            if (grow((void **)&index->entries, index->n, &index->room, sizeof e, 1024))
                return -ENOMEM;
            index->entries[index->n++] = e;
        }
    }
    return 0;
}

static void index_deinit(struct index *index)
{
    free(index->entries);
    free(index->first);
    free(index->order);
}

static int index_build(const struct probe *p, struct index *index)
{
    *index = (struct index){ .scale = p->scale };
    index->first = calloc(2 * N_BUCKETS + 2, sizeof *index->first);
    if (!index->first || collect(p, index) ||
        !(index->order = malloc((index->n + 1) * sizeof *index->order)))
        return -ENOMEM;
    for (size_t i = 0; i < index->n; i++)
        index->first[bucket_of(index->entries[i].row[index->entries[i].anchor] * p->scale) + 2]++;
    for (size_t b = 2; b < 2 * N_BUCKETS + 2; b++)
        index->first[b] += index->first[b - 1];
    for (uint32_t i = 0; i < index->n; i++)
        index->order[index->first[bucket_of(index->entries[i].row[index->entries[i].anchor] *
                                            p->scale) +
                                  1]++] = i;
    return 0;
}

/* ------------------------------------------------------------------------- what was written */

static void view_deinit(struct view *v)
{
    free(v->values);
    free(v->fresh);
}

/* Which bytes are others than before. Return: NULL where there is no memory; free() it. */
static uint8_t *changed_bytes(const struct memory *memory, const struct rec_run *run)
{
    uint8_t before[4096], known[4096];
    uint8_t *changed = malloc(run->n_bytes + 1);
    for (uint64_t at = 0; changed && at < run->n_bytes; at += sizeof before) {
        size_t n = run->n_bytes - at < sizeof before ? (size_t)(run->n_bytes - at) : sizeof before;
        memory_read(memory, run->address + at, n, run->time - 1, before, known);
        for (size_t i = 0; i < n; i++)
            changed[at + i] = !known[i] || before[i] != run->data[at + i];
    }
    return changed;
}

static int view_run(const struct rec_run *run, const uint8_t *changed, uint32_t dtype,
                    struct view *v)
{
    v->dtype = dtype;
    v->size = (uint32_t)dmi_dtype_bytes(dtype);
    v->address = run->address;
    v->n = run->n_bytes / v->size;
    _cleanup_(freep) double *wide = malloc((v->n + 1) * sizeof *wide);
    v->values = malloc((v->n + 1) * sizeof *v->values);
    v->fresh = calloc(v->n + 1, 1);
    if (!wide || !v->values || !v->fresh)
        return -ENOMEM;
    elements_to_double(dtype, run->data, v->n, wide);
    for (size_t i = 0; i < v->n; i++)
        v->values[i] = (float)wide[i];
    for (size_t i = 0; i < v->n * v->size; i++)
        v->fresh[i / v->size] |= changed[i];
    return 0;
}

/* ------------------------------------------------------------------------- looking */

float probe_error(const float *values, const float *row, uint32_t n, float scale)
{
    double error = 0, norm = 0;
    for (uint32_t i = 0; i < n; i++) {
        double want = (double)row[i] * scale, e = values[i] - want;
        error += e * e;
        norm += want * want;
    }
    return norm > 0 && isfinite(error) ? (float)sqrt(error / norm) : INFINITY;
}

static int add_hit(const struct index *index, const struct view *v, size_t at,
                   const struct entry *e, struct hits *out)
{
    if (at < e->anchor || at - e->anchor + e->n > v->n)
        return 0;
    const float *values = v->values + (at - e->anchor);
    float largest = e->row[e->anchor] * index->scale;
    if (fabsf(values[e->second] - e->row[e->second] * index->scale) >
        PREFIX_MAX * 4 * fabsf(largest))
        return 0;
    float error = probe_error(values, e->row, e->n, index->scale);
    if (!(error <= PREFIX_MAX))
        return 0;
    if (grow((void **)&out->at, out->n, &out->room, sizeof *out->at, 4096))
        return -ENOMEM;
    out->at[out->n++] = (struct hit){ .launch = v->launch,
                                      .tensor = e->tensor,
                                      .row = e->number,
                                      .dtype = v->dtype,
                                      .address = v->address + (at - e->anchor) * v->size,
                                      .error = error };
    return 0;
}

/* 16-bit types are rounded more coarsely: more buckets on each side. */
static int scan(const struct index *index, const struct view *v, struct hits *out)
{
    int around = v->size == 2 ? 3 : 1;
    for (size_t i = 0; i < v->n; i++) {
        int b = v->fresh[i] ? bucket_of(v->values[i]) : -1;
        if (b < 0)
            continue;
        int from = b - around < 0 ? 0 : b - around;
        int to = b + around >= 2 * N_BUCKETS ? 2 * N_BUCKETS - 1 : b + around;
        for (uint32_t k = index->first[from]; k < index->first[to + 1]; k++)
            if (add_hit(index, v, i, &index->entries[index->order[k]], out))
                return -ENOMEM;
    }
    return 0;
}

static int hit_order(const void *pa, const void *pb)
{
    const struct hit *a = pa, *b = pb;
    if (a->launch != b->launch)
        return a->launch < b->launch ? -1 : 1;
    if (a->address != b->address)
        return a->address < b->address ? -1 : 1;
    return a->tensor < b->tensor ? -1 : a->tensor > b->tensor;
}

static int scan_run(const struct probe *p, const struct index *index, uint32_t launch,
                    const struct rec_run *run, struct hits *out)
{
    _cleanup_(freep) uint8_t *changed = changed_bytes(p->memory, run);
    int r = changed ? 0 : -ENOMEM;
    for (size_t d = 0; !r && d < sizeof dtypes / sizeof *dtypes; d++) {
        struct view v = { .launch = launch };
        r = view_run(run, changed, dtypes[d], &v);
        if (!r)
            r = scan(index, &v, out);
        view_deinit(&v);
    }
    return r;
}

static int scan_launch(const struct probe *p, const struct index *index, uint32_t launch,
                       struct hits *out)
{
    const struct rec_launch *l = &p->rec->launches[launch];
    int r = 0;
    for (size_t i = 0; !r && i < l->n_runs; i++)
        r = scan_run(p, index, launch, &p->rec->runs[l->first_run + i], out);
    return r;
}

int probe_all(const struct probe *p, struct hits *out)
{
    struct index index;
    int r = index_build(p, &index);
    for (uint32_t i = 0; !r && i < p->rec->n_launches; i++)
        r = scan_launch(p, &index, i, out);
    index_deinit(&index);
    if (out->n)
        qsort(out->at, out->n, sizeof *out->at, hit_order);
    return r;
}

/* ------------------------------------------------------------------------- another scale */

/* The scale that the two largest agree on and all 16 bear out, 0: none. */
static float scale_at(const struct view *v, size_t i, const struct entry *e)
{
    if (i < e->anchor || i - e->anchor + e->n > v->n)
        return 0;
    const float *values = v->values + (i - e->anchor);
    float scale = values[e->anchor] / e->row[e->anchor];
    if (!isfinite(scale) || fabsf(scale) < 1e-15f ||
        fabsf(values[e->second] - e->row[e->second] * scale) >
            PREFIX_MAX * fabsf(values[e->anchor]))
        return 0;
    return probe_error(values, e->row, e->n, scale) <= PREFIX_MAX / 2 ? scale : 0;
}

static float scale_in(const struct probe *p, const struct rec_run *run, const struct entry *e)
{
    _cleanup_(freep) uint8_t *changed = changed_bytes(p->memory, run);
    float found = 0;
    for (size_t d = 0; changed && d < sizeof dtypes / sizeof *dtypes && found == 0; d++) {
        struct view v = { 0 };
        if (!view_run(run, changed, dtypes[d], &v))
            for (size_t at = 0; at < v.n && found == 0; at++)
                found = v.fresh[at] ? scale_at(&v, at, e) : 0;
        view_deinit(&v);
    }
    return found;
}

float probe_scale(const struct probe *p, uint32_t first, uint32_t end, const float *row)
{
    struct entry e = { .row = row, .n = PROBE_VALUES };
    float found = 0;
    find_anchors(&e);
    for (uint32_t i = first; i < end && i < p->rec->n_launches && found == 0; i++) {
        const struct rec_launch *l = &p->rec->launches[i];
        for (size_t k = 0; k < l->n_runs && found == 0; k++)
            found = scale_in(p, &p->rec->runs[l->first_run + k], &e);
    }
    return found;
}
