/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-trace diff: which kernels ran in one run and not in another, which have other template arguments, and what each took in both. */
#include "tools/trace/diff.h"

#include "core/demangle.h"
#include "core/own_stack.h"
#include "core/sorted.h"
#include "read/value.h"
#include "tools/common/report.h"
#include "tools/common/say.h"
#include "tools/trace/kernels.h"
#include "tools/trace/names.h"
#include "tools/trace/templates.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MOST_DEMANGLED (64u << 20) /* bytes of names: one may take 4 MiB */

/* What ran in one of the two. */
struct trace_side {
    const char *path;
    struct kernels_sums sums;
    uint64_t n_runs;
    uint64_t n_steps, launches, graphs; /* of steps that are asked for */
    char alone[160];                    /* why steps alone were traced in one of its runs; "" */
};

enum state { DIFF_CHANGED, DIFF_GONE, DIFF_NEW, DIFF_BOTH, DIFF_STATES };

/* In the order in which they are printed. */
static const char *const state_words[DIFF_STATES] = { "changed", "gone", "new", "both" };

/* A name in both, or one whose template arguments changed; or in one of them: the other one is NULL. */
struct line_pair {
    const struct kernels_line *of[2];
    char *demangled[2];           /* NULL: the name hides none */
    struct template_name name[2]; /* where it has template arguments; else @function is NULL */
    bool joined;                  /* the other one's pair has it */
};

struct trace_diff {
    struct trace_side sides[2];
    struct line_pair *all;
    size_t n;
    uint64_t n_of[DIFF_STATES];
    bool failed; /* no memory */
};

static enum state state_of(const struct line_pair *p)
{
    const struct kernels_line *any = p->of[0] ? p->of[0] : p->of[1];
    if (any->kind == DMI_RAN_FURTHER) /* kernels without names */
        return DIFF_BOTH;
    if (!p->of[0])
        return DIFF_NEW;
    if (!p->of[1])
        return DIFF_GONE;
    return kernels_by_name(p->of[0], p->of[1]) ? DIFF_CHANGED : DIFF_BOTH;
}

/* ------------------------------------------------------------------------- what ran */

static void take_step(void *ctx, const struct dmi_step_times *at)
{
    struct trace_side *side = ctx;
    if (!runs_step_asked(side->sums.steps, at->number))
        return;
    side->n_steps++;
    side->launches += at->launches;
    side->graphs += at->graph_launches;
}

static int add_run(const struct trace_run *t, void *ctx)
{
    struct trace_side *side = ctx;
    struct err err = { 0 };
    side->n_runs++;
    if (*t->marks.alone)
        memcpy(side->alone, t->marks.alone, sizeof side->alone);
    if (!reader_each_step_times(&err, t->reader, take_step, side))
        return kernels_sum(&side->sums, t);
    complain("%s", err.msg);
    return REPORT_IMPOSSIBLE;
}

/* Return: an exit status: what is wrong is said. */
static int read_side(struct trace_side *side)
{
    int r = runs_each(side->path, add_run, side);
    if (r || side->sums.n || side->sums.failed)
        return r;
    if (*side->alone)
        complain("%s: steps alone were traced: %s", side->path, side->alone);
    else if (side->n_steps || runs_all_asked(side->sums.steps))
        complain("%s holds no kernel, copy or fill: dmi-run --trace stores them", side->path);
    else
        runs_say_none(side->path);
    return REPORT_IMPOSSIBLE;
}

/* ------------------------------------------------------------------------- pairs by name */

/* Which of the two comes first, by name; 0: both. */
static int order_of(const struct kernels_sums *a, size_t i, const struct kernels_sums *b, size_t j)
{
    if (i == a->n || j == b->n)
        return i == a->n ? 1 : -1;
    return kernels_by_name(&a->all[i], &b->all[j]);
}

