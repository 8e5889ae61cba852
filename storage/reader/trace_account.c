/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the steps, ranges, records and sums of a trace are as docs/format.md 6.4 to 6.8 says, and as many as its marks say. One pass over each
 * kind of chunk, so that memory does not grow with the run.
 */
#include "storage/reader/trace_account.h"

#include "core/sorted.h"
#include "storage/reader/reader_steps.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_NAMES 16u /* that a step has sums of */

enum rule {
    RULE_ORDER,
    RULE_REASON,
    RULE_UNFLAGGED,
    RULE_STEP_BACKWARDS,
    RULE_ENDINGS,
    RULE_NEGATIVE,
    RULE_UNREADABLE,
    RULE_FACTS,
    RULE_RANGE_BACKWARDS,
    RULE_RECORD_STEP,
    RULE_RECORD_BACKWARDS,
    RULE_RECORD_SITE,
    RULE_SUM_ALONE,
    RULE_SUM_STEP,
    RULE_SUM_EMPTY,
    RULE_SUM_MOST,
    RULE_SUM_FIELDS,
    RULE_SUM_NAMES,
    RULE_SUM_COUNT,
    RULE_BUSY,
    RULE_BUSY_SUMS,
    RULES,
};
static_assert(RULES <= TRACE_RULES, "a row each");

static const char *const rule_words[RULES] = {
    [RULE_ORDER] = "steps stand twice, or out of the order of their numbers",
    [RULE_REASON] = "steps have a device time and a reason why not, or neither",
    [RULE_UNFLAGGED] = "steps have a time that their flags do not know",
    [RULE_STEP_BACKWARDS] = "steps end before they begin",
    [RULE_ENDINGS] = "marks say once more that the trace ended",
    [RULE_FACTS] = "ranges have facts that are no JSON object of integers",
    [RULE_RANGE_BACKWARDS] = "ranges end before they begin",
    [RULE_RECORD_STEP] = "records or sums name a step that did not end in the trace",
    [RULE_RECORD_BACKWARDS] = "records end after the end of time",
    [RULE_RECORD_SITE] = "records name a site that the run has not",
    [RULE_SUM_ALONE] = "sums stand in a chunk without the sum of kind 5 of their step before them",
    [RULE_SUM_STEP] = "sums stand among those of another step",
    [RULE_SUM_EMPTY] = "sums are of no record",
    [RULE_SUM_MOST] = "sums are less than one of their records takes, or more than all can take",
    [RULE_SUM_FIELDS] = "sums have a field that sums have not",
    [RULE_SUM_NAMES] = "parts of steps have sums of more than 16 names of kernels",
    [RULE_SUM_COUNT] = "sums of kind 5 are of another number of records than those after them",
    [RULE_BUSY] = "sums of kind 5 are busy or idle for longer than from first begin to last end",
    [RULE_BUSY_SUMS] = "sums of kind 5 are busy for longer than their records take together",
};

/* The sums of a part of a step: the one of kind 5, and what came after it. */
struct step_sums {
    bool open;
    struct ran_sum busy;
    uint64_t n, sum_ns, names;
};

/* How many records lie in which windows: by their edges, in order, so that a record costs one search. */
struct window_edges {
    uint64_t *at;
    uint64_t *records, *summed; /* from edge i to before edge i + 1 */
    size_t n;
};

struct judge {
    struct reader *reader;
    struct trace_account a;
    uint64_t first, last; /* numbers of steps */
    uint64_t gaps;        /* between those that are there */
    bool cut, holed;      /* segments before the first one are not there; between two of them */
    uint64_t n_unknown_summed, n_unknown_kernels; /* by sums */
    struct step_sums part;
    struct window_edges edges;
};

static void note(struct judge *j, enum rule rule, const char *what, uint64_t number)
{
    struct trace_wrong *wrong = &j->a.wrong[rule];
    wrong->what = rule_words[rule];
    if (!wrong->n++)
        snprintf(wrong->first, sizeof wrong->first, "%s %" PRIu64, what, number);
}

