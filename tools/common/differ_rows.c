/* SPDX-License-Identifier: Apache-2.0 */
/* Rows against the rows at the same positions of the other run, or of the reference: sketches of them, where it has these. */
#include "core/sorted.h"
#include "tools/common/differ.h"

#include "read/rows.h"
#include "storage/elements.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A row as it was captured. */
struct captured_row {
    const uint8_t *data;
    uint32_t dtype;
    double scale; /* of its site */
};

/* Where the other side has the row. */
struct counterpart {
    size_t record;
    uint32_t row;
    uint64_t reference_row;
};

/* ------------------------------------------------------------------------- the row at the same position */

static bool find_position(const struct tensor *t, int64_t position, struct counterpart *out)
{
    size_t i; /* after the last stretch that begins at or before it */
    SEARCH(i, t->n_stretches, t->stretches[i].position <= position);
    const struct stretch *p = i ? &t->stretches[i - 1] : NULL;
    if (!p || position - p->position >= p->n_rows)
        return false;
    *out = (struct counterpart){ p->record, p->first_row + (uint32_t)(position - p->position), 0 };
    return true;
}

bool differ_has(const struct tensor *t, int64_t position)
{
    struct counterpart place;
    return find_position(t, position, &place);
}

/* @index: of the row in its tensor, mostly ascending */
static bool find_index(struct difference *x, uint64_t index, struct counterpart *out)
{
    const struct tensor *t = x->other;
    if (index < x->before)
        x->stretch = x->before = 0;
    while (x->stretch < t->n_stretches && index - x->before >= t->stretches[x->stretch].n_rows)
        x->before += t->stretches[x->stretch++].n_rows;
    if (x->stretch == t->n_stretches)
        return false;
    const struct stretch *p = &t->stretches[x->stretch];
    *out = (struct counterpart){ p->record, p->first_row + (uint32_t)(index - x->before), 0 };
    return true;
}

/* @index, @position: of the row in the run's tensor */
static bool find(struct difference *x, uint64_t index, int64_t position, struct counterpart *out)
{
    if (x->reference) {
        int64_t row = reference_row(x->reference, position, index);
        *out = (struct counterpart){ .reference_row = (uint64_t)row };
        return row >= 0;
    }
    return x->by_position ? find_position(x->other, position, out) : find_index(x, index, out);
}

/* ------------------------------------------------------------------------- sketches */

/* Number i*8+j of splitmix64 decides the sign; tests/reference/README.md has the formula. */
static double sign_of(uint64_t n)
{
    uint64_t z = (n + 1) * 0x9E3779B97F4A7C15ull + 0x444d49;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    return z >> 63 ? -1.0 : 1.0;
}

static int reserve_signs(struct differ *d, uint64_t width)
{
    if (width <= d->n_signs)
        return 0;
    double *s = realloc(d->signs, width * SKETCH_COLUMNS * sizeof *s);
    if (!s)
        return -ENOMEM;
    for (uint64_t n = d->n_signs * SKETCH_COLUMNS; n < width * SKETCH_COLUMNS; n++)
        s[n] = sign_of(n);
    d->signs = s;
    d->n_signs = width;
    return 0;
}

/* Makes a row its sketch. Return: the square of its norm. */
static double project(const double *signs, double *x, uint64_t width)
{
    double norm2 = 0, y[SKETCH_COLUMNS] = { 0 };
    for (uint64_t i = 0; i < width; i++)
        norm2 += x[i] * x[i];
    for (uint64_t i = 0; i < width; i++)
        for (int j = 0; j < SKETCH_COLUMNS; j++)
            y[j] += x[i] * signs[i * SKETCH_COLUMNS + (uint64_t)j];
    for (int j = 0; j < SKETCH_COLUMNS; j++)
        x[j] = y[j] / sqrt((double)SKETCH_COLUMNS);
    return norm2;
}

/* ------------------------------------------------------------------------- two rows */

static void read_row(const struct captured_row *row, uint64_t width, double *out)
{
    elements_to_true(row->dtype, row->data, width, row->scale, out);
}

static bool same_bits(const struct captured_row *a, const struct captured_row *b, uint64_t width)
{
    return a->dtype == b->dtype && a->scale == b->scale &&
           !memcmp(a->data, b->data, width * dmi_dtype_bytes(a->dtype));
}

