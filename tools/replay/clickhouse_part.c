/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/clickhouse_part.h"

#include "core/cleanup.h"
#include "read/record.h"
#include "read/requests.h"
#include "read/value.h"
#include "storage/codec/hash.h"
#include "storage/record_fields.h"
#include "tools/common/statistics.h"

#include <dmi/dtype.h>

#include <math.h>
#include <string.h>

struct part_bytes {
    const void *data;
    size_t n;
};

/* What columns are taken from. */
struct table_row {
    struct part_bytes run, host, model, job, site, request, phase, dtype, payload;
    RECORD_FIELDS(RECORD_DECLARE)
    uint64_t chunk, part, pid, elements, not_finite, xxh3;
    int64_t step, sequence, position;
    uint32_t record, rows, first_row;
    int32_t tp, pp, dp, ep, start_token, end_token;
    uint8_t rejected, superseded;
    double scale, norm, mean, greatest;
    struct {
        size_t n;
        uint64_t dims[DMI_MAX_DIMS];
    } shape;
};

#define COLUMN(name, kind, field, since)                                                           \
    {                                                                                              \
        name, kind, offsetof(struct table_row, field), since                                       \
    }

static const struct clickhouse_column columns[] = {
    COLUMN("run", KIND_STRING, run, 1),
    COLUMN("chunk", KIND_U64, chunk, 1),
    COLUMN("record", KIND_U32, record, 1),
    COLUMN("part", KIND_U64, part, 1),
    COLUMN("time_ns", KIND_U64, time_ns, 1),
    COLUMN("step", KIND_I64, step, 1),
    COLUMN("host", KIND_STRING, host, 1),
    COLUMN("tp", KIND_I32, tp, 1),
    COLUMN("pp", KIND_I32, pp, 1),
    COLUMN("dp", KIND_I32, dp, 1),
    COLUMN("ep", KIND_I32, ep, 1),
    COLUMN("site", KIND_STRING, site, 1),
    COLUMN("layer", KIND_I32, layer, 1),
    COLUMN("request", KIND_STRING, request, 1),
    COLUMN("position", KIND_I64, position, 1),
    COLUMN("rows", KIND_U32, rows, 1),
    COLUMN("dtype", KIND_STRING, dtype, 1),
    COLUMN("shape", KIND_SHAPE, shape, 1),
    COLUMN("xxh3", KIND_U64, xxh3, 1),
    COLUMN("norm", KIND_F64, norm, 1),
    COLUMN("mean", KIND_F64, mean, 1),
    COLUMN("greatest", KIND_F64, greatest, 1),
    COLUMN("not_finite", KIND_U64, not_finite, 1),
    COLUMN("payload", KIND_STRING, payload, 1),
    COLUMN("elements", KIND_U64, elements, 2),
    COLUMN("scale", KIND_F64, scale, 2),
    COLUMN("step_sequence", KIND_I64, sequence, 2),
    COLUMN("forward", KIND_U64, forward, 2),
    COLUMN("launch", KIND_U64, launch, 2),
    COLUMN("occurrence", KIND_U32, occurrence, 2),
    COLUMN("device", KIND_U32, device, 2),
    COLUMN("first_row", KIND_U32, first_row, 2),
    COLUMN("phase", KIND_STRING, phase, 2),
    COLUMN("rejected", KIND_U8, rejected, 2),
    COLUMN("superseded", KIND_U8, superseded, 2),
    COLUMN("model", KIND_STRING, model, 2),
    COLUMN("job", KIND_STRING, job, 2),
    COLUMN("pid", KIND_U64, pid, 2),
};

/* Their names and types are DMI-Lib's. */
static const struct clickhouse_column dmilib_columns[] = {
    COLUMN("model_id", KIND_STRING, model, 0),
    COLUMN("request_id", KIND_STRING, request, 0),
    COLUMN("act_name", KIND_STRING, site, 0),
    COLUMN("layer_no", KIND_I32, layer, 0),
    COLUMN("shard_rank", KIND_I32, tp, 0),
    COLUMN("start_token_idx", KIND_I32, start_token, 0),
    COLUMN("end_token_idx", KIND_I32, end_token, 0),
    COLUMN("dtype", KIND_STRING, dtype, 0),
    COLUMN("shape", KIND_SIGNED_SHAPE, shape, 0),
    COLUMN("bytes", KIND_STRING, payload, 0),
};