/* @step: as a record has it. */
static void note_step(struct judge *j, enum rule rule, uint64_t step)
{
    if (step >= DMI_RAN_FIRST) {
        note(j, rule, "step", step - DMI_RAN_FIRST);
        return;
    }
    struct trace_wrong *wrong = &j->a.wrong[rule];
    wrong->what = rule_words[rule];
    if (!wrong->n++)
        snprintf(wrong->first, sizeof wrong->first, "%s",
                 step == DMI_RAN_UNKNOWN ? "no known step" : "no step");
}

/* ------------------------------------------------------------------------- steps */

#define REASONS                                                                                    \
    (DMI_STEP_NO_LAUNCH | DMI_STEP_CAPTURING | DMI_STEP_STREAM_GONE | DMI_STEP_CONTEXT_GONE |      \
     DMI_STEP_REFUSED | DMI_STEP_UNFINISHED | DMI_STEP_ELSEWHERE)
#define KNOWN                                                                                      \
    (REASONS | DMI_STEP_HAS_DEVICE | DMI_STEP_HAS_GAP | DMI_STEP_SEVERAL | DMI_STEP_UNENDED |      \
     DMI_STEP_HOST_LATE)

static void judge_flags(struct judge *j, const struct dmi_step_times *at)
{
    bool timed = at->flags & DMI_STEP_HAS_DEVICE, gap = at->flags & DMI_STEP_HAS_GAP;
    bool known = !(at->flags & ~(uint32_t)KNOWN); /* else one may be a reason */
    if (known && timed == ((at->flags & REASONS) != 0))
        note(j, RULE_REASON, "step", at->number);
    if ((!timed && at->device_ns) || (!gap && at->gap_ns))
        note(j, RULE_UNFLAGGED, "step", at->number);
}

static void take_step(void *ctx, const struct dmi_step_times *at)
{
    struct judge *j = ctx;
    j->a.any = true;
    if (!j->a.n_steps++)
        j->first = at->number;
    else if (at->number <= j->last)
        note(j, RULE_ORDER, "step", at->number);
    else
        j->gaps += at->number - j->last - 1;
    j->last = at->number > j->last ? at->number : j->last;
    judge_flags(j, at);
    if (at->end_ns < at->begin_ns && !j->a.marks.n_clock_sets)
        note(j, RULE_STEP_BACKWARDS, "step", at->number);
}

/*
 * Which numbers are not there, and why: steps for which there was no room have none, those that the disk refused have one, and both are lost. What a
 * release took is known of a trace that ended; else it is what no loss explains.
 */
static void balance_steps(struct judge *j)
{
    struct trace_account *a = &j->a;
    const struct trace_marks *m = &a->marks;
    uint64_t before = a->n_steps ? j->first : 0, absent = before + j->gaps;
    uint64_t may_be = (j->cut ? before : 0) + (j->holed ? j->gaps : 0);
    uint64_t unexplained = absent > m->n_lost ? absent - m->n_lost : 0;
    a->n_released = unexplained < may_be ? unexplained : may_be;
    a->n_missing = unexplained - a->n_released;
    a->steps_balance = !a->n_missing;
    if (!m->has_ended)
        return;
    uint64_t there = a->n_steps + m->n_lost;
    if (a->may_be_released)
        a->n_released = m->n_ended > there ? m->n_ended - there : 0;
    a->steps_balance = a->steps_balance && there + a->n_released == m->n_ended;
}

/* ------------------------------------------------------------------------- ranges */

static bool are_facts(const struct reader_range *range)
{
    if (!range->at.facts_bytes)
        return true;
    json_t *facts = object_parse(range->facts, range->at.facts_bytes), *value;
    const char *key;
    bool good = facts != NULL;
    json_object_foreach(facts, key, value) good = good && json_is_integer(value);
    json_decref(facts);
    return good;
}

static void take_range(void *ctx, const struct reader_range *range)
{
    struct judge *j = ctx;
    j->a.any = true;
    j->a.n_ranges++;
    if (!are_facts(range))
        note(j, RULE_FACTS, "thread", range->at.thread);
    if (range->at.end_ns < range->at.begin_ns && !j->a.marks.n_clock_sets)
        note(j, RULE_RANGE_BACKWARDS, "thread", range->at.thread);
}

/* ------------------------------------------------------------------------- windows */

