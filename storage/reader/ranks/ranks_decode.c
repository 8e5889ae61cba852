/* SPDX-License-Identifier: Apache-2.0 */
/* The payload of a joined record: the parts of its ranks side by side, or their sum. Source: docs/format.md 8.1. */
#include "core/cleanup.h"
#include "core/err.h"
#include "storage/elements.h"
#include "storage/reader/reader_private.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <string.h>

/* How a joined record lies: @outer times what all parts have one after the other of the divided dimension. */
struct joined_layout {
    uint64_t outer, inner; /* inner: bytes of one index of that dimension */
    uint32_t dim;
};

static struct joined_layout layout_of(const struct reader_record *rec, uint32_t dim)
{
    struct joined_layout l = { 1, dmi_dtype_bytes(rec->at.dtype), dim };
    for (uint32_t d = 0; d < rec->at.n_dims; d++) {
        l.outer *= d < dim ? rec->at.dims[d] : 1;
        l.inner *= d > dim ? rec->at.dims[d] : 1;
    }
    return l;
}

/* Puts a part's bytes where they belong; @before: of the divided dimension, what lies before it. */
static void place(const struct joined_layout *l, const struct reader_record *rec,
                  const struct reader_record *part, const uint8_t *from, uint64_t before,
                  uint8_t *out)
{
    uint64_t n = part->at.dims[l->dim] * l->inner, stride = rec->at.dims[l->dim] * l->inner;
    for (uint64_t i = 0; i < l->outer && n; i++)
        memcpy(out + i * stride + before * l->inner, from + i * n, n);
}

int reader_decode_parts(struct err *err, struct reader *r, const struct reader_record *rec,
                        void *out)
{
    const struct reader_ranks *k = r->ranks;
    const struct reader_part *parts = &k->parts[rec->segment];
    const struct dmi_site *site = &r->said.sites[rec->at.site];
    if (rec->chunk == 1)
        return reader_decode_one(err, k->runs[parts->run],
                                 &k->runs[parts->run]->selection.records[parts->index], out);
    bool sums = site->shard == DMI_SHARD_SUM;
    uint64_t n_elements = rec->at.n_bytes / dmi_dtype_bytes(rec->at.dtype), before = 0;
    struct joined_layout l = layout_of(rec, site->shard_dim);
    _cleanup_(freep) uint8_t *part = malloc(rec->at.n_bytes + 1);
    _cleanup_(freep) union elements_sum *sum = sums ? calloc(n_elements + 1, sizeof *sum) : NULL;
    if (!part || (sums && !sum))
        return err_set_errno(err, ENOMEM, "cannot join a record");
    for (uint32_t i = 0; i < rec->chunk; i++) {
        struct reader *run = k->runs[parts[i].run];
        const struct reader_record *p = &run->selection.records[parts[i].index];
        TRY(reader_decode_one(err, run, p, part));
        if (sums)
            elements_add(rec->at.dtype, part, n_elements, sum);
        else
            place(&l, rec, p, part, before, out);
        before += sums ? 0 : p->at.dims[l.dim];
    }
    if (sums)
        elements_from_sums(rec->at.dtype, sum, n_elements, out);
    return 0;
}
