/* SPDX-License-Identifier: Apache-2.0 */
#include "read/account.h"
#include "read/value.h"
#include "tools/top/show.h"

/* @value becomes member @key; NULL is no memory, and leaves the member out: whoever reads finds that it lacks. */
static void set(json_t *object, const char *key, json_t *value)
{
    json_object_set_new(object, key, value);
}

static void set_u64(json_t *object, const char *key, uint64_t value)
{
    set(object, key, value_u64(value));
}

static void set_double(json_t *object, const char *key, double value)
{
    set(object, key, value_double(value));
}

static json_t *site_value(const struct view_site *s)
{
    return VALUE_OBJECT(
        { "site", value_text(s->name) }, { "records_per_s", value_double(s->records_s) },
        { "rows_per_s", value_double(s->rows_s) }, { "bytes_per_s", value_double(s->bytes_s) },
        { "dropped_per_s", value_double(s->dropped_s) },
        { "expected", account_tally(&s->expected) }, { "captured", account_tally(&s->captured) },
        { "dropped", account_tally(&s->dropped) },
        { "dropped_by_reason", account_reasons(s->dropped_by, false, true) },
        { "dropped_rows_by_reason", account_reasons(s->dropped_by, true, false) },
        { "launches", value_u64(s->launches) });
}

static double share(uint64_t n, uint64_t of)
{
    return of ? (double)n / (double)of : 0;
}

static json_t *ring_value(const struct view_ring *r)
{
    return VALUE_OBJECT({ "device", value_u64(r->device) }, { "bytes", value_u64(r->n_bytes) },
                        { "bytes_in_flight", value_u64(r->used_bytes) },
                        { "most_bytes_in_flight", value_u64(r->most_bytes) },
                        { "occupancy", value_double(share(r->used_bytes, r->n_bytes)) },
                        { "most_occupancy", value_double(share(r->most_bytes, r->n_bytes)) },
                        { "slots", value_u64(r->n_slots) },
                        { "slots_in_flight", value_u64(r->used_slots) },
                        { "most_slots_in_flight", value_u64(r->most_slots) },
                        { "drained_bytes_per_s", value_double(r->drained_s) },
                        { "encoders", value_u64(r->n_encoders) },
                        { "encoders_busy", value_double(r->encoder_share) },
                        { "backlog_batches", value_u64(r->backlog) },
                        { "rung", value_text(view_rung_name(r->rung)) });
}

static json_t *request_value(const struct view_request *q)
{
    return VALUE_OBJECT(
        { "request", value_bytes(q->id, q->n_id) },
        { "state", value_text(view_request_state_name(q->state)) },
        { "tokens", value_u64(q->n_tokens) }, { "rows", value_u64(q->rows) },
        { "bytes", value_u64(q->bytes) }, { "rows_per_s", value_double(q->rows_s) },
        { "bytes_per_s", value_double(q->bytes_s) }, { "first_step", value_u64(q->first_step) },
        { "last_step", value_u64(q->last_step) }, { "begin_realtime_ns", value_u64(q->begin_ns) },
        { "last_realtime_ns", value_u64(q->last_ns) });
}

static json_t *reasons_of(const struct view_edit *e)
{
    json_t *o = json_object();
    for (uint32_t k = 0; k < DMI_EDIT_MISS_COUNT; k++)
        if (e->missed_by[k])
            set_u64(o, dmi_edit_miss_name(k), e->missed_by[k]);
    return o;
}

static json_t *edits_value(const struct top_view *v)
{
    const struct view_counts *c = &v->now, *b = &v->before;
    json_t *o = json_object(), *list = json_array();
    set_u64(o, "in_force", c->edits_in_force);
    set_u64(o, "due", c->edit_rows_due);
    set_u64(o, "written", c->edit_rows_written);
    set_u64(o, "missed", c->edit_rows_missed);
    set_double(o, "written_per_s", view_rate(v, c->edit_rows_written, b->edit_rows_written));
    for (size_t i = 0; i < v->n_edits; i++) {
        const struct view_edit *e = &v->edits[i];
        json_array_append_new(
            list,
            VALUE_OBJECT(
                { "edit", value_text(e->name) }, { "due", value_u64(e->due) },
                { "written", value_u64(e->written) }, { "missed", value_u64(e->missed) },
                { "missed_by_reason", reasons_of(e) },
                { "written_per_s", value_double(view_rate(v, e->written, e->written_before)) }));
    }
    set(o, "edits", list);
    return o;
}

static json_t *waits_value(const struct top_view *v)
{
    return VALUE_OBJECT(
        { "waits", value_u64(v->now.waits) }, { "in_vain", value_u64(v->now.waits_over) },
        { "wait_ns", value_u64(v->now.wait_ns) },
        { "waits_per_s", value_double(view_rate(v, v->now.waits, v->before.waits)) });
}

static json_t *encoder_value(const struct top_view *v)
{
    const struct view_counts *c = &v->now;
    return VALUE_OBJECT(
        { "raw_bytes", value_u64(c->raw_bytes) }, { "stored_bytes", value_u64(c->stored_bytes) },
        { "ratio", value_double(c->stored_bytes ? share(c->raw_bytes, c->stored_bytes) : 1) },
        { "raw_bytes_per_s", value_double(view_rate(v, c->raw_bytes, v->before.raw_bytes)) },
        { "encode_ns", value_u64(c->encode_ns) });
}

