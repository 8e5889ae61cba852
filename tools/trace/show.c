/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/steps.h"

#include "core/grow.h"
#include "core/sorted.h"
#include "read/value.h"
#include "tools/common/report.h"
#include "tools/trace/kernels.h"
#include "tools/trace/runs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A range that meets the step. */
struct met_range {
    struct dmi_range_entry at;
    char *name, *facts;
};

struct step_page {
    struct report report;
    uint64_t number; /* of the step */
    bool found, failed, full_names;
    struct dmi_step_times at;
    bool has_before;
    struct dmi_step_times
        before; /* that ended last before the step began; of those of its thread, where threads have steps of their own */
    uint64_t begin_ns;         /* offsets are from here */
    uint64_t since_ns, end_ns; /* ranges that meet this are shown */
    struct met_range *all;
    size_t n, room;
    size_t n_found; /* runs that have the step */
};

static void take_range(void *ctx, const struct reader_range *range)
{
    struct step_page *a = ctx;
    if (a->failed || range->at.end_ns < a->since_ns || range->at.begin_ns > a->end_ns)
        return;
    if ((a->failed = GROW(a->all, a->n, a->room)))
        return;
    struct met_range *s = &a->all[a->n++];
    *s = (struct met_range){ range->at, strndup(range->name, range->at.name_bytes),
                             strndup(range->facts, range->at.facts_bytes) };
    a->failed = !s->name || !s->facts;
}

static double ms(uint64_t from, uint64_t to)
{
    return (double)(int64_t)(to - from) / 1e6;
}

static void show_ranges(struct step_page *a)
{
    uint32_t thread = 0;
    SORT(a->all, a->n, runs_range_order);
    if (!a->n)
        report_line(&a->report, "No range meets it, or what lies between it and the step before. "
                                "dmi_range_begin(), dmi.range() and NVTX make some.");
    for (size_t i = 0; i < a->n; i++) {
        const struct met_range *s = &a->all[i];
        if (!s->at.thread && !i)
            report_line(&a->report, "all threads");
        else if (!i || s->at.thread != thread)
            report_line(&a->report, "thread %" PRIu32, s->at.thread);
        thread = s->at.thread;
        report_line(&a->report, "  %+10.3f ms %10.3f ms  %*s%s%s%s",
                    ms(a->begin_ns, s->at.begin_ns), ms(s->at.begin_ns, s->at.end_ns),
                    2 * (int)s->at.depth, "", s->name, *s->facts ? "  " : "", s->facts);
    }
}

static const char *source_word(uint16_t source)
{
    return source == DMI_RANGE_NVTX      ? "nvtx"
           : source == DMI_RANGE_CALL    ? "call"
           : source == DMI_RANGE_STOPPED ? "stopped"
                                         : "said";
}

static json_t *range_json(const struct step_page *a, const struct met_range *s)
{
    json_t *facts = *s->facts ? object_parse(s->facts, strlen(s->facts)) : NULL;
    return VALUE_OBJECT({ "name", value_text(s->name) },
                        { "offset_ns", json_integer((json_int_t)(s->at.begin_ns - a->begin_ns)) },
                        { "ns", json_integer((json_int_t)(s->at.end_ns - s->at.begin_ns)) },
                        { "thread", value_u64(s->at.thread) }, { "depth", value_u64(s->at.depth) },
                        { "facts", facts ? facts : json_object() },
                        { "source", json_string(source_word(s->at.source)) },
                        { "overlaps", json_boolean(s->at.source == DMI_RANGE_OVERLAPS) });
}

static void show_step(struct step_page *a, const struct dmi_step_times *at)
{
    const char *reason = runs_reason(at);
    char step[48] = "", device[64];
    if (at->engine_step != DMI_NO_STEP)
        snprintf(step, sizeof step, ", step %" PRIu64 " of the engine", at->engine_step);
    else if (at->step != DMI_NO_STEP) /* of a run before 2026-11-29 */
        snprintf(step, sizeof step, ", sequence %" PRIu64, at->step);
    if (reason)
        snprintf(device, sizeof device, "%s", reason);
    else
        snprintf(device, sizeof device, "%s%.3f ms%s", at->flags & DMI_STEP_HOST_LATE ? "<= " : "",
                 (double)at->device_ns / 1e6,
                 at->flags & DMI_STEP_HOST_LATE ? ": it was done before the host looked" : "");
    report_line(&a->report, "step    %" PRIu64 "%s, begun by %s", at->number, step,
                runs_source(at->source));
    report_line(&a->report, "host    %.3f ms, its first launch after %.3f ms",
                ms(at->begin_ns, at->end_ns), at->launch_ns ? ms(at->begin_ns, at->launch_ns) : 0);
    if (a->has_before)
        report_line(&a->report, "before  %.3f ms on the host since step %" PRIu64 " ended",
                    ms(a->before.end_ns, at->begin_ns), a->before.number);
    report_line(&a->report, "device  %s", device);
    if (at->flags & DMI_STEP_HAS_GAP)
        report_line(&a->report, "gap     %.3f ms before it", (double)at->gap_ns / 1e6);
    report_line(&a->report,
                "batch   %" PRIu32 " rows, %" PRIu32 " requests, %" PRIu32
                " tokens of prefill, %" PRIu32 " of decode",
                at->rows, at->requests, at->prefill, at->decode);
    report_line(&a->report,
                "work    %" PRIu32 " kernels, %" PRIu32 " graphs, %" PRIu32 " kernels of DMI's",
                at->launches, at->graph_launches, at->own);
    report_line(&a->report,
                "waits   %" PRIu32 ", %.3f ms; %" PRIu32 " loads and %" PRIu32
                " allocations, %.3f ms",
                at->waits, (double)at->wait_us / 1e3, at->loads, at->allocations,
                (double)at->stall_ns / 1e6);
}

