/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/recover.h"

#include "core/cleanup.h"
#include "storage/record_fields.h"
#include "storage/rows.h"
#include "storage/table.h"
#include "tools/dump/dump.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TOLD 20 /* records that cannot be read, by name */
#define MOST_WAITING                                                                               \
    (64u << 20) /* bytes of steps, of outcomes, or raw ones of records, that become one chunk */
#define MOST_TOGETHER 4096 /* records of one chunk */

static int no_room(struct err *err)
{
    return err_set_errno(err, ENOMEM, "cannot recover");
}

static int cannot_write(struct err *err, int r, const struct recovery *x)
{
    return err_set_errno(err, -r, "cannot write %s", run_path(x->run));
}

/* ------------------------------------------------------------------------- chunks of metadata alone */

/* Appends @meta as a chunk, and empties it. */
static int append_meta(struct err *err, struct recovery *x, uint16_t type, struct text *meta)
{
    int r = run_append_meta(x->run, type, meta);
    return r ? cannot_write(err, r, x) : 0;
}

/* Notes step @i of the reader, unless it or one of the same number was; of two that share a number the first stays. */
static int add_step(struct err *err, struct recovery *x, size_t i)
{
    const struct dmi_step_entry *e = reader_step(x->reader, i)->entry;
    while (i && reader_step(x->reader, i - 1)->entry->sequence == e->sequence)
        i--;
    if (x->step_written[i])
        return 0;
    e = reader_step(x->reader, i)->entry;
    x->step_written[i] = true;
    x->n_steps++;
    text_add(&x->steps, (const char *)e, e->n_bytes);
    return x->steps.n > MOST_WAITING ? append_meta(err, x, DMI_CHUNK_STEPS, &x->steps) : 0;
}

/* Appends a table as a chunk, if it has entries, and empties both texts. */
static int write_table(struct err *err, struct recovery *x, uint16_t type, struct text *entries,
                       size_t entry_bytes, struct text *strings)
{
    _cleanup_(text_deinit) struct text meta = { 0 };
    bool any = entries->n || entries->failed;
    if (any && !table_meta(entries, entry_bytes, strings, &meta))
        return no_room(err);
    entries->n = strings->n = 0;
    return any ? append_meta(err, x, type, &meta) : 0;
}

/* ------------------------------------------------------------------------- records */

struct rewriting {
    struct run_record records[MOST_TOGETHER];
    void *data[MOST_TOGETHER];
    size_t n;
    uint64_t n_bytes, place;
    const struct reader_record *last; /* that was put into a batch */
};

static void empty_batch(struct rewriting *b)
{
    for (size_t i = 0; i < b->n; i++)
        free(b->data[i]);
    b->n = 0;
    b->n_bytes = 0;
}

static void count_batch(struct recovery *x, const struct rewriting *b)
{
    for (size_t i = 0; i < b->n; i++) {
        uint32_t rows = 0;
        struct dmi_tally *t = &x->written[b->records[i].site];
        rows_count(b->records[i].dims, b->records[i].n_row_dims, &rows);
        t->records++;
        t->rows += rows;
        t->bytes += b->records[i].n_bytes;
        x->n_records++;
    }
}

static int write_batch(struct err *err, struct recovery *x, struct rewriting *b)
{
    if (!b->n)
        return 0;
    int r = append_meta(err, x, DMI_CHUNK_STEPS, &x->steps);
    if (!r && (r = run_append(x->run, b->records, b->n)))
        cannot_write(err, r, x);
    if (!r)
        count_batch(x, b);
    empty_batch(b);
    return r;
}

static struct run_record record_of(const struct reader_record *rec, void *data)
{
    const struct dmi_record *from = &rec->at;
    struct run_record out = { .step = rec->step ? rec->step->entry->sequence : DMI_NO_STEP,
                              .n_dims = from->n_dims,
                              .n_row_dims = from->n_row_dims,
                              .kept = rec->kept,
                              .data = data,
                              .n_bytes = from->n_bytes,
                              RECORD_FACTS(RECORD_TAKE) };
    memcpy(out.dims, from->dims, sizeof out.dims);
    return out;
}

