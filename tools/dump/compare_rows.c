/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump verify --against: captured rows against reference activations, or sketches of them. */
#include "tools/dump/compare.h"

#include "storage/elements.h"
#include "read/rows.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* Number i*8+j of splitmix64 decides the sign; tests/reference/README.md has the formula. */
static double sign_of(uint64_t n)
{
    uint64_t z = (n + 1) * 0x9E3779B97F4A7C15ull + 0x444d49;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    return z >> 63 ? -1.0 : 1.0;
}

static int reserve_signs(struct comparer *c, uint64_t width)
{
    if (width <= c->n_signs)
        return 0;
    double *s = realloc(c->signs, width * SKETCH_COLUMNS * sizeof *s);
    if (!s)
        return -ENOMEM;
    for (uint64_t n = c->n_signs * SKETCH_COLUMNS; n < width * SKETCH_COLUMNS; n++)
        s[n] = sign_of(n);
    c->signs = s;
    c->n_signs = width;
    return 0;
}

static int reserve(struct comparer *c, uint64_t width, bool sketch)
{
    int r = row_pair_reserve(&c->row, width > SKETCH_COLUMNS ? width : SKETCH_COLUMNS);
    return !r && sketch ? reserve_signs(c, width) : r;
}

static void project(const double *signs, const double *x, uint64_t width, double *y)
{
    for (int j = 0; j < SKETCH_COLUMNS; j++)
        y[j] = 0;
    for (uint64_t i = 0; i < width; i++)
        for (int j = 0; j < SKETCH_COLUMNS; j++)
            y[j] += x[i] * signs[i * SKETCH_COLUMNS + (uint64_t)j];
    for (int j = 0; j < SKETCH_COLUMNS; j++)
        y[j] /= sqrt((double)SKETCH_COLUMNS);
}

static void compare_row(struct comparer *c, struct compared *r, uint64_t width, int64_t position)
{
    double sketch[SKETCH_COLUMNS], norm2 = 0;
    const double *x = c->row.captured;
    if (r->sketch) {
        for (uint64_t i = 0; i < width; i++)
            norm2 += c->row.captured[i] * c->row.captured[i];
        project(c->signs, c->row.captured, width, sketch);
        x = sketch;
    }
    struct sums s = sums_of(x, c->row.reference, r->sketch ? SKETCH_COLUMNS : width);
    double base2 = r->sketch ? norm2 : s.ref2, row = sums_error(s.err2, base2);
    if (!r->n_compared || row > r->worst_row) {
        r->worst_row = row;
        r->worst_position = position;
    }
    sums_add(&r->sums, &s);
    r->base2 += base2;
    r->n_compared++;
}

double compared_error(const struct compared *c)
{
    return sums_error(c->sums.err2, c->base2);
}

double compared_cosine(const struct compared *c)
{
    return sums_cosine(&c->sums);
}

bool compared_passes(const struct compared *c, const struct dump_options *o)
{
    return !c->bad_shape && c->n_compared && compared_error(c) <= o->tolerance &&
           c->worst_row <= o->row_tolerance;
}

/* ------------------------------------------------------------------------- visiting */

static bool wants(void *ctx, size_t tensor)
{
    const struct comparer *c = ctx;
    return c->results[tensor].ref && !c->results[tensor].bad_shape && c->tensors.all[tensor].width;
}

static int take(void *ctx, const struct rows *rows, const struct reader_record *record,
                const uint8_t *data)
{
    struct comparer *c = ctx;
    const struct tensor *t = &c->tensors.all[rows->tensor];
    const struct stretch *p = &t->stretches[rows->stretch];
    struct compared *r = &c->results[rows->tensor];
    const struct st_entry *e = r->ref->entry;
    if (reserve(c, t->width, r->sketch))
        return -ENOMEM;
    double scale = reader_site(c->reader, record->at.site)->scale;
    uint64_t n_row = t->width * dmi_dtype_bytes(t->dtype);
    uint64_t n_ref = r->sketch ? SKETCH_COLUMNS : t->width;
    uint64_t n_ref_row = n_ref * dmi_dtype_bytes(e->dtype);
    for (uint32_t i = 0; i < p->n_rows; i++) {
        int64_t position = p->position < 0 ? -1 : p->position + i;
        int64_t row = reference_row(r->ref, position, rows->first + i);
        if (row < 0) {
            r->n_beyond++;
            continue;
        }
        elements_to_true(t->dtype, data + i * n_row, t->width, scale, c->row.captured);
        elements_to_true(e->dtype, (const char *)e->data + (uint64_t)row * n_ref_row, n_ref,
                         r->ref->scale, c->row.reference);
        compare_row(c, r, t->width, position);
    }
    return 0;
}

static int damaged(void *ctx, const struct rows *rows, const struct err *why)
{
    struct comparer *c = ctx;
    (void)rows;
    c->n_unreadable++;
    complain_undecoded(why);
    return 0;
}

int compare_rows(struct err *err, struct comparer *c)
{
    static const struct rows_visitor visitor = { wants, take, damaged };
    return rows_visit(err, c->reader, &c->tensors, &visitor, c);
}
