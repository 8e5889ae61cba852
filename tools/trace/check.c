/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/runs.h"
#include "tools/trace/steps.h"

#include "tools/common/report.h"
#include "tools/common/say.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

enum { CHECK_FAILED = 1 };

/* What numbers say: they rise by one, from 0 where no segment was released. */
struct numbers {
    uint64_t before;  /* steps before the first one that is there: released with their segments */
    uint64_t missing; /* between those that are there */
    uint64_t twice;   /* or out of order */
};

static struct numbers numbers_of(const struct trace_run *t)
{
    struct numbers n = { .before = t->n_steps ? t->steps[0].number : 0 };
    for (size_t i = 1; i < t->n_steps; i++) {
        uint64_t last = t->steps[i - 1].number, next = t->steps[i].number;
        n.twice += next <= last;
        n.missing += next > last ? next - last - 1 : 0;
    }
    return n;
}

/* Steps whose flags contradict each other. */
static uint64_t contradictions(const struct trace_run *t)
{
    uint64_t n = 0;
    for (size_t i = 0; i < t->n_steps; i++) {
        bool timed = t->steps[i].flags & DMI_STEP_HAS_DEVICE;
        n += timed != (t->steps[i].flags < DMI_STEP_NO_LAUNCH);
    }
    return n;
}

/* Records of what ran. */
struct ran_counts {
    uint64_t stored, unknown;
    uint64_t busy, summed; /* that sums are of, all together, and name by name */
    uint64_t unknown_summed;
    const struct trace_run *run;
    uint64_t *kept,
        *kept_summed; /* of each window that was kept: records, and those that sums are of */
    uint64_t n_torn;  /* windows in which these differ */
    bool holds;
};

static void count_kept(const struct ran_counts *n, uint64_t *of, uint64_t step, uint64_t records)
{
    for (size_t i = 0; i < n->run->n_kept; i++)
        of[i] +=
            step >= DMI_RAN_FIRST && runs_step_asked(&n->run->kept[i].steps, step - DMI_RAN_FIRST)
                ? records
                : 0;
}

static void count_ran(void *ctx, const struct ran *ran)
{
    struct ran_counts *n = ctx;
    n->stored++;
    n->unknown += ran->step == DMI_RAN_UNKNOWN;
    count_kept(n, n->kept, ran->step, 1);
}

static void count_sum(void *ctx, const struct ran_sum *sum)
{
    struct ran_counts *n = ctx;
    bool busy = sum->shape.kind == DMI_RAN_BUSY;
    *(busy ? &n->busy : &n->summed) += sum->n;
    count_kept(n, n->kept_summed, sum->step, busy ? sum->n : 0);
    n->unknown_summed += busy && sum->step == DMI_RAN_UNKNOWN ? sum->n : 0;
}

/*
 * Stored, summed and lost ones are all that CUPTI delivered, and sums are of all but the lost ones, where no segment was released. In the tier full there
 * are no sums.
 */
static bool accounts(const struct trace_run *t, bool released, const struct ran_counts *n)
{
    uint64_t all = n->stored + t->n_ran_summed + t->n_ran_lost;
    uint64_t in_sums = n->busy || t->n_ran_summed ? n->stored + t->n_ran_summed : 0;
    if (n->busy != n->summed)
        return false;
    if (!t->has_ran)
        return true;
    return released ? all <= t->n_ran : all == t->n_ran && n->busy == in_sums;
}

static int ran_of(const struct trace_run *t, bool released, struct ran_counts *n)
{
    struct err err = { 0 };
    *n = (struct ran_counts){ .run = t,
                              .kept = calloc(t->n_kept + 1, sizeof *n->kept),
                              .kept_summed = calloc(t->n_kept + 1, sizeof *n->kept_summed) };
    int r =
        n->kept && n->kept_summed ? 0 : err_set_errno(&err, ENOMEM, "cannot read %s", t->run->path);
    r = r ? r : reader_each_ran(&err, t->reader, count_ran, n);
    r = r ? r : reader_each_sum(&err, t->reader, count_sum, n);
    for (size_t i = 0; !r && i < t->n_kept; i++)
        n->n_torn += n->kept[i] != n->kept_summed[i];
    if (r)
        complain("%s", err.msg);
    n->unknown = n->busy ? n->unknown_summed : n->unknown;
    n->holds = accounts(t, released, n) && (released || !n->n_torn);
    return r ? REPORT_IMPOSSIBLE : 0;
}

/* Those that are in sums alone. A trace that did not end says no number: then sums are of those that are stored, too. */
static uint64_t summed(const struct trace_run *t, const struct ran_counts *n)
{
    bool more = n->busy > n->stored;
    return t->has_ran ? t->n_ran_summed : more ? n->busy - n->stored : 0;
}

static void say_kept(struct report *report, const struct trace_run *t, const struct ran_counts *n)
{
    for (size_t i = 0; i < t->n_kept; i++)
        report_line(report,
                    "  kept on demand: steps %" PRIu64 ":%" PRIu64 ", %" PRIu64 " of %" PRIu64
                    " records; %" PRIu64 " steps before them were not in memory any more",
                    t->kept[i].steps.first, t->kept[i].steps.end, n->kept[i], n->kept_summed[i],
                    t->kept[i].gone);
    if (t->has_ring)
        report_line(report,
                    "  in memory at the end: steps %" PRIu64 ":%" PRIu64 "; %" PRIu64
                    " records had gone unasked",
                    t->ring.first, t->ring.end, t->n_ring_gone);
}

