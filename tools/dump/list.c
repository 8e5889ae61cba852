/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump list: what was captured, as sites, tensors, requests or records. */
#include "tools/dump/dump.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "read/edited.h"
#include "read/record.h"
#include "read/layers.h"
#include "read/value.h"
#include "tools/common/select.h"
#include "tools/dump/edits.h"
#include "tools/dump/missing.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* "9x64" of [9, 64]; "1" of [] */
static void add_shape(struct text *to, const json_t *shape)
{
    for (size_t i = 0; i < json_array_size(shape); i++)
        text_printf(to, "%s%" JSON_INTEGER_FORMAT, i ? "x" : "",
                    json_integer_value(json_array_get(shape, i)));
    if (!json_array_size(shape))
        text_printf(to, "1");
}

static json_t *dims_value(const uint32_t *dims, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t d = 0; d < n; d++)
        json_array_append_new(list, json_integer(dims[d]));
    return list;
}

static const char *dtype_name(uint32_t dtype)
{
    const struct dmi_dtype_info *info = dmi_dtype_info(dtype);
    return info ? info->name : "?";
}

/* ------------------------------------------------------------------------- records */

static void record_step(struct text *to, const json_t *row)
{
    const json_t *step = json_object_get(row, "step");
    json_is_null(step) ? text_printf(to, "-")
                       : text_printf(to, "%" JSON_INTEGER_FORMAT, json_integer_value(step));
}

static void record_site(struct text *to, const json_t *row)
{
    const json_t *layer = json_object_get(row, "layer");
    text_printf(to, "%s", json_string_value(json_object_get(row, "site")));
    if (!json_is_null(layer))
        text_printf(to, ".%" JSON_INTEGER_FORMAT, json_integer_value(layer));
}

static void record_shape(struct text *to, const json_t *row)
{
    const json_t *shape = json_object_get(row, "shape");
    for (size_t i = 0; i < json_array_size(shape); i++)
        text_printf(to, "%s%" JSON_INTEGER_FORMAT, i ? "," : "",
                    json_integer_value(json_array_get(shape, i)));
}

static const struct column record_columns[] = {
    { "LAUNCH", "launch", 10, NULL },   { "FORWARD", "forward", 8, NULL },
    { "STEP", "step", 8, record_step }, { " SITE", "site", -21, record_site },
    { "DTYPE", "dtype", -6, NULL },     { "SHAPE", "shape", -18, record_shape },
    { "DEVICE", "device", 6, NULL },    { " TIME_NS", "time_ns", -1, NULL },
};

static json_t *record_row(const struct reader_record *rec, const struct dmi_site *site)
{
    return VALUE_OBJECT(
        { "launch", value_u64(rec->at.launch) }, { "forward", value_u64(rec->at.forward) },
        { "step", rec->step ? value_u64(rec->step->entry->step) : json_null() },
        { "site", value_text(site->name) }, { "site_id", json_integer((int)site->id) },
        { "layer", value_layer(rec->at.layer) }, { "occurrence", value_u64(rec->at.occurrence) },
        { "dtype", json_string(dtype_name(rec->at.dtype)) },
        { "shape", dims_value(rec->at.dims, rec->at.n_dims) },
        { "device", value_u64(rec->at.device) }, { "time_ns", value_u64(rec->at.time_ns) },
        { "bytes", value_u64(rec->at.n_bytes) });
}

/* Whether a span computes a token that is wanted. */
static bool is_of_tokens(const struct dmi_span_entry *span, const struct requests *requests,
                         const struct selection *select, const char *id, size_t n)
{
    int64_t end = span->first_position + (int64_t)span->n_tokens;
    struct ranges r = selection_ranges(select, requests, id, n, end);
    return FIRST(i, r.n, span->first_position < r.all[i].end && end > r.all[i].first, true,
                 !select->n_tokens && end > 0);
}

/* Whether the step of a record computes a token that is wanted. */
static bool is_of_request(const struct reader_record *rec, const struct requests *requests,
                          const struct selection *select)
{
    if (!rec->step || (!select->requests.n && !select->n_tokens))
        return !select->n_tokens;
    for (uint32_t i = 0; i < rec->step->entry->n_spans; i++) {
        const struct dmi_span_entry *span = &rec->step->spans[i];
        size_t n;
        const char *id = reader_span_id(rec->step, i, &n);
        if (selection_wants_request(select, id, n) && is_of_tokens(span, requests, select, id, n))
            return true;
    }
    return false;
}