static void pair_names(struct trace_diff *d)
{
    struct kernels_sums *a = &d->sides[0].sums, *b = &d->sides[1].sums;
    d->all = calloc(a->n + b->n, sizeof *d->all);
    d->failed |= !d->all;
    SORT(a->all, a->n, kernels_by_name);
    SORT(b->all, b->n, kernels_by_name);
    for (size_t i = 0, j = 0; d->all && i + j < a->n + b->n;) {
        int order = order_of(a, i, b, j);
        struct line_pair *p = &d->all[d->n++];
        p->of[0] = order <= 0 ? &a->all[i++] : NULL;
        p->of[1] = order >= 0 ? &b->all[j++] : NULL;
    }
}

/* ------------------------------------------------------------------------- template arguments */

static void read_name(void *arg)
{
    struct line_pair *p = arg;
    unsigned i = !p->of[0];
    p->demangled[i] = demangle(p->of[i]->name);
    if (p->demangled[i])
        template_read(p->demangled[i], &p->name[i]);
}

/* Names after the first that would take more memory than this stay as they are. */
static void read_names(struct trace_diff *d)
{
    size_t left = MOST_DEMANGLED;
    for (struct line_pair *p = d->all; left && p < d->all + d->n; p++) {
        unsigned i = !p->of[0];
        const char *name = p->of[i]->name;
        if (!demangle_is_for(name))
            continue;
        d->failed |= !own_stack_run(read_name, p, demangle_stack(name));
        size_t n = p->demangled[i] ? strlen(p->demangled[i]) : 0;
        left = n < left ? left - n : 0;
    }
}

/* That of the new kernels which has the most template arguments of @gone's, and more time than others that have as many. NULL: none is of its function. */
static struct line_pair *find_other(struct trace_diff *d, const struct line_pair *gone)
{
    struct line_pair *best = NULL;
    size_t most = 0;
    for (struct line_pair *p = d->all; p < d->all + d->n; p++) {
        if (state_of(p) != DIFF_NEW || p->joined || !p->name[1].function ||
            !template_same(&gone->name[0], &p->name[1]))
            continue;
        size_t alike = template_alike(&gone->name[0], &p->name[1]);
        if (best && (alike < most || (alike == most && p->of[1]->sum_ns <= best->of[1]->sum_ns)))
            continue;
        best = p;
        most = alike;
    }
    return best;
}

static int by_state(const void *pa, const void *pb)
{
    const struct line_pair *a = pa, *b = pb;
    enum state x = state_of(a), y = state_of(b);
    if (x != y)
        return x < y ? -1 : 1;
    uint64_t ns[2];
    for (int i = 0; i < 2; i++) {
        const struct line_pair *p = i ? b : a;
        uint64_t first = p->of[0] ? p->of[0]->sum_ns : 0, second = p->of[1] ? p->of[1]->sum_ns : 0;
        ns[i] = first > second ? first : second;
    }
    if (ns[0] != ns[1])
        return ns[0] > ns[1] ? -1 : 1;
    return kernels_by_name(a->of[!a->of[0]], b->of[!b->of[0]]);
}

/* A kernel that is gone and a new one of its function become one that changed, those with the most time first. */
static void join_changed(struct trace_diff *d)
{
    SORT(d->all, d->n, by_state);
    for (struct line_pair *p = d->all; p < d->all + d->n; p++) {
        struct line_pair *other =
            state_of(p) == DIFF_GONE && p->name[0].function ? find_other(d, p) : NULL;
        if (!other)
            continue;
        p->of[1] = other->of[1];
        p->name[1] = other->name[1];
        p->demangled[1] = other->demangled[1];
        other->demangled[1] = NULL;
        other->joined = true;
    }
    SORT(d->all, d->n, by_state);
    for (const struct line_pair *p = d->all; p < d->all + d->n; p++)
        if (!p->joined)
            d->n_of[state_of(p)]++;
}

