/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/describe.h"

#include "core/cleanup.h"
#include "read/edit_history.h"
#include "read/record.h"
#include "read/requests.h"
#include "read/utf8.h"
#include "read/value.h"

#include <dmi/dtype.h>

#include <inttypes.h>
#include <string.h>

/* Takes @value over; where either is NULL, what is built is NULL. */
static void set(json_t **object, const char *key, json_t *value)
{
    if (*object && value && !json_object_set_new(*object, key, value))
        return;
    if (!*object)
        json_decref(value);
    json_decref(*object);
    *object = NULL;
}

static void append(json_t **array, json_t *value)
{
    if (*array && value && !json_array_append_new(*array, value))
        return;
    if (!*array)
        json_decref(value);
    json_decref(*array);
    *array = NULL;
}

static json_t *hex(uint64_t v)
{
    char s[17];
    snprintf(s, sizeof s, "%016" PRIx64, v);
    return json_string(s);
}

/* ------------------------------------------------------------------------- what every item has */

static json_t *ranks_of(const struct replay_source *s)
{
    const int32_t *ranks = reader_first_ranks(s->reader);
    if (!ranks)
        return json_null();
    json_t *o = json_object();
    for (uint32_t axis = 0; axis < DMI_AXIS_COUNT; axis++)
        set(&o, dmi_axis_name(axis), json_integer(ranks[2 * axis]));
    return o;
}

json_t *describe_begin(const struct replay_source *s, enum item_kind kind)
{
    json_t *o = json_object();
    set(&o, "type", json_string(item_kind_name(kind)));
    set(&o, "run", value_text(reader_run(s->reader)->uuid));
    set(&o, "rank", ranks_of(s));
    return o;
}

static bool is_utf8(const char *s, size_t n)
{
    uint32_t character;
    for (size_t used; n; s += used, n -= used)
        if (!(used = utf8_next(s, n, &character)))
            return false;
    return true;
}

/* An id may hold any byte, which JSON cannot say: then its bytes in hexadecimal, too. */
static void set_request(json_t **o, const char *id, size_t n)
{
    char digits[2 * DMI_MAX_ID + 1] = "";
    set(o, "request", id ? value_bytes(id, n) : json_null());
    if (!id || is_utf8(id, n) || n > DMI_MAX_ID)
        return;
    for (size_t i = 0; i < n; i++)
        snprintf(digits + 2 * i, 3, "%02x", (unsigned char)id[i]);
    set(o, "request_hex", json_string(digits));
}

/* ------------------------------------------------------------------------- a run */

static json_t *site_value(const struct dmi_site *site)
{
    const struct dmi_dtype_info *dtype = dmi_dtype_info(site->dtype);
    json_t *o = json_object();
    set(&o, "id", value_u64(site->id));
    set(&o, "name", value_text(site->name));
    set(&o, "dtype", value_text(dtype ? dtype->name : NULL));
    set(&o, "row", value_text(dmi_row_name(site->row)));
    set(&o, "scale", value_double(site->scale));
    set(&o, "has_layer", json_boolean(site->has_layer));
    set(&o, "kernel", value_text(site->kernel));
    set(&o, "tap", value_text(site->tap));
    set(&o, "note", value_text(site->note));
    if (site->shard == DMI_SHARD_DIM)
        set(&o, "shard",
            json_pack("{s:i, s:s}", "dim", (int)site->shard_dim, "over",
                      dmi_axis_name(site->shard_axis)));
    else if (site->shard == DMI_SHARD_SUM)
        set(&o, "shard",
            json_pack("{s:b, s:s}", "sum", 1, "over", dmi_axis_name(site->shard_axis)));
    return o;
}

const char *describe_state(const struct replay_source *s)
{
    static const char *const names[] = { "closed", "running", "killed" };
    return names[reader_run(s->reader)->state];
}

