/* SPDX-License-Identifier: Apache-2.0 */
#include "core/any.h"
#include "core/err.h"
#include "core/grow.h"
#include "storage/record_fields.h"
#include "tools/dump/fetch_private.h"

#include <dmi/counters.h>
#include <dmi/dtype.h>
#include <dmi/format.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* What is left of the answer; @bad: it ended within a row. */
struct answer_rest {
    const uint8_t *at, *end;
    bool bad;
};

struct row_bytes {
    const uint8_t *data;
    size_t n;
};

/* One row of the table: a part of a record. */
struct part_row {
    RECORD_FIELDS(RECORD_DECLARE)
    uint32_t record, first_row, rows;
    uint64_t number;
    int64_t sequence;
    struct row_bytes site, dtype, payload;
    size_t n_dims;
    uint64_t dims[DMI_MAX_DIMS];
};

/* A record as it is put together. */
struct gathered {
    struct run_record record;
    struct text data;
    uint32_t *kept;
    size_t n_kept, kept_room;
};

/* ------------------------------------------------------------------------- RowBinary */

static void take(struct answer_rest *c, void *to, size_t n)
{
    c->bad |= (size_t)(c->end - c->at) < n;
    if (c->bad)
        memset(to, 0, n);
    else
        memcpy(to, c->at, n);
    c->at += c->bad ? 0 : n;
}

static uint64_t take_count(struct answer_rest *c)
{
    uint64_t n = 0;
    uint8_t byte = 0x80;
    for (int shift = 0; byte & 0x80 && shift < 64; shift += 7) {
        take(c, &byte, 1);
        n |= (uint64_t)(byte & 0x7f) << shift;
    }
    return n;
}

static struct row_bytes take_bytes(struct answer_rest *c)
{
    uint64_t n = take_count(c);
    struct row_bytes out = { c->at, (size_t)n };
    c->bad |= (uint64_t)(c->end - c->at) < n;
    if (c->bad)
        return (struct row_bytes){ c->at, 0 };
    c->at += n;
    return out;
}

static void take_shape(struct answer_rest *c, struct part_row *p)
{
    uint64_t n = take_count(c);
    c->bad |= n > DMI_MAX_DIMS;
    p->n_dims = c->bad ? 0 : (size_t)n;
    take(c, p->dims, p->n_dims * sizeof *p->dims);
}

/* In the order of the question (fetch.c). */
static bool take_part(struct answer_rest *c, struct part_row *p)
{
    *p = (struct part_row){ 0 };
    take(c, &p->record, 4);
    take(c, &p->number, 8);
#define TAKE(type, name) take(c, &p->name, sizeof(type));
    RECORD_FIELDS(TAKE)
    p->site = take_bytes(c);
    p->dtype = take_bytes(c);
    take_shape(c, p);
    take(c, &p->sequence, 8);
    take(c, &p->first_row, 4);
    take(c, &p->rows, 4);
    p->payload = take_bytes(c);
    return !c->bad;
}

/* ------------------------------------------------------------------------- a record */

static bool is(const struct row_bytes *b, const char *s)
{
    return strlen(s) == b->n && !memcmp(b->data, s, b->n);
}

/* The first entry of that name that has such elements. */
static uint32_t site_of(const struct fetched *x, const struct part_row *p, uint32_t dtype)
{
    return FIRST(i, x->n_sites,
                 is(&p->site, x->sites[i].name) &&
                     (x->sites[i].dtype == dtype || !x->sites[i].dtype),
                 i, x->n_sites);
}

static uint32_t dtype_of(const struct part_row *p)
{
    for (uint32_t d = 1; d < DMI_DTYPE_COUNT; d++)
        if (is(&p->dtype, dmi_dtype_info(d)->name))
            return d;
    return 0;
}

static struct run_record record_of(const struct part_row *from, uint32_t site, uint32_t dtype)
{
    struct run_record r = { .site = site,
                            .dtype = dtype,
                            .step = from->sequence < 0 ? UINT64_MAX : (uint64_t)from->sequence,
                            .n_dims = (uint32_t)from->n_dims,
                            .n_row_dims = 1,
                            RECORD_FIELDS(RECORD_TAKE) };
    for (size_t i = 1; i < from->n_dims; i++)
        r.dims[i] = (uint32_t)from->dims[i];
    return r;
}

