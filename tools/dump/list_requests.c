/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump list --requests and stats --requests: requests, how far they are, and what their capture cost. */
#include "tools/dump/dump.h"

#include "core/cleanup.h"
#include "read/edited.h"
#include "read/value.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static void cell_reason(struct text *to, const json_t *row)
{
    text_printf(to, " %s", object_text_or(row, "reason", "-"));
}

/* "~" where nobody said it: it follows from the first step that decodes. */
static void cell_shed(struct text *to, const json_t *row)
{
    const json_t *shed = json_object_get(row, "shed");
    if (json_is_null(shed))
        text_printf(to, "-");
    else
        text_printf(to, "%" JSON_INTEGER_FORMAT, json_integer_value(shed));
}

static void cell_prompt(struct text *to, const json_t *row)
{
    const json_t *prompt = json_object_get(row, "prompt");
    if (json_is_null(prompt))
        text_printf(to, "-");
    else
        text_printf(to, "%s%" JSON_INTEGER_FORMAT,
                    json_is_true(json_object_get(row, "prompt_is_said")) ? "" : "~",
                    json_integer_value(prompt));
}

static void cell_share(struct text *to, const json_t *row)
{
    text_printf(to, "%.2f%%", 100 * json_number_value(json_object_get(row, "stored_share")));
}

static const struct column state_columns[] = {
    { "REQUEST", "request", -28, NULL },
    { "STATE", "state", -9, NULL },
    { " REASON", "reason", -8, cell_reason },
    { "PROMPT", "prompt", 7, cell_prompt },
    { "GENERATED", "generated", 9, NULL },
    { "CACHED", "cached", 7, NULL },
    { "COMPUTED", "computed", 9, NULL },
    { "REJECTED", "rejected", 8, NULL },
    { "PREEMPTED", "preemptions", 9, NULL },
    { "SHED", "shed", 7, cell_shed },
    { "STEPS", "steps", 7, NULL },
    { "RECORDS", "records", 9, NULL },
    { "BYTES", "raw_bytes", 10, NULL, value_of_bytes },
};

static const struct column cost_columns[] = {
    { "REQUEST", "request", -28, NULL },
    { "RECORDS", "records", 9, NULL },
    { "ROWS", "rows", 10, NULL },
    { "RAW", "raw_bytes", 10, NULL, value_of_bytes },
    { "STORED", "stored_bytes", 10, NULL, value_of_bytes },
    { "SHARE", "stored_share", 8, cell_share },
};

static bool is_wanted(const struct request *r, const struct selection *select)
{
    return selection_wants_request(select, r->id, r->n_id);
}

static json_t *request_row(const struct request *r, double n_stored)
{
    bool ended = r->state == REQUEST_FINISHED || r->state == REQUEST_ABORTED;
    uint64_t other = r->n_tokens[DMI_PHASE_UNKNOWN] + r->n_tokens[DMI_PHASE_DRAFT];
    json_t *row = VALUE_OBJECT(
        { "request", value_bytes(r->id, r->n_id) },
        { "state", json_string(request_state_name(r->state)) },
        { "reason", ended ? value_text(request_reason_name(r->reason)) : json_null() },
        { "prompt", r->n_prompt < 0 ? json_null() : json_integer(r->n_prompt) },
        { "prompt_is_said", json_boolean(r->prompt_is_said) },
        { "generated", value_u64(request_generated(r)) }, { "cached", value_u64(r->n_cached) },
        { "computed", value_u64(request_computed(r)) },
        { "prefill", value_u64(r->n_tokens[DMI_PHASE_PREFILL]) },
        { "decode", value_u64(r->n_tokens[DMI_PHASE_DECODE]) },
        { "draft", value_u64(r->n_tokens[DMI_PHASE_DRAFT]) }, { "other", value_u64(other) },
        { "rejected", value_u64(r->n_rejected) }, { "preemptions", value_u64(r->n_preemptions) },
        { "shed", r->shed ? value_u64(r->shed_step) : json_null() },
        { "steps", value_u64(r->n_steps) });
    json_t *cost =
        json_pack("{s:I, s:o, s:o, s:o, s:o, s:o}", "end_position", (json_int_t)r->end, "records",
                  value_u64(r->n_records), "rows", value_u64(r->n_rows), "raw_bytes",
                  value_u64(r->n_bytes), "stored_bytes", value_double(round(r->n_stored)),
                  "stored_share", value_double(n_stored > 0 ? r->n_stored / n_stored : 0));
    if (row && cost)
        json_object_update(row, cost);
    if (row)
        json_object_set_new(row, "tags", r->tags ? value_bytes(r->tags, r->n_tags) : json_null());
    json_decref(cost);
    return row;
}

/* What edits wrote in it, in words. */
static void add_edits(json_t *row, const struct edited_all *edited, size_t request)
{
    struct edited *edits;
    size_t n = edited ? edited_of(edited, request, &edits) : 0;
    json_t *list = n ? json_array() : NULL;
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, value_text(edited_phrase(&edits[i])));
    if (list && row)
        json_object_set_new(row, "edits", list);
}

/* After the table: the edits of each request that has some. */
static void edits_lines(struct report *report, const struct requests *requests,
                        const struct edited_all *edited, const struct selection *select)
{
    for (size_t i = 0; edited && edited->n && i < requests->n; i++) {
        _cleanup_(text_deinit) struct text t = { 0 };
        const struct request *q = &requests->all[i];
        edited_add_phrases(&t, edited, i);
        if (t.n && is_wanted(q, select))
            report_line(report, "edits wrote in %.*s: %s", (int)q->n_id, q->id, t.data);
    }
}

/* @edited: NULL: not asked for. */
static void list_all(struct report *report, const struct reader *reader,
                     const struct requests *requests, const struct edited_all *edited,
                     const struct selection *select, const struct column *columns, size_t n_columns)
{
    double n_stored = 0; /* of all records, also of those of nobody */
    for (size_t i = 0; i < reader_n_records(reader); i++)
        n_stored += reader_record(reader, i)->n_stored;
    report_table(report, "requests", columns, n_columns);
    for (size_t i = 0; i < requests->n; i++)
        if (is_wanted(&requests->all[i], select)) {
            json_t *row = request_row(&requests->all[i], n_stored);
            add_edits(row, edited, i);
            report_row(report, row);
        }
    report_table_end(report);
    edits_lines(report, requests, edited, select);
}

void list_requests(struct report *report, const struct reader *reader,
                   const struct requests *requests, const struct edited_all *edited,
                   const struct selection *select)
{
    list_all(report, reader, requests, edited, select, state_columns, N_OF(state_columns));
}

void list_request_costs(struct report *report, const struct reader *reader,
                        const struct requests *requests, const struct selection *select)
{
    list_all(report, reader, requests, NULL, select, cost_columns, N_OF(cost_columns));
}
