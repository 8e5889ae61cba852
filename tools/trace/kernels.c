/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/kernels.h"

#include "core/any.h"
#include "core/err.h"
#include "core/grow.h"
#include "core/sorted.h"
#include "read/value.h"
#include "storage/codec/hash.h"
#include "tools/common/report.h"
#include "tools/common/say.h"
#include "tools/trace/names.h"
#include "tools/trace/runs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *kernels_word(const struct dmi_trace_shape *shape)
{
    static const char *const copies[] = { [1] = "copy to the device",
                                          [2] = "copy to the host",
                                          [8] = "copy within the device",
                                          [9] = "copy within the host",
                                          [10] = "copy between devices" };
    if (shape->kind == DMI_RAN_FILL)
        return "fill";
    if (shape->kind == DMI_RAN_FURTHER)
        return "(kernels with less time)";
    bool known = shape->how < sizeof copies / sizeof *copies && copies[shape->how];
    return known ? copies[shape->how] : "copy";
}

const char *kernels_kind(uint32_t kind)
{
    static const char *const kinds[] = { [DMI_RAN_KERNEL] = "kernel",
                                         [DMI_RAN_COPY] = "copy",
                                         [DMI_RAN_FILL] = "fill",
                                         [DMI_RAN_FURTHER] = "further" };
    bool known = kind && kind < sizeof kinds / sizeof *kinds;
    return known ? kinds[kind] : "unknown";
}

const char *kernels_site(const struct reader *reader, struct ran_place place)
{
    bool known = place.site && place.site <= reader_n_sites(reader);
    return known ? reader_site(reader, place.site - 1)->name : NULL;
}

/* What a line is of. */
struct line_key {
    uint32_t kind;
    uint64_t site;
    const char *name;
    size_t n; /* bytes of the name */
};

static bool is_of(const struct kernels_line *line, const struct line_key *key)
{
    return line->kind == key->kind && line->site == key->site && line->n_name == key->n &&
           !memcmp(line->name, key->name, key->n);
}

static uint64_t hash_of(const char *name, size_t n, uint32_t kind, uint64_t site)
{
    return hash_bytes(name, n) + kind + site;
}

/* The place of a line with this key, with room for one more. NULL: no memory. */
static uint32_t *place_of(struct kernels_sums *a, const struct line_key *key)
{
    if (GROW(a->all, a->n, a->room) || !HASHED_MAKE_ROOM(&a->by_hash, a->n, i,
                                                         hash_of(a->all[i].name, a->all[i].n_name,
                                                                 a->all[i].kind, a->all[i].site)))
        return NULL;
    return HASHED_FIND(&a->by_hash, hash_of(key->name, key->n, key->kind, key->site), i,
                       is_of(&a->all[i], key));
}

/* The line of the name, and the site. NULL: no memory. */
static struct kernels_line *line_of(struct kernels_sums *a, const struct dmi_trace_shape *shape,
                                    const char *name, uint64_t site)
{
    bool kernel = shape->kind == DMI_RAN_KERNEL;
    name = kernel ? name : kernels_word(shape);
    struct line_key key = { shape->kind, site, name, kernel ? shape->name_bytes : strlen(name) };
    uint32_t *place = place_of(a, &key);
    if (place && *place)
        return &a->all[*place - 1];
    char *copy = place ? malloc(key.n + 1) : NULL;
    if (!copy)
        return NULL;
    memcpy(copy, name, key.n);
    copy[key.n] = 0;
    a->all[a->n] =
        (struct kernels_line){ .kind = key.kind, .name = copy, .n_name = key.n, .site = site };
    *place = (uint32_t)++a->n;
    return &a->all[a->n - 1];
}

static void add_layer(struct kernels_line *line, uint64_t layer)
{
    if (!layer)
        return;
    line->first = line->first && line->first < layer ? line->first : layer;
    line->last = line->last > layer ? line->last : layer;
}

static void add(struct kernels_sums *a, const struct ran_sum *sum, struct ran_place place)
{
    bool known = a->sites && kernels_site(a->sites, place);
    struct kernels_line *line = line_of(a, &sum->shape, sum->name, known ? place.site : 0);
    if (!line) {
        a->failed = true;
        return;
    }
    uint32_t registers = sum->shape.registers;
    uint32_t shared = sum->shape.static_shared + sum->shape.dynamic_shared;
    a->n_records += sum->n;
    a->n_unknown += sum->step == DMI_RAN_UNKNOWN ? sum->n : 0;
    a->sum_ns += sum->sum_ns;
    add_layer(line, known ? place.layer : 0);
    line->n += sum->n;
    line->sum_ns += sum->sum_ns;
    line->bytes += sum->bytes;
    line->most_ns = sum->most_ns > line->most_ns ? sum->most_ns : line->most_ns;
    line->registers = registers > line->registers ? registers : line->registers;
    line->shared = shared > line->shared ? shared : line->shared;
}

