/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump stats: sizes, and whether captured + dropped = expected. */
#include "tools/dump/dump.h"

#include "core/cleanup.h"
#include "core/words.h"
#include "read/account.h"
#include "read/layers.h"
#include "read/value.h"
#include "tools/common/select.h"
#include "tools/dump/edits.h"
#include "tools/dump/missing.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- a row */

static json_int_t member_of(const json_t *row, const char *member, const char *key)
{
    return json_integer_value(json_object_get(json_object_get(row, member), key));
}

static void cell_layers(struct text *to, const json_t *row)
{
    text_printf(to, "%s", json_string_value(json_object_get(row, "layer_ranges")));
}

static void cell_ratio(struct text *to, const json_t *row)
{
    text_printf(to, "%.3f", json_number_value(json_object_get(row, "ratio")));
}

static void cell_expected(struct text *to, const json_t *row)
{
    text_printf(to, "%" JSON_INTEGER_FORMAT, member_of(row, "expected", "records"));
}

static void cell_dropped(struct text *to, const json_t *row)
{
    text_printf(to, "%" JSON_INTEGER_FORMAT, member_of(row, "dropped", "records"));
}

/* Drops by reason, and whether the accounting balances. */
static void cell_remark(struct text *to, const json_t *row)
{
    const char *reason;
    json_t *n;
    json_object_foreach(json_object_get(row, "dropped_by_reason"), reason, n)
    {
        text_printf(to, "%s%s=%" JSON_INTEGER_FORMAT, to->n ? " " : "", reason,
                    json_integer_value(n));
        if (!strcmp(reason, dmi_drop_name(DMI_DROP_SHED)))
            text_printf(to, " (%" JSON_INTEGER_FORMAT " rows)",
                        member_of(row, "dropped_rows_by_reason", reason));
    }
    json_int_t uncounted = json_integer_value(json_object_get(row, "uncounted"));
    if (uncounted)
        text_printf(to, "%suncounted in %" JSON_INTEGER_FORMAT " graph launches", to->n ? " " : "",
                    uncounted);
    if (json_is_false(json_object_get(row, "holds")))
        text_printf(to, "%sMISMATCH", to->n ? " " : "");
}

static const struct column columns[] = {
    { "SITE", "site", -18, NULL },
    { "LAYERS", "layers", -9, cell_layers },
    { "RECORDS", "records", 8, NULL },
    { "ROWS", "rows", 9, NULL },
    { "RAW", "raw_bytes", 10, NULL, value_of_bytes },
    { "STORED", "stored_bytes", 10, NULL, value_of_bytes },
    { "RATIO", "ratio", 6, cell_ratio },
    { "EXPECTED", "expected", 9, cell_expected },
    { "DROPPED", "dropped", 8, cell_dropped },
    { "", "holds", -1, cell_remark },
};

static json_t *stats_row(const char *name, const struct account *a, const struct layers *layers,
                         const char *lost_name)
{
    _cleanup_(text_deinit) struct text ranges = { 0 };
    layers_add_text(&ranges, layers);
    double ratio = a->n_stored > 0 ? (double)a->found.bytes / a->n_stored : 1.0;
    struct dmi_tally captured = account_captured(a);
    return VALUE_OBJECT(
        { "site", value_text(name) }, { "layers", json_integer((int)layers->n) },
        { "layer_ranges", json_string(ranges.data ? ranges.data : "") },
        { "records", value_u64(a->found.records) }, { "rows", value_u64(a->found.rows) },
        { "raw_bytes", value_u64(a->found.bytes) },
        { "stored_bytes", value_double(round(a->n_stored)) }, { "ratio", value_double(ratio) },
        { "expected", account_tally(&a->expected) }, { "captured", account_tally(&captured) },
        { "released", account_tally(&a->released) }, { "dropped", account_tally(&a->dropped) },
        { lost_name, account_tally(&a->lost) },
        { "dropped_by_reason", account_reasons(a->dropped_by, false, true) },
        /* of records that are captured some rows may have been shed, so rows are counted by themselves */
        { "dropped_rows_by_reason", account_reasons(a->dropped_by, true, false) },
        { "launches", value_u64(a->launches) }, { "uncounted", value_u64(a->uncounted) },
        { "holds", a->known ? json_boolean(a->balances) : json_null() });
}

