/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump diff: how far two runs are apart, by site and by tensor, and where they part first. */
#include "tools/dump/diff.h"
#include "tools/dump/names.h"

#include "core/cleanup.h"
#include "core/words.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#define N_OF(a)   (sizeof(a) / sizeof(a)[0])
#define MOST_TOLD 20

/* ------------------------------------------------------------------------- where */

/* "france/q.3, position 7" */
static void add_place(struct text *to, const struct divergence *d)
{
    text_printf(to, "%s", d->tensor->key);
    if (d->position >= 0)
        text_printf(to, ", position %" PRId64, d->position);
}

static json_t *divergence_value(const struct divergence *d)
{
    if (!d->tensor)
        return json_null();
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "tensor", value_text(d->tensor->key), "position",
                     d->position < 0 ? json_null() : json_integer(d->position), "element",
                     value_u64(d->element), "run", value_double(d->ours), "other",
                     value_double(d->theirs));
}

/* ------------------------------------------------------------------------- by site */

struct site_sum {
    uint64_t n_tensors, n_layers, n_failed, n_rows, n_same, n_lacking;
    struct sums sums;
    double error, least_cosine;
    const struct divergence *first;
    int32_t last_layer;
};

static void cell_greatest(struct text *to, const json_t *row)
{
    cell_double(to, row, "greatest", "inf", false);
}

static void cell_mean(struct text *to, const json_t *row)
{
    cell_double(to, row, "mean", "inf", false);
}

static void cell_error(struct text *to, const json_t *row)
{
    cell_double(to, row, "error", "inf", false);
}

static void cell_cosine(struct text *to, const json_t *row)
{
    cell_double(to, row, "least_cosine", "nan", true);
}

static void cell_first(struct text *to, const json_t *row)
{
    const json_t *first = json_object_get(row, "first"), *at = json_object_get(first, "position");
    if (!json_is_object(first)) {
        text_printf(to, "-");
        return;
    }
    text_printf(to, "%s", json_string_value(json_object_get(first, "tensor")));
    if (json_is_integer(at))
        text_printf(to, " at %" JSON_INTEGER_FORMAT, json_integer_value(at));
}

static const struct column site_columns[] = {
    { "SITE", "site", -16, NULL },
    { "LAYERS", "layers", 7, NULL },
    { "TENSORS", "tensors", 8, NULL },
    { "ROWS", "rows", 8, NULL },
    { "SAME BITS", "same_rows", 10, NULL },
    { "GREATEST", "greatest", 9, cell_greatest },
    { "MEAN", "mean", 9, cell_mean },
    { "ERROR", "error", 9, cell_error },
    { "LEAST COSINE", "least_cosine", 12, cell_cosine },
    { " FIRST", "first", -1, cell_first },
};

static void sum_tensor(struct site_sum *s, const struct tensor *t, const struct difference *x,
                       const struct options *o)
{
    if (!s->n_tensors++)
        s->least_cosine = 1;
    s->n_failed += !difference_passes(x, o);
    if (!s->n_layers || t->layer > s->last_layer) {
        s->n_layers++;
        s->last_layer = t->layer;
    }
    s->n_rows += x->n_rows;
    s->n_same += x->n_same;
    s->n_lacking += x->n_lacking;
    sums_add(&s->sums, &x->sums);
    if (!x->n_rows)
        return;
    double error = sums_error(x->sums.err2, x->sums.ref2), cosine = sums_cosine(&x->sums);
    s->error = error > s->error ? error : s->error;
    s->least_cosine = cosine < s->least_cosine ? cosine : s->least_cosine;
    if (x->first.tensor && (!s->first || x->first.record < s->first->record))
        s->first = &x->first;
}

static double mean_of(const struct sums *s)
{
    return s->n ? s->abs / (double)s->n : 0;
}

static json_t *site_row(const char *name, const struct site_sum *s)
{
    static const struct divergence none;
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "site", value_text(name),
        "layers", value_u64(s->n_layers), "tensors", value_u64(s->n_tensors), "differing",
        value_u64(s->n_failed), "rows", value_u64(s->n_rows), "same_rows", value_u64(s->n_same),
        "lacking_rows", value_u64(s->n_lacking), "greatest", value_double(s->sums.greatest), "mean",
        value_double(mean_of(&s->sums)), "error", value_double(s->error), "least_cosine",
        value_double(s->least_cosine), "first", divergence_value(s->first ? s->first : &none));
}