static void take_ran(void *ctx, const struct ran *ran)
{
    struct kernels_sums *a = ctx;
    uint64_t ns = ran->end_ns - ran->begin_ns;
    if (runs_asked(a->steps, ran->step))
        add(a,
            &(struct ran_sum){ .shape = ran->shape,
                               .name = ran->name,
                               .step = ran->step,
                               .n = 1,
                               .sum_ns = ns,
                               .most_ns = ns,
                               .bytes = ran->bytes },
            ran->place);
}

/* Parts of a step come one after the other, mostly. */
static void add_busy(struct ran_sum *to, const struct ran_sum *sum)
{
    to->n += sum->n;
    to->sum_ns += sum->sum_ns;
    to->most_ns = sum->most_ns > to->most_ns ? sum->most_ns : to->most_ns;
    to->bytes += sum->bytes;
}

static void take_sum(void *ctx, const struct ran_sum *sum)
{
    struct kernels_sums *a = ctx;
    if (!runs_asked(a->steps, sum->step))
        return;
    if (sum->shape.kind != DMI_RAN_BUSY)
        add(a, sum, (struct ran_place){ 0 });
    else if (sum->step >= DMI_RAN_FIRST)
        add_busy(&a->busy, sum);
}

int kernels_by_name(const void *pa, const void *pb)
{
    const struct kernels_line *a = pa, *b = pb;
    ORDER(a, b, kind);
    TRY(memcmp(a->name, b->name, a->n_name < b->n_name ? a->n_name : b->n_name));
    ORDER(a, b, n_name);
    return 0;
}