static void say_lost(struct report *report, const struct trace_run *t)
{
    for (size_t i = 0; i < TRACE_LOSSES && t->lost[i].n; i++)
        report_line(report, "  lost: %" PRIu64 ": %s", t->lost[i].n, t->lost[i].why);
}

/* {reason: records} */
static json_t *lost_rows(const struct trace_run *t)
{
    json_t *rows = json_object();
    for (size_t i = 0; i < TRACE_LOSSES && t->lost[i].n; i++)
        json_object_set_new(rows, t->lost[i].why, value_u64(t->lost[i].n));
    return rows;
}

static void say_ran(struct report *report, const struct trace_run *t, const struct ran_counts *n)
{
    if (*t->alone)
        report_line(report, "  steps alone: %s", t->alone);
    runs_say_lent(report, t);
    if (!t->has_ran && !n->stored && !n->busy)
        return;
    report_line(report,
                "  records of what ran: %" PRIu64 " stored + %" PRIu64 " summed + %" PRIu64
                " lost %s %" PRIu64 "; %" PRIu64 " of no known step; CUPTI dropped %" PRIu64,
                n->stored, summed(t, n), t->n_ran_lost,
                !t->has_ran ? "of"
                : n->holds  ? "="
                            : "!=",
                t->has_ran ? t->n_ran : n->stored + summed(t, n), n->unknown, t->n_ran_dropped);
}

struct checked {
    struct report report;
    bool failed;
};

static const char *verdict(const struct trace_run *t, const struct numbers *n, uint64_t wrong,
                           bool *good)
{
    uint64_t there = n->before + t->n_steps + t->n_lost;
    *good = !n->missing && !n->twice && !wrong && !t->n_damage &&
            (!t->has_ended || there == t->n_ended);
    if (!t->traced)
        return "the run has no trace";
    if (!*good)
        return "MISMATCH";
    return t->has_ended ? "the trace is complete"
                        : "the process was killed, or goes on: what came last is not known";
}

static void forget(struct ran_counts *n)
{
    free(n->kept);
    free(n->kept_summed);
}

/* The windows that were kept: their first step, the one after the last, their records. */
static json_t *kept_rows(const struct trace_run *t, const struct ran_counts *n)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < t->n_kept; i++)
        json_array_append_new(
            rows,
            json_pack("{s:o, s:o, s:o, s:o, s:o}", "first", value_u64(t->kept[i].steps.first),
                      "end", value_u64(t->kept[i].steps.end), "records", value_u64(n->kept[i]),
                      "summed", value_u64(n->kept_summed[i]), "gone", value_u64(t->kept[i].gone)));
    return rows;
}

static json_t *row_of(const struct trace_run *t, const struct numbers *n, uint64_t wrong,
                      const struct ran_counts *ran, bool good)
{
    json_t *row = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:b}", "run",
                            value_text(t->run->path), "stored", value_u64(t->n_steps), "released",
                            value_u64(n->before), "lost", value_u64(t->n_lost), "ended",
                            t->has_ended ? value_u64(t->n_ended) : json_null(), "missing",
                            value_u64(n->missing), "out_of_order", value_u64(n->twice),
                            "contradict", value_u64(wrong), "traced", t->traced, "holds", good);
    json_t *more = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "ran_stored", value_u64(ran->stored),
        "ran_summed", value_u64(summed(t, ran)), "sums", value_u64(ran->busy), "ran_lost",
        value_u64(t->n_ran_lost), "ran_lost_why", lost_rows(t), "ran",
        t->has_ran ? value_u64(t->n_ran) : json_null(), "ran_unknown", value_u64(ran->unknown),
        "ran_dropped", value_u64(t->n_ran_dropped), "ring_gone",
        t->has_ring ? value_u64(t->n_ring_gone) : json_null(), "kept", kept_rows(t, ran));
    if (json_object_update(row, more)) {
        json_decref(row);
        row = NULL;
    }
    json_decref(more);
    return row;
}

static int check_run(const struct trace_run *t, void *ctx)
{
    struct checked *c = ctx;
    struct numbers n = numbers_of(t);
    uint64_t wrong = contradictions(t);
    bool good;
    const char *words = verdict(t, &n, wrong, &good);
    struct ran_counts ran;
    if (ran_of(t, n.before, &ran)) {
        forget(&ran);
        return REPORT_IMPOSSIBLE;
    }
    if (!ran.holds)
        words = "MISMATCH";
    good = good && ran.holds;
    c->failed |= !good;
    report_line(&c->report, "%s: %s", t->run->path, words);
    report_line(&c->report,
                "  %zu steps stored + %" PRIu64 " released + %" PRIu64 " lost %s %s; %" PRIu64
                " missing, %" PRIu64 " out of order, %" PRIu64 " contradict themselves",
                t->n_steps, n.before, t->n_lost, t->has_ended ? "=" : "of",
                t->has_ended ? "all that ended" : "those that ended", n.missing, n.twice, wrong);
    say_ran(&c->report, t, &ran);
    say_lost(&c->report, t);
    say_kept(&c->report, t, &ran);
    if (c->report.json)
        report_row(&c->report, row_of(t, &n, wrong, &ran, good));
    forget(&ran);
    return 0;
}

int trace_check(char **paths, bool json)
{
    struct checked c = { .report.json = json };
    int r = 0;
    if (json)
        report_table(&c.report, NULL, NULL, 0);
    for (size_t i = 0; !r && paths[i]; i++)
        r = runs_each(paths[i], check_run, &c);
    if (json)
        report_table_end(&c.report);
    return r ? r : report_end(&c.report, c.failed ? CHECK_FAILED : 0);
}