static int print_sites(const struct differ *d, struct report *report)
{
    _cleanup_(freep) struct site_sum *sums = calloc(d->run.sites.n + 1, sizeof *sums);
    if (!sums)
        return -ENOMEM;
    for (size_t i = 0; i < d->run.tensors.n; i++) /* of a site those of one request come by layer */
        if (d->results[i].other)
            sum_tensor(&sums[d->run.tensors.all[i].order], &d->run.tensors.all[i], &d->results[i],
                       d->options);
    report_table(report, "sites", site_columns, N_OF(site_columns));
    for (size_t i = 0; i < d->run.sites.n; i++)
        if (sums[i].n_tensors)
            report_row(report, site_row(reader_site(d->run.reader, i)->name, &sums[i]));
    report_table_end(report);
    report_line(report, "%s", "");
    return 0;
}

/* ------------------------------------------------------------------------- by tensor */

static json_t *tensor_row(const struct tensor *t, const struct difference *x, bool passed)
{
    bool any = x->n_rows;
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:b}", "key",
                     value_text(t->key), "rows", value_u64(x->n_rows), "same_rows",
                     value_u64(x->n_same), "lacking_rows", value_u64(x->n_lacking), "greatest",
                     any ? value_double(x->sums.greatest) : json_null(), "mean",
                     any ? value_double(mean_of(&x->sums)) : json_null(), "error",
                     any ? value_double(sums_error(x->sums.err2, x->sums.ref2)) : json_null(),
                     "cosine", any ? value_double(sums_cosine(&x->sums)) : json_null(), "first",
                     divergence_value(&x->first), "other_shape", x->bad_shape, "passes", passed);
}

static void failure_line(struct report *report, const struct tensor *t, const struct difference *x)
{
    _cleanup_(text_deinit) struct text first = { 0 };
    if (x->bad_shape) {
        report_line(report,
                    "DIFFERS %s: rows are %" PRIu64 " wide%s, in the other run %" PRIu64 "%s",
                    t->key, t->width, t->mixed ? " (and changing)" : "", x->other->width,
                    x->other->mixed ? " (and changing)" : "");
        return;
    }
    if (x->n_lacking)
        report_line(report, "DIFFERS %s: the other run lacks %" PRIu64 " of its rows", t->key,
                    x->n_lacking);
    if (x->first.tensor)
        text_printf(&first, "; first at %s %" PRId64 ", element %" PRIu64 ": %.9g and %.9g",
                    x->first.position < 0 ? "record" : "position",
                    x->first.position < 0 ? (int64_t)x->first.record : x->first.position,
                    x->first.element, x->first.ours, x->first.theirs);
    if (x->n_differ || !x->n_lacking)
        report_line(report,
                    "DIFFERS %s: %" PRIu64 " of %" PRIu64 " %s, error %.2e of its norm, greatest "
                    "%.3g, cosine %.7f%s",
                    t->key, x->n_differ, x->n_rows, word_for(x->n_rows, "row", "rows"),
                    sums_error(x->sums.err2, x->sums.ref2), x->sums.greatest, sums_cosine(&x->sums),
                    first.data ? first.data : "");
}

/* Return: tensors that differ. */
static uint64_t print_tensors(const struct differ *d, struct report *report)
{
    uint64_t n_failed = 0;
    if (report->json)
        report_table(report, "tensors", NULL, 0);
    for (size_t i = 0; i < d->run.tensors.n; i++) {
        const struct difference *x = &d->results[i];
        if (!x->other)
            continue;
        bool passed = difference_passes(x, d->options);
        n_failed += !passed;
        if (report->json)
            report_row(report, tensor_row(&d->run.tensors.all[i], x, passed));
        else if (!passed && n_failed <= MOST_TOLD)
            failure_line(report, &d->run.tensors.all[i], x);
    }
    if (report->json)
        report_table_end(report);
    if (n_failed > MOST_TOLD)
        report_line(report, "... and %" PRIu64 " more", n_failed - MOST_TOLD);
    return n_failed;
}

/* ------------------------------------------------------------------------- what only one has */

/* @has: whether the other side has tensor number i. Return: 0 or -ENOMEM; @n counts them. */
static int only(const struct side *s, bool (*has)(const struct differ *d, size_t i),
                const struct differ *d, struct names *sites, uint64_t *n)
{
    int r = 0;
    for (size_t i = 0; !r && i < s->tensors.n; i++) {
        const char *site;
        if (has(d, i))
            continue;
        size_t n_site = names_site(s->tensors.all[i].key, &site);
        r = names_add(sites, site, n_site);
        ++*n;
    }
    return r;
}

