/* SPDX-License-Identifier: Apache-2.0 */
/* The C ABI of <dmi/read.h>: rows of several tensors, each record decoded once. */
#include <dmi/dtype.h>
#include <dmi/read.h>

#include "core/cleanup.h"
#include "read/handle.h"
#include "read/record.h"
#include "read/rows.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct stretch_visit {
    const struct tensors *tensors;
    bool *wanted; /* by tensor */
    int (*take)(void *ctx, const struct dmi_read_stretch *stretch);
    void *ctx;
    int result; /* of @take, where it is not 0 */
};

static bool wants(void *ctx, size_t tensor)
{
    const struct stretch_visit *v = ctx;
    return v->wanted[tensor];
}

static int hand(struct stretch_visit *v, const struct rows *rows,
                const struct dmi_read_stretch *stretch)
{
    const struct stretch *p = &v->tensors->all[rows->tensor].stretches[rows->stretch];
    struct dmi_read_stretch s = *stretch;
    s.size = sizeof s;
    s.tensor = rows->tensor;
    s.first = rows->first;
    s.n_rows = p->n_rows;
    s.position = p->position;
    s.flags |= (p->flags & STRETCH_REJECTED ? DMI_READ_ROW_REJECTED : 0u) |
               (p->flags & STRETCH_SUPERSEDED ? DMI_READ_ROW_SUPERSEDED : 0u);
    v->result = v->take(v->ctx, &s);
    return v->result ? -ECANCELED : 0;
}

static int take(void *ctx, const struct rows *rows, const struct reader_record *record,
                const uint8_t *data)
{
    return hand(ctx, rows,
                &(struct dmi_read_stretch){ .data = data ? (const void *)data : "",
                                            .width = record_width(record),
                                            .dtype = record->at.dtype,
                                            .site = record->at.site });
}

static int damaged(void *ctx, const struct rows *rows, const struct err *why)
{
    const struct stretch_visit *v = ctx;
    const struct tensor *t = &v->tensors->all[rows->tensor];
    (void)why;
    return hand(ctx, rows,
                &(struct dmi_read_stretch){ .flags = DMI_READ_ROW_DAMAGED,
                                            .width = t->width,
                                            .dtype = t->dtype,
                                            .site = t->site->id });
}

int dmi_read_visit(struct dmi_read *run, const uint64_t *tensors, uint64_t n,
                   int (*fn)(void *ctx, const struct dmi_read_stretch *stretch), void *ctx)
{
    static const struct rows_visitor visitor = { wants, take, damaged };
    if (run->failed)
        return -EBADF;
    const struct tensors *all = &run->view.tensors;
    _cleanup_(freep) bool *wanted = calloc(all->n + 1, sizeof *wanted);
    if (!wanted)
        return handle_fail(run, -ENOMEM, "no memory for a list of tensors");
    for (uint64_t i = 0; i < n; i++) {
        if (tensors[i] >= all->n)
            return handle_fail(run, -ENOENT, "no such tensor");
        wanted[tensors[i]] = true;
    }
    struct stretch_visit v = { all, wanted, fn, ctx, 0 };
    run->err = (struct err){ 0 };
    int r = rows_visit(&run->err, run->view.reader, all, &visitor, &v);
    return v.result ? v.result : r;
}

/* ------------------------------------------------------------------------- into buffers */

/* Where the rows of several tensors go. */
struct several {
    uint8_t **data; /* by tensor */
    bool damaged;
};

static int take_several(void *ctx, const struct dmi_read_stretch *s)
{
    struct several *to = ctx;
    size_t n_row = s->width * dmi_dtype_bytes(s->dtype), n = s->n_rows * n_row;
    if (s->data && n)
        memcpy(to->data[s->tensor] + s->first * n_row, s->data, n);
    else if (n)
        memset(to->data[s->tensor] + s->first * n_row, 0, n);
    to->damaged |= !s->data;
    return 0;
}

int dmi_read_several(struct dmi_read *run, const uint64_t *tensors, uint64_t n, void *const *data)
{
    if (run->failed)
        return -EBADF;
    const struct tensors *all = &run->view.tensors;
    _cleanup_(freep) uint8_t **to = calloc(all->n + 1, sizeof *to);
    if (!to)
        return handle_fail(run, -ENOMEM, "no memory for a list of tensors");
    for (uint64_t i = 0; i < n; i++) {
        if (tensors[i] >= all->n)
            return handle_fail(run, -ENOENT, "no such tensor");
        if (all->all[tensors[i]].mixed == TENSOR_MIXED_TYPE)
            return handle_fail(run, -EINVAL,
                               "a tensor's type or width changes from record to record");
        to[tensors[i]] = data[i];
    }
    struct several s = { to, false };
    int r = dmi_read_visit(run, tensors, n, take_several, &s);
    return r ? r : s.damaged ? -EBADMSG : 0;
}