/* ------------------------------------------------------------------------- what is printed */

static uint64_t number_of(const json_t *row, const char *side, const char *key)
{
    return object_number(json_object_get(row, side), key);
}

static void count_cell(struct text *to, const json_t *row, const char *side)
{
    text_printf(to, "%" PRIu64, number_of(row, side, "n"));
}

static void sum_cell(struct text *to, const json_t *row, const char *side)
{
    text_printf(to, "%.3f", (double)number_of(row, side, "sum_ns") / 1e6);
}

static void mean_cell(struct text *to, const json_t *row, const char *side)
{
    uint64_t n = number_of(row, side, "n");
    if (n)
        text_printf(to, "%.2f", (double)number_of(row, side, "sum_ns") / 1e3 / (double)n);
    else
        text_printf(to, "-");
}

static void count_a(struct text *to, const json_t *row)
{
    count_cell(to, row, "a");
}

static void count_b(struct text *to, const json_t *row)
{
    count_cell(to, row, "b");
}

static void sum_a(struct text *to, const json_t *row)
{
    sum_cell(to, row, "a");
}

static void sum_b(struct text *to, const json_t *row)
{
    sum_cell(to, row, "b");
}

static void mean_a(struct text *to, const json_t *row)
{
    mean_cell(to, row, "a");
}

static void mean_b(struct text *to, const json_t *row)
{
    mean_cell(to, row, "b");
}

/* "flash: argument 1 was 64, is 128" */
static void put_name(struct text *to, const json_t *row, bool full)
{
    const json_t *changes = json_object_get(row, "arguments");
    const char *demangled = object_text(row, "demangled");
    const char *name = demangled ? demangled : object_text(row, "name");
    if (!changes && full) {
        text_printf(to, "%s", name);
        return;
    }
    if (!changes) {
        names_short(to, name);
        return;
    }
    text_printf(to, "%s:", object_text(row, "function"));
    for (size_t i = 0; i < json_array_size(changes); i++) {
        const json_t *change = json_array_get(changes, i);
        const char *place = object_text(change, "place");
        text_printf(to, "%s argument%s%s was %s, is %s", i ? ";" : "", *place ? " " : "s", place,
                    object_text(change, "a"), object_text(change, "b"));
    }
}

static void name_cell(struct text *to, const json_t *row)
{
    put_name(to, row, true);
}

static void short_cell(struct text *to, const json_t *row)
{
    put_name(to, row, false);
}

static const struct column columns[] = {
    { "kernel", "state", -7, NULL },  { "count A", "a", 9, count_a },
    { "count B", "b", 9, count_b },   { "sum ms A", "a", 10, sum_a },
    { "sum ms B", "b", 10, sum_b },   { "mean us A", "a", 10, mean_a },
    { "mean us B", "b", 10, mean_b }, { "name", "name", -1, name_cell },
};
#define N_COLUMNS (sizeof columns / sizeof *columns)

static json_t *sums_of(const struct kernels_line *l)
{
    return l ? json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "n", value_u64(l->n), "sum_ns",
                         value_u64(l->sum_ns), "most_ns", value_u64(l->most_ns), "registers",
                         value_u64(l->registers), "shared", value_u64(l->shared), "bytes",
                         value_u64(l->bytes))
             : json_null();
}

static json_t *name_of(const struct kernels_line *l)
{
    return value_bytes(l->name, l->n_name);
}

static json_t *row_of(const struct line_pair *p)
{
    unsigned i = !p->of[0];
    enum state state = state_of(p);
    json_t *row =
        json_pack("{s:s, s:s, s:o, s:o, s:o, s:o}", "state", state_words[state], "kind",
                  kernels_kind(p->of[i]->kind), "name", name_of(p->of[i]), "demangled",
                  value_text(p->demangled[i]), "a", sums_of(p->of[0]), "b", sums_of(p->of[1]));
    if (row && state == DIFF_CHANGED &&
        (json_object_set_new(row, "name_b", name_of(p->of[1])) ||
         json_object_set_new(row, "demangled_b", value_text(p->demangled[1])) ||
         json_object_set_new(row, "function",
                             value_bytes(p->name[0].function, p->name[0].n_function)) ||
         json_object_set_new(row, "arguments", template_changes(&p->name[0], &p->name[1])))) {
        json_decref(row);
        row = NULL;
    }
    return row;
}