static int open_edges(struct judge *j)
{
    struct window_edges *e = &j->edges;
    const struct trace_marks *m = &j->a.marks;
    size_t n = 2 * m->n_kept;
    e->at = calloc(n + 1, sizeof *e->at);
    e->records = calloc(n + 1, sizeof *e->records);
    e->summed = calloc(n + 1, sizeof *e->summed);
    if (!e->at || !e->records || !e->summed)
        return -ENOMEM;
    for (size_t i = 0; i < m->n_kept; i++) {
        e->at[e->n++] = m->kept[i].first;
        e->at[e->n++] = m->kept[i].end;
    }
    SORT(e->at, e->n, order_u64);
    return 0;
}

static void count(struct judge *j, uint64_t *of, uint64_t step, uint64_t n)
{
    size_t i = 0;
    uint64_t number = step - DMI_RAN_FIRST;
    if (step < DMI_RAN_FIRST)
        return;
    SEARCH(i, j->edges.n, j->edges.at[i] <= number);
    if (i)
        of[i - 1] += n;
}

static size_t edge_of(const struct window_edges *e, uint64_t number)
{
    size_t i = 0;
    SEARCH(i, e->n, e->at[i] < number);
    return i;
}

/* Sums up to each edge, then what lies between two of them. */
static void close_windows(struct judge *j)
{
    struct window_edges *e = &j->edges;
    uint64_t records = 0, summed = 0;
    for (size_t i = 0; i <= e->n; i++) {
        uint64_t r = e->records[i], s = e->summed[i];
        e->records[i] = records, e->summed[i] = summed;
        records += r, summed += s;
    }
    j->a.windows_balance = true;
    for (size_t i = 0; i < j->a.marks.n_kept; i++) {
        struct trace_window *w = &j->a.marks.kept[i];
        size_t from = edge_of(e, w->first), to = edge_of(e, w->end);
        w->records = e->records[to] - e->records[from];
        w->summed = e->summed[to] - e->summed[from];
        j->a.windows_balance &= w->records == w->summed;
    }
}

/* ------------------------------------------------------------------------- what ran */

/* Where the trace ended, all steps that records name have ended, too. */
static void judge_step(struct judge *j, uint64_t step)
{
    const struct trace_marks *m = &j->a.marks;
    if (m->has_ended && step >= DMI_RAN_FIRST && step - DMI_RAN_FIRST >= m->n_ended)
        note_step(j, RULE_RECORD_STEP, step);
}

static void take_ran(void *ctx, const struct ran *ran)
{
    struct judge *j = ctx;
    j->a.any = true;
    j->a.n_ran++;
    j->a.n_ran_unknown += ran->step == DMI_RAN_UNKNOWN;
    j->a.n_kernels_unknown += ran->step == DMI_RAN_UNKNOWN && ran->shape.kind == DMI_RAN_KERNEL;
    judge_step(j, ran->step);
    if (ran->end_ns < ran->begin_ns)
        note_step(j, RULE_RECORD_BACKWARDS, ran->step);
    if (ran->place.site > j->reader->said.n_sites || (ran->place.layer && !ran->place.site))
        note_step(j, RULE_RECORD_SITE, ran->step);
    count(j, j->edges.records, ran->step, 1);
}

/* ------------------------------------------------------------------------- sums */

static void end_part(struct judge *j)
{
    struct step_sums *p = &j->part;
    if (!p->open)
        return;
    if (p->n != p->busy.n)
        note_step(j, RULE_SUM_COUNT, p->busy.step);
    if (p->busy.sum_ns > p->sum_ns)
        note_step(j, RULE_BUSY_SUMS, p->busy.step);
    if (p->names > MOST_NAMES)
        note_step(j, RULE_SUM_NAMES, p->busy.step);
    *p = (struct step_sums){ 0 };
}

static bool is_zero(const uint32_t size[3])
{
    return !size[0] && !size[1] && !size[2];
}

