/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/steps.h"

#include "core/cleanup.h"
#include "core/grow.h"
#include "core/sorted.h"
#include "tools/common/report.h"
#include "tools/trace/kernels.h"
#include "tools/trace/runs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BUCKETS 33u /* of rows: 0, then powers of two */

enum phase { PHASE_NONE, PHASE_PREFILL, PHASE_MIXED, PHASE_DECODE, PHASES };

static const char *const phase_words[] = { "-", "prefill", "mixed", "decode" };

static enum phase phase_of(const struct dmi_step_times *at)
{
    if (at->prefill)
        return at->decode ? PHASE_MIXED : PHASE_PREFILL;
    return at->decode ? PHASE_DECODE : PHASE_NONE;
}

/* Rows up to 2^(bucket - 1); 0: none. */
static unsigned bucket_of(uint32_t rows)
{
    return rows ? rows == 1 ? 1 : 33 - (unsigned)__builtin_clz(rows - 1) : 0;
}

/* ------------------------------------------------------------------------- quantiles */

struct values {
    int64_t *all;
    size_t n, room;
};

static int order(const void *pa, const void *pb)
{
    int64_t a = *(const int64_t *)pa, b = *(const int64_t *)pb;
    return a < b ? -1 : a > b;
}

static bool add(struct values *v, int64_t value)
{
    if (GROW(v->all, v->n, v->room))
        return false;
    v->all[v->n++] = value;
    return true;
}

/* The value at that share of those that are sorted; null: there are none. */
static json_t *quantile(const struct values *v, double share)
{
    return v->n ? json_integer(v->all[(size_t)(share * (double)(v->n - 1))]) : json_null();
}

static json_t *mean(uint64_t sum, size_t n)
{
    return value_double((double)sum / (double)n);
}

/* Steps of one phase and size. */
struct group {
    size_t n;
    uint64_t launches, graphs, own, stall_ns;
    struct values device, host, gap, wait;
};

static bool group_add(struct group *g, const struct dmi_step_times *at)
{
    g->n++;
    g->launches += at->launches;
    g->graphs += at->graph_launches;
    g->own += at->own;
    g->stall_ns += at->stall_ns;
    return add(&g->host, (int64_t)(at->end_ns - at->begin_ns)) &&
           add(&g->wait, (int64_t)at->wait_us * 1000) &&
           (!(at->flags & DMI_STEP_HAS_DEVICE) || add(&g->device, (int64_t)at->device_ns)) &&
           (!(at->flags & DMI_STEP_HAS_GAP) || add(&g->gap, at->gap_ns));
}

static void group_deinit(struct group *g)
{
    free(g->device.all);
    free(g->host.all);
    free(g->gap.all);
    free(g->wait.all);
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
MS(device_ns)
MS(host_ns)
MS(gap_ns)
MS(busy_ns)
MS(longest_idle_ns)

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

static json_t *group_row(struct group *g, enum phase phase, unsigned bucket)
{
    struct values *all[] = { &g->device, &g->host, &g->gap, &g->wait };
    for (size_t i = 0; i < 4; i++)
        SORT(all[i]->all, all[i]->n, order);
    return json_pack(
        "{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "phase",
        phase_words[phase], "rows", value_u64(bucket ? 1ull << (bucket - 1) : 0), "steps",
        value_u64(g->n), "timed", value_u64(g->device.n), "device_ns_p50",
        quantile(&g->device, 0.5), "device_ns_p99", quantile(&g->device, 0.99), "host_ns_p50",
        quantile(&g->host, 0.5), "host_ns_p99", quantile(&g->host, 0.99), "gap_ns_p50",
        quantile(&g->gap, 0.5), "gap_ns_p99", quantile(&g->gap, 0.99), "wait_ns_p50",
        quantile(&g->wait, 0.5), "launches", mean(g->launches, g->n), "graph_launches",
        mean(g->graphs, g->n), "own", mean(g->own, g->n), "stall_ns", mean(g->stall_ns, g->n));
}

/* The table of a run. Return: false: no memory. */
static bool groups_table(struct report *report, const struct trace_run *t)
{
    struct group *groups = calloc(PHASES * MOST_BUCKETS, sizeof *groups);
    bool good = groups != NULL;
    for (size_t i = 0; good && i < t->n_steps; i++) {
        const struct dmi_step_times *at = &t->steps[i];
        good = group_add(&groups[phase_of(at) * MOST_BUCKETS + bucket_of(at->rows)], at);
    }
    report_table(report, "groups", columns, sizeof columns / sizeof *columns);
    for (unsigned i = 0; good && i < PHASES * MOST_BUCKETS; i++)
        if (groups[i].n)
            report_row(report,
                       group_row(&groups[i], (enum phase)(i / MOST_BUCKETS), i % MOST_BUCKETS));
    report_table_end(report);
    for (unsigned i = 0; groups && i < PHASES * MOST_BUCKETS; i++)
        group_deinit(&groups[i]);
    free(groups);
    return good;
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

json_t *trace_step_row(const struct dmi_step_times *at)
{
    const char *reason = runs_reason(at);
    json_t *row = json_pack(
        "{s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s}", "number",
        value_u64(at->number), "step", at->step == DMI_NO_STEP ? json_null() : value_u64(at->step),
        "phase", phase_words[phase_of(at)], "rows", value_u64(at->rows), "device_ns",
        known(at->flags & DMI_STEP_HAS_DEVICE, (json_int_t)at->device_ns), "host_ns",
        json_integer((json_int_t)(at->end_ns - at->begin_ns)), "gap_ns",
        known(at->flags & DMI_STEP_HAS_GAP, at->gap_ns), "launches", value_u64(at->launches),
        "graph_launches", value_u64(at->graph_launches), "own", value_u64(at->own), "begin_ns",
        value_u64(at->begin_ns), "reason", reason ? reason : "");
    json_t *more = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:o}", "end_ns",
        value_u64(at->end_ns), "launch_ns", known(at->launch_ns, (json_int_t)at->launch_ns),
        "requests", value_u64(at->requests), "prefill", value_u64(at->prefill), "decode",
        value_u64(at->decode), "context", value_u64(at->context), "stall_ns",
        value_u64(at->stall_ns), "loads", value_u64(at->loads), "allocations",
        value_u64(at->allocations), "waits", value_u64(at->waits), "wait_us",
        value_u64(at->wait_us), "device", value_u64(at->device), "source", runs_source(at->source),
        "thread", value_u64(at->thread));
    if (json_object_update(row, more)) {
        json_decref(row);
        row = NULL;
    }
    json_decref(more);
    return row;
}

