/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump diff and verify --against: how far a run and another one, or a reference, are apart, by site and by tensor, and where runs part first. */
#include "tools/dump/diff.h"

#include "core/cleanup.h"
#include "core/words.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#define MOST_TOLD 20

/* ------------------------------------------------------------------------- where */

/* "france/q.3, position 7" */
static void add_place(struct text *to, const struct divergence *d)
{
    text_printf(to, "%s", d->tensor->key);
    if (d->position >= 0)
        text_printf(to, ", position %" PRId64, d->position);
}

/* ------------------------------------------------------------------------- by site */

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
    { "GREATEST", "greatest", 9, NULL, value_of_error },
    { "MEAN", "mean", 9, NULL, value_of_error },
    { "ERROR", "error", 9, NULL, value_of_error },
    { "LEAST COSINE", "least_cosine", 12, NULL, value_of_cosine },
    { " FIRST", "first", -1, cell_first },
};

static void cell_rows(struct text *to, const json_t *row)
{
    text_printf(to, "%" JSON_INTEGER_FORMAT "/%" JSON_INTEGER_FORMAT,
                json_integer_value(json_object_get(row, "rows")),
                json_integer_value(json_object_get(row, "reference_rows")));
}

static void cell_worst(struct text *to, const json_t *row)
{
    const char *worst = json_string_value(json_object_get(row, "worst_tensor"));
    text_printf(to, "%s%s%s", worst ? worst : "-",
                json_is_true(json_object_get(row, "sketch")) ? " (sketch)" : "",
                json_integer_value(json_object_get(row, "failed")) ? "  DIFFERS" : "");
}

static const struct column reference_columns[] = {
    { "SITE", "site", -16, NULL },
    { "LAYERS", "layers", 7, NULL },
    { "TENSORS", "tensors", 8, NULL },
    { "ROWS COMPARED", "rows", 15, cell_rows },
    { "CACHED", "cached_rows", 8, NULL },
    { "WORST ERROR", "worst_error", 11, NULL, value_of_error },
    { "WORST ROW", "worst_row", 11, NULL, value_of_error },
    { "LEAST COSINE", "least_cosine", 12, NULL, value_of_cosine },
    { " WORST TENSOR", "worst_tensor", -1, cell_worst },
};

static int print_sites(const struct differ *d, struct report *report)
{
    json_t *sites = differ_sites(d);
    if (!sites)
        return -ENOMEM;
    if (d->reference)
        report_table(report, "sites", reference_columns, N_OF(reference_columns));
    else
        report_table(report, "sites", site_columns, N_OF(site_columns));
    for (size_t i = 0; i < json_array_size(sites); i++)
        report_row(report, json_incref(json_array_get(sites, i)));
    report_table_end(report);
    report_line(report, "%s", "");
    json_decref(sites);
    return 0;
}

/* ------------------------------------------------------------------------- by tensor */

static void reference_failure_line(struct report *report, const struct tensor *t,
                                   const struct difference *x)
{
    if (x->bad_shape)
        report_line(report,
                    "DIFFERS %s: captured %" PRIu64 " wide%s, the reference has another shape",
                    t->key, t->width, t->mixed ? " (and changing)" : "");
    else if (!x->n_rows)
        report_line(report,
                    "DIFFERS %s: no row could be compared (the reference lacks "
                    "%" PRIu64 " of its rows)",
                    t->key, x->n_lacking);
    else
        report_line(report,
                    "DIFFERS %s: error %.2e of its norm, worst row %.2e at position %" PRId64
                    ", cosine %.7f",
                    t->key, difference_error(x), x->worst_row, x->worst_position,
                    sums_cosine(&x->sums));
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
                    difference_error(x), x->sums.greatest, sums_cosine(&x->sums),
                    first.data ? first.data : "");
}

static void print_tensors(const struct differ *d, struct report *report)
{
    uint64_t n_failed = 0;
    if (report->json)
        report_table(report, "tensors", NULL, 0);
    for (size_t i = 0; i < d->run.tensors.n; i++) {
        const struct difference *x = &d->results[i];
        bool paired = difference_is_paired(x), failed = paired && !difference_passes(d, x);
        n_failed += failed;
        if (paired && report->json)
            report_row(report, differ_tensor(d, i));
        else if (failed && n_failed <= MOST_TOLD)
            (x->reference ? reference_failure_line : failure_line)(report, &d->run.tensors.all[i],
                                                                   x);
    }
    if (report->json)
        report_table_end(report);
    if (n_failed > MOST_TOLD)
        report_line(report, "... and %" PRIu64 " more", n_failed - MOST_TOLD);
}

/* ------------------------------------------------------------------------- what only one has */

