/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/runs.h"

#include "core/cleanup.h"
#include "core/grow.h"
#include "core/sorted.h"
#include "policy/number.h"
#include "tools/common/say.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void take_step(void *ctx, const struct dmi_step_times *at)
{
    struct trace_run *t = ctx;
    if (t->failed || (t->failed = GROW(t->steps, t->n_steps, t->room)))
        return;
    t->steps[t->n_steps++] = *at;
    t->traced = true;
}

/* The mark's text is A:B. */
static bool read_window(const struct reader_mark *mark, struct runs_steps *out)
{
    char text[64];
    snprintf(text, sizeof text, "%.*s", (int)mark->at.text_bytes, mark->text);
    return runs_read_steps(text, out);
}

static void take_kept(struct trace_run *t, const struct reader_mark *mark)
{
    struct trace_kept kept = { .gone = (uint64_t)mark->at.value };
    if (!read_window(mark, &kept.steps)) /* no step is in it */
        return;
    if (t->failed || (t->failed = GROW(t->kept, t->n_kept, t->kept_room)))
        return;
    t->kept[t->n_kept++] = kept;
}

/* CUPTI changes hands at @at_ns. */
static void take_hands(struct trace_run *t, bool lent, uint64_t at_ns)
{
    if (t->lent_since_ns)
        t->lent_ns += at_ns > t->lent_since_ns ? at_ns - t->lent_since_ns : 0;
    t->n_lent += lent;
    t->lent_since_ns = lent ? at_ns : 0;
}

static void take_lost(struct trace_run *t, const struct reader_mark *mark)
{
    char why[sizeof t->lost[0].why];
    size_t i = 0;
    snprintf(why, sizeof why, "%.*s", (int)mark->at.text_bytes, mark->text);
    while (i + 1 < TRACE_LOSSES && t->lost[i].n && strcmp(t->lost[i].why, why))
        i++;
    memcpy(t->lost[i].why, why, sizeof why);
    t->lost[i].n += (uint64_t)mark->at.value;
    t->n_ran_lost += (uint64_t)mark->at.value;
}

static void take_mark(void *ctx, const struct reader_mark *mark)
{
    struct trace_run *t = ctx;
    uint64_t value = (uint64_t)mark->at.value;
    t->traced = true;
    switch (mark->at.kind) {
    case DMI_MARK_LOST: t->n_lost += value; break;
    case DMI_MARK_ENDED:
        t->n_ended = value;
        t->has_ended = true;
        take_hands(t, false, mark->at.time_ns);
        break;
    case DMI_MARK_RAN:
        t->n_ran = value;
        t->has_ran = true;
        break;
    case DMI_MARK_KEPT: take_kept(t, mark); break;
    case DMI_MARK_RING:
        t->n_ring_gone = value;
        t->has_ring = read_window(mark, &t->ring);
        break;
    case DMI_MARK_RAN_SUMMED: t->n_ran_summed += value; break;
    case DMI_MARK_RAN_LOST: take_lost(t, mark); break;
    case DMI_MARK_RAN_DROPPED: t->n_ran_dropped += value; break;
    case DMI_MARK_STEPS_ALONE:
        snprintf(t->alone, sizeof t->alone, "%.*s", (int)mark->at.text_bytes, mark->text);
        break;
    case DMI_MARK_LENT: take_hands(t, value, mark->at.time_ns); break;
    case DMI_MARK_CLOCK_SET:
        t->clock_set_ns += mark->at.value;
        t->n_clock_sets++;
        break;
    }
}

static void take_range(void *ctx, const struct reader_range *range)
{
    (void)range;
    ((struct trace_run *)ctx)->traced = true;
}

static void take_ran(void *ctx, const struct ran *ran)
{
    (void)ran;
    ((struct trace_run *)ctx)->traced = true;
}

static void take_sum(void *ctx, const struct ran_sum *sum)
{
    (void)sum;
    ((struct trace_run *)ctx)->traced = true;
}

static size_t say_damage(const struct reader *reader)
{
    size_t n = 0;
    for (size_t i = 0; i < reader_n_findings(reader); i++) {
        const struct reader_finding *f = reader_finding(reader, i);
        if (f->damage && !n++)
            complain("%s: DAMAGED: %s: %s", reader_run(reader)->path, f->file, f->text);
    }
    return n;
}

