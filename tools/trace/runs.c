/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/runs.h"

#include "core/cleanup.h"
#include "core/grow.h"
#include "core/sorted.h"
#include "policy/number.h"
#include "tools/common/opened.h"
#include "tools/common/say.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t runs_damage(const struct trace_run *t)
{
    size_t n = 0;
    for (size_t i = 0; i < reader_n_findings(t->reader); i++)
        n += reader_finding(t->reader, i)->damage;
    return n;
}

static void say_damage(const struct reader *reader)
{
    bool said = false;
    for (size_t i = 0; i < reader_n_findings(reader) && !said; i++) {
        const struct reader_finding *f = reader_finding(reader, i);
        if ((said = f->damage))
            complain("%s: DAMAGED: %s: %s", reader_run(reader)->path, f->file, f->text);
    }
}

static int give_one(struct reader *reader, int (*fn)(const struct trace_run *run, void *ctx),
                    void *ctx)
{
    struct err err = { 0 };
    struct trace_run t = { .reader = reader, .run = reader_run(reader) };
    uint64_t n_marks;
    int r = trace_marks_read(&err, reader, &t.marks);
    if (!r && reader_count_trace(reader, &t.n_steps, &n_marks, &t.traced))
        r = err_set_errno(&err, ENOMEM, "cannot read %s", t.run->path);
    if (r)
        complain("%s", err.msg);
    r = r ? REPORT_IMPOSSIBLE : fn(&t, ctx);
    say_damage(reader);
    trace_marks_deinit(&t.marks);
    return r;
}

struct loading {
    const struct runs_steps *steps;
    struct runs_times *to;
};

static void take_times(void *ctx, const struct dmi_step_times *at)
{
    const struct loading *l = ctx;
    struct runs_times *to = l->to;
    if (to->failed || !runs_step_asked(l->steps, at->number) ||
        (to->failed = GROW(to->all, to->n, to->room)))
        return;
    to->all[to->n++] = *at;
}

int runs_times(const struct trace_run *t, const struct runs_steps *steps, struct runs_times *out)
{
    struct err err = { 0 };
    struct loading l = { steps, out };
    *out = (struct runs_times){ 0 };
    int r = reader_each_step_times(&err, t->reader, take_times, &l);
    if (!r && out->failed)
        r = err_set_errno(&err, ENOMEM, "cannot read %s", t->run->path);
    if (r)
        complain("%s", err.msg);
    return r ? REPORT_IMPOSSIBLE : 0;
}

struct counting {
    const struct runs_steps *steps;
    uint64_t n;
};

static void count_step(void *ctx, const struct dmi_step_times *at)
{
    struct counting *c = ctx;
    c->n += runs_step_asked(c->steps, at->number);
}

int runs_count(const struct trace_run *t, const struct runs_steps *steps, uint64_t *n)
{
    struct err err = { 0 };
    struct counting c = { steps, 0 };
    int r = reader_each_step_times(&err, t->reader, count_step, &c);
    *n = c.n;
    if (r)
        complain("%s", err.msg);
    return r ? REPORT_IMPOSSIBLE : 0;
}

struct ending {
    uint64_t ns, end_ns; /* of the last step that ended */
    struct runs_steps *to;
};

static void find_end(void *ctx, const struct dmi_step_times *at)
{
    struct ending *e = ctx;
    e->end_ns = at->end_ns > e->end_ns ? at->end_ns : e->end_ns;
}

static void find_first(void *ctx, const struct dmi_step_times *at)
{
    struct ending *e = ctx;
    if (e->end_ns - at->end_ns <= e->ns && at->number < e->to->first)
        e->to->first = at->number;
}

int runs_last(const struct trace_run *t, uint64_t ns, struct runs_steps *out)
{
    struct err err = { 0 };
    struct ending e = { ns, 0, out };
    *out = (struct runs_steps){ .first = UINT64_MAX, .end = UINT64_MAX };
    int r = reader_each_step_times(&err, t->reader, find_end, &e);
    r = r ? r : reader_each_step_times(&err, t->reader, find_first, &e);
    if (r)
        complain("%s", err.msg);
    return r ? REPORT_IMPOSSIBLE : 0;
}

bool runs_say_none(const char *path)
{
    complain("%s has none of the steps of --steps: dmi-trace steps --each lists them", path);
    return true;
}

void runs_times_deinit(struct runs_times *times)
{
    free(times->all);
    *times = (struct runs_times){ 0 };
}

int runs_each(const char *path, int (*fn)(const struct trace_run *run, void *ctx), void *ctx)
{
    struct err err = { 0 };
    _cleanup_(reader_closep) struct reader *reader = NULL;
    if (opened_index(&err, path, &reader)) {
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
    if (t->marks.n_lent)
        report_line(report,
                    "  CUPTI was lent to another profiler %" PRIu64
                    " times, for %.3f s%s: what ran then is not there",
                    t->marks.n_lent, (double)t->marks.lent_ns / 1e9,
                    t->marks.lent_since_ns ? ", and did not come back" : "");
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

static int by_first(const void *pa, const void *pb)
{
    const struct trace_window *a = pa, *b = pb;
    ORDER(a, b, first);
    ORDER(a, b, end);
    return 0;
}

bool runs_kept(const struct trace_run *t, struct runs_steps *out)
{
    size_t n = t->marks.n_kept, k = 0;
    struct trace_window *all = calloc(n + 1, sizeof *all);
    *out = (struct runs_steps){ .end = n ? UINT64_MAX : 0, .kept = all };
    if (!all)
        return false;
    if (n)
        memcpy(all, t->marks.kept, n * sizeof *all);
    SORT(all, n, by_first);
    for (size_t i = 0; i < n; i++) {
        if (k && all[i].first <= all[k - 1].end)
            all[k - 1].end = all[i].end > all[k - 1].end ? all[i].end : all[k - 1].end;
        else
            all[k++] = all[i];
    }
    out->n_kept = k;
    return true;
}

void runs_kept_deinit(struct runs_steps *steps)
{
    free(steps->kept);
    *steps = (struct runs_steps){ 0 };
}

bool runs_all_asked(const struct runs_steps *steps)
{
    return !steps->first && steps->end == UINT64_MAX && !steps->kept;
}

bool runs_step_asked(const struct runs_steps *steps, uint64_t number)
{
    size_t i = 0;
    SEARCH(i, steps->n_kept, steps->kept[i].end <= number);
    return number >= steps->first && number < steps->end &&
           (!steps->kept || (i < steps->n_kept && steps->kept[i].first <= number));
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
