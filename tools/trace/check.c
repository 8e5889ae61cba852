/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/runs.h"
#include "read/value.h"
#include "tools/trace/steps.h"

#include "tools/common/report.h"
#include "tools/common/say.h"
#include "tools/common/trace_words.h"

#include <inttypes.h>

enum { CHECK_FAILED = 1 };

struct checked {
    struct report report;
    const struct trace_run *run;
    bool failed;
    size_t n_traced;
};

/* ------------------------------------------------------------------------- lines */

static void say_steps(struct report *report, const struct trace_account *a)
{
    report_line(report,
                "  steps: %" PRIu64 " stored + %" PRIu64 " released + %" PRIu64 " lost %s; %" PRIu64
                " missing",
                a->n_steps, a->n_released, a->marks.n_lost,
                !a->marks.has_ended ? "of those that ended"
                : a->steps_balance  ? "= all that ended"
                                    : "!= all that ended",
                a->n_missing);
    if (a->n_ranges || a->marks.n_ranges_lost)
        report_line(report, "  ranges: %" PRIu64 " stored + %" PRIu64 " lost", a->n_ranges,
                    a->marks.n_ranges_lost);
}

/* Launches of these are of no known step, or of the step of their thread alone. */
static void say_overlaps(struct report *report, const struct trace_account *a)
{
    if (a->overlaps)
        report_line(report, "  steps under way together: %" PRIu64 ": %s", a->n_overlaps,
                    a->overlaps);
}

static void say_ran(struct report *report, const struct trace_run *t, const struct trace_account *a)
{
    const struct trace_marks *m = &a->marks;
    uint64_t summed = trace_summed_alone(a);
    if (*m->alone)
        report_line(report, "  steps alone: %s", m->alone);
    runs_say_lent(report, t);
    if (!m->has_ran && !a->n_ran && !a->n_summed)
        return;
    report_line(report,
                "  records of what ran: %" PRIu64 " stored + %" PRIu64 " summed + %" PRIu64
                " lost %s %" PRIu64 "; %" PRIu64 " of no known step; CUPTI dropped %" PRIu64,
                a->n_ran, summed, m->n_ran_lost,
                !m->has_ran       ? "of"
                : a->ran_balances ? "="
                                  : "!=",
                m->has_ran ? m->n_ran : a->n_ran + summed, a->n_ran_unknown, m->n_ran_dropped);
    if (a->n_kernels_unknown && !a->overlaps)
        report_line(report, "  kernels of no known step: the log of the process says why");
    else if (a->n_ran_unknown && !a->n_kernels_unknown)
        report_line(report,
                    "  of no known step: copies and fills in streams without kernels before "
                    "them");
    for (size_t i = 0; i < TRACE_LOSSES && m->losses[i].n; i++)
        report_line(report, "  lost: %" PRIu64 ": %s", m->losses[i].n, m->losses[i].why);
}

static void say_kept(struct report *report, const struct trace_marks *m)
{
    for (size_t i = 0; i < m->n_kept; i++)
        report_line(report,
                    "  kept on demand: steps %" PRIu64 ":%" PRIu64 ", %" PRIu64 " of %" PRIu64
                    " records; %" PRIu64 " steps before them were not in memory any more",
                    m->kept[i].first, m->kept[i].end, m->kept[i].records, m->kept[i].summed,
                    m->kept[i].gone);
    if (m->has_ring)
        report_line(report,
                    "  in memory at the end: steps %" PRIu64 ":%" PRIu64 "; %" PRIu64
                    " records had gone unasked",
                    m->ring.first, m->ring.end, m->n_ring_gone);
}

/* ------------------------------------------------------------------------- JSON */

/* {reason: records} */
static json_t *lost_rows(const struct trace_marks *m)
{
    json_t *rows = json_object();
    for (size_t i = 0; i < TRACE_LOSSES && m->losses[i].n; i++)
        json_object_set_new(rows, m->losses[i].why, value_u64(m->losses[i].n));
    return rows;
}