/* The record's bytes; NULL: they cannot be had, which is said of the first ones. */
static void *decode(struct recovery *x, const struct reader_record *rec)
{
    struct err why = { 0 };
    void *data = malloc(rec->at.n_bytes + 1);
    int r = data ? reader_decode(&why, x->reader, rec, data)
                 : err_set_errno(&why, ENOMEM, "cannot recover a record");
    if (!r)
        return data;
    free(data);
    if (x->n_undecoded++ < MOST_TOLD)
        complain_undecoded(&why);
    return NULL;
}

static size_t step_index(const struct recovery *x, const struct reader_step *step)
{
    return (size_t)(step - reader_step(x->reader, 0));
}

/* Of a chunk that stands there twice each record counts once: the first that can be read. */
static bool is_again(const struct rewriting *b, const struct reader_record *rec)
{
    return b->last && b->last->place == rec->place && b->last->number == rec->number;
}

static int add_record(struct err *err, struct recovery *x, struct rewriting *b,
                      const struct reader_record *rec)
{
    int r = 0;
    if (is_again(b, rec))
        return 0;
    if (b->n == MOST_TOGETHER || b->n_bytes > MOST_WAITING || (b->n && b->place != rec->place))
        r = write_batch(err, x, b);
    void *data = r ? NULL : decode(x, rec);
    if (!data)
        return r;
    if (rec->step)
        r = add_step(err, x, step_index(x, rec->step));
    x->lost.n_stepless += !rec->step && rec->at.step != DMI_NO_STEP;
    b->last = rec;
    b->place = rec->place;
    b->n_bytes += rec->at.n_bytes;
    b->data[b->n] = data;
    b->records[b->n++] = record_of(rec, data);
    return r;
}

