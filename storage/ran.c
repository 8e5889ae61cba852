/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/ran.h"

#include "storage/codec/hash.h"

#include <dmi/format.h>

#include <stdlib.h>
#include <string.h>

/*
 * Columns of what ran, and of sums, after that of the shape, in their order: the difference to the record before, a number, the time since the
 * record began. A row is a name and the member that is written and read.
 */
#define RAN_TABLE(DIFFERENCE, NUMBER, SINCE)                                                       \
    DIFFERENCE(COLUMN_BEGIN, begin_ns)                                                             \
    DIFFERENCE(COLUMN_CORRELATION, correlation)                                                    \
    DIFFERENCE(COLUMN_GRAPH, graph)                                                                \
    DIFFERENCE(COLUMN_NODE, node)                                                                  \
    DIFFERENCE(COLUMN_STEP, step)                                                                  \
    SINCE(COLUMN_DURATION, end_ns)                                                                 \
    NUMBER(COLUMN_BYTES, bytes)
#define SUMS_TABLE(DIFFERENCE, NUMBER)                                                             \
    DIFFERENCE(SUMS_BEGIN, begin_ns)                                                               \
    DIFFERENCE(SUMS_STEP, step)                                                                    \
    NUMBER(SUMS_COUNT, n)                                                                          \
    NUMBER(SUMS_SUM, sum_ns)                                                                       \
    NUMBER(SUMS_MOST, most_ns)                                                                     \
    NUMBER(SUMS_BYTES, bytes)

#define NAMED(column, member) column,
enum column { COLUMN_SHAPE, RAN_TABLE(NAMED, NAMED, NAMED) COLUMN_SITE, COLUMN_LAYER };
static_assert(COLUMN_LAYER + 1 == RAN_COLUMNS, "a row each");
static_assert(COLUMN_SITE == RAN_NEEDED, "these may lack");
enum sums_column { SUMS_SHAPE, SUMS_TABLE(NAMED, NAMED) SUMS_END };
static_assert(SUMS_END == SUMS_COLUMNS, "a row each");

/* ------------------------------------------------------------------------- writing */

/* Seven bits a byte, the low ones first; the high bit says that more follow. */
static void add_number(struct text *to, uint64_t value)
{
    char bytes[10];
    size_t n = 0;
    for (; value >= 0x80; value >>= 7)
        bytes[n++] = (char)(value | 0x80);
    bytes[n++] = (char)value;
    text_add(to, bytes, n);
}

static void put(struct ran_writer *w, int column, uint64_t value)
{
    add_number(&w->columns[column], value);
}

/* The difference to the number before, modulo 2^64: small ones of either sign are small. */
static void put_difference(struct ran_writer *w, int column, uint64_t value)
{
    uint64_t difference = value - w->last[column];
    w->last[column] = value;
    put(w, column, difference << 1 ^ (difference >> 63 ? UINT64_MAX : 0));
}

static const struct dmi_trace_shape *shape_at(const struct ran_writer *w, uint32_t i)
{
    return (const struct dmi_trace_shape *)(const void *)w->shapes.data + i;
}

static const char *name_of(const struct ran_writer *w, const struct dmi_trace_shape *shape)
{
    return w->strings.data ? w->strings.data + shape->name_offset : "";
}

static bool is_alike(const struct ran_writer *w, const struct dmi_trace_shape *a,
                     const struct dmi_trace_shape *shape, const char *name)
{
    struct dmi_trace_shape b = *shape;
    b.name_offset = a->name_offset;
    return !memcmp(a, &b, sizeof b) && !memcmp(name_of(w, a), name, b.name_bytes);
}

static uint64_t hash_of(const struct dmi_trace_shape *shape, const char *name)
{
    struct dmi_trace_shape nameless = *shape;
    nameless.name_offset = 0;
    return hash_bytes(&nameless, sizeof nameless) ^ 31 * hash_bytes(name, shape->name_bytes);
}

static uint64_t hash_at(const struct ran_writer *w, size_t i)
{
    const struct dmi_trace_shape *shape = shape_at(w, (uint32_t)i);
    return hash_of(shape, name_of(w, shape));
}

/* A name that the shape before has, mostly; else its bytes stand there once more. */
static uint32_t add_name(struct ran_writer *w, const char *name, size_t n)
{
    for (uint32_t i = w->n_shapes; n && i-- > 0 && w->n_shapes - i <= 8;)
        if (shape_at(w, i)->name_bytes == n &&
            !memcmp(w->strings.data + shape_at(w, i)->name_offset, name, n))
            return shape_at(w, i)->name_offset;
    uint32_t offset = n ? (uint32_t)w->strings.n : 0;
    text_add(&w->strings, name, n);
    return offset;
}

