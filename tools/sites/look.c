/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/look.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <stdlib.h>

#define MAX_HITS 4096u /* of one pattern in one run of bytes: what lies everywhere says nothing */

struct look_count {
    uint64_t of; /* run and type */
    uint32_t n;
};

int look_for(struct look *look, const float *values, uint32_t n, uint32_t tensor, uint32_t number)
{
    struct pattern p = { .values = values, .tensor = tensor, .number = number };
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

/* Adds a hit if pattern number @k lies around element number @i. Return: 0 or -ENOMEM. */
static int try(struct look *look, uint32_t launch, const struct view *v, size_t i, uint32_t k,
               struct look_count *count)
{
    float limit = look->error + view_rounding(v->dtype);
    const struct pattern *p = &look->index.patterns[k];
    size_t before = look->hits.n;
    if (count->n == MAX_HITS || !probe_may_be(v, i, p, limit))
        return 0;
    int r = probe_pattern(v, i, p, 1, limit, launch, &look->hits);
    count->n += look->hits.n > before;
    return r;
}

/* @of: a number that no other view has, and not 0 */
static int scan(struct look *look, uint32_t launch, const struct view *v, uint64_t of)
{
    for (size_t i = 0; i < v->n; i++) {
        if (!v->fresh[i])
            continue;
        look->n_places++;
        struct index_span near = index_near(&look->index, v->values[i], v->dtype);
        for (uint32_t k = near.from; k < near.to; k++)
            if (try(look, launch, v, i, k, count_of(look, k, of)))
                return -ENOMEM;
    }
    return 0;
}

static int scan_run(struct look *look, uint32_t launch, size_t number)
{
    const struct rec_run *run = &look->probe->rec->runs[number];
    uint8_t *changed = view_changes(look->probe->memory, run);
    int r = changed ? 0 : -ENOMEM;
    for (uint32_t d = 1; !r && d < DMI_DTYPE_COUNT; d++) {
        struct view v;
        if (!(look->types & LOOK_TYPE(d)))
            continue;
        r = view_open(run, changed, d, &v);
        if (!r)
            r = scan(look, launch, &v, (number + 1) * DMI_DTYPE_COUNT + d);
        view_deinit(&v);
    }
    free(changed);
    return r;
}

int look_at(struct look *look, const struct forward *f)
{
    const struct recording *rec = look->probe->rec;
    int r = index_build(&look->index, 1);
    look->counts = calloc(look->index.n + 1, sizeof *look->counts);
    r = r || look->counts ? r : -ENOMEM;
    for (uint32_t l = f->begin; look->index.n && !r && l < f->end && l < rec->n_launches; l++)
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
