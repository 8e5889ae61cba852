/* SPDX-License-Identifier: Apache-2.0 */
#include "read/rows.h"

#include "core/cleanup.h"
#include "core/err.h"
#include "core/grow.h"
#include "read/record.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <stdlib.h>

struct visit {
    struct reader *reader;
    const struct tensors *tensors;
    const struct rows_visitor *visitor;
    void *ctx;
    size_t loaded;  /* record whose bytes, or whose failure, we have */
    struct err why; /* code 0: it was decoded */
    uint8_t *raw;
    size_t room;
    bool took; /* the visitor failed, not the reading */
};

static const struct stretch *stretch_of(const struct visit *v, const struct rows *rows)
{
    return &v->tensors->all[rows->tensor].stretches[rows->stretch];
}

static bool wanted(const struct visit *v, size_t tensor)
{
    return !v->visitor->wants || v->visitor->wants(v->ctx, tensor);
}

static int rows_order(const void *pa, const void *pb, void *arg)
{
    const struct visit *v = arg;
    size_t a = stretch_of(v, pa)->record, b = stretch_of(v, pb)->record;
    return a < b ? -1 : a > b;
}

static struct rows *plan(const struct visit *v, size_t *n_out)
{
    size_t n = 0;
    for (size_t i = 0; i < v->tensors->n; i++)
        n += wanted(v, i) ? v->tensors->all[i].n_stretches : 0;
    struct rows *all = calloc(n + 1, sizeof *all);
    *n_out = n;
    n = 0;
    for (size_t i = 0; all && i < v->tensors->n; i++) {
        const struct tensor *t = &v->tensors->all[i];
        uint64_t first = 0;
        for (size_t p = 0; wanted(v, i) && p < t->n_stretches; p++) {
            all[n++] = (struct rows){ i, p, first };
            first += t->stretches[p].n_rows;
        }
    }
    if (all)
        qsort_r(all, *n_out, sizeof *all, rows_order, (void *)(uintptr_t)v);
    return all;
}

static int load(struct visit *v, size_t index)
{
    const struct reader_record *rec = reader_record(v->reader, index);
    if (index == v->loaded)
        return 0;
    v->loaded = index;
    v->why = (struct err){ 0 };
    if (RESERVE(v->raw, rec->at.n_bytes, v->room))
        return -ENOMEM;
    return reader_decode(&v->why, v->reader, rec, v->raw) == -ENOMEM ? -ENOMEM : 0;
}

static int visit_one(struct visit *v, const struct rows *rows)
{
    const struct stretch *p = stretch_of(v, rows);
    const struct reader_record *rec = reader_record(v->reader, p->record);
    TRY(load(v, p->record));
    if (v->why.code)
        return v->visitor->damaged(v->ctx, rows, &v->why);
    uint64_t n_row = record_width(rec) * dmi_dtype_bytes(rec->at.dtype);
    int r = v->visitor->take(v->ctx, rows, rec, v->raw ? v->raw + p->first_row * n_row : NULL);
    v->took = r < 0;
    return r;
}

int rows_visit(struct err *err, struct reader *reader, const struct tensors *tensors,
               const struct rows_visitor *visitor, void *ctx)
{
    struct visit v = { reader, tensors, visitor, ctx, .loaded = SIZE_MAX };
    size_t n;
    _cleanup_(freep) struct rows *all = plan(&v, &n);
    int r = all ? 0 : -ENOMEM;
    for (size_t i = 0; !r && i < n; i++)
        r = visit_one(&v, &all[i]);
    free(v.raw);
    return r < 0 ? err_set_errno(err, -r, v.took ? "cannot write the rows" : "cannot read the rows")
                 : r;
}