static void show_json(struct step_page *a, const struct dmi_step_times *at)
{
    report_member(&a->report, "step", trace_step_row(at));
    report_member(&a->report, "since_before_ns",
                  a->has_before ? json_integer((json_int_t)(at->begin_ns - a->before.end_ns))
                                : json_null());
    report_table(&a->report, "ranges", NULL, 0);
    SORT(a->all, a->n, runs_range_order);
    for (size_t i = 0; i < a->n; i++)
        report_row(&a->report, range_json(a, &a->all[i]));
    report_table_end(&a->report);
}

static void forget(struct step_page *a)
{
    for (size_t i = 0; i < a->n; i++) {
        free(a->all[i].name);
        free(a->all[i].facts);
    }
    a->n = 0;
}

static void find_step(void *ctx, const struct dmi_step_times *at)
{
    struct step_page *a = ctx;
    if (at->number == a->number) {
        a->at = *at;
        a->found = true;
    }
}

static void find_before(void *ctx, const struct dmi_step_times *at)
{
    struct step_page *a = ctx;
    bool same = at->source == DMI_STEP_ENGINE && a->at.source == DMI_STEP_ENGINE;
    if ((!same && at->thread != a->at.thread) || at->number == a->number ||
        at->end_ns > a->at.begin_ns || (a->has_before && at->end_ns < a->before.end_ns))
        return;
    a->before = *at;
    a->has_before = true;
}

/* Ranges that were lost while the step ran, or since the one before ended. */
static void show_lost(struct step_page *a, const struct trace_marks *m)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < m->n_range_losses; i++) {
        const struct trace_ranges_lost *l = &m->ranges_lost[i];
        if (l->until_ns < a->since_ns || l->after_ns > a->end_ns)
            continue;
        report_line(&a->report,
                    "lost    %" PRIu64
                    " ranges, from %+.3f ms to %+.3f ms of its begin: some of them may be its",
                    l->n, ms(a->begin_ns, l->after_ns), ms(a->begin_ns, l->until_ns));
        json_array_append_new(
            rows, json_pack("{s:o, s:o, s:o}", "n", value_u64(l->n), "from_offset_ns",
                            json_integer((json_int_t)(l->after_ns - a->begin_ns)), "to_offset_ns",
                            json_integer((json_int_t)(l->until_ns - a->begin_ns))));
    }
    report_member(&a->report, "ranges_lost", rows);
}

/* Return: 0; REPORT_IMPOSSIBLE, which is said. */
static int read_run(struct step_page *a, const struct trace_run *t)
{
    struct err err = { 0 };
    a->found = a->has_before = false;
    forget(a);
    int r = reader_each_step_times(&err, t->reader, find_step, a);
    if (!r && a->found)
        r = reader_each_step_times(&err, t->reader, find_before, a);
    a->begin_ns = a->at.begin_ns;
    a->end_ns = a->at.end_ns;
    a->since_ns = a->has_before ? a->before.end_ns : a->begin_ns;
    if (!r && a->found)
        r = reader_each_range(&err, t->reader, take_range, a);
    if (r)
        complain("%s", err.msg);
    return r ? REPORT_IMPOSSIBLE : 0;
}

static int show_run(const struct trace_run *t, void *ctx)
{
    struct step_page *a = ctx;
    int r = read_run(a, t);
    if (r || !a->found)
        return r;
    a->n_found++;
    a->report = (struct report){ .json = a->report.json };
    report_line(&a->report, "run     %s", t->run->path);
    report_member(&a->report, "run", value_text(t->run->path));
    if (a->report.json) {
        show_json(a, &a->at);
    } else {
        show_step(a, &a->at);
        show_ranges(a);
    }
    show_lost(a, &t->marks);
    a->report.failed |= a->failed;
    if (kernels_of_step(&a->report, t, a->number, a->full_names))
        return REPORT_IMPOSSIBLE;
    return report_end(&a->report, 0);
}

int trace_show(const char *path, struct kernels_form form, uint64_t number)
{
    struct step_page a = { .report.json = form.json,
                           .full_names = form.full_names,
                           .number = number };
    int r = runs_each(path, show_run, &a);
    if (!r && !a.n_found) {
        complain("%s: no step has the number %" PRIu64 "; dmi-trace steps --each lists them", path,
                 number);
        r = REPORT_IMPOSSIBLE;
    }
    forget(&a);
    free(a.all);
    return r;
}
