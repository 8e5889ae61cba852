/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/look.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <stdlib.h>

int look_for(struct look *look, const float *values, uint32_t n, uint32_t tensor, uint32_t number)
{
    struct pattern p = { .values = values, .tensor = tensor, .number = number };
    p.n = (uint16_t)(n < PROBE_VALUES ? n : PROBE_VALUES);
    return index_add(&look->index, &p);
}

static int scan(struct look *look, uint32_t launch, const struct view *v)
{
    const struct index *index = &look->index;
    float limit = look->error + view_rounding(v->dtype);
    for (size_t i = 0; i < v->n; i++) {
        if (!v->fresh[i])
            continue;
        look->n_places++;
        struct index_span near = index_near(index, v->values[i], v->dtype);
        for (uint32_t k = near.from; k < near.to; k++)
            if (probe_may_be(v, i, &index->patterns[k], limit) &&
                probe_pattern(v, i, &index->patterns[k], 1, limit, launch, &look->hits))
                return -ENOMEM;
    }
    return 0;
}

static int scan_run(struct look *look, uint32_t launch, const struct rec_run *run)
{
    uint8_t *changed = view_changes(look->probe->memory, run);
    int r = changed ? 0 : -ENOMEM;
    for (uint32_t d = 1; !r && d < DMI_DTYPE_COUNT; d++) {
        struct view v;
        if (!(look->types & LOOK_TYPE(d)))
            continue;
        r = view_open(run, changed, d, &v);
        if (!r)
            r = scan(look, launch, &v);
        view_deinit(&v);
    }
    free(changed);
    return r;
}

int look_at(struct look *look, const struct forward *f)
{
    const struct recording *rec = look->probe->rec;
    int r = index_build(&look->index, 1);
    for (uint32_t l = f->begin; look->index.n && !r && l < f->end && l < rec->n_launches; l++)
        for (size_t i = 0; !r && i < rec->launches[l].n_runs; i++)
            r = scan_run(look, l, &rec->runs[rec->launches[l].first_run + i]);
    index_deinit(&look->index);
    probe_sort(&look->hits);
    return r;
}

void look_deinit(struct look *look)
{
    index_deinit(&look->index);
    free(look->hits.at);
    *look = (struct look){ 0 };
}
