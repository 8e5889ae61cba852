/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/look.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <stdlib.h>

struct look_count {
    uint64_t of; /* run and type */
    uint32_t n;
};

int look_for(struct look *look, const float *values, uint32_t n, uint32_t tensor, uint32_t number)
{
    struct index_pattern p = { .values = values, .tensor = tensor, .number = number };
    p.n = (uint16_t)(n < PROBE_VALUES ? n : PROBE_VALUES);
    return index_add(&look->index, &p);
}

/* Of pattern number @k in what @of stands for. */
static struct look_count *count_of(struct look *look, uint32_t k, uint64_t of)
{
    struct look_count *c = &look->counts[k];
    if (c->of != of)
        *c = (struct look_count){ .of = of };
    return c;
}

/* Adds a hit if pattern number @k lies around element number @i, which may be its largest. Return: 0 or -ENOMEM. */
static int try(struct look *look, uint32_t launch, const struct memory_view *v, size_t i,
               uint32_t k, float limit, uint64_t of)
{
    struct look_count *count = count_of(look, k, of);
    size_t before = look->hits.n;
    if (count->n == look->most)
        return 0;
    int r = probe_pattern(v, i, &look->index.patterns[k], look->index.scale, limit, launch,
                          &look->hits);
    count->n += look->hits.n > before;
    return r;
}

/* @of: a number that no other view has, and not 0 */
static int scan(struct look *look, uint32_t launch, const struct memory_view *v, uint64_t of)
{
    float limit = look->error + view_rounding(v->dtype);
    uint64_t n_places = 0;
    for (size_t i = 0; i < v->n; i++) {
        if (!v->fresh[i])
            continue;
        n_places++;
        struct index_span near = index_near(&look->index, v->values[i], v->dtype);
        for (uint32_t k = near.from; k < near.to; k++)
            if (probe_may_be(v, i, &look->index.patterns[k], limit) &&
                try(look, launch, v, i, k, limit, of))
                return -ENOMEM;
    }
    look->n_places += n_places;
    return 0;
}

static int scan_run(struct look *look, uint32_t launch, size_t number)
{
    const struct rec_run *run = &look->probe->rec->runs[number];
    uint8_t *changed = view_changes(look->probe->memory, run);
    int r = changed ? 0 : -ENOMEM;
    for (uint32_t d = 1; !r && d < DMI_DTYPE_COUNT; d++) {
        struct memory_view v;
        if (!(look->types & VIEW_TYPE(d)))
            continue;
        r = view_open(run, changed, d, &v);
        if (!r)
            r = scan(look, launch, &v, (number + 1) * DMI_DTYPE_COUNT + d);
        view_deinit(&v);
    }
    free(changed);
    return r;
}

int look_at(struct look *look, uint32_t first, uint32_t end)
{
    const struct recording *rec = look->probe->rec;
    int r = index_build(&look->index, look->probe->scale);
    look->counts = calloc(look->index.n + 1, sizeof *look->counts);
    r = r || look->counts ? r : -ENOMEM;
    for (uint32_t l = first; look->index.n && !r && l < end && l < rec->n_launches; l++)
        for (size_t i = 0; !r && i < rec->launches[l].n_runs; i++)
            r = scan_run(look, l, rec->launches[l].first_run + i);
    index_deinit(&look->index);
    free(look->counts);
    look->counts = NULL;
    return r;
}

void look_deinit(struct look *look)
{
    index_deinit(&look->index);
    free(look->hits.at);
    *look = (struct look){ 0 };
}

/* ------------------------------------------------------------------------- rows */

static int add_rows(const struct probe *p, uint32_t t, struct look *look)
{
    const struct ref_tensor *tensor = &p->ref->tensors[t];
    uint32_t first = p->ref->requests[tensor->request].first_row;
    int r = 0;
    for (uint32_t i = 0; !r && i < tensor->n_rows; i++)
        if (p->ref->same_as[first + i] == first + i)
            r = look_for(look, tensor->values + (size_t)i * tensor->width, tensor->width, t,
                         first + i);
    return r;
}

static int collect_rows(const struct probe *p, struct look *look)
{
    int r = 0;
    for (uint32_t t = 0; !r && t < p->ref->n_tensors; t++) {
        const struct ref_tensor *tensor = &p->ref->tensors[t];
        if (!p->ref->sites[tensor->site].whole && tensor->width >= PROBE_FEWEST &&
            (p->site < 0 || tensor->site == (uint32_t)p->site))
            r = add_rows(p, t, look);
    }
    return r;
}

int look_for_beginnings(const struct probe *p, struct hits *out)
{
    struct look look = {
        .probe = p, .types = p->types, .error = PROBE_ERROR, .most = UINT32_MAX, .hits = *out
    };
    int r = collect_rows(p, &look);
    if (!r)
        r = look_at(&look, 0, p->rec->n_launches);
    probe_sort(&look.hits);
    *out = look.hits;
    look.hits = (struct hits){ 0 };
    look_deinit(&look);
    return r;
}
