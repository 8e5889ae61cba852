/* SPDX-License-Identifier: Apache-2.0 */
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

static json_t *tally(const struct dmi_tally *t)
{
    json_t *o = json_object();
    set_u64(o, "records", t->records);
    set_u64(o, "rows", t->rows);
    set_u64(o, "bytes", t->bytes);
    return o;
}

/* As dmi-dump stats has them. */
static void set_reasons(json_t *object, const struct view_site *s)
{
    json_t *records = json_object(), *rows = json_object();
    for (uint32_t d = 0; d < DMI_DROP_ROOM; d++) {
        if (s->dropped_by[d].records || s->dropped_by[d].rows)
            set_u64(records, dmi_drop_name(d), s->dropped_by[d].records);
        if (s->dropped_by[d].rows)
            set_u64(rows, dmi_drop_name(d), s->dropped_by[d].rows);
    }
    set(object, "dropped_by_reason", records);
    set(object, "dropped_rows_by_reason", rows);
}

static json_t *site_value(const struct view_site *s)
{
    json_t *o = json_object();
    set(o, "site", value_text(s->name));
    set_double(o, "records_per_s", s->records_s);
    set_double(o, "rows_per_s", s->rows_s);
    set_double(o, "bytes_per_s", s->bytes_s);
    set_double(o, "dropped_per_s", s->dropped_s);
    set(o, "expected", tally(&s->expected));
    set(o, "captured", tally(&s->captured));
    set(o, "dropped", tally(&s->dropped));
    set_reasons(o, s);
    set_u64(o, "launches", s->launches);
    return o;
}

static double share(uint64_t n, uint64_t of)
{
    return of ? (double)n / (double)of : 0;
}

static json_t *ring_value(const struct view_ring *r)
{
    json_t *o = json_object();
    set_u64(o, "device", r->device);
    set_u64(o, "bytes", r->n_bytes);
    set_u64(o, "bytes_in_flight", r->used_bytes);
    set_u64(o, "most_bytes_in_flight", r->most_bytes);
    set_double(o, "occupancy", share(r->used_bytes, r->n_bytes));
    set_double(o, "most_occupancy", share(r->most_bytes, r->n_bytes));
    set_u64(o, "slots", r->n_slots);
    set_u64(o, "slots_in_flight", r->used_slots);
    set_u64(o, "most_slots_in_flight", r->most_slots);
    set_double(o, "drained_bytes_per_s", r->drained_s);
    set_u64(o, "encoders", r->n_encoders);
    set_double(o, "encoders_busy", r->encoder_share);
    set_u64(o, "backlog_batches", r->backlog);
    set(o, "rung", value_text(view_rung_name(r->rung)));
    return o;
}

static json_t *request_value(const struct view_request *q)
{
    json_t *o = json_object();
    set(o, "request", value_bytes(q->id, q->n_id));
    set(o, "state", value_text(view_request_state_name(q->state)));
    set_u64(o, "tokens", q->n_tokens);
    set_u64(o, "rows", q->rows);
    set_u64(o, "bytes", q->bytes);
    set_double(o, "rows_per_s", q->rows_s);
    set_double(o, "bytes_per_s", q->bytes_s);
    set_u64(o, "first_step", q->first_step);
    set_u64(o, "last_step", q->last_step);
    set_u64(o, "begin_realtime_ns", q->begin_ns);
    set_u64(o, "last_realtime_ns", q->last_ns);
    return o;
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
        json_t *one = json_object();
        set(one, "edit", value_text(e->name));
        set_u64(one, "due", e->due);
        set_u64(one, "written", e->written);
        set_u64(one, "missed", e->missed);
        set(one, "missed_by_reason", reasons_of(e));
        set_double(one, "written_per_s", view_rate(v, e->written, e->written_before));
        json_array_append_new(list, one);
    }
    set(o, "edits", list);
    return o;
}

static json_t *waits_value(const struct top_view *v)
{
    json_t *o = json_object();
    set_u64(o, "waits", v->now.waits);
    set_u64(o, "in_vain", v->now.waits_over);
    set_u64(o, "wait_ns", v->now.wait_ns);
    set_double(o, "waits_per_s", view_rate(v, v->now.waits, v->before.waits));
    return o;
}

static json_t *encoder_value(const struct top_view *v)
{
    const struct view_counts *c = &v->now;
    json_t *o = json_object();
    set_u64(o, "raw_bytes", c->raw_bytes);
    set_u64(o, "stored_bytes", c->stored_bytes);
    set_double(o, "ratio", c->stored_bytes ? share(c->raw_bytes, c->stored_bytes) : 1);
    set_double(o, "raw_bytes_per_s", view_rate(v, c->raw_bytes, v->before.raw_bytes));
    set_u64(o, "encode_ns", c->encode_ns);
    return o;
}

static json_t *disk_value(const struct top_view *v)
{
    const struct view_counts *c = &v->now, *b = &v->before;
    json_t *o = json_object();
    set_u64(o, "written_bytes", c->written_bytes);
    set_double(o, "written_bytes_per_s", view_rate(v, c->written_bytes, b->written_bytes));
    set_u64(o, "writes", c->writes);
    set_u64(o, "write_ns", c->write_ns);
    set_double(o, "writing", view_share(v, c->write_ns, b->write_ns));
    set_u64(o, "write_failures", c->write_failures);
    set_u64(o, "syncs", c->syncs);
    set_u64(o, "sync_ns", c->sync_ns);
    set_double(o, "syncing", view_share(v, c->sync_ns, b->sync_ns));
    set_u64(o, "sync_failures", c->sync_failures);
    return o;
}

static json_t *overload_value(const struct top_view *v)
{
    const struct view_counts *c = &v->now;
    json_t *o = json_object();
    set(o, "link_bytes_per_s", c->link_bytes_s ? value_u64(c->link_bytes_s) : json_null());
    set_u64(o, "last_step_requests", c->step_requests);
    set_u64(o, "last_step_kept", c->step_kept);
    set_u64(o, "shed", c->requests_shed);
    return o;
}

/* null below 0: no step was done. */
static void set_mean(json_t *object, const char *key, double value)
{
    set(object, key, value < 0 ? json_null() : value_double(value));
}

static json_t *trace_value(const struct top_view *v)
{
    const struct view_counts *c = &v->now;
    json_t *o = json_object();
    set_u64(o, "steps", c->trace_steps);
    set_u64(o, "timed", c->trace_timed);
    set_u64(o, "lost", c->trace_lost);
    set_u64(o, "host_ns", c->trace_host_ns);
    set_u64(o, "device_ns", c->trace_device_ns);
    set_u64(o, "gap_ns", c->trace_gap_ns);
    set_double(o, "steps_per_s", view_rate(v, c->trace_steps, v->before.trace_steps));
    set_mean(o, "step_host_ns", view_step_host_ns(v));
    set_mean(o, "step_device_ns", view_step_device_ns(v));
    set_mean(o, "idle", view_idle(v));
    return o;
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
