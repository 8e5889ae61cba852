/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/steps.h"

#include "core/grow.h"
#include "core/sorted.h"
#include "read/value.h"
#include "tools/common/report.h"
#include "tools/trace/batch.h"
#include "tools/trace/kernels.h"
#include "tools/trace/quantiles.h"
#include "tools/trace/runs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW 65536u /* steps in memory at a time, but for a chunk that holds more */

/* The value at that share; null: there are none. */
static json_t *quantile(struct quantiles *q, double share)
{
    return q->n ? json_integer(quantiles_at(q, share)) : json_null();
}

static json_t *mean(uint64_t sum, size_t n)
{
    return value_double((double)sum / (double)n);
}

/* Steps of one phase and size. */
struct phase_steps {
    size_t n;
    uint64_t launches, graphs, own, stall_ns;
    struct quantiles device, host, gap, wait;
};

static bool group_add(struct phase_steps *g, const struct dmi_step_times *at)
{
    g->n++;
    g->launches += at->launches;
    g->graphs += at->graph_launches;
    g->own += at->own;
    g->stall_ns += at->stall_ns;
    return quantiles_add(&g->host, (int64_t)(at->end_ns - at->begin_ns)) &&
           quantiles_add(&g->wait, (int64_t)at->wait_us * 1000) &&
           (!(at->flags & DMI_STEP_HAS_DEVICE) ||
            quantiles_add(&g->device, (int64_t)at->device_ns)) &&
           (!(at->flags & DMI_STEP_HAS_GAP) || quantiles_add(&g->gap, at->gap_ns));
}

static void group_deinit(struct phase_steps *g)
{
    quantiles_deinit(&g->device);
    quantiles_deinit(&g->host);
    quantiles_deinit(&g->gap);
    quantiles_deinit(&g->wait);
}

/* ------------------------------------------------------------------------- tables */

static void add_ms(struct text *to, const json_t *row, const char *key)
{
    const json_t *ns = json_object_get(row, key);
    if (json_is_integer(ns))
        text_printf(to, "%.3f", (double)json_integer_value(ns) / 1e6);
    else
        text_printf(to, "-");
}

