/* SPDX-License-Identifier: Apache-2.0 */
/* When steps ran, and what happened to the trace: chunk by chunk, so that memory does not grow with the run. Source: docs/format.md 6.4 to 6.8. */
#include "storage/reader/reader_private.h"

#include <errno.h>

/* Whom entries go to: one of them. */
struct taker {
    void (*step_times)(void *ctx, const struct dmi_step_times *at);
    void (*range)(void *ctx, const struct reader_range *range);
    void (*mark)(void *ctx, const struct reader_mark *mark);
    void (*ran)(void *ctx, const struct ran *ran);
    void (*sum)(void *ctx, const struct ran_sum *sum);
    void (*all_times)(void *ctx, uint64_t chunk, const struct dmi_step_times *all, size_t n);
    void (*all_sums)(void *ctx, uint64_t chunk, const struct ran_sum *all, size_t n);
    reader_wants *wants; /* NULL: all chunks */
    void *ctx;
};

static void give_each(const struct reader_chunk *c, const struct taker *to)
{
    for (size_t i = 0; i < c->n_held; i++) {
        if (to->step_times)
            to->step_times(to->ctx, &c->step_times[i]);
        else if (to->range)
            to->range(to->ctx, &c->ranges[i]);
        else if (to->ran)
            to->ran(to->ctx, &c->ran[i]);
        else if (to->sum)
            to->sum(to->ctx, &c->sums[i]);
        else
            to->mark(to->ctx, &c->marks[i]);
    }
}

static void give(const struct reader_chunk *c, const struct taker *to)
{
    if (to->all_times)
        to->all_times(to->ctx, c->sequence, c->step_times, c->n_held);
    else if (to->all_sums)
        to->all_sums(to->ctx, c->sequence, c->sums, c->n_held);
    else
        give_each(c, to);
}

/* Loads a chunk for as long as it is looked at. Return: 0, also where it cannot be read, which is named; -ENOMEM. */
static int give_chunk(struct reader *r, struct reader_segment *s, struct reader_chunk *c,
                      const struct taker *to)
{
    const char *wrong;
    bool kept = c->bytes != NULL;
    int res = reader_load_chunk(r, s, c, &wrong);
    if (res == -EBADMSG)
        NOTE_CHUNK(r, s, c, "the chunk (%s) cannot be read: %s", chunk_type_name(c->type), wrong);
    else if (!res)
        give(c, to);
    if (!kept)
        reader_free_held(c);
    return res == -EBADMSG ? 0 : res;
}

/* The next chunk of @type, NULL: none is left. A segment whose index is wrong was walked over, and is gone on with. */
static int next_chunk(struct reader *r, uint32_t type, struct reader_cursor *at,
                      struct reader_chunk **out)
{
    int res;
    do
        res = reader_next_listed(r, type, at, out);
    while (res == -EAGAIN);
    return res;
}

static int give_run(struct reader *r, uint32_t type, const struct taker *to)
{
    struct reader_cursor at = { 0 };
    struct reader_chunk *c;
    int res;
    while (!(res = next_chunk(r, type, &at, &c)) && c)
        if ((!to->wants || to->wants(to->ctx, c->sequence)) &&
            (res = give_chunk(r, &r->index.segments[at.segment], c, to)))
            break;
    return res;
}

static int give_all(struct err *err, struct reader *r, uint32_t type, const struct taker *to)
{
    int res = r->ranks ? 0 : give_run(r, type, to);
    for (size_t i = 0; !res && r->ranks && i < r->ranks->n; i++)
        res = give_run(r->ranks->runs[i], type, to);
    return res ? err_set_errno(err, -res, "cannot read the trace of %s", r->run.path) : 0;
}

int reader_each_step_times(struct err *err, struct reader *r,
                           void (*fn)(void *ctx, const struct dmi_step_times *at), void *ctx)
{
    return give_all(err, r, DMI_CHUNK_STEP_TIMES, &(struct taker){ .step_times = fn, .ctx = ctx });
}

