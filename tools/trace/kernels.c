/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/kernels.h"

#include "core/grow.h"
#include "core/sorted.h"
#include "tools/common/report.h"
#include "tools/common/say.h"
#include "tools/trace/runs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *kernels_word(const struct ran *ran)
{
    static const char *const copies[] = { [1] = "copy to the device",
                                          [2] = "copy to the host",
                                          [8] = "copy within the device",
                                          [9] = "copy within the host",
                                          [10] = "copy between devices" };
    if (ran->shape.kind == DMI_RAN_FILL)
        return "fill";
    bool known = ran->shape.how < sizeof copies / sizeof *copies && copies[ran->shape.how];
    return known ? copies[ran->shape.how] : "copy";
}

const char *kernels_kind(uint32_t kind)
{
    static const char *const kinds[] = {
        [DMI_RAN_KERNEL] = "kernel", [DMI_RAN_COPY] = "copy", [DMI_RAN_FILL] = "fill"
    };
    bool known = kind && kind < sizeof kinds / sizeof *kinds;
    return known ? kinds[kind] : "unknown";
}

static bool is_of(const struct kernels_line *line, uint32_t kind, const char *name, size_t n)
{
    return line->kind == kind && strlen(line->name) == n && !memcmp(line->name, name, n);
}

/* The line of the record's name. NULL: no memory. */
static struct kernels_line *line_of(struct kernels_sums *a, const struct ran *ran)
{
    bool kernel = ran->shape.kind == DMI_RAN_KERNEL;
    const char *name = kernel ? ran->name : kernels_word(ran);
    size_t n = kernel ? ran->shape.name_bytes : strlen(name);
    for (size_t i = 0; i < a->n; i++) { /* steps repeat: it is soon after the one before, mostly */
        a->last = a->last + 1 < a->n ? a->last + 1 : 0;
        if (is_of(&a->all[a->last], ran->shape.kind, name, n))
            return &a->all[a->last];
    }
    if (GROW(a->all, a->n, a->room))
        return NULL;
    a->last = a->n;
    a->all[a->n] = (struct kernels_line){ .kind = ran->shape.kind, .name = strndup(name, n) };
    return a->all[a->n].name ? &a->all[a->n++] : NULL;
}

static void take_ran(void *ctx, const struct ran *ran)
{
    struct kernels_sums *a = ctx;
    if (!runs_asked(a->steps, ran->step))
        return;
    struct kernels_line *line = line_of(a, ran);
    if (!line) {
        a->failed = true;
        return;
    }
    uint64_t ns = ran->end_ns - ran->begin_ns;
    uint32_t shared = ran->shape.static_shared + ran->shape.dynamic_shared;
    a->n_records++;
    a->n_unknown += ran->step == DMI_RAN_UNKNOWN;
    a->sum_ns += ns;
    line->n++;
    line->sum_ns += ns;
    line->bytes += ran->bytes;
    line->most_ns = ns > line->most_ns ? ns : line->most_ns;
    line->registers =
        ran->shape.registers > line->registers ? ran->shape.registers : line->registers;
    line->shared = shared > line->shared ? shared : line->shared;
}

static int by_time(const void *pa, const void *pb)
{
    const struct kernels_line *a = pa, *b = pb;
    ORDER(b, a, sum_ns);
    return strcmp(a->name, b->name);
}

/* ------------------------------------------------------------------------- what is printed */

static void ms_cell(struct text *to, const json_t *row, const char *key)
{
    text_printf(to, "%.3f", (double)json_integer_value(json_object_get(row, key)) / 1e6);
}

static void sum_cell(struct text *to, const json_t *row)
{
    ms_cell(to, row, "sum_ns");
}

static void mean_cell(struct text *to, const json_t *row)
{
    json_int_t n = json_integer_value(json_object_get(row, "n"));
    text_printf(to, "%.2f",
                (double)json_integer_value(json_object_get(row, "sum_ns")) / 1e3 /
                    (double)(n ? n : 1));
}