/* ------------------------------------------------------------------------- what is selected */

static const struct column selected_columns[] = {
    { "SELECTED", "site", -18, NULL },
    { "TENSORS", "tensors", 8, NULL },
    { "ROWS", "rows", 9, NULL },
    { "RAW", "raw_bytes", 10, NULL, value_of_bytes },
    { "STORED", "stored_bytes", 10, NULL, value_of_bytes },
};

struct selected {
    uint64_t n_tensors, n_rows, n_bytes;
    double n_stored;
};

static void add_selected(const struct reader *reader, const struct tensor *t, struct selected *to)
{
    to->n_tensors++;
    for (size_t i = 0; i < t->n_stretches; i++) {
        const struct reader_record *rec = reader_record(reader, t->stretches[i].record);
        double part = rec->n_rows ? (double)t->stretches[i].n_rows / rec->n_rows : 0;
        to->n_rows += t->stretches[i].n_rows;
        to->n_bytes += rec->n_rows ? rec->at.n_bytes / rec->n_rows * t->stretches[i].n_rows : 0;
        to->n_stored += part * rec->n_stored;
    }
}

static json_t *selected_row(const char *name, const struct selected *s)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "site", value_text(name), "tensors",
                     value_u64(s->n_tensors), "rows", value_u64(s->n_rows), "raw_bytes",
                     value_u64(s->n_bytes), "stored_bytes", value_double(round(s->n_stored)));
}

/* Sums of what --request, --tokens and their like select. *@none: it is nothing, which is said. Return: 0 or -errno. */
static int selected_table(struct report *report, const struct reader *reader,
                          const struct sites *sites, const struct dump_options *o, bool *none)
{
    struct err err = { 0 };
    _cleanup_(tensors_deinit) struct tensors ts = { 0 };
    _cleanup_(freep) struct selected *sums = calloc(sites->n + 1, sizeof *sums);
    const struct tensors_query query = { .select = &o->select };
    int r = sums ? tensors_build(&err, reader, sites, &query, &ts) : -ENOMEM;
    if (r) {
        complain("%s", err.msg);
        return r;
    }
    for (size_t i = 0; i < ts.n; i++)
        add_selected(reader, &ts.all[i], &sums[ts.all[i].order]);
    *none = !ts.n;
    if (!ts.n)
        missing_complain(reader, sites, &o->select);
    report_table(report, "selected", selected_columns, N_OF(selected_columns));
    for (size_t i = 0; i < sites->n; i++)
        if (sums[i].n_tensors)
            report_row(report, selected_row(reader_site(reader, i)->name, &sums[i]));
    report_table_end(report);
    return 0;
}

/* ------------------------------------------------------------------------- sentences */

static void requests_sentence(struct report *report, const struct requests *requests)
{
    char rejected[48] = "";
    if (requests->n_rejected)
        snprintf(rejected, sizeof rejected, ", %" PRIu64 " of them rejected", requests->n_rejected);
    if (requests->n)
        report_line(report, "%zu %s: %" PRIu64 " %s computed%s, %" PRIu64 " cached%s", requests->n,
                    word_for(requests->n, "request", "requests"), requests->n_computed,
                    word_for(requests->n_computed, "token", "tokens"), rejected, requests->n_cached,
                    requests->n_cached ? " (taken over from an earlier request: nothing was "
                                         "computed, so there was nothing to capture)."
                                       : ".");
}

/* How long launches waited for room in the ring: overload: {mode: complete}. */
static void waits_sentence(struct report *report, const struct dmi_counters *c)
{
    static const struct dmi_counters none;
    c = c ? c : &none;
    report_member(report, "waits",
                  json_pack("{s:o, s:o, s:o}", "launches", value_u64(c->waits), "over",
                            value_u64(c->waits_over), "ns", value_u64(c->wait_ns)));
    if (c->waits)
        report_line(report,
                    "%" PRIu64 " %s waited for room, %.1f ms in all; for %" PRIu64
                    " of them there was none within wait_ms.",
                    c->waits, word_for(c->waits, "launch", "launches"), (double)c->wait_ns / 1e6,
                    c->waits_over);
}