/* The windows that were kept: their first step, the one after the last, their records. */
static json_t *kept_rows(const struct trace_marks *m)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < m->n_kept; i++)
        json_array_append_new(
            rows,
            json_pack("{s:o, s:o, s:o, s:o, s:o}", "first", value_u64(m->kept[i].first), "end",
                      value_u64(m->kept[i].end), "records", value_u64(m->kept[i].records), "summed",
                      value_u64(m->kept[i].summed), "gone", value_u64(m->kept[i].gone)));
    return rows;
}

static json_t *known(bool is, uint64_t n)
{
    return is ? value_u64(n) : json_null();
}

static json_t *row_of(const struct trace_account *a, bool holds, bool complete)
{
    const struct trace_marks *m = &a->marks;
    return VALUE_OBJECT(
        { "run", value_text(a->path) }, { "stored", value_u64(a->n_steps) },
        { "released", value_u64(a->n_released) }, { "lost", value_u64(m->n_lost) },
        { "ended", known(m->has_ended, m->n_ended) }, { "missing", value_u64(a->n_missing) },
        { "ranges_stored", value_u64(a->n_ranges) }, { "ranges_lost", value_u64(m->n_ranges_lost) },
        { "traced", json_boolean(a->any) }, { "holds", json_boolean(holds) },
        { "complete", json_boolean(complete) }, { "wrong", trace_words_wrong_rows(a) },
        { "ran_stored", value_u64(a->n_ran) }, { "ran_summed", value_u64(trace_summed_alone(a)) },
        { "sums", value_u64(a->n_summed) }, { "ran_lost", value_u64(m->n_ran_lost) },
        { "ran_lost_why", lost_rows(m) }, { "ran", known(m->has_ran, m->n_ran) },
        { "ran_unknown", value_u64(a->n_ran_unknown) },
        { "ran_dropped", value_u64(m->n_ran_dropped) },
        { "ring_gone", known(m->has_ring, m->n_ring_gone) }, { "kept", kept_rows(m) },
        { "steps_overlap", value_u64(a->n_overlaps) },
        { "kernels_unknown", value_u64(a->n_kernels_unknown) });
}

/* ------------------------------------------------------------------------- a run */

static void take_account(void *ctx, const struct trace_account *a)
{
    struct checked *c = ctx;
    size_t n_damage = runs_damage(c->run);
    bool holds = a->holds && !n_damage;
    char words[256];
    trace_words_verdict(a, n_damage, c->run->run->state, words);
    c->failed |= !holds || a->lost_any || a->n_kernels_unknown;
    c->n_traced += a->any || n_damage;
    report_line(&c->report, "%s: %s", a->path, words);
    if (c->report.json)
        report_row(
            &c->report,
            row_of(a, holds, holds && !a->lost_any && !a->n_kernels_unknown && a->marks.has_ended));
    if (c->report.json || !a->any)
        return;
    say_steps(&c->report, a);
    say_overlaps(&c->report, a);
    say_ran(&c->report, c->run, a);
    say_kept(&c->report, &a->marks);
    trace_words_wrong(&c->report, a);
}

static int check_run(const struct trace_run *t, void *ctx)
{
    struct checked *c = ctx;
    struct err err = { 0 };
    c->run = t;
    if (!trace_judge(&err, t->reader, take_account, c))
        return 0;
    complain("%s", err.msg);
    return REPORT_IMPOSSIBLE;
}

int trace_check(char **paths, bool json)
{
    struct checked c = { .report.json = json };
    int r = 0;
    bool none = false;
    if (json)
        report_table(&c.report, NULL, NULL, 0);
    for (size_t i = 0; !r && paths[i]; i++) {
        size_t before = c.n_traced;
        r = runs_each(paths[i], check_run, &c);
        none |= c.n_traced == before;
    }
    if (json)
        report_table_end(&c.report);
    if (!r && none) /* a run was asked for that has nothing to check */
        r = REPORT_IMPOSSIBLE;
    return r ? r : report_end(&c.report, c.failed ? CHECK_FAILED : 0);
}