static bool other_has(const struct differ *d, size_t i)
{
    return d->results[i].other;
}

static bool run_has(const struct differ *d, size_t i)
{
    return d->met[i];
}

static uint64_t rows_only_in_other(const struct differ *d)
{
    uint64_t n = 0;
    for (size_t i = 0; i < d->run.tensors.n; i++) {
        const struct difference *x = &d->results[i];
        if (x->other && !x->bad_shape && x->other->n_rows > x->n_rows)
            n += x->other->n_rows - x->n_rows;
    }
    return n;
}

/* Return: 0 or -ENOMEM; @n gets how much only one has: tensors, and rows of the others. */
static int print_only(const struct differ *d, struct report *report, uint64_t *n)
{
    _cleanup_(names_deinit) struct names ours = { 0 }, theirs = { 0 };
    uint64_t rows = rows_only_in_other(d);
    *n = rows;
    if (only(&d->run, other_has, d, &ours, n) || only(&d->other, run_has, d, &theirs, n))
        return -ENOMEM;
    names_print(report, "Only in the first run (tensors): ", "only_in_run", &ours);
    names_print(report, "Only in the other run (tensors): ", "only_in_other", &theirs);
    report_member(report, "rows_only_in_other", value_u64(rows));
    if (rows)
        report_line(report, "Only in the other run, of tensors that both have: %" PRIu64 " %s",
                    rows, word_for(rows, "row", "rows"));
    return 0;
}

/* ------------------------------------------------------------------------- all */

static void first_line(struct report *report, const struct divergence *first)
{
    _cleanup_(text_deinit) struct text place = { 0 };
    if (!first->tensor)
        return;
    add_place(&place, first);
    report_line(report,
                "In the order of launches they first differ at %s, element %" PRIu64
                ": %.9g and %.9g",
                place.data ? place.data : "?", first->element, first->ours, first->theirs);
}

static void verdict(const struct differ *d, struct report *report, uint64_t n_compared,
                    uint64_t n_failed, bool equal)
{
    uint64_t rows = 0, same = 0;
    for (size_t i = 0; i < d->run.tensors.n; i++) {
        rows += d->results[i].n_rows;
        same += d->results[i].n_same;
    }
    report_member(report, "compared", value_u64(n_compared));
    report_member(report, "differing", value_u64(n_failed));
    report_member(report, "rows", value_u64(rows));
    report_member(report, "same_rows", value_u64(same));
    report_member(report, "unreadable_rows", value_u64(d->n_unreadable));
    report_member(report, "first", divergence_value(&d->first));
    report_member(report, "equal", json_boolean(equal));
    if (!n_compared)
        report_line(report, "Nothing could be compared: the runs have no tensor of the same name.");
    else if (equal && same == rows)
        report_line(report, "%s %" PRIu64 " %s the same, bit for bit, in %" PRIu64 " %s.",
                    word_for(n_compared, "The", "All"), n_compared,
                    word_for(n_compared, "tensor is", "tensors are"), rows,
                    word_for(rows, "row", "rows"));
    else if (equal)
        report_line(report,
                    "%s %" PRIu64 " %s: error <= %g of the norm, <= %g in any row; %" PRIu64
                    " of %" PRIu64 " rows have the same bits.",
                    word_for(n_compared, "The", "All"), n_compared,
                    word_for(n_compared, "tensor agrees", "tensors agree"), d->options->tolerance,
                    d->options->row_tolerance, same, rows);
    else
        report_line(report,
                    "%" PRIu64 " of %" PRIu64 " %s; %" PRIu64 " of %" PRIu64
                    " rows have the same bits.",
                    n_failed, n_compared, word_for(n_compared, "tensor differs", "tensors differ"),
                    same, rows);
}

int diff_report(struct differ *d, struct report *report)
{
    uint64_t n_compared = 0, n_only;
    for (size_t i = 0; i < d->run.tensors.n; i++)
        n_compared += d->results[i].other != NULL;
    if (print_sites(d, report))
        return no_memory();
    uint64_t n_failed = print_tensors(d, report);
    if (print_only(d, report, &n_only))
        return no_memory();
    first_line(report, &d->first);
    bool equal = n_compared && !n_failed && !n_only && !d->n_unreadable;
    verdict(d, report, n_compared, n_failed, equal);
    return equal ? DUMP_OK : DUMP_FAILED;
}