static const struct clickhouse_column facts_columns[] = {
    COLUMN("run", KIND_STRING, run, 1),
    COLUMN("type", KIND_STRING, dtype, 1),
    COLUMN("xxh3", KIND_U64, xxh3, 1),
    COLUMN("facts", KIND_STRING, payload, 1),
};

const struct clickhouse_layout clickhouse_dmi = {
    .columns = columns,
    .n_columns = sizeof columns / sizeof *columns,
    .version = 2,
    .engine = "ReplacingMergeTree ORDER BY (run, chunk, record, part)",
    .shard = "cityHash64(run, chunk)",
};

const struct clickhouse_layout clickhouse_facts = {
    .columns = facts_columns,
    .n_columns = sizeof facts_columns / sizeof *facts_columns,
    .version = 2,
    .engine = "ReplacingMergeTree ORDER BY (run, type, xxh3)",
    .shard = "cityHash64(run, xxh3)",
};

const struct clickhouse_layout clickhouse_dmilib = {
    .columns = dmilib_columns,
    .n_columns = sizeof dmilib_columns / sizeof *dmilib_columns,
    .engine = "MergeTree ORDER BY (model_id, request_id, act_name, layer_no, start_token_idx)",
};

static const struct {
    const char *type;
    size_t n_bytes; /* 0: it says itself how many */
} kinds[] = {
    [KIND_U8] = { "UInt8", 1 },
    [KIND_U32] = { "UInt32", 4 },
    [KIND_U64] = { "UInt64", 8 },
    [KIND_I32] = { "Int32", 4 },
    [KIND_I64] = { "Int64", 8 },
    [KIND_F64] = { "Float64", 8 },
    [KIND_STRING] = { "String" },
    [KIND_SHAPE] = { "Array(UInt64)" },
    [KIND_SIGNED_SHAPE] = { "Array(Int64)" },
};

const char *clickhouse_type(const struct clickhouse_column *column)
{
    return kinds[column->kind].type;
}

/* ------------------------------------------------------------------------- a row's bytes */

/* Seven bits a byte, the lowest first. */
static void add_count(struct text *to, uint64_t n)
{
    for (; n >= 0x80; n >>= 7)
        text_add(to, &(char){ (char)(n | 0x80) }, 1);
    text_add(to, &(char){ (char)n }, 1);
}

static void add_column(struct text *to, const struct clickhouse_column *column,
                       const struct table_row *part)
{
    const char *at = (const char *)part + column->offset;
    if (kinds[column->kind].n_bytes) {
        text_add(to, at, kinds[column->kind].n_bytes); /* little-endian, as memory */
    } else if (column->kind == KIND_STRING) {
        const struct part_bytes *s = (const void *)at;
        add_count(to, s->n);
        text_add(to, s->n ? s->data : "", s->n);
    } else {
        add_count(to, part->shape.n);
        text_add(to, (const char *)part->shape.dims, part->shape.n * sizeof *part->shape.dims);
    }
}

static void add_row(struct text *to, const struct clickhouse_layout *layout,
                    const struct table_row *part)
{
    for (size_t i = 0; i < layout->n_columns; i++)
        add_column(to, &layout->columns[i], part);
}

/* ------------------------------------------------------------------------- what a part is of */

static struct part_bytes bytes_of(const char *s)
{
    return (struct part_bytes){ s, s ? strlen(s) : 0 };
}

static void set_run(struct table_row *p, const struct reader *reader)
{
    const struct reader_run *run = reader_run(reader);
    p->run = bytes_of(run->uuid);
    p->host = bytes_of(run->host);
    p->model = bytes_of(run->model);
    p->job = bytes_of(run->job);
    p->pid = run->pid;
}

static void set_step(struct table_row *p, const struct item *item)
{
    const struct reader_step *step = item->record->step;
    p->step = step ? (int64_t)step->entry->step : -1;
    p->sequence = item->record->at.step == DMI_NO_STEP ? -1 : (int64_t)item->record->at.step;
    const int32_t *ranks = step ? step->entry->ranks : reader_first_ranks(item->reader);
    p->tp = ranks ? ranks[2 * DMI_AXIS_TP] : -1;
    p->pp = ranks ? ranks[2 * DMI_AXIS_PP] : -1;
    p->dp = ranks ? ranks[2 * DMI_AXIS_DP] : -1;
    p->ep = ranks ? ranks[2 * DMI_AXIS_EP] : -1;
}