/* The rows come after those that the record has. */
static bool goes_on(const struct gathered *g, const struct part_row *p)
{
    return p->rows <= UINT32_MAX - p->first_row &&
           (!g->n_kept || p->first_row > g->kept[g->n_kept - 1]);
}

static int add_part(struct gathered *g, const struct part_row *p)
{
    for (uint32_t i = 0; i < p->rows; i++) {
        if (PUSH(g->kept, g->n_kept, g->kept_room, 64, p->first_row + i))
            return -ENOMEM;
    }
    text_add(&g->data, (const char *)p->payload.data, p->payload.n);
    return g->data.failed ? -ENOMEM : 0;
}

/* Rows 0, 1, 2 and so on are all rows, or the first ones. */
static bool are_first(const struct gathered *g)
{
    return !ANY(i, g->n_kept, g->kept[i] != i);
}

static int append(struct err *err, struct fetched *x, struct gathered *g)
{
    struct run_record *r = &g->record;
    if (!g->n_kept)
        return 0;
    r->dims[0] = (uint32_t)g->n_kept;
    r->kept = are_first(g) ? NULL : g->kept;
    r->data = g->data.data ? g->data.data : "";
    r->n_bytes = g->data.n;
    int res = run_append(x->run, r, 1);
    if (res)
        return err_set_errno(err, -res, "cannot write a record that was fetched");
    struct dmi_site_counters *c = &run_counters(x->run)->sites[r->site];
    c->expected.records++, c->expected.rows += g->n_kept, c->expected.bytes += g->data.n;
    c->captured = c->expected;
    g->n_kept = g->data.n = 0;
    return 0;
}

/* Whole rows of the tensor? A row beyond 8 MiB is in several parts, whose shape is a number of elements. */
static bool has_rows(const struct part_row *p)
{
    return p->n_dims && p->dims[0] == p->rows;
}

/* Are there as many bytes as its shape says, and rows like those of the record before it? */
static bool has_bytes(const struct part_row *p, const struct run_record *record)
{
    uint64_t n = dmi_dtype_bytes(record->dtype);
    bool alike = p->n_dims == record->n_dims;
    for (size_t i = 0; i < p->n_dims; i++) {
        alike = alike && (!i || p->dims[i] == record->dims[i]);
        if (__builtin_mul_overflow(n, p->dims[i], &n))
            return false;
    }
    return alike && n && n == p->payload.n;
}

static int take_row(struct err *err, struct fetched *x, struct gathered *g,
                    const struct part_row *p, bool is_new)
{
    uint32_t dtype = dtype_of(p), site = site_of(x, p, dtype);
    if (is_new) {
        TRY(append(err, x, g));
        g->record = record_of(p, site, dtype);
    }
    if (!dtype || site == x->n_sites)
        return err_set(err, -EBADMSG, "a record of the table is of no site of the run");
    if (!has_rows(p)) {
        x->n_left_out++;
        return 0;
    }
    if (!has_bytes(p, &g->record))
        return err_set(err, -EBADMSG,
                       "a record of the table has not the bytes that its shape says");
    if (!goes_on(g, p))
        return err_set(err, -EBADMSG, "a record of the table has rows that cannot be");
    return add_part(g, p) ? err_set_errno(err, ENOMEM, "cannot fetch a record") : 0;
}

int fetch_rows(struct err *err, struct fetched *x)
{
    struct answer_rest c = { (const uint8_t *)x->answer.data,
                             (const uint8_t *)x->answer.data + x->answer.n, false };
    struct gathered g = { 0 };
    struct part_row p;
    uint64_t next = 0; /* the first record that may begin */
    int r = c.at < c.end ? 0 : err_set(err, -EBADMSG, "the server names a chunk that has no rows");
    while (!r && c.at < c.end) {
        if (!take_part(&c, &p))
            r = err_set(err, -EBADMSG, "the server's answer is no whole number of rows");
        else if (p.record + 1ull < next)
            r = err_set(err, -EBADMSG, "the server's rows are not in their order");
        else
            r = take_row(err, x, &g, &p, p.record >= next);
        next = p.record + 1ull;
    }
    if (!r)
        r = append(err, x, &g);
    text_deinit(&g.data);
    free(g.kept);
    return r;
}