/* ------------------------------------------------------------------------- the command */

struct run_stats {
    struct sites sites;
    struct accounts accounts;
    struct requests requests;
    struct layers *layers; /* by site id, in the first entry of a name */
};

static void stats_deinit(struct run_stats *s)
{
    for (size_t i = 0; s->layers && i < s->sites.n; i++)
        layers_deinit(&s->layers[i]);
    free(s->layers);
    sites_deinit(&s->sites);
    accounts_deinit(&s->accounts);
    requests_deinit(&s->requests);
}

static int stats_build(const struct reader *reader, struct run_stats *s)
{
    int r = sites_build(reader, &s->sites);
    if (!r)
        r = accounts_build(reader, &s->sites, &s->accounts);
    if (!r)
        r = requests_build(reader, &s->requests);
    if (!r)
        r = requests_add_costs(reader, &s->requests);
    if (!r && !(s->layers = calloc(s->sites.n + 1, sizeof *s->layers)))
        r = -ENOMEM;
    for (size_t i = 0; !r && i < reader_n_records(reader); i++) {
        const struct dmi_record *at = &reader_record(reader, i)->at;
        r = layers_add(&s->layers[s->sites.first[at->site]], at->layer);
    }
    for (size_t i = 0; !r && i < s->sites.n; i++)
        layers_sort(&s->layers[i]);
    return r;
}

static void stats_table(struct report *report, const struct reader *reader,
                        const struct run_stats *s, const char *lost_name)
{
    static const struct layers none;
    report_table(report, "sites", columns, N_OF(columns));
    for (size_t i = 0; i < s->sites.n; i++)
        if (sites_is_shown(reader, &s->sites, i))
            report_row(report, stats_row(reader_site(reader, i)->name, &s->accounts.sites[i],
                                         &s->layers[i], lost_name));
    json_t *total = stats_row("total", &s->accounts.total, &none, lost_name);
    if (!report->json)
        report_row(report, json_incref(total));
    report_table_end(report);
    report_member(report, "total", total);
}

int dump_stats(struct reader *reader, const struct dump_options *o)
{
    const struct reader_run *run = reader_run(reader);
    const char *lost_name = run->state == READER_RUNNING ? "in_flight" : "lost_at_kill";
    struct report report = { .json = o->json };
    _cleanup_(stats_deinit) struct run_stats s = { 0 };
    if (stats_build(reader, &s))
        return no_memory();
    facts_run(&report, reader);
    if (facts_trace(&report, reader))
        return no_memory();
    report_line(&report, "%s", "");
    report_member(&report, "forwards", value_u64(run->counters ? run->counters->forwards : 0));
    report_member(&report, "launches_matched",
                  value_u64(run->counters ? run->counters->launches_matched : 0));
    report_member(&report, "steps", value_u64(run->counters ? run->counters->steps : 0));
    stats_table(&report, reader, &s, lost_name);
    report_line(&report, "%s", "");
    facts_account(&report, reader, &s.accounts.total);
    requests_sentence(&report, &s.requests);
    waits_sentence(&report, run->counters);
    bool selects = !selection_is_all(&o->select) || o->select.rejected || o->select.superseded;
    bool none = false;
    if (selects && selected_table(&report, reader, &s.sites, o, &none))
        return DUMP_USAGE;
    bool unjudged = selects && !none && select_tell_unjudged(&s.requests, &o->select);
    if (report.json || o->requests)
        list_request_costs(&report, reader, &s.requests, &o->select);
    if (o->edits && edits_table(&report, reader))
        return DUMP_USAGE;
    facts_problems(&report, run);
    facts_changes(&report, run);
    const struct account *total = &s.accounts.total;
    bool good = total->balances || (!total->known && facts_is_segment(run));
    report_member(&report, "holds", total->known ? json_boolean(total->balances) : json_null());
    size_t n_damage = facts_findings(&report, reader);
    return report_end(&report, n_damage || !good || none || unjudged ? DUMP_FAILED : DUMP_OK);
}