static void put_side(struct report *report, const struct trace_side *s, const char *key,
                     const char *letter)
{
    double each = s->n_steps ? (double)s->n_steps : 1;
    report_line(report,
                "%s: %s: %" PRIu64 " steps, %" PRIu64
                " records, %.3f ms on the device; a step has %.1f launches of kernels and %.1f of "
                "graphs",
                letter, s->path, s->n_steps, s->sums.n_records, (double)s->sums.sum_ns / 1e6,
                (double)s->launches / each, (double)s->graphs / each);
    report_member(report, key,
                  VALUE_OBJECT({ "path", value_text(s->path) }, { "runs", value_u64(s->n_runs) },
                               { "steps", value_u64(s->n_steps) },
                               { "records", value_u64(s->sums.n_records) },
                               { "sum_ns", value_u64(s->sums.sum_ns) },
                               { "launches", value_u64(s->launches) },
                               { "graph_launches", value_u64(s->graphs) }));
}

static void print(struct report *report, const struct trace_diff *d, bool full_names)
{
    struct column shown[N_COLUMNS]; /* until report_table_end() */
    memcpy(shown, columns, sizeof shown);
    shown[N_COLUMNS - 1].cell = full_names ? name_cell : short_cell;
    put_side(report, &d->sides[0], "a", "A");
    put_side(report, &d->sides[1], "b", "B");
    bool graphs[2] = { d->sides[0].graphs, d->sides[1].graphs };
    if (graphs[0] != graphs[1])
        report_line(report, "%s launches graphs, and %s none", graphs[0] ? "A" : "B",
                    graphs[0] ? "B" : "A");
    report_table(report, "kernels", shown, N_COLUMNS);
    for (size_t i = 0; i < d->n; i++)
        if (!d->all[i].joined)
            report_row(report, row_of(&d->all[i]));
    report_table_end(report);
    report_line(report,
                "%" PRIu64 " with other template arguments, %" PRIu64 " gone, %" PRIu64
                " new, %" PRIu64 " in both",
                d->n_of[DIFF_CHANGED], d->n_of[DIFF_GONE], d->n_of[DIFF_NEW], d->n_of[DIFF_BOTH]);
    for (enum state i = 0; i < DIFF_STATES; i++)
        report_member(report, state_words[i], value_u64(d->n_of[i]));
    report->failed |= d->failed;
}

static void forget(struct trace_diff *d)
{
    for (size_t i = 0; i < d->n; i++) {
        free(d->all[i].demangled[0]);
        free(d->all[i].demangled[1]);
    }
    free(d->all);
    kernels_forget(&d->sides[0].sums);
    kernels_forget(&d->sides[1].sums);
}

int trace_diff(const char *a, const char *b, struct kernels_form form,
               const struct runs_steps *steps)
{
    struct trace_diff d = { .sides = { { .path = a, .sums = { .steps = steps } },
                                       { .path = b, .sums = { .steps = steps } } } };
    struct report report = { .json = form.json };
    int r = read_side(&d.sides[0]);
    r = r ? r : read_side(&d.sides[1]);
    d.failed |= d.sides[0].sums.failed || d.sides[1].sums.failed;
    if (!r) {
        pair_names(&d);
        read_names(&d);
        join_changed(&d);
        print(&report, &d, form.full_names);
        r = report_end(&report, d.n_of[DIFF_BOTH] < d.n);
    }
    forget(&d);
    return r;
}