/* The first element that differs: in its value, or else in its bits. */
static uint64_t first_element(const struct differ *d, const struct captured_row *a,
                              const struct captured_row *b, uint64_t width)
{
    uint64_t i = 0;
    size_t size = dmi_dtype_bytes(a->dtype);
    const double *x = d->pair.reference, *y = d->pair.captured;
    while (i < width && (x[i] == y[i] || (isnan(x[i]) && isnan(y[i]))))
        i++;
    if (i < width || a->dtype != b->dtype)
        return i < width ? i : 0;
    for (i = 0; i + 1 < width && !memcmp(a->data + i * size, b->data + i * size, size);)
        i++;
    return i;
}

/* Has the user said how much rows may differ? Else not at all. */
static bool is_lenient(const struct differ *d)
{
    return d->tolerance > 0 || d->row_tolerance > 0;
}

/* What became of a row, for who wants to know of each. */
static int say_row(const struct differ *d, const struct divergence *at, uint64_t index,
                   enum differed_state state, const struct sums *sums)
{
    const struct differed_row row = { .tensor = (size_t)(at->tensor - d->run.tensors.all),
                                      .index = index,
                                      .position = at->position,
                                      .state = state,
                                      .sums = sums };
    return d->row ? d->row(d->arg, &row) : 0;
}

/* Adds the rows of d->pair. @norm2: of the row that is sketched. Return: how far they are apart. */
static double sum_row(struct differ *d, struct difference *x, uint64_t width, double norm2,
                      int64_t position, struct sums *s)
{
    *s = sums_of(d->pair.captured, d->pair.reference, width);
    double base2 = x->sketch ? norm2 : s->ref2, error = sums_error(s->err2, base2);
    if (!x->n_rows++ || error > x->worst_row) {
        x->worst_row = error;
        x->worst_position = position;
    }
    sums_add(&x->sums, s);
    x->base2 += base2;
    return error;
}

static struct sums compare_reference(struct differ *d, struct difference *x,
                                     const struct captured_row *ours, uint64_t row,
                                     struct divergence at)
{
    struct sums s;
    const struct st_entry *e = x->reference->entry;
    uint64_t width = at.tensor->width, n = x->sketch ? SKETCH_COLUMNS : width;
    uint64_t n_row = n * dmi_dtype_bytes(e->dtype);
    const struct captured_row theirs = { (const uint8_t *)e->data + row * n_row, e->dtype,
                                         x->reference->scale };
    read_row(ours, width, d->pair.captured);
    read_row(&theirs, n, d->pair.reference);
    double norm2 = x->sketch ? project(d->signs, d->pair.captured, width) : 0;
    x->n_differ += sum_row(d, x, n, norm2, at.position, &s) > d->row_tolerance;
    return s;
}

static struct sums compare_row(struct differ *d, struct difference *x, const struct captured_row *a,
                               const struct captured_row *b, struct divergence at)
{
    struct sums s;
    uint64_t width = at.tensor->width;
    read_row(a, width, d->pair.reference);
    read_row(b, width, d->pair.captured);
    double error = sum_row(d, x, width, 0, at.position, &s);
    bool same = same_bits(a, b, width);
    x->n_same += same;
    if (same || (is_lenient(d) && error <= d->row_tolerance))
        return s;
    at.element = first_element(d, a, b, width);
    at.ours = d->pair.reference[at.element];
    at.theirs = d->pair.captured[at.element];
    if (!x->n_differ++)
        x->first = at;
    const struct divergence *first = &d->first;
    if (!first->tensor || at.record < first->record ||
        (at.record == first->record && at.row < first->row))
        d->first = at;
    return s;
}

bool difference_is_paired(const struct difference *x)
{
    return x->other || x->reference;
}

double difference_error(const struct difference *x)
{
    return sums_error(x->sums.err2, x->base2);
}

/* A reference may lack rows, but not all. */
bool difference_passes(const struct differ *d, const struct difference *x)
{
    bool lacks = x->reference ? !x->n_rows : x->n_lacking;
    return !x->bad_shape && !lacks && !x->n_differ && difference_error(x) <= d->tolerance;
}