static int give_one(struct reader *reader, int (*fn)(const struct trace_run *run, void *ctx),
                    void *ctx)
{
    struct err err = { 0 };
    struct trace_run t = { .reader = reader, .run = reader_run(reader) };
    int r = reader_each_step_times(&err, reader, take_step, &t);
    if (!r)
        r = reader_each_mark(&err, reader, take_mark, &t);
    if (!r && !t.traced) /* its marks may be lost */
        r = reader_each_range(&err, reader, take_range, &t);
    if (!r && !t.traced)
        r = reader_each_ran(&err, reader, take_ran, &t);
    if (!r && !t.traced)
        r = reader_each_sum(&err, reader, take_sum, &t);
    if (!r && t.failed)
        r = err_set_errno(&err, ENOMEM, "cannot read %s", t.run->path);
    t.n_damage = say_damage(reader);
    if (r)
        complain("%s", err.msg);
    r = r ? REPORT_IMPOSSIBLE : fn(&t, ctx);
    free(t.steps);
    free(t.kept);
    return r;
}

int runs_each(const char *path, int (*fn)(const struct trace_run *run, void *ctx), void *ctx)
{
    struct err err = { 0 };
    _cleanup_(reader_closep) struct reader *reader = NULL;
    if (reader_open_index(&err, path, &reader)) {
        complain("%s", err.msg);
        return REPORT_IMPOSSIBLE;
    }
    const struct reader_run *run = reader_run(reader);
    if (run->n_runs == 1)
        return give_one(reader, fn, ctx);
    int r = 0;
    for (size_t i = 0; !r && i < run->n_runs; i++)
        r = runs_each(run->ranks[i].path, fn, ctx);
    return r;
}

void runs_say_lent(struct report *report, const struct trace_run *t)
{
    if (t->n_lent)
        report_line(report,
                    "  CUPTI was lent to another profiler %" PRIu64
                    " times, for %.3f s%s: what ran then is not there",
                    t->n_lent, (double)t->lent_ns / 1e9,
                    t->lent_since_ns ? ", and did not come back" : "");
}

const char *runs_reason(const struct dmi_step_times *at)
{
    static const struct {
        uint32_t flag;
        const char *words;
    } reasons[] = {
        { DMI_STEP_HAS_DEVICE, NULL },
        { DMI_STEP_NO_LAUNCH, "nothing was launched" },
        { DMI_STEP_CAPTURING, "a stream was being captured" },
        { DMI_STEP_STREAM_GONE, "the stream of the last launch had ended" },
        { DMI_STEP_CONTEXT_GONE, "the CUDA context had ended" },
        { DMI_STEP_REFUSED, "the driver refused an event" },
        { DMI_STEP_UNFINISHED, "the device was not done when the process ended" },
        { DMI_STEP_ELSEWHERE, "it ended in another context or thread" },
    };
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (at->flags & reasons[i].flag)
            return reasons[i].words;
    return "no reason is said";
}

bool runs_read_steps(const char *text, struct runs_steps *out)
{
    char first[32];
    int64_t a = 0, b = INT64_MAX;
    const char *colon = strchr(text, ':');
    if (!colon || colon - text >= (ptrdiff_t)sizeof first)
        return false;
    snprintf(first, sizeof first, "%.*s", (int)(colon - text), text);
    if ((*first && !parse_integer(first, &a)) || (colon[1] && !parse_integer(colon + 1, &b)) ||
        a < 0 || b <= a)
        return false;
    *out = (struct runs_steps){ .first = (uint64_t)a, .end = colon[1] ? (uint64_t)b : UINT64_MAX };
    return true;
}

struct runs_steps runs_kept(const struct trace_run *t)
{
    return (struct runs_steps){ .end = t->n_kept ? UINT64_MAX : 0,
                                .kept = t->kept,
                                .n_kept = t->n_kept };
}

bool runs_all_asked(const struct runs_steps *steps)
{
    return !steps->first && steps->end == UINT64_MAX && !steps->n_kept;
}

bool runs_step_asked(const struct runs_steps *steps, uint64_t number)
{
    size_t i = 0;
    while (i < steps->n_kept && !runs_step_asked(&steps->kept[i].steps, number))
        i++;
    return number >= steps->first && number < steps->end && (!steps->n_kept || i < steps->n_kept);
}

bool runs_asked(const struct runs_steps *steps, uint64_t step)
{
    return runs_all_asked(steps) ||
           (step >= DMI_RAN_FIRST && runs_step_asked(steps, step - DMI_RAN_FIRST));
}

const char *runs_source(uint32_t source)
{
    static const char *const words[] = { [DMI_STEP_NAMED_GRAPH] = "graph",
                                         [DMI_STEP_NAMED_KERNEL] = "kernel",
                                         [DMI_STEP_NAMED_RANGE] = "range",
                                         [DMI_STEP_FORWARD] = "forward",
                                         [DMI_STEP_ENGINE] = "engine" };
    bool known = source < sizeof words / sizeof *words && words[source];
    return known ? words[source] : "unknown";
}

int runs_range_order(const void *pa, const void *pb)
{
    const struct dmi_range_entry *a = pa, *b = pb;
    ORDER(a, b, thread);
    ORDER(a, b, begin_ns);
    ORDER(a, b, depth);
    return 0;
}
