/* SPDX-License-Identifier: Apache-2.0 */
/* What marks say of a trace. Source: docs/format.md 6.5. */
#include "storage/reader/trace_account.h"

#include "core/grow.h"
#include "storage/reader/reader_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void note(struct trace_wrong *wrong, const struct reader_mark *mark)
{
    if (!wrong->n++)
        snprintf(wrong->first, sizeof wrong->first, "a mark of kind %" PRIu32, mark->at.kind);
}

/* A number of decimal digits at *@at. */
static bool read_number(const char **at, const char *end, uint64_t *out)
{
    const char *begin = *at;
    for (*out = 0; *at < end && **at >= '0' && **at <= '9'; ++*at)
        if (__builtin_mul_overflow(*out, 10u, out) ||
            __builtin_add_overflow(*out, (uint64_t)(**at - '0'), out))
            return false;
    return *at > begin;
}

/* "A:B" of @n bytes; A and B are there, and A is at most B. */
static bool trace_window_read(const char *text, size_t n, struct trace_window *out)
{
    const char *at = text, *end = text + n;
    *out = (struct trace_window){ 0 };
    return read_number(&at, end, &out->first) && at < end && *at++ == ':' &&
           read_number(&at, end, &out->end) && at == end && out->first <= out->end;
}

/* Return: the count that the mark says, 0 where it says none. */
static uint64_t count_of(struct trace_marks *m, const struct reader_mark *mark)
{
    if (mark->at.value >= 0)
        return (uint64_t)mark->at.value;
    note(&m->negative, mark);
    return 0;
}

static void add(uint64_t *sum, uint64_t n)
{
    *sum = n < UINT64_MAX - *sum ? *sum + n : UINT64_MAX;
}

static void take_kept(struct trace_marks *m, const struct reader_mark *mark)
{
    struct trace_window window;
    if (!trace_window_read(mark->text, mark->at.text_bytes, &window)) {
        note(&m->unreadable, mark);
        return;
    }
    window.gone = count_of(m, mark);
    if (window.first == window.end) /* no step is in it */
        return;
    if (m->failed || (m->failed = GROW(m->kept, m->n_kept, m->kept_room)))
        return;
    m->kept[m->n_kept++] = window;
}

static void take_clock_set(struct trace_marks *m, int64_t by_ns, uint64_t time_ns)
{
    m->clock_set_ns = (int64_t)((uint64_t)m->clock_set_ns + (uint64_t)by_ns);
    if (m->failed || (m->failed = GROW(m->clock_sets, m->n_clock_sets, m->clock_sets_room)))
        return;
    m->clock_sets[m->n_clock_sets++] = (struct trace_clock_set){ time_ns, by_ns };
}

static void take_ring(struct trace_marks *m, const struct reader_mark *mark)
{
    m->n_ring_gone = count_of(m, mark);
    m->has_ring = trace_window_read(mark->text, mark->at.text_bytes, &m->ring);
    if (!m->has_ring)
        note(&m->unreadable, mark);
}

/* CUPTI changes hands at @at_ns. */
static void take_hands(struct trace_marks *m, bool lent, uint64_t at_ns)
{
    if (m->lent_since_ns)
        m->lent_ns += at_ns > m->lent_since_ns ? at_ns - m->lent_since_ns : 0;
    m->n_lent += lent;
    m->lent_since_ns = lent ? at_ns : 0;
}

static void take_loss(struct trace_marks *m, const struct reader_mark *mark)
{
    char why[sizeof m->losses[0].why];
    uint64_t n = count_of(m, mark);
    size_t i = 0;
    snprintf(why, sizeof why, "%.*s", (int)mark->at.text_bytes, mark->text);
    while (i + 1 < TRACE_LOSSES && m->losses[i].n && strcmp(m->losses[i].why, why))
        i++;
    memcpy(m->losses[i].why, why, sizeof why);
    add(&m->losses[i].n, n);
    add(&m->n_ran_lost, n);
}

static void take_ranges_lost(struct trace_marks *m, const struct reader_mark *mark)
{
    uint64_t n = count_of(m, mark);
    add(&m->n_ranges_lost, n);
    if (m->failed || (m->failed = GROW(m->ranges_lost, m->n_range_losses, m->range_losses_room)))
        return;
    struct trace_window looks; /* writers before 2026-11-29 say none */
    bool said = trace_window_read(mark->text, mark->at.text_bytes, &looks);
    m->ranges_lost[m->n_range_losses++] =
        (struct trace_ranges_lost){ said ? looks.first : m->last_ns,
                                    said ? looks.end : mark->at.time_ns, n };
}

static void take(void *ctx, const struct reader_mark *mark)
{
    struct trace_marks *m = ctx;
    m->any = true;
    switch (mark->at.kind) {
    case DMI_MARK_LOST: add(&m->n_lost, count_of(m, mark)); break;
    case DMI_MARK_ENDED:
        m->n_ended = count_of(m, mark);
        m->has_ended |= mark->at.value >= 0;
        m->n_endings++;
        take_hands(m, false, mark->at.time_ns);
        break;
    case DMI_MARK_RANGES_LOST: take_ranges_lost(m, mark); break;
    case DMI_MARK_RAN:
        add(&m->n_ran, count_of(m, mark));
        m->has_ran = true;
        break;
    case DMI_MARK_KEPT: take_kept(m, mark); break;
    case DMI_MARK_RING: take_ring(m, mark); break;
    case DMI_MARK_RAN_SUMMED: add(&m->n_ran_summed, count_of(m, mark)); break;
    case DMI_MARK_RAN_LOST: take_loss(m, mark); break;
    case DMI_MARK_RAN_DROPPED: add(&m->n_ran_dropped, count_of(m, mark)); break;
    case DMI_MARK_STEPS_ALONE:
        snprintf(m->alone, sizeof m->alone, "%.*s", (int)mark->at.text_bytes, mark->text);
        break;
    case DMI_MARK_LENT: take_hands(m, mark->at.value, mark->at.time_ns); break;
    case DMI_MARK_CLOCK_SET: take_clock_set(m, mark->at.value, mark->at.time_ns); break;
    default: break;
    }
    m->last_ns = mark->at.time_ns;
}

int trace_marks_read(struct err *err, struct reader *reader, struct trace_marks *marks)
{
    *marks = (struct trace_marks){ .negative.what = "marks that count are below 0",
                                   .unreadable.what = "marks name steps by a text that is no A:B" };
    int r = reader_each_mark(err, reader, take, marks);
    return r || !marks->failed
               ? r
               : err_set_errno(err, ENOMEM, "cannot read the trace of %s", reader->run.path);
}

void trace_marks_deinit(struct trace_marks *marks)
{
    free(marks->clock_sets);
    free(marks->kept);
    free(marks->ranges_lost);
    *marks = (struct trace_marks){ 0 };
}