static void begin_part(struct judge *j, const struct ran_sum *sum)
{
    const struct dmi_trace_shape *shape = &sum->shape;
    end_part(j);
    j->part = (struct step_sums){ .open = true, .busy = *sum };
    j->a.n_summed += sum->n;
    count(j, j->edges.summed, sum->step, sum->n);
    j->n_unknown_summed += sum->step == DMI_RAN_UNKNOWN ? sum->n : 0;
    if (sum->sum_ns > sum->bytes || sum->most_ns > sum->bytes - sum->sum_ns)
        note_step(j, RULE_BUSY, sum->step);
    if (shape->name_bytes || shape->device)
        note_step(j, RULE_SUM_FIELDS, sum->step);
}

static void add_to_part(struct judge *j, const struct ran_sum *sum)
{
    struct step_sums *p = &j->part;
    const bool own = ran_is_own(&sum->shape, sum->name);
    uint64_t most = UINT64_MAX;
    if (!p->open) {
        note_step(j, RULE_SUM_ALONE, sum->step);
        return;
    }
    if (sum->step != p->busy.step)
        note_step(j, RULE_SUM_STEP, sum->step);
    if (__builtin_mul_overflow(sum->n, sum->most_ns, &most))
        most = UINT64_MAX;
    if (sum->most_ns > sum->sum_ns || sum->sum_ns > most)
        note_step(j, RULE_SUM_MOST, sum->step);
    if (sum->most_ns > p->busy.bytes)
        note_step(j, RULE_BUSY, sum->step);
    if (sum->begin_ns != p->busy.begin_ns)
        note_step(j, RULE_SUM_FIELDS, sum->step);
    if (sum->step == DMI_RAN_UNKNOWN &&
        (sum->shape.kind == DMI_RAN_KERNEL || sum->shape.kind == DMI_RAN_FURTHER))
        j->n_unknown_kernels += sum->n;
    p->names += sum->shape.kind == DMI_RAN_KERNEL && !own;
    p->n += sum->n;
    p->sum_ns = sum->sum_ns < UINT64_MAX - p->sum_ns ? p->sum_ns + sum->sum_ns : UINT64_MAX;
}

static void take_sums(void *ctx, uint64_t chunk, const struct ran_sum *all, size_t n)
{
    struct judge *j = ctx;
    (void)chunk;
    j->a.any |= n != 0;
    for (size_t i = 0; i < n; i++) {
        const struct ran_sum *sum = &all[i];
        judge_step(j, sum->step);
        if (!sum->n)
            note_step(j, RULE_SUM_EMPTY, sum->step);
        if (sum->shape.context || sum->shape.stream || !is_zero(sum->shape.grid) ||
            !is_zero(sum->shape.block))
            note_step(j, RULE_SUM_FIELDS, sum->step);
        if (sum->shape.kind == DMI_RAN_BUSY)
            begin_part(j, sum);
        else
            add_to_part(j, sum);
    }
    end_part(j);
}

uint64_t trace_summed_alone(const struct trace_account *a)
{
    bool more = a->n_summed > a->n_ran;
    return a->marks.has_ran ? a->marks.n_ran_summed : more ? a->n_summed - a->n_ran : 0;
}

/*
 * Stored, summed and lost ones are all that CUPTI delivered, and sums are of all but the lost ones, where no segment was released. In the tier full there
 * are no sums.
 */
static void balance_ran(struct trace_account *a)
{
    const struct trace_marks *m = &a->marks;
    uint64_t all = a->n_ran + m->n_ran_summed + m->n_ran_lost;
    uint64_t in_sums = a->n_summed || m->n_ran_summed ? a->n_ran + m->n_ran_summed : 0;
    a->ran_balances =
        !m->has_ran ||
        (a->may_be_released ? all <= m->n_ran : all == m->n_ran && a->n_summed == in_sums);
}

/* ------------------------------------------------------------------------- all of it */

static void judge_marks(struct judge *j)
{
    struct trace_account *a = &j->a;
    a->any |= a->marks.any;
    a->wrong[RULE_NEGATIVE] = a->marks.negative;
    a->wrong[RULE_UNREADABLE] = a->marks.unreadable;
    for (unsigned i = 1; i < a->marks.n_endings; i++)
        note(j, RULE_ENDINGS, "mark", i + 1);
}

