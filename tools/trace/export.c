/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes where on Perfetto's time line: a process a run; in it the steps on the host, the steps on each device, a track a thread with ranges, a
 * counter of rows, and streams with what ran in them.
 *
 * Host times and device times have no clock in common, so steps on a device are laid out by their gaps: one follows the one before it, and none begins
 * before its first launch. Where no gap is known a step begins at its first launch.
 */
#include "tools/trace/export.h"

#include "core/cleanup.h"
#include "core/sorted.h"
#include "core/words.h"
#include "tools/common/report.h"
#include "tools/trace/export_ran.h"
#include "tools/trace/export_ranges.h"
#include "tools/trace/perfetto.h"
#include "tools/trace/runs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MOST_DEVICES 64u

struct trace_export {
    struct perfetto out;
    const struct export_asked *asked;
    size_t n_runs, n_untraced, n_steps;
    uint64_t last_flow; /* number of the last flow */
};

/* ------------------------------------------------------------------------- steps */

static void name_step(const struct dmi_step_times *at, char name[64])
{
    const char *phase = at->prefill && at->decode ? "mixed"
                        : at->prefill             ? "prefill"
                        : at->decode              ? "decode"
                                                  : "step";
    if (at->rows)
        snprintf(name, 64, "%s %" PRIu32 " rows", phase, at->rows);
    else
        snprintf(name, 64, "%s", phase);
}

#define N_FACTS 15
static void facts_of(const struct dmi_step_times *at, struct perfetto_fact facts[N_FACTS])
{
    const struct perfetto_fact all[N_FACTS] = {
        { "number", (int64_t)at->number, NULL },
        { "step", at->engine_step == DMI_NO_STEP ? -1 : (int64_t)at->engine_step, NULL },
        { "requests", at->requests, NULL },
        { "prefill tokens", at->prefill, NULL },
        { "decode tokens", at->decode, NULL },
        { "tokens of the requests", (int64_t)at->context, NULL },
        { "kernels", at->launches, NULL },
        { "graphs", at->graph_launches, NULL },
        { "kernels of DMI's", at->own, NULL },
        { "waits", at->waits, NULL },
        { "waited us", at->wait_us, NULL },
        { "loads", at->loads, NULL },
        { "allocations", at->allocations, NULL },
        { "stalled ns", (int64_t)at->stall_ns, NULL },
        { "begun by", 0, runs_source(at->source) },
    };
    memcpy(facts, all, sizeof all);
}

static void put_slice(struct perfetto *p, uint64_t track, uint64_t begin, uint64_t end,
                      const struct dmi_step_times *at, const struct perfetto_flows *flows)
{
    struct perfetto_fact facts[N_FACTS];
    char name[64];
    name_step(at, name);
    facts_of(at, facts);
    perfetto_begin_linked(p, track, begin, name, facts, N_FACTS, flows);
    perfetto_end(p, track, end > begin ? end : begin);
}

/* Where the steps of one device lie: those that overlap go to a second lane. */
struct device {
    uint64_t lanes[2], ends[2]; /* tracks, 0: not there yet; and where their last slice ends */
    uint64_t last_end;          /* of the step before */
};

static uint64_t lane_of(struct perfetto *p, struct device *d, uint64_t process, uint32_t number,
                        unsigned lane)
{
    char name[64];
    snprintf(name, sizeof name, "steps on device %" PRIu32 "%s", number,
             lane ? ", overlapping" : "");
    if (!d->lanes[lane])
        d->lanes[lane] = perfetto_track(p, process, name);
    return d->lanes[lane];
}