#define MS(key)                                                                                    \
    static void cell_##key(struct text *to, const json_t *row)                                     \
    {                                                                                              \
        add_ms(to, row, #key);                                                                     \
    }
MS(device_ns_p50)
MS(device_ns_p99)
MS(host_ns_p50)
MS(host_ns_p99)
MS(gap_ns_p50)
MS(wait_ns_p50)
MS(host_ns)
MS(gap_ns)
MS(busy_ns)
MS(longest_idle_ns)

static void cell_device_ns(struct text *to, const json_t *row)
{
    if (json_is_true(json_object_get(row, "host_late")))
        text_printf(to, "<=");
    add_ms(to, row, "device_ns");
}

#define MEAN(key)                                                                                  \
    static void cell_##key(struct text *to, const json_t *row)                                     \
    {                                                                                              \
        text_printf(to, "%.1f", json_number_value(json_object_get(row, #key)));                    \
    }
MEAN(launches)
MEAN(graph_launches)
MEAN(own)

static const struct column columns[] = {
    { "PHASE", "phase", -8, NULL },
    { "ROWS", "rows", 6, NULL },
    { "STEPS", "steps", 8, NULL },
    { "DEVICE p50", "device_ns_p50", 11, cell_device_ns_p50 },
    { "p99 ms", "device_ns_p99", 9, cell_device_ns_p99 },
    { "HOST p50", "host_ns_p50", 9, cell_host_ns_p50 },
    { "p99 ms", "host_ns_p99", 9, cell_host_ns_p99 },
    { "GAP p50", "gap_ns_p50", 8, cell_gap_ns_p50 },
    { "WAIT p50", "wait_ns_p50", 9, cell_wait_ns_p50 },
    { "KERNELS", "launches", 8, cell_launches },
    { "GRAPHS", "graph_launches", 7, cell_graph_launches },
    { "OWN", "own", 6, cell_own },
};

static json_t *group_row(struct phase_steps *g, enum batch_phase phase, unsigned bucket)
{
    return VALUE_OBJECT(
        { "phase", json_string(batch_word(phase)) }, { "rows", value_u64(batch_rows(bucket)) },
        { "steps", value_u64(g->n) }, { "timed", value_u64(g->device.n) },
        { "device_ns_p50", quantile(&g->device, 0.5) },
        { "device_ns_p99", quantile(&g->device, 0.99) }, { "host_ns_p50", quantile(&g->host, 0.5) },
        { "host_ns_p99", quantile(&g->host, 0.99) }, { "gap_ns_p50", quantile(&g->gap, 0.5) },
        { "gap_ns_p99", quantile(&g->gap, 0.99) }, { "wait_ns_p50", quantile(&g->wait, 0.5) },
        { "launches", mean(g->launches, g->n) }, { "graph_launches", mean(g->graphs, g->n) },
        { "own", mean(g->own, g->n) }, { "stall_ns", mean(g->stall_ns, g->n) });
}

static void groups_table(struct report *report, struct phase_steps *groups)
{
    report_table(report, "groups", columns, sizeof columns / sizeof *columns);
    for (unsigned i = 0; groups && i < BATCH_KINDS; i++)
        if (groups[i].n)
            report_row(report, group_row(&groups[i], (enum batch_phase)(i / BATCH_BUCKETS),
                                         i % BATCH_BUCKETS));
    report_table_end(report);
}

/* ------------------------------------------------------------------------- a line a step */

static const struct column each_columns[] = {
    { "NUMBER", "number", 8, NULL },
    { "STEP", "step", 8, NULL },
    { "PHASE", "phase", -8, NULL },
    { "ROWS", "rows", 6, NULL },
    { "DEVICE ms", "device_ns", 10, cell_device_ns },
    { "BUSY ms", "busy_ns", 9, cell_busy_ns },
    { "GAP WITHIN", "longest_idle_ns", 10, cell_longest_idle_ns },
    { "HOST ms", "host_ns", 10, cell_host_ns },
    { "GAP ms", "gap_ns", 9, cell_gap_ns },
    { "KERNELS", "launches", 8, NULL },
    { "GRAPHS", "graph_launches", 7, NULL },
    { "OWN", "own", 6, NULL },
    { "NO DEVICE TIME", "reason", -1, NULL },
};

static json_t *known(bool is, json_int_t value)
{
    return is ? json_integer(value) : json_null();
}

static json_t *u64_or_null(uint64_t step)
{
    return step == DMI_NO_STEP ? json_null() : value_u64(step);
}

/* What a line has. */
static json_t *short_row(const struct dmi_step_times *at)
{
    const char *reason = runs_reason(at);
    return VALUE_OBJECT(
        { "number", value_u64(at->number) }, { "step", u64_or_null(at->engine_step) },
        { "sequence", u64_or_null(at->step) },
        { "phase", json_string(batch_word(batch_phase_of(at))) }, { "rows", value_u64(at->rows) },
        { "device_ns", known(at->flags & DMI_STEP_HAS_DEVICE, (json_int_t)at->device_ns) },
        { "host_late", json_boolean(at->flags & DMI_STEP_HOST_LATE) },
        { "host_ns", json_integer((json_int_t)(at->end_ns - at->begin_ns)) },
        { "gap_ns", known(at->flags & DMI_STEP_HAS_GAP, at->gap_ns) },
        { "launches", value_u64(at->launches) },
        { "graph_launches", value_u64(at->graph_launches) }, { "own", value_u64(at->own) },
        { "begin_ns", value_u64(at->begin_ns) }, { "reason", json_string(reason ? reason : "") });
}

json_t *trace_step_row(const struct dmi_step_times *at)
{
    json_t *row = short_row(at);
    json_t *more = VALUE_OBJECT(
        { "end_ns", value_u64(at->end_ns) },
        { "launch_ns", known(at->launch_ns, (json_int_t)at->launch_ns) },
        { "requests", value_u64(at->requests) }, { "prefill", value_u64(at->prefill) },
        { "decode", value_u64(at->decode) }, { "context", value_u64(at->context) },
        { "stall_ns", value_u64(at->stall_ns) }, { "loads", value_u64(at->loads) },
        { "allocations", value_u64(at->allocations) }, { "waits", value_u64(at->waits) },
        { "wait_us", value_u64(at->wait_us) },
        { "waited_ns", known(at->waited_ns, (json_int_t)at->waited_ns) },
        { "device", value_u64(at->device) }, { "source", json_string(runs_source(at->source)) },
        { "thread", value_u64(at->thread) });
    if (json_object_update(row, more)) {
        json_decref(row);
        row = NULL;
    }
    json_decref(more);
    return row;
}

/* A step with what sums say of it. NULL: no memory. */
static json_t *each_row(const struct dmi_step_times *at, const struct kernels_busy *busy, bool json)
{
    json_t *row = json ? trace_step_row(at) : short_row(at);
    bool is = busy->records;
    if (!row || json_object_set_new(row, "busy_ns", known(is, (json_int_t)busy->busy_ns)) ||
        json_object_set_new(row, "longest_idle_ns", known(is, (json_int_t)busy->longest_ns))) {
        json_decref(row);
        return NULL;
    }
    return row;
}

/* Steps of some chunks, one after the other. */
struct window {
    const struct trace_run *run;
    const struct kernels_costs *costs;
    struct report *report;
    uint64_t first, last; /* chunks */
    struct dmi_step_times *steps;
    size_t n, room;
    bool failed; /* no memory */
};

static bool in_window(void *ctx, uint64_t chunk)
{
    const struct window *w = ctx;
    return chunk >= w->first && chunk <= w->last;
}

static void fill_window(void *ctx, uint64_t chunk, const struct dmi_step_times *all, size_t n)
{
    struct window *w = ctx;
    (void)chunk;
    for (size_t i = 0; i < n && !w->failed; i++)
        if (!(w->failed = GROW(w->steps, w->n, w->room)))
            w->steps[w->n++] = all[i];
}

/* Rows of @n steps in the order of @show, of those in the order of their numbers. Return: 0; REPORT_IMPOSSIBLE, which is said. */
static int put_rows(const struct window *w, const size_t *show)
{
    struct kernels_busy *busy = calloc(w->n + 1, sizeof *busy);
    int r = busy ? kernels_busy(w->run, w->costs, w->steps, w->n, busy) : 0;
    w->report->failed |= !busy;
    for (size_t i = 0; busy && !r && i < w->n; i++) {
        size_t k = show ? show[i] : i;
        report_row(w->report, each_row(&w->steps[k], &busy[k], w->report->json));
    }
    free(busy);
    return r;
}

/* ------------------------------------------------------------------------- all steps of a run */

/* In which chunk how many steps are. */
struct chunk_steps {
    uint64_t chunk;
    size_t n;
};

/* What is known of a run once its steps were read. */
struct totals {
    uint64_t n, timed, late, device_ns, gap_ns, launches, graphs, own;
    uint32_t source; /* of the last one */
    const char *words[16];
    uint64_t counts[16]; /* without a device time, by reason */
    size_t n_reasons;
    struct phase_steps *groups; /* BATCH_KINDS; NULL: not asked for */
    struct chunk_steps *extents;
    size_t n_extents, extents_room;
    struct dmi_step_times *slowest; /* a heap, the fastest of them first */
    size_t n_slowest, slowest_room, most_slowest;
    bool failed; /* no memory */
};

static uint64_t cost_of(const struct dmi_step_times *at)
{
    uint64_t host = at->end_ns > at->begin_ns ? at->end_ns - at->begin_ns : 0;
    return at->device_ns > host ? at->device_ns : host;
}

/* The slower one first; of those that are alike the one that ended first. */
static int by_cost(const void *pa, const void *pb)
{
    const struct dmi_step_times *a = pa, *b = pb;
    uint64_t x = cost_of(a), y = cost_of(b);
    if (x != y)
        return x > y ? -1 : 1;
    ORDER(a, b, number);
    return 0;
}

static void swap(struct dmi_step_times *a, struct dmi_step_times *b)
{
    struct dmi_step_times t = *a;
    *a = *b;
    *b = t;
}

static void sink(struct dmi_step_times *heap, size_t n)
{
    for (size_t i = 0, k; (k = 2 * i + 1) < n; i = k) {
        k += k + 1 < n && by_cost(&heap[k + 1], &heap[k]) > 0;
        if (by_cost(&heap[k], &heap[i]) <= 0)
            return;
        swap(&heap[i], &heap[k]);
    }
}

static void add_slowest(struct totals *t, const struct dmi_step_times *at)
{
    if (t->n_slowest < t->most_slowest) {
        if ((t->failed |= GROW(t->slowest, t->n_slowest, t->slowest_room) != 0))
            return;
        size_t i = t->n_slowest++;
        t->slowest[i] = *at;
        for (; i && by_cost(&t->slowest[i], &t->slowest[(i - 1) / 2]) > 0; i = (i - 1) / 2)
            swap(&t->slowest[i], &t->slowest[(i - 1) / 2]);
    } else if (by_cost(at, &t->slowest[0]) < 0) {
        t->slowest[0] = *at;
        sink(t->slowest, t->n_slowest);
    }
}

static void add_reason(struct totals *t, const char *why)
{
    size_t k = 0;
    while (k < t->n_reasons && strcmp(t->words[k], why))
        k++;
    if (k == sizeof t->words / sizeof *t->words)
        return;
    if (k == t->n_reasons)
        t->words[t->n_reasons++] = why;
    t->counts[k]++;
}

static void add_step(struct totals *t, const struct dmi_step_times *at)
{
    const char *why = runs_reason(at);
    t->n++;
    t->source = at->source;
    t->timed += (at->flags & DMI_STEP_HAS_DEVICE) != 0;
    t->late += (at->flags & DMI_STEP_HOST_LATE) != 0;
    t->device_ns += at->device_ns;
    t->gap_ns += at->gap_ns > 0 ? (uint64_t)at->gap_ns : 0;
    t->launches += at->launches;
    t->graphs += at->graph_launches;
    t->own += at->own;
    if (why)
        add_reason(t, why);
    if (t->groups)
        t->failed |= !group_add(&t->groups[batch_kind_of(at)], at);
    if (t->most_slowest)
        add_slowest(t, at);
}

static void take_chunk(void *ctx, uint64_t chunk, const struct dmi_step_times *all, size_t n)
{
    struct totals *t = ctx;
    for (size_t i = 0; i < n && !t->failed; i++)
        add_step(t, &all[i]);
    if (t->failed || (t->failed = GROW(t->extents, t->n_extents, t->extents_room)))
        return;
    t->extents[t->n_extents++] = (struct chunk_steps){ chunk, n };
}

static void totals_deinit(struct totals *t)
{
    for (unsigned i = 0; t->groups && i < BATCH_KINDS; i++)
        group_deinit(&t->groups[i]);
    free(t->groups);
    free(t->extents);
    free(t->slowest);
}

/* A line a step, window by window. */
static int each_table(struct window *w, const struct totals *t)
{
    struct err err = { 0 };
    int r = 0;
    report_table(w->report, "steps", each_columns, sizeof each_columns / sizeof *each_columns);
    for (size_t i = 0, n = 0; !r && i < t->n_extents; i++) {
        w->first = n ? w->first : t->extents[i].chunk;
        w->last = t->extents[i].chunk;
        n += t->extents[i].n;
        if (i + 1 < t->n_extents && n + t->extents[i + 1].n <= WINDOW)
            continue;
        n = w->n = 0;
        r = reader_step_times_by_chunk(&err, w->run->reader, in_window, fill_window, w);
        if (r)
            complain("%s", err.msg);
        r = r ? REPORT_IMPOSSIBLE : put_rows(w, NULL);
    }
    w->report->failed |= w->failed;
    report_table_end(w->report);
    free(w->steps);
    return r;
}

static int by_number(const void *pa, const void *pb)
{
    const struct dmi_step_times *a = pa, *b = pb;
    ORDER(a, b, number);
    return 0;
}

/* The slowest first. */
static int slowest_table(struct window *w, struct totals *t)
{
    size_t *show = calloc(t->n_slowest + 1, sizeof *show);
    w->steps = calloc(t->n_slowest + 1, sizeof *w->steps);
    w->n = t->n_slowest;
    report_table(w->report, "steps", each_columns, sizeof each_columns / sizeof *each_columns);
    int r = 0;
    w->report->failed |= !show || !w->steps;
    if (show && w->steps && w->n) {
        memcpy(w->steps, t->slowest, w->n * sizeof *w->steps);
        SORT(w->steps, w->n, by_number);
        SORT(t->slowest, w->n, by_cost);
        for (size_t i = 0; i < w->n; i++)
            SEARCH(show[i], w->n, w->steps[show[i]].number < t->slowest[i].number);
        r = put_rows(w, show);
    }
    report_table_end(w->report);
    free(show);
    free(w->steps);
    return r;
}

/* ------------------------------------------------------------------------- a run */

static void on_device(struct report *report, const struct totals *s, double idle)
{
    if (s->late)
        report_line(report,
                    "late   %" PRIu64 " times on the device are upper bounds: it was done before "
                    "the host looked, or may have been",
                    s->late);
    report_line(report, "idle   %.1f%% of the device's time lies between steps", 100 * idle);
    report_line(report,
                "own    %" PRIu64 " kernels of DMI's, beside %" PRIu64
                " kernels that the application launched one by one, and its graphs",
                s->own, s->launches);
}

static void head(struct report *report, const struct trace_run *t, const struct totals *s)
{
    double all = (double)(s->device_ns + s->gap_ns);
    double idle = all > 0 ? (double)s->gap_ns / all : 0;
    const char *source = s->n ? runs_source(s->source) : "nothing";
    report_line(report, "run    %s", t->run->path);
    report_line(report,
                "steps  %" PRIu64 ", begun by %s; %" PRIu64 " with a time on the device, %" PRIu64
                " lost",
                s->n, source, s->timed, t->marks.n_lost);
    if (s->timed || s->launches || s->graphs || !s->n)
        on_device(report, s, idle);
    else
        report_line(report, "device none was seen: times are those of the host");
    if (t->marks.n_ranges_lost)
        report_line(report, "ranges %" PRIu64 " were lost: dmi-trace check",
                    t->marks.n_ranges_lost);
    if (t->marks.n_clock_sets)
        report_line(report, "clock  set %zu times while the run was written, by %.3f ms in all",
                    t->marks.n_clock_sets, (double)t->marks.clock_set_ns / 1e6);
    report_member(report, "run", value_text(t->run->path));
    report_member(report, "n_steps", value_u64(s->n));
    report_member(report, "source", value_text(source));
    report_member(report, "timed", value_u64(s->timed));
    report_member(report, "host_late", value_u64(s->late));
    report_member(report, "lost", value_u64(t->marks.n_lost));
    report_member(report, "ranges_lost", value_u64(t->marks.n_ranges_lost));
    report_member(report, "idle", value_double(idle));
    report_member(report, "own", value_u64(s->own));
}

static double share(uint64_t part, uint64_t all)
{
    return all ? (double)part / (double)all : 0;
}

/* For which share of the time something ran. Says nothing of a run without sums. */
static void say_costs(struct report *report, const struct kernels_costs *c)
{
    if (!c->all.records)
        return;
    report_line(report,
                "busy   something runs for %.1f%% of a step's time on the device; %.2f%% of the "
                "time of kernels is that of DMI's",
                100 * share(c->all.busy_ns, c->all.span_ns), 100 * share(c->own_ns, c->sum_ns));
    report_member(report, "busy", value_double(share(c->all.busy_ns, c->all.span_ns)));
    report_member(report, "own_share", value_double(share(c->own_ns, c->sum_ns)));
}

/* What has no device time, by reason. */
static void reasons(struct report *report, const struct totals *t)
{
    for (size_t k = 0; k < t->n_reasons; k++)
        report_line(report, "%" PRIu64 " without a time on the device: %s", t->counts[k],
                    t->words[k]);
}

struct steps_asked {
    bool json, each;
    size_t slowest; /* 0: not asked for */
    size_t n_runs;
};

/* JSON is a document a run. */
static int show_steps(const struct trace_run *t, const struct steps_asked *a, struct totals *totals,
                      struct kernels_costs *costs)
{
    struct report report = { .json = a->json };
    struct window window = { .run = t, .costs = costs, .report = &report };
    int r = 0;
    head(&report, t, totals);
    say_costs(&report, costs);
    if (!totals->n)
        report_line(&report, "No step came. DMI_TRACE_STEP names what begins one: graph, "
                             "kernel:PATTERN or range:PATTERN");
    if (a->slowest)
        r = slowest_table(&window, totals);
    else if (a->each)
        r = each_table(&window, totals);
    else
        groups_table(&report, totals->groups);
    if (!a->slowest)
        reasons(&report, totals);
    report.failed |= totals->failed;
    return r ? r : report_end(&report, 0);
}

static int show_run(const struct trace_run *t, void *ctx)
{
    struct steps_asked *a = ctx;
    struct err err = { 0 };
    struct kernels_costs costs = { 0 };
    struct totals totals = { .most_slowest = a->slowest };
    if (!t->traced) {
        complain("%s: the run has no trace; dmi-run --trace makes one", t->run->path);
        return 0;
    }
    if (!a->each && !a->slowest)
        totals.failed = !(totals.groups = calloc(BATCH_KINDS, sizeof *totals.groups));
    int r = reader_step_times_by_chunk(&err, t->reader, NULL, take_chunk, &totals);
    if (r)
        complain("%s", err.msg);
    r = r ? REPORT_IMPOSSIBLE : kernels_costs(t, &costs);
    if (!r && a->n_runs++ && !a->json)
        putchar('\n');
    r = r ? r : show_steps(t, a, &totals, &costs);
    kernels_costs_forget(&costs);
    totals_deinit(&totals);
    return r;
}

int trace_steps(char **paths, bool json, bool each, size_t slowest)
{
    struct steps_asked a = { .json = json, .each = each, .slowest = slowest };
    int r = 0;
    bool none = false;
    for (size_t i = 0; !r && paths[i]; i++) {
        size_t before = a.n_runs;
        r = runs_each(paths[i], show_run, &a);
        none |= a.n_runs == before;
    }
    return !r && none ? REPORT_IMPOSSIBLE : r;
}