/* Return: its number. */
static uint32_t add_shape(struct ran_writer *w, const struct dmi_trace_shape *like,
                          const char *name)
{
    if (w->failed || !HASHED_MAKE_ROOM(&w->by_hash, w->n_shapes, i, hash_at(w, i))) {
        w->failed = true;
        return 0;
    }
    uint32_t *place = HASHED_FIND(&w->by_hash, hash_of(like, name), i,
                                  is_alike(w, shape_at(w, (uint32_t)i), like, name));
    if (*place)
        return *place - 1;
    struct dmi_trace_shape shape = *like;
    shape.name_offset = add_name(w, name, shape.name_bytes);
    text_add(&w->shapes, (const char *)&shape, sizeof shape);
    if (w->shapes.failed || w->strings.failed) {
        w->failed = true;
        return 0;
    }
    *place = ++w->n_shapes;
    return w->n_shapes - 1;
}

/* Without sites the last columns stay empty; from the first one on they are full. */
static void put_place(struct ran_writer *w, const struct ran_place *place)
{
    if (!w->sites && !place->site && !place->layer)
        return;
    for (uint32_t i = w->sites ? w->n : 1; i < w->n; i++) {
        put(w, COLUMN_SITE, 0);
        put(w, COLUMN_LAYER, 0);
    }
    w->sites = true;
    put(w, COLUMN_SITE, place->site);
    put(w, COLUMN_LAYER, place->layer);
}

#define PUT_DIFFERENCE(column, member) put_difference(w, column, one->member);
#define PUT_NUMBER(column, member)     put(w, column, one->member);
#define PUT_SINCE(column, member)      put(w, column, one->member - one->begin_ns);

void ran_add(struct ran_writer *w, const struct ran *one)
{
    uint32_t shape = add_shape(w, &one->shape, one->name);
    w->n++;
    if (w->failed)
        return;
    put(w, COLUMN_SHAPE, shape);
    RAN_TABLE(PUT_DIFFERENCE, PUT_NUMBER, PUT_SINCE)
    put_place(w, &one->place);
}

void ran_add_sum(struct ran_writer *w, const struct ran_sum *one)
{
    uint32_t shape = add_shape(w, &one->shape, one->name);
    w->n++;
    if (w->failed)
        return;
    put(w, SUMS_SHAPE, shape);
    SUMS_TABLE(PUT_DIFFERENCE, PUT_NUMBER)
}

static size_t column_bytes(const struct ran_writer *w)
{
    size_t n = 0;
    for (int i = 0; i < RAN_COLUMNS; i++)
        n += w->columns[i].n;
    return n;
}

size_t ran_bytes(const struct ran_writer *w)
{
    return column_bytes(w) + w->shapes.n + w->strings.n;
}

/* Empty, with its memory. */
static void restart(struct ran_writer *w)
{
    for (int i = 0; i < RAN_COLUMNS; i++) {
        w->columns[i].n = 0;
        w->columns[i].failed = 0;
        w->last[i] = 0;
    }
    w->shapes.n = w->strings.n = 0;
    w->shapes.failed = w->strings.failed = 0;
    w->n = w->n_shapes = 0;
    w->sites = w->failed = false;
    hashed_clear(&w->by_hash);
}

bool ran_meta(struct ran_writer *w, struct text *meta)
{
    const struct dmi_trace_head head = { .n_records = w->n,
                                         .n_shapes = w->n_shapes,
                                         .shape_bytes = sizeof(struct dmi_trace_shape),
                                         .n_string_bytes = (uint32_t)w->strings.n,
                                         .n_column_bytes = column_bytes(w) };
    bool good = !w->failed;
    text_add(meta, (const char *)&head, sizeof head);
    text_add(meta, w->shapes.n ? w->shapes.data : "", w->shapes.n);
    text_add(meta, w->strings.n ? w->strings.data : "", w->strings.n);
    for (int i = 0; i < RAN_COLUMNS; i++) {
        good = good && !w->columns[i].failed;
        text_add(meta, w->columns[i].n ? w->columns[i].data : "", w->columns[i].n);
    }
    restart(w);
    if (good && !meta->failed)
        return true;
    text_deinit(meta);
    *meta = (struct text){ 0 };
    return false;
}

void ran_deinit(struct ran_writer *w)
{
    for (int i = 0; i < RAN_COLUMNS; i++)
        text_deinit(&w->columns[i]);
    text_deinit(&w->shapes);
    text_deinit(&w->strings);
    hashed_deinit(&w->by_hash);
    *w = (struct ran_writer){ 0 };
}

/* ------------------------------------------------------------------------- reading */