static void put_on_device(struct trace_export *a, struct device *d, uint64_t process,
                          const struct dmi_step_times *at, struct export_ranges *ranges)
{
    uint64_t begin = at->launch_ns;
    if (at->flags & DMI_STEP_HAS_GAP && d->last_end && d->last_end + (uint64_t)at->gap_ns > begin)
        begin = d->last_end + (uint64_t)at->gap_ns;
    unsigned lane = begin < d->ends[0];
    begin = lane && begin < d->ends[1] ? d->ends[1] : begin;
    d->last_end = d->ends[lane] = begin + at->device_ns;
    struct perfetto_flows flows = { .ends = true, .ids = { ++a->last_flow } };
    flows.n = export_ranges_launch(ranges, at, a->last_flow);
    put_slice(&a->out, lane_of(&a->out, d, process, at->device, lane), begin, d->ends[lane], at,
              &flows);
}

/* Steps of the engine have one track, those of threads one each. */
static uint64_t host_track(struct trace_export *a, uint64_t process,
                           const struct dmi_step_times *at, uint64_t *track, uint32_t *thread)
{
    char name[64] = "steps";
    uint32_t of = at->source == DMI_STEP_ENGINE ? 0 : at->thread;
    if (*track && *thread == of)
        return *track;
    if (of)
        snprintf(name, sizeof name, "steps of thread %" PRIu32, of);
    *thread = of;
    return *track = perfetto_track(&a->out, process, name);
}