static json_t *disk_value(const struct top_view *v)
{
    const struct view_counts *c = &v->now, *b = &v->before;
    return VALUE_OBJECT(
        { "written_bytes", value_u64(c->written_bytes) },
        { "written_bytes_per_s", value_double(view_rate(v, c->written_bytes, b->written_bytes)) },
        { "writes", value_u64(c->writes) }, { "write_ns", value_u64(c->write_ns) },
        { "writing", value_double(view_share(v, c->write_ns, b->write_ns)) },
        { "write_failures", value_u64(c->write_failures) }, { "syncs", value_u64(c->syncs) },
        { "sync_ns", value_u64(c->sync_ns) },
        { "syncing", value_double(view_share(v, c->sync_ns, b->sync_ns)) },
        { "sync_failures", value_u64(c->sync_failures) });
}

static json_t *overload_value(const struct top_view *v)
{
    const struct view_counts *c = &v->now;
    return VALUE_OBJECT(
        { "link_bytes_per_s", c->link_bytes_s ? value_u64(c->link_bytes_s) : json_null() },
        { "last_step_requests", value_u64(c->step_requests) },
        { "last_step_kept", value_u64(c->step_kept) }, { "shed", value_u64(c->requests_shed) });
}

/* null below 0: no step was done. */
static json_t *mean(double value)
{
    return value < 0 ? json_null() : value_double(value);
}

static json_t *trace_value(const struct top_view *v)
{
    const struct view_counts *c = &v->now;
    return VALUE_OBJECT(
        { "steps", value_u64(c->trace_steps) }, { "timed", value_u64(c->trace_timed) },
        { "lost", value_u64(c->trace_lost) }, { "host_ns", value_u64(c->trace_host_ns) },
        { "device_ns", value_u64(c->trace_device_ns) }, { "gap_ns", value_u64(c->trace_gap_ns) },
        { "steps_per_s", value_double(view_rate(v, c->trace_steps, v->before.trace_steps)) },
        { "step_host_ns", mean(view_step_host_ns(v)) },
        { "step_device_ns", mean(view_step_device_ns(v)) }, { "idle", mean(view_idle(v)) });
}

static void set_live(json_t *o, const struct top_view *v)
{
    json_t *requests = json_array();
    for (size_t i = 0; i < v->n_requests; i++)
        json_array_append_new(requests, request_value(&v->requests[i]));
    set(o, "encoder", v->has_live ? encoder_value(v) : json_null());
    set(o, "disk", v->has_live ? disk_value(v) : json_null());
    set(o, "overload", v->has_live ? overload_value(v) : json_null());
    set(o, "trace", v->has_trace ? trace_value(v) : json_null());
    set_u64(o, "requests_seen", v->now.requests_seen);
    set_u64(o, "stray_rows", v->now.stray_rows);
    set(o, "requests", requests);
}

static void set_common(json_t *o, const struct top_view *v)
{
    json_t *sites = json_array(), *rings = json_array();
    set_double(o, "seconds", v->seconds);
    set_u64(o, "forwards", v->now.forwards);
    set_double(o, "forwards_per_s", view_rate(v, v->now.forwards, v->before.forwards));
    set_u64(o, "steps", v->now.steps);
    set_double(o, "steps_per_s", view_rate(v, v->now.steps, v->before.steps));
    set_u64(o, "steps_refused", v->now.steps_refused);
    set_u64(o, "launches_matched", v->now.launches);
    for (size_t i = 0; i < v->n_sites; i++)
        json_array_append_new(sites, site_value(&v->sites[i]));
    set(o, "sites", sites);
    set(o, "total", site_value(&v->total));
    set(o, "waits", waits_value(v));
    for (size_t i = 0; i < v->n_rings; i++)
        json_array_append_new(rings, ring_value(&v->rings[i]));
    set(o, "rings", rings);
    set(o, "edits", v->has_edits ? edits_value(v) : json_null());
    set_live(o, v);
}

static json_t *refusal(const struct err *err)
{
    return err->code ? value_text(err->msg) : json_null();
}

static json_t *run_value(const struct top_view *v)
{
    const struct top_run *run = v->run;
    json_t *o = json_object();
    set(o, "run", value_text(run->name));
    set(o, "path", value_text(run->path));
    set(o, "state", value_text(view_state_name(run->now.state)));
    set_u64(o, "pid", run->pid);
    set(o, "host", value_text(run->host));
    set(o, "job", value_text(run->job));
    set_u64(o, "start_realtime_ns", run->start_ns);
    set(o, "refused", refusal(&run->refused));
    set(o, "live_refused", refusal(&run->live_refused));
    set_common(o, v);
    return o;
}

json_t *show_json(const struct top_runs *runs, const struct top_view *views, size_t n_views,
                  const struct top_view *sum)
{
    json_t *o = json_object(), *list = json_array(), *all = json_object();
    set(o, "path", value_text(runs->path));
    for (size_t i = 0; i < n_views; i++)
        json_array_append_new(list, run_value(&views[i]));
    set(o, "runs", list);
    set_u64(all, "runs", sum->n_runs);
    set_u64(all, "running", sum->n_running);
    set_common(all, sum);
    json_object_del(all, "requests");
    set(o, "all", all);
    return o;
}
