/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/index.h"

#include "core/grow.h"

#include <dmi/dtype.h>

#include <math.h>
#include <stdlib.h>

#define PER_OCTAVE 64                     /* buckets: 1.1% each */
#define OCTAVES    160                    /* from 2^-80 on */
#define N_BUCKETS  (PER_OCTAVE * OCTAVES) /* per sign */

/* Return: -1 for zero and what is no number. */
static int bucket_of(float v)
{
    if (!(fabsf(v) > 1e-24f) || !(fabsf(v) < 1e24f))
        return -1;
    return (int)((log2f(fabsf(v)) + OCTAVES / 2) * PER_OCTAVE) + (v < 0 ? N_BUCKETS : 0);
}

void index_find_anchors(struct index_pattern *p)
{
    p->anchor = p->second = 0;
    for (uint16_t i = 1; i < p->n; i++) {
        if (fabsf(p->values[i]) > fabsf(p->values[p->anchor])) {
            p->second = p->anchor;
            p->anchor = i;
        } else if (p->second == p->anchor || fabsf(p->values[i]) > fabsf(p->values[p->second])) {
            p->second = i;
        }
    }
}

int index_add(struct index *index, const struct index_pattern *pattern)
{
    struct index_pattern p = *pattern;
    index_find_anchors(&p);
    if (bucket_of(p.values[p.anchor]) < 0)
        return 0;
    if (grow((void **)&index->patterns, index->n, &index->room, sizeof p, 1024))
        return -ENOMEM;
    index->patterns[index->n++] = p;
    return 0;
}

/* Those that are too small or too large, so scaled, are left out. */
static void scale_all(struct index *index)
{
    size_t n = 0;
    for (size_t i = 0; i < index->n; i++) {
        struct index_pattern p = index->patterns[i];
        p.largest = p.values[p.anchor] * index->scale;
        p.next = p.values[p.second] * index->scale;
        if (bucket_of(p.largest) >= 0)
            index->patterns[n++] = p;
    }
    index->n = n;
}

int index_build(struct index *index, float scale)
{
    index->scale = scale;
    scale_all(index);
    struct index_pattern *sorted = malloc((index->n + 1) * sizeof *sorted);
    index->first = calloc(2 * N_BUCKETS + 2, sizeof *index->first);
    if (!index->first || !sorted) {
        free(sorted);
        return -ENOMEM;
    }
    for (size_t i = 0; i < index->n; i++)
        index->first[bucket_of(index->patterns[i].largest) + 2]++;
    for (size_t b = 2; b < 2 * N_BUCKETS + 2; b++)
        index->first[b] += index->first[b - 1];
    for (size_t i = 0; i < index->n; i++)
        sorted[index->first[bucket_of(index->patterns[i].largest) + 1]++] = index->patterns[i];
    free(index->patterns);
    index->patterns = sorted;
    index->room = index->n;
    return 0;
}

/* What is rounded more coarsely: more buckets on each side. */
static int around(uint32_t dtype)
{
    switch (dtype) {
    case DMI_DTYPE_F16:
    case DMI_DTYPE_BF16: return 3;
    case DMI_DTYPE_F8E4M3: return 8;  /* 6% are 6 buckets */
    case DMI_DTYPE_F8E5M2: return 14; /* 12% are 12 */
    default: return 1;
    }
}

struct index_span index_near(const struct index *index, float value, uint32_t dtype)
{
    int b = bucket_of(value), n = around(dtype);
    if (b < 0)
        return (struct index_span){ 0, 0 };
    int from = b - n < 0 ? 0 : b - n;
    int to = b + n >= 2 * N_BUCKETS ? 2 * N_BUCKETS - 1 : b + n;
    return (struct index_span){ index->first[from], index->first[to + 1] };
}

void index_deinit(struct index *index)
{
    free(index->patterns);
    free(index->first);
    *index = (struct index){ 0 };
}