static void set_record(struct table_row *p, const struct item *item)
{
    const struct reader_record *rec = item->record;
    p->chunk = rec->place;
    p->record = rec->number;
#define TAKE(type, name) p->name = rec->at.name;
    RECORD_FIELDS(TAKE)
    p->site = bytes_of(item->site->name);
    p->scale = item->site->scale;
    p->dtype = bytes_of(dmi_dtype_info(rec->at.dtype)->name);
}

static void set_span(struct table_row *p, const struct item_span *span)
{
    p->request = (struct part_bytes){ span->request, span->request ? span->n_request : 0 };
    p->phase = bytes_of(request_phase_name(span->phase));
    p->rejected = !!(span->flags & STRETCH_REJECTED);
    p->superseded = !!(span->flags & STRETCH_SUPERSEDED);
}

static void set_statistics(struct table_row *p, uint32_t dtype)
{
    struct statistics s = { 0 };
    statistics_take(&s, dtype, p->payload.data, p->elements);
    p->norm = sqrt(s.squares);
    p->mean = statistics_mean(&s);
    p->greatest = statistics_greatest(&s);
    p->not_finite = s.n_nan + s.n_infinite;
    p->xxh3 = hash_bytes(p->payload.data, p->payload.n);
}

/* ------------------------------------------------------------------------- which rows */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* As many rows as fit, or elements of one that does not. */
static void set_extent(struct table_row *p, const struct item *item,
                       const struct clickhouse_place *at)
{
    const struct reader_record *rec = item->record;
    const struct item_span *span = &item->spans[at->span];
    uint64_t n_element = dmi_dtype_bytes(rec->at.dtype), n_row = item->width * n_element;
    bool whole = n_row <= CLICKHOUSE_PART;
    uint64_t fit = n_row && whole ? CLICKHOUSE_PART / n_row : whole ? UINT32_MAX : 1;
    p->rows = (uint32_t)least(fit, span->n_rows - at->row);
    p->elements = whole ? p->rows * item->width
                        : least(CLICKHOUSE_PART / n_element, item->width - at->element);
    p->part = (span->row + at->row) * (item->width ? item->width : 1) + at->element;
    p->position = span->position < 0 ? -1 : span->position + (int64_t)at->row;
    p->start_token = (int32_t)p->position;
    p->end_token = (int32_t)(p->position < 0 ? -1 : p->position + p->rows);
    uint64_t row = span->row + at->row;
    p->first_row = record_kept(rec) ? record_kept(rec)[row] : (uint32_t)row;
    p->payload = (struct part_bytes){ item->data + at->n_done, p->elements * n_element };
    p->shape.dims[p->shape.n++] = whole ? p->rows : p->elements;
    for (uint32_t d = record_row_dims(rec); whole && d < rec->at.n_dims; d++)
        p->shape.dims[p->shape.n++] = rec->at.dims[d];
}

static void step_on(const struct item *item, const struct table_row *p, struct clickhouse_place *at)
{
    at->n_done += p->payload.n;
    at->element += p->elements % (item->width ? item->width : 1);
    if (at->element && at->element < item->width)
        return;
    at->element = 0;
    at->row += p->rows;
    if (at->row < item->spans[at->span].n_rows)
        return;
    at->row = 0;
    at->span++;
}

bool clickhouse_part_next(const struct clickhouse_layout *layout, const struct item *item,
                          struct clickhouse_place *at, struct text *rows)
{
    struct table_row p = { 0 };
    if (at->span == item->n_spans)
        return false;
    set_run(&p, item->reader);
    set_step(&p, item);
    set_record(&p, item);
    set_span(&p, &item->spans[at->span]);
    set_extent(&p, item, at);
    set_statistics(&p, item->record->at.dtype);
    add_row(rows, layout, &p);
    step_on(item, &p, at);
    return true;
}

void clickhouse_facts_add(const struct item *item, struct text *rows)
{
    _cleanup_(text_deinit) struct text facts = { 0 };
    struct table_row p = { .dtype = bytes_of(item_kind_name(item->kind)) };
    set_run(&p, item->reader);
    value_add(&facts, item->facts);
    p.payload = (struct part_bytes){ facts.data, facts.n };
    p.xxh3 = hash_bytes(facts.data, facts.n);
    add_row(rows, &clickhouse_facts, &p);
    rows->failed |= facts.failed;
}