static int place_order(const void *pa, const void *pb)
{
    const struct reader_record *a = *(const struct reader_record *const *)pa;
    const struct reader_record *b = *(const struct reader_record *const *)pb;
    if (a->place != b->place)
        return a->place < b->place ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

static int copy_records(struct err *err, struct recovery *x)
{
    size_t n = reader_n_records(x->reader);
    _cleanup_(freep) const struct reader_record **order = calloc(n + 1, sizeof *order);
    _cleanup_(freep) struct rewriting *batch = calloc(1, sizeof *batch);
    if (!order || !batch)
        return no_room(err);
    for (size_t i = 0; i < n; i++)
        order[i] = reader_record(x->reader, i);
    qsort(order, n, sizeof *order, place_order);
    int r = 0;
    for (size_t i = 0; !r && i < n; i++)
        r = add_record(err, x, batch, order[i]);
    if (!r)
        r = write_batch(err, x, batch);
    empty_batch(batch);
    return r;
}

/* ------------------------------------------------------------------------- outcomes */

struct outcome_chunk {
    struct text entries, strings;
};

static int write_outcomes(struct err *err, struct recovery *x, struct outcome_chunk *c)
{
    return write_table(err, x, DMI_CHUNK_OUTCOMES, &c->entries, sizeof(struct dmi_outcome),
                       &c->strings);
}

static int add_outcome(struct err *err, struct recovery *x, struct outcome_chunk *c,
                       const struct dmi_outcome *at)
{
    text_add(&c->entries, (const char *)at, sizeof *at);
    return c->entries.n + c->strings.n > MOST_WAITING ? write_outcomes(err, x, c) : 0;
}

/* What was said of a span's rows; ends have entries of their own. */
static struct dmi_outcome accepted_of(const struct reader_outcome *said, uint32_t n_tokens,
                                      struct text *strings)
{
    struct dmi_outcome at = { .step = said->at.step,
                              .span = said->at.span,
                              .flags = DMI_OUTCOME_ACCEPTED,
                              .time_ns = said->at.time_ns,
                              .n_accepted = said->at.n_accepted,
                              .accepted = DMI_OUTCOME_FIRST };
    if (said->at.accepted == DMI_OUTCOME_FIRST)
        return at;
    at.accepted = (uint32_t)strings->n;
    for (uint32_t token = 0, n; token < n_tokens; token++)
        if (reader_outcome_has(said, token, &n))
            text_add(strings, (const char *)&token, sizeof token);
    return at;
}

static int copy_accepted(struct err *err, struct recovery *x, struct outcome_chunk *c)
{
    int r = 0;
    for (size_t i = 0; !r && i < reader_n_steps(x->reader); i++) {
        const struct reader_step *step = reader_step(x->reader, i);
        for (uint32_t s = 0; !r && x->step_written[i] && s < step->entry->n_spans; s++) {
            const struct reader_outcome *said = reader_outcome_of(step, s);
            if (!said || !(said->at.flags & DMI_OUTCOME_ACCEPTED))
                continue;
            struct dmi_outcome at = accepted_of(said, step->spans[s].n_tokens, &c->strings);
            r = add_outcome(err, x, c, &at);
        }
    }
    return r;
}

static int copy_ends(struct err *err, struct recovery *x, struct outcome_chunk *c)
{
    int r = 0;
    for (size_t i = 0; !r && i < reader_n_ends(x->reader); i++) {
        const struct reader_end *end = reader_end(x->reader, i);
        uint64_t after =
            end->after ? reader_step(x->reader, end->after - 1)->entry->sequence : DMI_NO_STEP;
        const struct dmi_outcome at = { .step = after,
                                        .span = DMI_OUTCOME_NO_SPAN,
                                        .flags = end->shed ? DMI_OUTCOME_SHED : DMI_OUTCOME_END,
                                        .time_ns = end->time_ns,
                                        .accepted = DMI_OUTCOME_FIRST,
                                        .id_offset = (uint32_t)c->strings.n,
                                        .id_bytes = (uint32_t)end->n_id,
                                        .reason = end->reason };
        text_add(&c->strings, end->id, end->n_id);
        r = add_outcome(err, x, c, &at);
    }
    return r;
}

static int copy_outcomes(struct err *err, struct recovery *x)
{
    struct outcome_chunk c = { 0 };
    int r = copy_accepted(err, x, &c);
    if (!r)
        r = copy_ends(err, x, &c);
    if (!r)
        r = write_outcomes(err, x, &c);
    text_deinit(&c.entries);
    text_deinit(&c.strings);
    return r;
}

/* ------------------------------------------------------------------------- the trace */

struct trace_copy {
    struct err *err;
    struct recovery *recovery;
    struct text entries, strings;
    struct ran_writer ran;
    int result;
};

static void add_step_times(void *ctx, const struct dmi_step_times *at)
{
    struct trace_copy *t = ctx;
    text_add(&t->entries, (const char *)at, sizeof *at);
    if (!t->result && t->entries.n > MOST_WAITING)
        t->result = write_table(t->err, t->recovery, DMI_CHUNK_STEP_TIMES, &t->entries, sizeof *at,
                                &t->strings);
}

static void add_range(void *ctx, const struct reader_range *range)
{
    struct trace_copy *t = ctx;
    struct dmi_range_entry at = range->at;
    at.name_offset = at.name_bytes ? (uint32_t)t->strings.n : 0;
    text_add(&t->strings, range->name, at.name_bytes);
    at.facts_offset = at.facts_bytes ? (uint32_t)t->strings.n : 0;
    text_add(&t->strings, range->facts, at.facts_bytes);
    text_add(&t->entries, (const char *)&at, sizeof at);
    if (!t->result && t->entries.n + t->strings.n > MOST_WAITING)
        t->result =
            write_table(t->err, t->recovery, DMI_CHUNK_RANGES, &t->entries, sizeof at, &t->strings);
}

static void add_mark(void *ctx, const struct reader_mark *mark)
{
    struct trace_copy *t = ctx;
    struct dmi_mark at = mark->at;
    at.text_offset = at.text_bytes ? (uint32_t)t->strings.n : 0;
    text_add(&t->strings, mark->text, at.text_bytes);
    text_add(&t->entries, (const char *)&at, sizeof at);
}

static int write_ran(struct trace_copy *t, uint16_t type)
{
    struct text meta = { 0 };
    if (!t->ran.n)
        return 0;
    if (!ran_meta(&t->ran, &meta))
        return no_room(t->err);
    return append_meta(t->err, t->recovery, type, &meta);
}

static void add_ran(void *ctx, const struct ran *ran)
{
    struct trace_copy *t = ctx;
    ran_add(&t->ran, ran);
    if (!t->result && ran_bytes(&t->ran) > MOST_WAITING)
        t->result = write_ran(t, DMI_CHUNK_TRACE);
}

/* The sums of a part of a step stay in one chunk. */
static void add_sum(void *ctx, const struct ran_sum *sum)
{
    struct trace_copy *t = ctx;
    if (!t->result && sum->shape.kind == DMI_RAN_BUSY && ran_bytes(&t->ran) > MOST_WAITING)
        t->result = write_ran(t, DMI_CHUNK_SUMS);
    ran_add_sum(&t->ran, sum);
}

/* Records of what ran, then sums of it. */
static int copy_ran(struct trace_copy *t)
{
    int r = reader_each_ran(t->err, t->recovery->reader, add_ran, t);
    if (!r && !(r = t->result))
        r = write_ran(t, DMI_CHUNK_TRACE);
    if (!r)
        r = reader_each_sum(t->err, t->recovery->reader, add_sum, t);
    if (!r && !(r = t->result))
        r = write_ran(t, DMI_CHUNK_SUMS);
    ran_deinit(&t->ran);
    return r;
}

static int copy_trace(struct err *err, struct recovery *x)
{
    struct trace_copy t = { .err = err, .recovery = x };
    int r = reader_each_step_times(err, x->reader, add_step_times, &t);
    if (!r && !(r = t.result))
        r = write_table(err, x, DMI_CHUNK_STEP_TIMES, &t.entries, sizeof(struct dmi_step_times),
                        &t.strings);
    if (!r)
        r = reader_each_range(err, x->reader, add_range, &t);
    if (!r && !(r = t.result))
        r = write_table(err, x, DMI_CHUNK_RANGES, &t.entries, sizeof(struct dmi_range_entry),
                        &t.strings);
    if (!r)
        r = copy_ran(&t);
    if (!r)
        r = reader_each_mark(err, x->reader, add_mark, &t);
    if (!r)
        r = write_table(err, x, DMI_CHUNK_MARKS, &t.entries, sizeof(struct dmi_mark), &t.strings);
    text_deinit(&t.entries);
    text_deinit(&t.strings);
    return r;
}

/* ------------------------------------------------------------------------- all of it */

int recover_copy(struct err *err, struct recovery *x)
{
    size_t n = reader_n_steps(x->reader);
    x->step_written = calloc(n + 1, sizeof *x->step_written);
    x->written = calloc(reader_n_sites(x->reader) + 1, sizeof *x->written);
    if (!x->step_written || !x->written)
        return no_room(err);
    int r = copy_records(err, x);
    for (size_t i = 0; !r && i < n; i++)
        r = add_step(err, x, i); /* those of which no record can be read */
    if (!r)
        r = append_meta(err, x, DMI_CHUNK_STEPS, &x->steps);
    if (!r)
        r = copy_outcomes(err, x);
    return r ? r : copy_trace(err, x);
}
