/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/runs.h"
#include "tools/trace/steps.h"

#include "tools/common/report.h"

#include <inttypes.h>

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

static int check_run(const struct trace_run *t, void *ctx)
{
    struct checked *c = ctx;
    struct numbers n = numbers_of(t);
    uint64_t wrong = contradictions(t);
    bool good;
    const char *words = verdict(t, &n, wrong, &good);
    c->failed |= !good;
    report_line(&c->report, "%s: %s", t->run->path, words);
    report_line(&c->report,
                "  %zu steps stored + %" PRIu64 " released + %" PRIu64 " lost %s %s; %" PRIu64
                " missing, %" PRIu64 " out of order, %" PRIu64 " contradict themselves",
                t->n_steps, n.before, t->n_lost, t->has_ended ? "=" : "of",
                t->has_ended ? "all that ended" : "those that ended", n.missing, n.twice, wrong);
    if (c->report.json)
        report_row(&c->report,
                   json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:b}", "run",
                             value_text(t->run->path), "stored", value_u64(t->n_steps), "released",
                             value_u64(n.before), "lost", value_u64(t->n_lost), "ended",
                             t->has_ended ? value_u64(t->n_ended) : json_null(), "missing",
                             value_u64(n.missing), "out_of_order", value_u64(n.twice), "contradict",
                             value_u64(wrong), "traced", t->traced, "holds", good));
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