/* Return: false: there is no number before @end. */
static bool take_number(const uint8_t **at, const uint8_t *end, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; *at < end && shift < 70; shift += 7) {
        uint8_t byte = *(*at)++;
        if (shift == 63 && byte > 1)
            return false;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return true;
    }
    return false;
}

/* Where @n more columns begin: each after as many numbers as there are records. Return: false: they reach beyond the end. */
static bool find_columns(struct ran_reader *r, uint32_t n, const uint8_t **at)
{
    for (uint32_t i = 0; i < n; i++) {
        r->columns[r->n_columns++] = *at;
        for (uint32_t k = 0; k < r->head.n_records; k++) {
            uint64_t value;
            if (!take_number(at, r->end, &value))
                return false;
        }
    }
    return true;
}

/* @needed: columns that are there, and @more that are where bytes follow. */
static const char *open_columns(struct ran_reader *r, uint32_t needed, uint32_t more,
                                const uint8_t *meta, uint64_t n)
{
    *r = (struct ran_reader){ 0 };
    if (n < sizeof r->head)
        return "the trace has no head";
    memcpy(&r->head, meta, sizeof r->head);
    n -= sizeof r->head;
    const struct dmi_trace_head *h = &r->head;
    if (h->shape_bytes < sizeof(struct dmi_trace_shape) || h->shape_bytes % DMI_CHUNK_ALIGN)
        return "a shape's size cannot be";
    uint64_t n_shapes = (uint64_t)h->n_shapes * h->shape_bytes;
    if (n_shapes > n || h->n_string_bytes > n - n_shapes ||
        h->n_column_bytes != n - n_shapes - h->n_string_bytes)
        return "sizes of the trace contradict its length";
    r->shapes = meta + sizeof *h;
    r->strings = r->shapes + n_shapes;
    r->end = r->strings + h->n_string_bytes + h->n_column_bytes;
    const uint8_t *at = r->strings + h->n_string_bytes;
    if (h->n_records > h->n_column_bytes / needed || !find_columns(r, needed, &at) ||
        (at < r->end && !find_columns(r, more, &at)))
        return "columns of the trace are shorter than its records";
    return NULL;
}

const char *ran_open(struct ran_reader *r, const uint8_t *meta, uint64_t n)
{
    return open_columns(r, RAN_NEEDED, RAN_COLUMNS - RAN_NEEDED, meta, n);
}

const char *ran_open_sums(struct ran_reader *r, const uint8_t *meta, uint64_t n)
{
    return open_columns(r, SUMS_COLUMNS, 0, meta, n);
}

static uint64_t get(struct ran_reader *r, int column)
{
    uint64_t value;
    take_number(&r->columns[column], r->end, &value); /* it is there: find_columns() */
    return value;
}

static uint64_t get_difference(struct ran_reader *r, int column)
{
    uint64_t value = get(r, column);
    return r->last[column] += value >> 1 ^ (value & 1 ? UINT64_MAX : 0);
}

/* The first column of both forms: its shape, and the name. */
static bool next_shape(struct ran_reader *r, struct dmi_trace_shape *out, const char **name,
                       const char **wrong)
{
    *wrong = NULL;
    if (r->next == r->head.n_records)
        return false;
    r->next++;
    uint64_t shape = get(r, COLUMN_SHAPE);
    if (shape >= r->head.n_shapes) {
        *wrong = "a record of the trace names no shape";
        return false;
    }
    memcpy(out, r->shapes + shape * r->head.shape_bytes, sizeof *out);
    if (out->name_bytes > r->head.n_string_bytes ||
        out->name_offset > r->head.n_string_bytes - out->name_bytes) {
        *wrong = "a name of the trace lies outside of its strings";
        return false;
    }
    *name = (const char *)r->strings + out->name_offset;
    return true;
}

#define GET_DIFFERENCE(column, member) one->member = get_difference(r, column);
#define GET_NUMBER(column, member)     one->member = get(r, column);
#define GET_SINCE(column, member)      one->member = one->begin_ns + get(r, column);

bool ran_next(struct ran_reader *r, struct ran *one, const char **wrong)
{
    if (!next_shape(r, &one->shape, &one->name, wrong))
        return false;
    RAN_TABLE(GET_DIFFERENCE, GET_NUMBER, GET_SINCE)
    bool sites = r->n_columns == RAN_COLUMNS;
    one->place.site = sites ? get(r, COLUMN_SITE) : 0;
    one->place.layer = sites ? get(r, COLUMN_LAYER) : 0;
    return true;
}

bool ran_next_sum(struct ran_reader *r, struct ran_sum *one, const char **wrong)
{
    if (!next_shape(r, &one->shape, &one->name, wrong))
        return false;
    SUMS_TABLE(GET_DIFFERENCE, GET_NUMBER)
    return true;
}