int reader_each_range(struct err *err, struct reader *r,
                      void (*fn)(void *ctx, const struct reader_range *range), void *ctx)
{
    return give_all(err, r, DMI_CHUNK_RANGES, &(struct taker){ .range = fn, .ctx = ctx });
}

int reader_each_mark(struct err *err, struct reader *r,
                     void (*fn)(void *ctx, const struct reader_mark *mark), void *ctx)
{
    return give_all(err, r, DMI_CHUNK_MARKS, &(struct taker){ .mark = fn, .ctx = ctx });
}

int reader_each_ran(struct err *err, struct reader *r, void (*fn)(void *ctx, const struct ran *ran),
                    void *ctx)
{
    return give_all(err, r, DMI_CHUNK_TRACE, &(struct taker){ .ran = fn, .ctx = ctx });
}

int reader_each_sum(struct err *err, struct reader *r,
                    void (*fn)(void *ctx, const struct ran_sum *sum), void *ctx)
{
    return give_all(err, r, DMI_CHUNK_SUMS, &(struct taker){ .sum = fn, .ctx = ctx });
}

int reader_step_times_by_chunk(struct err *err, struct reader *r, reader_wants *wants,
                               void (*fn)(void *ctx, uint64_t chunk,
                                          const struct dmi_step_times *all, size_t n),
                               void *ctx)
{
    return give_all(err, r, DMI_CHUNK_STEP_TIMES,
                    &(struct taker){ .all_times = fn, .wants = wants, .ctx = ctx });
}

int reader_sums_by_chunk(struct err *err, struct reader *r, reader_wants *wants,
                         void (*fn)(void *ctx, uint64_t chunk, const struct ran_sum *all, size_t n),
                         void *ctx)
{
    return give_all(err, r, DMI_CHUNK_SUMS,
                    &(struct taker){ .all_sums = fn, .wants = wants, .ctx = ctx });
}

/* ------------------------------------------------------------------------- how many */

static int count(struct reader *r, uint32_t type, uint64_t *n)
{
    struct reader_cursor at = { 0 };
    struct dmi_table_head head;
    struct reader_chunk *c;
    int res;
    while (!(res = next_chunk(r, type, &at, &c)) && c)
        if (!reader_read(r, &r->index.segments[at.segment], &head, sizeof head,
                         c->offset + sizeof(struct dmi_chunk_header)))
            *n += head.n_entries;
    return res;
}

/* Sets *@any where there is a chunk of @type. */
static int look_for(struct reader *r, uint32_t type, bool *any)
{
    struct reader_cursor at = { 0 };
    struct reader_chunk *c = NULL;
    int res = *any ? 0 : next_chunk(r, type, &at, &c);
    *any |= c != NULL;
    return res;
}

static int count_run(struct reader *r, uint64_t *n_step_times, uint64_t *n_marks, bool *any)
{
    static const uint32_t others[] = { DMI_CHUNK_RANGES, DMI_CHUNK_TRACE, DMI_CHUNK_SUMS };
    int res = count(r, DMI_CHUNK_STEP_TIMES, n_step_times);
    res = res ? res : count(r, DMI_CHUNK_MARKS, n_marks);
    *any |= *n_step_times || *n_marks;
    for (size_t i = 0; !res && i < sizeof others / sizeof *others; i++)
        res = look_for(r, others[i], any);
    return res;
}

int reader_count_trace(struct reader *r, uint64_t *n_step_times, uint64_t *n_marks, bool *any)
{
    *n_step_times = *n_marks = 0;
    *any = false;
    int res = r->ranks ? 0 : count_run(r, n_step_times, n_marks, any);
    for (size_t i = 0; !res && r->ranks && i < r->ranks->n; i++)
        res = count_run(r->ranks->runs[i], n_step_times, n_marks, any);
    return res;
}
