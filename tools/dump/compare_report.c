/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump verify --against: how far captured tensors are from the reference, by site and by tensor. */
#include "tools/dump/compare.h"

#include "core/cleanup.h"
#include "core/words.h"
#include "read/value.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define N_OF(a)   (sizeof(a) / sizeof(a)[0])
#define MOST_TOLD 20

/* ------------------------------------------------------------------------- by site */

struct compared_site {
    uint64_t n_tensors, n_layers, n_rows, n_ref_rows, n_cached, n_failed;
    double worst, worst_row, least_cosine;
    const struct tensor *worst_at;
    int32_t last_layer;
    bool sketch;
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

static const struct column site_columns[] = {
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

static void sum_tensor(struct compared_site *s, const struct tensor *t, const struct compared *r,
                       const struct dump_options *o)
{
    if (!s->n_tensors++)
        s->least_cosine = 1;
    s->n_failed += !compared_passes(r, o);
    if (!s->n_layers || t->layer > s->last_layer) {
        s->n_layers++;
        s->last_layer = t->layer;
    }
    if (r->bad_shape)
        return;
    s->n_rows += r->n_compared;
    s->n_ref_rows += r->ref->entry->dims[0];
    s->n_cached += r->n_cached;
    s->sketch = r->sketch;
    if (!r->n_compared)
        return;
    double e = compared_error(r), cos = compared_cosine(r);
    if (!s->worst_at || e > s->worst || isnan(e)) {
        s->worst = e;
        s->worst_at = t;
    }
    s->worst_row = r->worst_row > s->worst_row ? r->worst_row : s->worst_row;
    s->least_cosine = cos < s->least_cosine ? cos : s->least_cosine;
}

static json_t *site_row(const char *name, const struct compared_site *s)
{
    return VALUE_OBJECT(
        { "site", value_text(name) }, { "layers", value_u64(s->n_layers) },
        { "tensors", value_u64(s->n_tensors) }, { "rows", value_u64(s->n_rows) },
        { "reference_rows", value_u64(s->n_ref_rows) }, { "cached_rows", value_u64(s->n_cached) },
        { "worst_error", value_double(s->worst) }, { "worst_row", value_double(s->worst_row) },
        { "least_cosine", value_double(s->least_cosine) },
        { "worst_tensor", value_text(s->worst_at ? s->worst_at->key : NULL) },
        { "sketch", json_boolean(s->sketch) }, { "failed", value_u64(s->n_failed) });
}

static int print_sites(struct comparer *c, struct report *report)
{
    _cleanup_(freep) struct compared_site *sums = calloc(c->sites.n + 1, sizeof *sums);
    if (!sums)
        return -ENOMEM;
    for (size_t i = 0; i < c->tensors.n; i++) /* of a site those of one request come by layer */
        if (c->results[i].ref)
            sum_tensor(&sums[c->tensors.all[i].order], &c->tensors.all[i], &c->results[i],
                       c->options);
    report_line(report, "%s", "");
    report_table(report, "sites", site_columns, N_OF(site_columns));
    for (size_t i = 0; i < c->sites.n; i++)
        if (sums[i].n_tensors)
            report_row(report, site_row(reader_site(c->reader, i)->name, &sums[i]));
    report_table_end(report);
    report_line(report, "%s", "");
    return 0;
}

/* ------------------------------------------------------------------------- by tensor */

static json_t *tensor_row(const struct tensor *t, const struct compared *r, bool passed)
{
    return VALUE_OBJECT(
        { "key", value_text(t->key) },
        { "error", r->bad_shape ? json_null() : value_double(compared_error(r)) },
        { "worst_row", value_double(r->worst_row) },
        { "worst_position", json_integer(r->worst_position) },
        { "cosine",
          r->bad_shape || !r->n_compared ? json_null() : value_double(compared_cosine(r)) },
        { "rows", value_u64(r->n_compared) },
        { "reference_rows", value_u64(r->ref->entry->n_dims ? r->ref->entry->dims[0] : 0) },
        { "cached_rows", value_u64(r->n_cached) },
        { "rows_beyond_reference", value_u64(r->n_beyond) }, { "sketch", json_boolean(r->sketch) },
        { "passes", json_boolean(passed) });
}

static void failure_line(struct report *report, const struct tensor *t, const struct compared *r)
{
    if (r->bad_shape)
        report_line(report,
                    "DIFFERS %s: captured %" PRIu64 " wide%s, the reference has another shape",
                    t->key, t->width, t->mixed ? " (and changing)" : "");
    else if (!r->n_compared)
        report_line(report,
                    "DIFFERS %s: no row could be compared (the reference lacks "
                    "%" PRIu64 " of its rows)",
                    t->key, r->n_beyond);
    else
        report_line(report,
                    "DIFFERS %s: error %.2e of its norm, worst row %.2e at position %" PRId64
                    ", cosine %.7f",
                    t->key, compared_error(r), r->worst_row, r->worst_position, compared_cosine(r));
}

/* Return: tensors that differ. */
static uint64_t print_tensors(struct comparer *c, struct report *report)
{
    uint64_t n_failed = 0;
    if (report->json)
        report_table(report, "tensors", NULL, 0);
    for (size_t i = 0; i < c->tensors.n; i++) {
        const struct compared *r = &c->results[i];
        if (!r->ref)
            continue;
        bool passed = compared_passes(r, c->options);
        n_failed += !passed;
        if (report->json)
            report_row(report, tensor_row(&c->tensors.all[i], r, passed));
        else if (!passed && n_failed <= MOST_TOLD)
            failure_line(report, &c->tensors.all[i], r);
    }
    report_table_end(report);
    if (n_failed > MOST_TOLD)
        report_line(report, "... and %" PRIu64 " more", n_failed - MOST_TOLD);
    return n_failed;
}

/* ------------------------------------------------------------------------- all */

static void verdict_lines(struct comparer *c, struct report *report, uint64_t n_compared,
                          uint64_t n_failed, bool good)
{
    const struct dump_options *o = c->options;
    if (c->tensors.n_short)
        report_line(report,
                    "%" PRIu64 " %s fewer rows than the forward has tokens: rows are missing.",
                    c->tensors.n_short, word_for(c->tensors.n_short, "record has", "records have"));
    if (!n_compared)
        report_line(report,
                    "Nothing could be compared: no tensor of the run has a name that %s knows. %s",
                    o->against,
                    c->tensors.by_request
                        ? "dmi-dump list --tensors shows the names."
                        : "The run has no request ids: say with --request which of the reference's "
                          "requests it is.");
    else if (good)
        report_line(report,
                    "%s %" PRIu64 " %s with the reference: error <= %g of the norm, <= %g in any "
                    "row.",
                    word_for(n_compared, "The", "All"), n_compared,
                    word_for(n_compared, "tensor agrees", "tensors agree"), o->tolerance,
                    o->row_tolerance);
    else
        report_line(report,
                    "%" PRIu64 " of %" PRIu64 " %s from the reference (allowed: %g of "
                    "the norm, %g in any row).",
                    n_failed, n_compared, word_for(n_compared, "tensor differs", "tensors differ"),
                    o->tolerance, o->row_tolerance);
}

int compare_report(struct comparer *c, struct report *report)
{
    uint64_t n_compared = 0;
    for (size_t i = 0; i < c->tensors.n; i++)
        n_compared += c->results[i].ref != NULL;
    if (print_sites(c, report))
        return no_memory();
    uint64_t n_failed = print_tensors(c, report);
    if (compare_names(c, report))
        return no_memory();
    bool good = n_compared && !n_failed && !c->n_unreadable && !c->tensors.n_short;
    report_member(report, "compared", value_u64(n_compared));
    report_member(report, "failed", value_u64(n_failed));
    report_member(report, "short_records", value_u64(c->tensors.n_short));
    report_member(report, "unreadable_records", value_u64(c->n_unreadable));
    report_member(report, "agrees", json_boolean(good));
    verdict_lines(c, report, n_compared, n_failed, good);
    return good ? DUMP_OK : DUMP_FAILED;
}