static int by_time(const void *pa, const void *pb)
{
    const struct kernels_line *a = pa, *b = pb;
    ORDER(b, a, sum_ns);
    ORDER(a, b, site);
    return kernels_by_name(a, b);
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

static void site_cell(struct text *to, const json_t *row)
{
    const char *site = json_string_value(json_object_get(row, "site"));
    text_printf(to, "%s", site ? site : "-");
}

static void layers_cell(struct text *to, const json_t *row)
{
    const json_t *layers = json_object_get(row, "layers");
    json_int_t first = json_integer_value(json_array_get(layers, 0));
    json_int_t last = json_integer_value(json_array_get(layers, 1));
    if (!json_array_size(layers))
        text_printf(to, "-");
    else if (first == last)
        text_printf(to, "%" JSON_INTEGER_FORMAT, first);
    else
        text_printf(to, "%" JSON_INTEGER_FORMAT "-%" JSON_INTEGER_FORMAT, first, last);
}

static void short_cell(struct text *to, const json_t *row)
{
    names_short(to, json_string_value(json_object_get(row, "name")));
}

static const struct column columns[] = {
    { "sum ms", "sum_ns", 11, sum_cell },
    { "share", "share", 7, share_cell },
    { "count", "n", 9, NULL },
    { "mean us", "mean_ns", 10, mean_cell },
    { "registers", "registers", 10, NULL },
    { "shared", "shared", 8, NULL },
    { "site", "site", 14, site_cell },
    { "layers", "layers", 8, layers_cell },
    { "name", "name", -1, NULL },
};
#define N_COLUMNS (sizeof columns / sizeof *columns)

static json_t *row_of(const struct kernels_sums *a, const struct kernels_line *l)
{
    double share = a->sum_ns ? (double)l->sum_ns / (double)a->sum_ns : 0;
    const char *site =
        a->sites ? kernels_site(a->sites, (struct ran_place){ .site = l->site }) : NULL;
    json_t *layers = l->first ? json_pack("[o, o]", value_u64(l->first - 1), value_u64(l->last - 1))
                              : json_null();
    return VALUE_OBJECT(
        { "kind", json_string(kernels_kind(l->kind)) }, { "name", value_bytes(l->name, l->n_name) },
        { "n", value_u64(l->n) }, { "sum_ns", value_u64(l->sum_ns) }, { "share", json_real(share) },
        { "most_ns", value_u64(l->most_ns) }, { "registers", value_u64(l->registers) },
        { "shared", value_u64(l->shared) }, { "bytes", value_u64(l->bytes) },
        { "site", site ? value_text(site) : json_null() }, { "layers", layers });
}

static bool names_sites(const struct kernels_sums *a)
{
    return ANY(i, a->n, a->all[i].site);
}

static void put_table(struct report *report, struct kernels_sums *a, bool full_names)
{
    struct column shown[N_COLUMNS]; /* until report_table_end() */
    size_t n = 0;
    SORT(a->all, a->n, by_time);
    bool sites = names_sites(a);
    for (size_t i = 0; i < N_COLUMNS; i++)
        if (sites || (columns[i].cell != site_cell && columns[i].cell != layers_cell))
            shown[n++] = columns[i];
    shown[n - 1].cell = full_names ? NULL : short_cell;
    report_table(report, "kernels", shown, n);
    for (size_t i = 0; i < a->n; i++)
        report_row(report, row_of(a, &a->all[i]));
    report_table_end(report);
    report->failed |= a->failed;
}

static void print(struct report *report, struct kernels_sums *a, const struct trace_run *t,
                  bool full_names)
{
    report_line(report, "%s: %" PRIu64 " records, %" PRIu64 " of no known step", t->run->path,
                a->n_records, a->n_unknown);
    report_member(report, "run", value_text(t->run->path));
    report_member(report, "records", value_u64(a->n_records));
    report_member(report, "unknown", value_u64(a->n_unknown));
    if (*t->marks.alone)
        report_line(report, "steps alone were traced: %s", t->marks.alone);
    runs_say_lent(report, t);
    report_member(report, "lent", value_u64(t->marks.n_lent));
    if (!a->n && !*t->marks.alone)
        report_line(report, "nothing ran, or it was not asked for: dmi-run --trace stores it");
    put_table(report, a, full_names);
}

void kernels_forget(struct kernels_sums *a)
{
    for (size_t i = 0; i < a->n; i++)
        free(a->all[i].name);
    free(a->all);
    hashed_deinit(&a->by_hash);
}

static int said(int r, const struct err *err)
{
    if (r)
        complain("%s", err->msg);
    return r ? REPORT_IMPOSSIBLE : 0;
}

static int add_records(struct kernels_sums *a, const struct trace_run *t)
{
    struct err err = { 0 };
    return said(reader_each_ran(&err, t->reader, take_ran, a), &err);
}

static int add_sums(struct kernels_sums *a, const struct trace_run *t)
{
    struct err err = { 0 };
    return said(reader_each_sum(&err, t->reader, take_sum, a), &err);
}

int kernels_sum(struct kernels_sums *a, const struct trace_run *t)
{
    uint64_t before = a->n_records;
    int r = add_sums(a, t);
    return r || a->n_records > before ? r : add_records(a, t);
}

static void say_busy(struct report *report, const struct ran_sum *busy)
{
    report_line(report,
                "busy    %.3f ms of the %.3f ms from its first begin to its last end; nothing runs "
                "for %.3f ms at most",
                (double)busy->sum_ns / 1e6, (double)busy->bytes / 1e6, (double)busy->most_ns / 1e6);
    report_member(report, "busy",
                  json_pack("{s:o, s:o, s:o, s:o}", "records", value_u64(busy->n), "busy_ns",
                            value_u64(busy->sum_ns), "span_ns", value_u64(busy->bytes),
                            "longest_ns", value_u64(busy->most_ns)));
}

int kernels_of_step(struct report *report, const struct trace_run *t, uint64_t number,
                    bool full_names)
{
    const struct runs_steps step = { .first = number, .end = number + 1 };
    struct kernels_sums a = { .steps = &step, .sites = t->reader };
    int r = add_records(&a, t);
    if (!r && !a.n)
        r = add_sums(&a, t);
    if (!r && a.n)
        report_line(report, "on the device%s", a.busy.n ? ", in sums" : "");
    if (!r && a.busy.n)
        say_busy(report, &a.busy);
    if (!r && (a.n || report->json))
        put_table(report, &a, full_names);
    kernels_forget(&a);
    return r;
}

/* The parts of a step's sums are added. */
static void add_part(struct kernels_busy *to, const struct ran_sum *sum)
{
    to->records += sum->n;
    to->busy_ns += sum->sum_ns;
    to->span_ns += sum->bytes;
    to->longest_ns = sum->most_ns > to->longest_ns ? sum->most_ns : to->longest_ns;
}

static void add_cost(struct kernels_costs *c, const struct ran_sum *sum)
{
    bool kernel = sum->shape.kind == DMI_RAN_KERNEL || sum->shape.kind == DMI_RAN_FURTHER;
    c->sum_ns += kernel ? sum->sum_ns : 0;
    c->own_ns += ran_is_own(&sum->shape, sum->name) ? sum->sum_ns : 0;
    if (sum->shape.kind == DMI_RAN_BUSY)
        add_part(&c->all, sum);
}

static void take_costs(void *ctx, uint64_t chunk, const struct ran_sum *all, size_t n)
{
    struct kernels_costs *c = ctx;
    struct kernels_extent at = { .chunk = chunk, .first = UINT64_MAX };
    for (size_t i = 0; i < n; i++) {
        if (all[i].step < DMI_RAN_FIRST)
            continue;
        uint64_t number = all[i].step - DMI_RAN_FIRST;
        add_cost(c, &all[i]);
        at.first = number < at.first ? number : at.first;
        at.last = number > at.last ? number : at.last;
    }
    if (at.first > at.last || c->failed ||
        (c->failed = GROW(c->extents, c->n_extents, c->extents_room)))
        return;
    c->extents[c->n_extents++] = at;
}

int kernels_costs(const struct trace_run *t, struct kernels_costs *costs)
{
    struct err err = { 0 };
    *costs = (struct kernels_costs){ 0 };
    int r = reader_sums_by_chunk(&err, t->reader, NULL, take_costs, costs);
    if (!r && costs->failed)
        r = err_set_errno(&err, ENOMEM, "cannot read %s", t->run->path);
    return said(r, &err);
}

void kernels_costs_forget(struct kernels_costs *costs)
{
    free(costs->extents);
    *costs = (struct kernels_costs){ 0 };
}

struct some_steps {
    const struct kernels_costs *costs;
    const struct dmi_step_times *steps;
    size_t n;
    struct kernels_busy *each;
};

static bool meets(void *ctx, uint64_t chunk)
{
    const struct some_steps *s = ctx;
    size_t i = 0;
    SEARCH(i, s->costs->n_extents, s->costs->extents[i].chunk < chunk);
    if (!s->n || i == s->costs->n_extents || s->costs->extents[i].chunk != chunk)
        return false;
    return s->costs->extents[i].last >= s->steps[0].number &&
           s->costs->extents[i].first <= s->steps[s->n - 1].number;
}

static void take_busy(void *ctx, uint64_t chunk, const struct ran_sum *all, size_t n)
{
    const struct some_steps *s = ctx;
    (void)chunk;
    for (size_t i = 0; i < n; i++) {
        uint64_t number = all[i].step - DMI_RAN_FIRST;
        size_t k = 0;
        if (all[i].shape.kind != DMI_RAN_BUSY || all[i].step < DMI_RAN_FIRST)
            continue;
        SEARCH(k, s->n, s->steps[k].number < number);
        if (k < s->n && s->steps[k].number == number)
            add_part(&s->each[k], &all[i]);
    }
}

int kernels_busy(const struct trace_run *t, const struct kernels_costs *costs,
                 const struct dmi_step_times *steps, size_t n, struct kernels_busy *each)
{
    struct err err = { 0 };
    struct some_steps some = { costs, steps, n, each };
    return said(reader_sums_by_chunk(&err, t->reader, meets, take_busy, &some), &err);
}

struct all_runs {
    const struct runs_steps *steps;
    struct kernels_form form;
    size_t n_shown;
};

static int kernels_of(const struct trace_run *t, void *ctx)
{
    struct all_runs *of = ctx;
    struct report report = { .json = of->form.json };
    struct kernels_sums a = { .steps = of->steps, .sites = t->reader };
    uint64_t n_asked;
    int r = runs_count(t, of->steps, &n_asked);
    r = r ? r : kernels_sum(&a, t);
    bool shown = !r && (n_asked || a.n || runs_all_asked(of->steps));
    of->n_shown += shown;
    if (shown)
        print(&report, &a, t, of->form.full_names);
    kernels_forget(&a);
    return shown ? report_end(&report, 0) : r;
}

int trace_kernels(char **paths, struct kernels_form form, const struct runs_steps *steps)
{
    struct all_runs of = { steps, form, 0 };
    int r = 0;
    bool none = false;
    for (size_t i = 0; !r && paths[i]; i++) {
        size_t before = of.n_shown;
        r = runs_each(paths[i], kernels_of, &of);
        if (!r && of.n_shown == before)
            none = runs_say_none(paths[i]);
    }
    return !r && none ? REPORT_IMPOSSIBLE : r;
}