json_t *describe_edits(const struct replay_source *s)
{
    _cleanup_(edit_history_deinit) struct edit_history h = { 0 };
    json_t *list = json_array(), *names = json_object();
    if (edit_history_build(s->reader, &h)) {
        json_decref(list);
        list = NULL;
    }
    for (size_t i = 0; names && i < h.n; i++)
        for (size_t k = 0; k < json_array_size(h.changes[i].in_force); k++) {
            const json_t *e = json_array_get(h.changes[i].in_force, k);
            if (edit_is_off(e) || json_object_get(names, edit_text(e, "name")))
                continue;
            json_object_set_new(names, edit_text(e, "name"), json_true());
            append(&list, json_pack("{s:o, s:o}", "name", value_text(edit_text(e, "name")), "site",
                                    value_text(edit_text(e, "site"))));
        }
    if (h.lacks)
        append(&list, json_pack("{s:n, s:n}", "name", "site"));
    json_decref(names);
    return list;
}

json_t *describe_run(const struct replay_source *s, bool resumed)
{
    const struct reader_run *run = reader_run(s->reader);
    json_t *o = describe_begin(s, ITEM_RUN), *sites = json_array();
    set(&o, "host", value_text(run->host));
    set(&o, "pid", value_u64(run->pid));
    set(&o, "start_realtime_ns", value_u64(run->start_ns));
    set(&o, "job", value_text(run->job));
    set(&o, "model", value_text(run->model));
    set(&o, "state", json_string(describe_state(s)));
    set(&o, "resumed", json_boolean(resumed));
    for (size_t i = 0; i < reader_n_sites(s->reader); i++)
        if (!reader_site(s->reader, i)->writes)
            append(&sites, site_value(reader_site(s->reader, i)));
    set(&o, "sites", sites);
    set(&o, "edits", describe_edits(s));
    return o;
}

/* ------------------------------------------------------------------------- a step */

/* What the engine's user said of a step or a span; null: nothing. */
static json_t *tags_value(const struct reader_step *step, uint32_t offset, uint32_t n)
{
    return n ? value_bytes((const char *)step->entry + offset, n) : json_null();
}

static json_t *span_value(const struct reader_step *step, uint32_t i)
{
    const struct dmi_span_entry *span = &step->spans[i];
    size_t n_id;
    const char *id = reader_span_id(step, i, &n_id);
    json_t *o = json_object();
    set_request(&o, id, n_id);
    set(&o, "position", json_integer(span->first_position));
    set(&o, "first_row", value_u64(span->first_row));
    set(&o, "tokens", value_u64(span->n_tokens));
    set(&o, "cached", value_u64(span->n_cached));
    set(&o, "prompt", span->n_prompt ? value_u64(span->n_prompt) : json_null());
    set(&o, "phase", json_string(request_phase_name(span->phase)));
    set(&o, "padding", json_boolean(span->flags & DMI_SPAN_PADDING));
    set(&o, "last", json_boolean(span->flags & DMI_SPAN_LAST));
    if (span->flags & DMI_SPAN_PART)
        set(&o, "part", json_true());
    set(&o, "tags", tags_value(step, span->tags_offset, span->tags_bytes));
    return o;
}

static void set_step(json_t **o, const struct reader_step *step, uint64_t sequence)
{
    set(o, "step", step ? value_u64(step->entry->step) : json_null());
    set(o, "step_sequence", sequence == DMI_NO_STEP ? json_null() : value_u64(sequence));
}

json_t *describe_step(const struct replay_source *s, const struct reader_step *step)
{
    json_t *o = describe_begin(s, ITEM_STEP), *spans = json_array();
    set_step(&o, step, step->entry->sequence);
    set(&o, "time_ns", value_u64(step->entry->time_ns));
    set(&o, "rows", value_u64(step->entry->n_rows));
    set(&o, "tags", tags_value(step, step->entry->tags_offset, step->entry->tags_bytes));
    for (uint32_t i = 0; i < step->entry->n_spans; i++)
        append(&spans, span_value(step, i));
    set(&o, "spans", spans);
    return o;
}

/* ------------------------------------------------------------------------- a record */

static json_t *rows_value(const struct item_span *span)
{
    json_t *o = json_object();
    set_request(&o, span->request, span->n_request);
    set(&o, "position", span->position < 0 ? json_null() : json_integer(span->position));
    set(&o, "rows", value_u64(span->n_rows));
    set(&o, "first_row", value_u64(span->first_row));
    set(&o, "phase", json_string(request_phase_name(span->phase)));
    if (span->flags & STRETCH_REJECTED)
        set(&o, "rejected", json_true());
    if (span->flags & STRETCH_SUPERSEDED)
        set(&o, "superseded", json_true());
    return o;
}