static void share_cell(struct text *to, const json_t *row)
{
    text_printf(to, "%.1f%%", 100 * json_real_value(json_object_get(row, "share")));
}

static const struct column columns[] = {
    { "sum ms", "sum_ns", 11, sum_cell },
    { "share", "share", 7, share_cell },
    { "count", "n", 9, NULL },
    { "mean us", "mean_ns", 10, mean_cell },
    { "registers", "registers", 10, NULL },
    { "shared", "shared", 8, NULL },
    { "name", "name", -1, NULL },
};

static json_t *row_of(const struct kernels_sums *a, const struct kernels_line *l)
{
    double share = a->sum_ns ? (double)l->sum_ns / (double)a->sum_ns : 0;
    return json_pack("{s:s, s:o, s:o, s:o, s:f, s:o, s:o, s:o, s:o}", "kind", kernels_kind(l->kind),
                     "name", value_text(l->name), "n", value_u64(l->n), "sum_ns",
                     value_u64(l->sum_ns), "share", share, "most_ns", value_u64(l->most_ns),
                     "registers", value_u64(l->registers), "shared", value_u64(l->shared), "bytes",
                     value_u64(l->bytes));
}

static void put_table(struct report *report, struct kernels_sums *a)
{
    SORT(a->all, a->n, by_time);
    report_table(report, "kernels", columns, sizeof columns / sizeof *columns);
    for (size_t i = 0; i < a->n; i++)
        report_row(report, row_of(a, &a->all[i]));
    report_table_end(report);
    report->failed |= a->failed;
}

static void print(struct report *report, struct kernels_sums *a, const struct trace_run *t)
{
    report_line(report, "%s: %" PRIu64 " records, %" PRIu64 " of no known step", t->run->path,
                a->n_records, a->n_unknown);
    report_member(report, "run", value_text(t->run->path));
    report_member(report, "records", value_u64(a->n_records));
    report_member(report, "unknown", value_u64(a->n_unknown));
    if (*t->alone)
        report_line(report, "steps alone were traced: %s", t->alone);
    if (!a->n && !*t->alone)
        report_line(report, "nothing ran, or it was not asked for: dmi-run --trace=full stores it");
    put_table(report, a);
}

void kernels_forget(struct kernels_sums *a)
{
    for (size_t i = 0; i < a->n; i++)
        free(a->all[i].name);
    free(a->all);
}

int kernels_sum(struct kernels_sums *a, const struct trace_run *t)
{
    struct err err = { 0 };
    if (!reader_each_ran(&err, t->reader, take_ran, a))
        return 0;
    complain("%s", err.msg);
    return REPORT_IMPOSSIBLE;
}

int kernels_of_step(struct report *report, const struct trace_run *t, uint64_t number)
{
    const struct runs_steps step = { number, number + 1 };
    struct kernels_sums a = { .steps = &step };
    int r = kernels_sum(&a, t);
    if (!r && a.n)
        report_line(report, "on the device");
    if (!r && (a.n || report->json))
        put_table(report, &a);
    kernels_forget(&a);
    return r;
}

struct all_runs {
    const struct runs_steps *steps;
    bool json;
};

static int kernels_of(const struct trace_run *t, void *ctx)
{
    const struct all_runs *of = ctx;
    struct report report = { .json = of->json };
    struct kernels_sums a = { .steps = of->steps };
    int r = kernels_sum(&a, t);
    if (!r)
        print(&report, &a, t);
    kernels_forget(&a);
    return r ? r : report_end(&report, 0);
}

int trace_kernels(char **paths, bool json, const struct runs_steps *steps)
{
    struct all_runs of = { steps, json };
    int r = 0;
    for (size_t i = 0; !r && paths[i]; i++)
        r = runs_each(paths[i], kernels_of, &of);
    return r;
}