static void conclude(struct judge *j)
{
    struct trace_account *a = &j->a;
    const struct trace_marks *m = &a->marks;
    a->n_ran_unknown = a->n_summed ? j->n_unknown_summed : a->n_ran_unknown;
    a->n_kernels_unknown = a->n_summed ? j->n_unknown_kernels : a->n_kernels_unknown;
    judge_marks(j);
    balance_steps(j);
    balance_ran(a);
    close_windows(j);
    a->windows_balance |= a->may_be_released;
    a->holds = a->steps_balance && a->ran_balances && a->windows_balance;
    for (size_t i = 0; i < RULES; i++)
        a->holds &= !a->wrong[i].n;
    a->lost_any = m->n_lost || m->n_ranges_lost || m->n_ran_lost || m->n_ran_dropped;
}

/* What the run says of steps that nothing tells apart. */
static void look_at_overlaps(struct judge *j)
{
    const struct reader_run *run = &j->reader->run;
    for (size_t i = 0; i < run->n_problems; i++) {
        const struct reader_problem *p = &run->problems[i];
        if (strcmp(p->reason, "steps_overlap") != 0)
            continue;
        j->a.n_overlaps = p->times;
        j->a.overlaps = p->sentence;
    }
}

static void look_at_segments(struct judge *j)
{
    const struct reader *r = j->reader;
    for (size_t i = 0; i < r->index.n_segments; i++) {
        uint32_t before = i ? r->index.segments[i - 1].number + 1 : 0;
        *(i ? &j->holed : &j->cut) |= r->index.segments[i].number != before;
    }
    j->a.may_be_released = reader_is_incomplete(r);
}

static int judge_run(struct err *err, struct reader *r, struct judge *j)
{
    *j = (struct judge){ .reader = r, .a = { .path = r->run.path } };
    int res = trace_marks_read(err, r, &j->a.marks);
    if (!res && open_edges(j))
        res = err_set_errno(err, ENOMEM, "cannot read the trace of %s", r->run.path);
    res = res ? res : reader_each_step_times(err, r, take_step, j);
    res = res ? res : reader_each_range(err, r, take_range, j);
    res = res ? res : reader_each_ran(err, r, take_ran, j);
    res = res ? res : reader_sums_by_chunk(err, r, NULL, take_sums, j);
    look_at_segments(j);
    look_at_overlaps(j);
    if (!res)
        conclude(j);
    return res;
}

int trace_judge(struct err *err, struct reader *r,
                void (*fn)(void *ctx, const struct trace_account *account), void *ctx)
{
    size_t n = r->ranks ? r->ranks->n : 1;
    int res = 0;
    for (size_t i = 0; !res && i < n; i++) {
        struct judge j;
        res = judge_run(err, r->ranks ? r->ranks->runs[i] : r, &j);
        if (!res)
            fn(ctx, &j.a);
        trace_marks_deinit(&j.a.marks);
        free(j.edges.at);
        free(j.edges.records);
        free(j.edges.summed);
    }
    return res;
}

static void note_account(void *ctx, const struct trace_account *a)
{
    struct reader_notes *notes = ctx;
    const struct trace_marks *m = &a->marks;
    for (size_t i = 0; i < TRACE_RULES; i++)
        if (a->wrong[i].n)
            reader_note(notes, true, "trace", -1, 0,
                        "%s: the trace: %s: %" PRIu64 ", the first: %s", a->path, a->wrong[i].what,
                        a->wrong[i].n, a->wrong[i].first);
    if (a->any && !(a->steps_balance && a->ran_balances && a->windows_balance))
        reader_note(notes, true, "trace", -1, 0,
                    "%s: the trace: numbers do not balance (dmi-trace check has them)", a->path);
    if (a->lost_any)
        reader_note(notes, false, "trace", -1, 0,
                    "%s: the trace is not complete: it lacks %" PRIu64 " steps, %" PRIu64
                    " ranges and %" PRIu64 " records",
                    a->path, m->n_lost, m->n_ranges_lost, m->n_ran_lost + m->n_ran_dropped);
    if (a->n_kernels_unknown)
        reader_note(notes, false, "trace", -1, 0,
                    "%s: the trace: %" PRIu64 " kernels have no known step", a->path,
                    a->n_kernels_unknown);
}

int trace_note_findings(struct err *err, struct reader *r)
{
    return trace_judge(err, r, note_account, &r->notes);
}