static int by_thread(const void *pa, const void *pb)
{
    const struct dmi_step_times *a = pa, *b = pb;
    uint32_t x = a->source == DMI_STEP_ENGINE ? 0 : a->thread;
    uint32_t y = b->source == DMI_STEP_ENGINE ? 0 : b->thread;
    if (x != y)
        return x < y ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

/* It leaves them in another order. */
static void put_steps(struct trace_export *a, struct runs_times *times, uint64_t process,
                      struct export_ranges *ranges)
{
    struct device *devices = calloc(MOST_DEVICES, sizeof *devices);
    uint64_t rows = perfetto_counter(&a->out, process, "rows of the batch", "rows"), track = 0;
    uint32_t thread = 0;
    if (!devices)
        a->out.error = ENOMEM;
    for (size_t i = 0; devices && i < times->n; i++) {
        const struct dmi_step_times *at = &times->all[i];
        a->n_steps++;
        perfetto_count(&a->out, rows, at->begin_ns, at->rows);
        if (at->flags & DMI_STEP_HAS_DEVICE && at->device < MOST_DEVICES)
            put_on_device(a, &devices[at->device], process, at, ranges);
    }
    free(devices);
    SORT(times->all, times->n, by_thread);
    for (size_t i = 0; i < times->n; i++) {
        const struct dmi_step_times *at = &times->all[i];
        put_slice(&a->out, host_track(a, process, at, &track, &thread), at->begin_ns, at->end_ns,
                  at, NULL);
    }
}

/* ------------------------------------------------------------------------- marks */

struct marks {
    struct trace_export *a;
    uint64_t process, track; /* track: 0, not there yet */
};

static const char *word_of_mark(uint32_t kind)
{
    static const char *const words[] = {
        [DMI_MARK_BEGUN] = "the trace begins",
        [DMI_MARK_SOURCE] = "steps have another source",
        [DMI_MARK_CLOCK_SET] = "the clock was set",
        [DMI_MARK_LOST] = "steps were lost",
        [DMI_MARK_ENDED] = "the trace ends",
        [DMI_MARK_RANGES_LOST] = "ranges were lost",
        [DMI_MARK_RAN] = "the tracer of kernels ends",
        [DMI_MARK_RAN_LOST] = "records of kernels were lost",
        [DMI_MARK_RAN_DROPPED] = "CUPTI dropped records",
        [DMI_MARK_STEPS_ALONE] = "steps alone are traced",
        [DMI_MARK_RAN_SUMMED] = "records of kernels are in sums alone",
        [DMI_MARK_KEPT] = "kernels of steps were kept",
        [DMI_MARK_RING] = "kernels went from memory unasked",
        [DMI_MARK_LENT] = "CUPTI changes hands",
    };
    return kind < sizeof words / sizeof *words && words[kind] ? words[kind] : "an unknown mark";
}

static void take_mark(void *ctx, const struct reader_mark *mark)
{
    struct marks *m = ctx;
    _cleanup_(freep) char *text = export_text(mark->text, mark->at.text_bytes);
    if (!text) {
        m->a->out.error = ENOMEM;
        return;
    }
    struct perfetto_fact facts[] = { { "value", mark->at.value, NULL }, { "text", 0, text } };
    if (mark->at.kind == DMI_MARK_SOURCE)
        facts[0] = (struct perfetto_fact){ "begun by", 0, runs_source((uint32_t)mark->at.value) };
    m->track = m->track ? m->track : perfetto_track(&m->a->out, m->process, "marks");
    perfetto_instant(&m->a->out, m->track, mark->at.time_ns, word_of_mark(mark->at.kind), facts,
                     *text ? 2 : 1);
}

static int export_marks(struct trace_export *a, const struct trace_run *t, uint64_t process)
{
    struct err err = { 0 };
    struct marks m = { a, process, 0 };
    if (!reader_each_mark(&err, t->reader, take_mark, &m))
        return 0;
    complain("%s", err.msg);
    return REPORT_IMPOSSIBLE;
}

/* ------------------------------------------------------------------------- runs */

/* The steps of a run that are asked for, and all that met them. Return: 0; REPORT_IMPOSSIBLE, which is said. */
static int export_steps(struct trace_export *a, const struct trace_run *t,
                        const struct runs_steps *steps)
{
    char name[320];
    const char *host = t->run->host ? t->run->host : "";
    struct runs_times times;
    struct export_ranges ranges = { 0 };
    uint64_t before = a->out.n_slices;
    int r = runs_times(t, steps, &times);
    snprintf(name, sizeof name, "%.200s process %" PRIu64, host, t->run->pid);
    _cleanup_(freep) char *printable = export_text(name, strlen(name));
    if (!printable)
        a->out.error = ENOMEM;
    uint64_t process = perfetto_process(&a->out, (int32_t)t->run->pid, printable ? printable : "");
    r = r ? r : export_ranges_read(&ranges, t, &times, runs_all_asked(steps));
    if (!r) {
        put_steps(a, &times, process, &ranges);
        export_ranges_put(&a->out, &ranges, process, (int32_t)t->run->pid);
    }
    export_ranges_deinit(&ranges);
    runs_times_deinit(&times);
    r = r ? r : export_ran(&a->out, t, process, steps);
    a->n_runs += !r && (a->out.n_slices > before || runs_all_asked(steps));
    return r ? r : export_marks(a, t, process);
}

static int export_run(const struct trace_run *t, void *ctx)
{
    struct trace_export *a = ctx;
    struct runs_steps steps;
    if (!t->traced) {
        complain("%s: the run has no trace; dmi-run --trace makes one", t->run->path);
        a->n_untraced++;
        return 0;
    }
    int r = export_steps_of(a->asked, t, &steps);
    r = r ? r : export_steps(a, t, &steps);
    runs_kept_deinit(&steps);
    return r;
}

int trace_export(char **paths, const char *file, const struct export_asked *asked)
{
    struct trace_export a = { .asked = asked };
    _cleanup_(outfile_deinit) struct outfile place = { .fd = -1 };
    a.out.to = export_file_open(&place, paths, file, "--perfetto");
    int r = a.out.to ? 0 : REPORT_IMPOSSIBLE;
    if (r)
        return r;
    for (size_t i = 0; !r && paths[i]; i++) {
        size_t runs = a.n_runs, untraced = a.n_untraced;
        r = runs_each(paths[i], export_run, &a);
        if (r || a.n_runs > runs)
            continue;
        if (a.n_untraced == untraced)
            export_say_none(asked, paths[i]);
        r = REPORT_IMPOSSIBLE;
    }
    r = export_file_close(a.out.to, a.out.error, &place, r);
    if (!r)
        printf("%s: %zu steps of %zu %s, %" PRIu64 " slices; open it at ui.perfetto.dev\n", file,
               a.n_steps, a.n_runs, word_for(a.n_runs, "run", "runs"), a.out.n_slices);
    return r;
}