static int print_only(const struct differ *d, struct report *report)
{
    _cleanup_(names_deinit) struct names ours = { 0 }, theirs = { 0 };
    uint64_t rows = differ_rows_only_in_other(d);
    if (differ_only(d, &ours, &theirs))
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

static void verdict(const struct differ *d, struct report *report, const struct differ_totals *t)
{
    report_member(report, "compared", value_u64(t->n_compared));
    report_member(report, "differing", value_u64(t->n_differing));
    report_member(report, "rows", value_u64(t->n_rows));
    report_member(report, "same_rows", value_u64(t->n_same));
    report_member(report, "unreadable_rows", value_u64(d->n_unreadable));
    report_member(report, "first", differ_divergence(&d->first));
    report_member(report, "equal", json_boolean(t->equal));
    if (!t->n_compared)
        report_line(report, "Nothing could be compared: the runs have no tensor of the same name.");
    else if (t->equal && t->n_same == t->n_rows)
        report_line(report, "%s %" PRIu64 " %s the same, bit for bit, in %" PRIu64 " %s.",
                    word_for(t->n_compared, "The", "All"), t->n_compared,
                    word_for(t->n_compared, "tensor is", "tensors are"), t->n_rows,
                    word_for(t->n_rows, "row", "rows"));
    else if (t->equal)
        report_line(report,
                    "%s %" PRIu64 " %s: error <= %g of the norm, <= %g in any row; %" PRIu64
                    " of %" PRIu64 " rows have the same bits.",
                    word_for(t->n_compared, "The", "All"), t->n_compared,
                    word_for(t->n_compared, "tensor agrees", "tensors agree"), d->tolerance,
                    d->row_tolerance, t->n_same, t->n_rows);
    else
        report_line(
            report,
            "%" PRIu64 " of %" PRIu64 " %s; %" PRIu64 " of %" PRIu64 " rows have the same bits.",
            t->n_differing, t->n_compared,
            word_for(t->n_compared, "tensor differs", "tensors differ"), t->n_same, t->n_rows);
}

int diff_report(const struct differ *d, struct report *report)
{
    struct differ_totals totals = differ_total(d);
    if (print_sites(d, report))
        return no_memory();
    print_tensors(d, report);
    if (print_only(d, report))
        return no_memory();
    first_line(report, &d->first);
    verdict(d, report, &totals);
    return totals.equal ? DUMP_OK : DUMP_FAILED;
}

/* ------------------------------------------------------------------------- a reference */

static void reference_lines(const struct differ *d, const char *reference, struct report *report,
                            const struct differ_totals *t)
{
    const struct tensors *tensors = &d->run.tensors;
    if (tensors->n_short)
        report_line(report,
                    "%" PRIu64 " %s fewer rows than the forward has tokens: rows are missing.",
                    tensors->n_short, word_for(tensors->n_short, "record has", "records have"));
    if (!t->n_compared)
        report_line(report,
                    "Nothing could be compared: no tensor of the run has a name that %s knows. %s",
                    reference,
                    tensors->by_request
                        ? "dmi-dump list --tensors shows the names."
                        : "The run has no request ids: say with --request which of the reference's "
                          "requests it is.");
    else if (t->equal)
        report_line(report,
                    "%s %" PRIu64 " %s with the reference: error <= %g of the norm, <= %g in any "
                    "row.",
                    word_for(t->n_compared, "The", "All"), t->n_compared,
                    word_for(t->n_compared, "tensor agrees", "tensors agree"), d->tolerance,
                    d->row_tolerance);
    else
        report_line(report,
                    "%" PRIu64 " of %" PRIu64 " %s from the reference (allowed: %g of "
                    "the norm, %g in any row).",
                    t->n_differing, t->n_compared,
                    word_for(t->n_compared, "tensor differs", "tensors differ"), d->tolerance,
                    d->row_tolerance);
}

int diff_reference_report(const struct differ *d, const char *reference, struct report *report)
{
    struct differ_totals t = differ_total(d);
    t.equal = t.equal && !d->run.tensors.n_short;
    report_line(report, "%s", "");
    if (print_sites(d, report))
        return no_memory();
    print_tensors(d, report);
    if (compare_names(d, report))
        return no_memory();
    report_member(report, "compared", value_u64(t.n_compared));
    report_member(report, "failed", value_u64(t.n_differing));
    report_member(report, "short_records", value_u64(d->run.tensors.n_short));
    report_member(report, "unreadable_records", value_u64(d->n_unreadable_stretches));
    report_member(report, "agrees", json_boolean(t.equal));
    reference_lines(d, reference, report, &t);
    return t.equal ? DUMP_OK : DUMP_FAILED;
}