/* A step with what sums say of it. NULL: no memory. */
static json_t *each_row(const struct dmi_step_times *at, const struct kernels_busy *busy)
{
    json_t *row = trace_step_row(at);
    bool is = busy->records;
    if (!row || json_object_set_new(row, "busy_ns", known(is, (json_int_t)busy->busy_ns)) ||
        json_object_set_new(row, "longest_idle_ns", known(is, (json_int_t)busy->longest_ns))) {
        json_decref(row);
        return NULL;
    }
    return row;
}

static void each_table(struct report *report, const struct trace_run *t,
                       const struct kernels_busy *busy)
{
    report_table(report, "steps", each_columns, sizeof each_columns / sizeof *each_columns);
    for (size_t i = 0; i < t->n_steps; i++)
        report_row(report, each_row(&t->steps[i], &busy[i]));
    report_table_end(report);
}

/* ------------------------------------------------------------------------- a run */

struct sums {
    uint64_t timed, device_ns, gap_ns, launches, own;
};

static struct sums sums_of(const struct trace_run *t)
{
    struct sums s = { 0 };
    for (size_t i = 0; i < t->n_steps; i++) {
        const struct dmi_step_times *at = &t->steps[i];
        s.timed += (at->flags & DMI_STEP_HAS_DEVICE) != 0;
        s.device_ns += at->device_ns;
        s.gap_ns += at->gap_ns > 0 ? (uint64_t)at->gap_ns : 0;
        s.launches += at->launches;
        s.own += at->own;
    }
    return s;
}

static void head(struct report *report, const struct trace_run *t, const struct sums *s)
{
    double all = (double)(s->device_ns + s->gap_ns);
    double idle = all > 0 ? (double)s->gap_ns / all : 0;
    const char *source = t->n_steps ? runs_source(t->steps[t->n_steps - 1].source) : "nothing";
    report_line(report, "run    %s", t->run->path);
    report_line(report,
                "steps  %zu, begun by %s; %" PRIu64 " with a time on the device, %" PRIu64 " lost",
                t->n_steps, source, s->timed, t->n_lost);
    report_line(report, "idle   %.1f%% of the device's time lies between steps", 100 * idle);
    report_line(report,
                "own    %" PRIu64 " kernels of DMI's, beside %" PRIu64
                " kernels that the application launched one by one, and its graphs",
                s->own, s->launches);
    if (t->n_clock_sets)
        report_line(report, "clock  set %u times while the run was written, by %.3f ms in all",
                    t->n_clock_sets, (double)t->clock_set_ns / 1e6);
    report_member(report, "run", value_text(t->run->path));
    report_member(report, "n_steps", value_u64(t->n_steps));
    report_member(report, "source", value_text(source));
    report_member(report, "timed", value_u64(s->timed));
    report_member(report, "lost", value_u64(t->n_lost));
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
static void reasons(struct report *report, const struct trace_run *t)
{
    const char *words[16];
    size_t counts[16] = { 0 }, n = 0;
    for (size_t i = 0; i < t->n_steps; i++) {
        const char *why = runs_reason(&t->steps[i]);
        size_t k = 0;
        while (why && k < n && strcmp(words[k], why))
            k++;
        if (why && k == n && n < 16)
            words[n++] = why;
        if (why && k < 16)
            counts[k]++;
    }
    for (size_t k = 0; k < n; k++)
        report_line(report, "%zu without a time on the device: %s", counts[k], words[k]);
}

struct asked {
    bool json, each;
    size_t n_runs, n_untraced;
};

/* JSON is a document a run. */
static int show_run(const struct trace_run *t, void *ctx)
{
    struct asked *a = ctx;
    struct report report = { .json = a->json };
    struct sums sums = sums_of(t);
    struct kernels_costs costs;
    if (!t->traced) {
        complain("%s: the run has no trace; dmi-run --trace makes one", t->run->path);
        a->n_untraced++;
        return 0;
    }
    if (kernels_costs(t, &costs)) {
        kernels_costs_forget(&costs);
        return REPORT_IMPOSSIBLE;
    }
    if (a->n_runs++)
        report_line(&report, "%s", "");
    head(&report, t, &sums);
    say_costs(&report, &costs);
    if (!t->n_steps)
        report_line(&report, "No step came. DMI_TRACE_STEP names what begins one: graph, "
                             "kernel:PATTERN or range:PATTERN");
    if (a->each)
        each_table(&report, t, costs.each);
    else
        report.failed |= !groups_table(&report, t);
    reasons(&report, t);
    kernels_costs_forget(&costs);
    return report_end(&report, 0);
}

int trace_steps(char **paths, bool json, bool each)
{
    struct asked a = { .json = json, .each = each };
    int r = 0;
    for (size_t i = 0; !r && paths[i]; i++)
        r = runs_each(paths[i], show_run, &a);
    return !r && a.n_untraced && !a.n_runs ? REPORT_IMPOSSIBLE : r;
}