static void list_records(struct report *report, const struct reader *reader,
                         const struct requests *requests, const struct dump_options *o)
{
    report_table(report, "records", record_columns, N_OF(record_columns));
    for (size_t i = 0; i < reader_n_records(reader); i++) {
        const struct reader_record *rec = reader_record(reader, i);
        const struct dmi_site *site = reader_site(reader, rec->at.site);
        if (selection_wants_record(&o->select, site, rec->at.layer) &&
            is_of_request(rec, requests, &o->select))
            report_row(report, record_row(rec, site));
    }
    report_table_end(report);
}

/* ------------------------------------------------------------------------- tensors */

static void tensor_width(struct text *to, const json_t *row)
{
    add_shape(to, json_object_get(row, "shape"));
    const char *what = json_string_value(json_object_get(row, "what_changes"));
    const json_t *edits = json_object_get(row, "edited_by");
    if (what)
        text_printf(to, "  (%s)", what);
    for (size_t i = 0; i < json_array_size(edits); i++)
        text_printf(to, "%s%s", i ? ", " : "  edited by ",
                    json_string_value(json_array_get(edits, i)));
}

static const struct column tensor_columns[] = {
    { "TENSOR", "key", -44, NULL },
    { "DTYPE", "dtype", -6, NULL },
    { "ROWS", "rows", 10, NULL },
    { " WIDTH", "width", -1, tensor_width },
};

/* The index of a tensor's site entry: of its first record. */
static uint32_t site_of(const struct reader *reader, const struct tensor *t)
{
    return t->n_stretches ? reader_record(reader, t->stretches[0].record)->at.site : t->order;
}

static int list_tensors(struct report *report, const struct reader *reader,
                        const struct sites *sites, const struct edited_all *edited,
                        const struct dump_options *o)
{
    struct err err = { 0 };
    _cleanup_(tensors_deinit) struct tensors ts = { 0 };
    const struct tensors_query query = { .select = &o->select };
    int r = tensors_build(&err, reader, sites, &query, &ts);
    if (r) {
        complain("%s", err.msg);
        return r;
    }
    report_table(report, "tensors", tensor_columns, N_OF(tensor_columns));
    for (size_t i = 0; i < ts.n; i++) {
        const struct tensor *t = &ts.all[i];
        json_t *row = VALUE_OBJECT(
            { "key", value_text(t->key) }, { "dtype", json_string(dtype_name(t->dtype)) },
            { "rows", value_u64(t->n_rows) }, { "width", value_u64(t->width) },
            { "shape", dims_value(t->tail, t->n_tail) }, { "changes", json_boolean(t->mixed) },
            { "what_changes", value_text(t->mixed ? tensor_mixed_text(t) : NULL) });
        json_t *edits = edited_names(edited, t, site_of(reader, t), -1);
        if (edits)
            json_object_set_new(row, "edited_by", edits);
        report_row(report, row);
    }
    report_table_end(report);
    return 0;
}

/* ------------------------------------------------------------------------- sites */

struct site_sum {
    struct layers layers;
    const struct reader_record *any; /* NULL: nothing was captured */
    uint64_t n_rows;                 /* of a request, where the engine named any */
};

static void site_layers(struct text *to, const json_t *row)
{
    text_printf(to, "%s", json_string_value(json_object_get(row, "layer_ranges")));
}

static void site_shape(struct text *to, const json_t *row)
{
    const json_t *shape = json_object_get(row, "shape");
    json_is_null(shape) ? text_printf(to, "-") : add_shape(to, shape);
}

static const struct column site_columns[] = {
    { "SITE", "site", -20, NULL },  { "LAYERS", "layers", -10, site_layers },
    { "DTYPE", "dtype", -6, NULL }, { "WIDTH", "width", -12, site_shape },
    { "ROWS", "rows", 10, NULL },   { " ROW IS", "row", -9, NULL },
    { "NOTE", "note", -1, NULL },
};

static json_t *site_row(const struct dmi_site *site, struct site_sum *sum)
{
    _cleanup_(text_deinit) struct text ranges = { 0 };
    uint64_t width = sum->any ? record_width(sum->any) : 0;
    uint32_t n_rows = sum->any ? record_row_dims(sum->any) : 0;
    layers_sort(&sum->layers);
    layers_add_text(&ranges, &sum->layers);
    return VALUE_OBJECT(
        { "site", value_text(site->name) }, { "layers", layers_value(&sum->layers) },
        { "layer_ranges", json_string(ranges.data && sum->any ? ranges.data : "nothing") },
        { "dtype", sum->any || site->dtype
                       ? json_string(dtype_name(sum->any ? sum->any->at.dtype : site->dtype))
                       : json_null() },
        { "width", value_u64(width) },
        { "shape", sum->any ? dims_value(sum->any->at.dims + n_rows, sum->any->at.n_dims - n_rows)
                            : json_null() },
        { "rows", value_u64(sum->n_rows) }, { "row", value_text(dmi_row_name(site->row)) },
        { "scale", value_double(site->scale) }, { "note", value_text(site->note) });
}