/* ------------------------------------------------------------------------- visiting */

static bool wants(void *ctx, size_t tensor)
{
    const struct differ *d = ctx;
    const struct difference *x = &d->results[tensor];
    return x->other ? !x->bad_shape
                    : x->reference && !x->bad_shape && d->run.tensors.all[tensor].width;
}

/* @n: rows; the first of a record says why. */
static void unreadable(struct differ *d, const struct side *side, size_t record, uint64_t n,
                       const struct err *why)
{
    if (d->reference || !d->n_unreadable || d->bad_side != side || d->bad_record != record)
        d->undecoded(why);
    d->bad_side = side;
    d->bad_record = record;
    d->n_unreadable += n;
}

/* @index: of the row in its tensor */
static int take_row(struct differ *d, struct difference *x, uint64_t index,
                    const struct captured_row *ours, struct divergence at)
{
    struct counterpart place;
    struct err why = { 0 };
    const uint8_t *data;
    if (!find(x, index, at.position, &place)) {
        x->n_lacking++;
        return say_row(d, &at, index, DIFFERED_LACKING, NULL);
    }
    if (x->reference) {
        struct sums sums = compare_reference(d, x, ours, place.reference_row, at);
        return say_row(d, &at, index, DIFFERED_COMPARED, &sums);
    }
    int r = records_get(&why, &d->records, place.record, &data);
    if (r == -ENOMEM)
        return r;
    if (r) {
        unreadable(d, &d->other, place.record, 1, &why);
        x->n_undecoded++;
        return say_row(d, &at, index, DIFFERED_DAMAGED, NULL);
    }
    const struct reader_record *rec = reader_record(d->other.reader, place.record);
    struct captured_row theirs = { .dtype = rec->at.dtype,
                                   .scale = reader_site(d->other.reader, rec->at.site)->scale };
    theirs.data = data + place.row * at.tensor->width * dmi_dtype_bytes(theirs.dtype);
    struct sums sums = compare_row(d, x, ours, &theirs, at);
    return say_row(d, &at, index, DIFFERED_COMPARED, &sums);
}

static int take(void *ctx, const struct rows *rows, const struct reader_record *record,
                const uint8_t *data)
{
    struct differ *d = ctx;
    const struct tensor *t = &d->run.tensors.all[rows->tensor];
    const struct stretch *p = &t->stretches[rows->stretch];
    uint64_t n_row = t->width * dmi_dtype_bytes(t->dtype);
    struct captured_row ours = { data, t->dtype,
                                 reader_site(d->run.reader, record->at.site)->scale };
    struct divergence at = { .tensor = t, .record = p->record };
    int r = row_pair_reserve(&d->pair, t->width + SKETCH_COLUMNS);
    if (!r && d->results[rows->tensor].sketch)
        r = reserve_signs(d, t->width);
    for (uint32_t i = 0; !r && i < p->n_rows; i++, ours.data += n_row) {
        at.row = p->first_row + i;
        at.position = p->position < 0 ? -1 : p->position + i;
        r = take_row(d, &d->results[rows->tensor], rows->first + i, &ours, at);
    }
    return r;
}

static int damaged(void *ctx, const struct rows *rows, const struct err *why)
{
    struct differ *d = ctx;
    const struct tensor *t = &d->run.tensors.all[rows->tensor];
    const struct stretch *p = &t->stretches[rows->stretch];
    struct difference *x = &d->results[rows->tensor];
    struct divergence at = { .tensor = t };
    struct counterpart place;
    int r = 0;
    d->n_unreadable_stretches++;
    unreadable(d, &d->run, p->record, p->n_rows, why);
    for (uint32_t i = 0; !r && i < p->n_rows; i++) {
        at.position = p->position < 0 ? -1 : p->position + i;
        x->n_undecoded += find(x, rows->first + i, at.position, &place);
        r = say_row(d, &at, rows->first + i, DIFFERED_DAMAGED, NULL);
    }
    return r;
}

int differ_rows(struct err *err, struct differ *d)
{
    static const struct rows_visitor visitor = { wants, take, damaged };
    return rows_visit(err, d->run.reader, &d->run.tensors, &visitor, d);
}