/* Which record it is. */
static void set_place(json_t **o, const struct item *item)
{
    const struct reader_record *rec = item->record;
    set(o, "chunk", value_u64(rec->place));
    set(o, "record", value_u64(rec->number));
    set(o, "site", value_text(item->site->name));
    set(o, "site_id", value_u64(item->site->id));
    set(o, "layer", value_layer(rec->at.layer));
    set(o, "occurrence", value_u64(rec->at.occurrence));
    set(o, "launch", value_u64(rec->at.launch));
    set(o, "forward", value_u64(rec->at.forward));
    set_step(o, rec->step, rec->at.step);
    set(o, "time_ns", value_u64(rec->at.time_ns));
    set(o, "device", value_u64(rec->at.device));
}

json_t *describe_record(const struct replay_source *s, const struct item *item)
{
    json_t *o = describe_begin(s, ITEM_RECORD), *shape = json_array(), *rows = json_array();
    set_place(&o, item);
    set(&o, "dtype", json_string(dmi_dtype_info(item->record->at.dtype)->name));
    for (uint32_t d = 0; d < item->n_dims; d++)
        append(&shape, value_u64(item->dims[d]));
    set(&o, "shape", shape);
    set(&o, "row", value_text(dmi_row_name(item->site->row)));
    set(&o, "scale", value_double(item->site->scale));
    set(&o, "complete", json_boolean(item->n_rows == record_rows(item->record)));
    for (size_t i = 0; i < item->n_spans; i++)
        append(&rows, rows_value(&item->spans[i]));
    set(&o, "rows", rows);
    set(&o, "bytes", value_u64(item->n_data));
    set(&o, "xxh3", hex(item->hash));
    return o;
}

/* ------------------------------------------------------------------------- what became of rows */

/* The rows of the span that were accepted, each by its number in the span: [first, rows] of neighbours. */
static json_t *accepted_value(const struct source_said *of, const struct source_event *event)
{
    json_t *all = json_array();
    for (size_t i = 0; i < event->n_accepted; i++) {
        const uint32_t *at = of->accepted + event->accepted + 2 * i;
        append(&all, json_pack("[I, I]", (json_int_t)at[0], (json_int_t)at[1]));
    }
    return all;
}

json_t *describe_event(const struct replay_source *s)
{
    const struct source_said *of = NULL;
    const struct source_event *event = source_events_next(&s->events, &of);
    json_t *o = describe_begin(s, ITEM_OUTCOME);
    set(&o, "time_ns", value_u64(event->at.time_ns));
    set_request(&o, event->n_id ? of->ids.data + event->id : "", event->n_id);
    switch (event->kind) {
    case EVENT_OUTCOME:
        set(&o, "step", value_u64(event->step));
        set(&o, "step_sequence", value_u64(event->sequence));
        set(&o, "position", json_integer(event->position));
        set(&o, "tokens", value_u64(event->n_tokens));
        set(&o, "accepted", accepted_value(of, event));
        break;
    case EVENT_SHED:
        set(&o, "shed", event->has_step ? value_u64(event->sequence) : json_null());
        break;
    case EVENT_END: set(&o, "ended", json_string(request_reason_name(event->reason))); break;
    }
    return o;
}

/* ------------------------------------------------------------------------- what is missing */

json_t *describe_finding(const struct replay_source *s, const struct reader_finding *finding)
{
    json_t *o = describe_begin(s, ITEM_GAP);
    set(&o, "what",
        json_string(finding->damage    ? "damage"
                    : finding->unknown ? "unknown"
                                       : "note"));
    set(&o, "file", value_text(finding->file));
    set(&o, "chunk", finding->chunk < 0 ? json_null() : json_integer(finding->chunk));
    set(&o, "offset", value_u64(finding->offset));
    set(&o, "text", value_text(finding->text));
    return o;
}

json_t *describe_undecoded(const struct replay_source *s, const struct item *item)
{
    json_t *o = describe_begin(s, ITEM_GAP), *rows = json_array();
    set(&o, "what", json_string("record"));
    set_place(&o, item);
    for (size_t i = 0; i < item->n_spans; i++)
        append(&rows, rows_value(&item->spans[i]));
    set(&o, "rows", rows);
    set(&o, "text", value_text(s->why.msg));
    return o;
}