/* Rows of a record that belong to a request, or all where the engine named none. */
static int sum_records(const struct reader *reader, const struct sites *sites,
                       const struct dump_options *o, struct site_sum *sums)
{
    struct err err = { 0 };
    _cleanup_(tensors_deinit) struct tensors ts = { 0 };
    const struct tensors_query query = { .select = &o->select };
    int r = tensors_build(&err, reader, sites, &query, &ts);
    if (r)
        complain("%s", err.msg);
    for (size_t i = 0; !r && i < ts.n; i++) {
        struct site_sum *sum = &sums[ts.all[i].order];
        r = layers_add(&sum->layers, ts.all[i].layer);
        sum->n_rows += ts.all[i].n_rows;
        if (ts.all[i].n_stretches)
            sum->any = reader_record(reader, ts.all[i].stretches[0].record);
    }
    return r;
}

static int list_sites(struct report *report, const struct reader *reader, const struct sites *sites,
                      const struct dump_options *o)
{
    _cleanup_(freep) struct site_sum *sums = calloc(sites->n + 1, sizeof *sums);
    int r = sums ? sum_records(reader, sites, o, sums) : -ENOMEM;
    if (!r)
        report_table(report, "sites", site_columns, N_OF(site_columns));
    for (size_t s = 0; sums && s < sites->n; s++) {
        if (!r && sites_is_shown(reader, sites, s) && (sums[s].any || selection_is_all(&o->select)))
            report_row(report, site_row(reader_site(reader, s), &sums[s]));
        layers_deinit(&sums[s].layers);
    }
    if (!r)
        report_table_end(report);
    return r;
}

/* ------------------------------------------------------------------------- the command */

static int list_facts(struct report *report, struct reader *reader)
{
    const struct reader_run *run = reader_run(reader);
    facts_run(report, reader);
    facts_pairs(report, "conventions", run->conventions, run->n_conventions);
    facts_pairs(report, "absent", run->absent, run->n_absent);
    if (report->json) {
        facts_problems(report, run);
        facts_changes(report, run);
    }
    int status = facts_trace(report, reader) ? no_memory() : edits_summary(report, reader);
    report_line(report, "%s", "");
    return status;
}

static void list_remarks(struct report *report, const struct reader_run *run)
{
    if (run->n_absent)
        report_line(report, "%s", "");
    for (size_t i = 0; i < run->n_absent; i++)
        report_line(report, "not in memory: %s: %s", run->absent[i].key, run->absent[i].value);
    if (run->n_problems || run->n_changes)
        report_line(report, "%s", "");
    facts_problems(report, run);
    facts_changes(report, run);
}

int dump_list(struct reader *reader, const struct dump_options *o)
{
    struct report report = { .json = o->json };
    _cleanup_(requests_deinit) struct requests requests = { 0 };
    _cleanup_(sites_deinit) struct sites sites = { 0 };
    _cleanup_(edited_deinit) struct edited_all edited = { 0 };
    if (sites_build(reader, &sites) || requests_build(reader, &requests) ||
        (o->requests && requests_add_costs(reader, &requests)) ||
        ((o->requests || o->tensors) && edited_build(reader, &requests, &edited)))
        return no_memory();
    if (list_facts(&report, reader))
        return DUMP_USAGE;
    int r = 0;
    if (o->records)
        list_records(&report, reader, &requests, o);
    else if (o->tensors)
        r = list_tensors(&report, reader, &sites, &edited, o);
    else if (o->requests)
        list_requests(&report, reader, &requests, &edited, &o->select);
    else
        r = list_sites(&report, reader, &sites, o);
    bool nothing = !r && !report.n_rows && !selection_is_all(&o->select);
    bool unjudged = !r && !nothing && select_tell_unjudged(&requests, &o->select);
    if (nothing)
        missing_complain(reader, &sites, &o->select);
    if (!report.json)
        list_remarks(&report, reader_run(reader));
    size_t n_damage = facts_findings(&report, reader);
    return report_end(&report, r                                 ? DUMP_USAGE
                               : n_damage || nothing || unjudged ? DUMP_FAILED
                                                                 : DUMP_OK);
}
