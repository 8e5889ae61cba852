/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests are no labels: each would be a series of its own for good. What they come to is in the counts.
 */
#include "read/utf8.h"
#include "tools/top/show.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

struct metric {
    const char *name;
    const char *help;
    size_t at;     /* of a uint64_t in the struct that is shown */
    bool gauge;    /* it may fall */
    bool is_ns;    /* nanoseconds, shown as seconds */
    bool of_live;  /* only where there is the file `live` */
    bool of_edits; /* only where there is the file `edits` */
    bool of_trace; /* only where the file `live` says that there is a trace */
};

#define COUNT(member) offsetof(struct view_counts, member)
#define RING(member)  offsetof(struct view_ring, member)
#define SITE(member)  offsetof(struct view_site, member)

static const struct metric of_runs[] = {
    { "dmi_forwards_total", "Forwards begun.", COUNT(forwards) },
    { "dmi_steps_total", "Steps that the engine said.", COUNT(steps) },
    { "dmi_steps_refused_total", "Steps that could not be noted.", COUNT(steps_refused) },
    { "dmi_launches_matched_total", "Launches with a site or the begin of a forward.",
      COUNT(launches) },
    { "dmi_ring_waits_total", "Launches that waited for room in a ring.", COUNT(waits) },
    { "dmi_ring_waits_in_vain_total", "Of these, those that found none in time.",
      COUNT(waits_over) },
    { "dmi_ring_wait_seconds_total", "Time that launches waited for room.", COUNT(wait_ns),
      .is_ns = true },
    { "dmi_encoder_raw_bytes_total", "Bytes of written records before encoding.", COUNT(raw_bytes),
      .of_live = true },
    { "dmi_encoder_stored_bytes_total", "Bytes of written records as they are stored.",
      COUNT(stored_bytes), .of_live = true },
    { "dmi_encoder_busy_seconds_total", "Time of all encoder threads.", COUNT(encode_ns),
      .is_ns = true, .of_live = true },
    { "dmi_disk_written_bytes_total", "Bytes written to segments.", COUNT(written_bytes),
      .of_live = true },
    { "dmi_disk_writes_total", "Commits to segments.", COUNT(writes), .of_live = true },
    { "dmi_disk_write_seconds_total", "Time that commits took.", COUNT(write_ns), .is_ns = true,
      .of_live = true },
    { "dmi_disk_write_failures_total", "Commits that failed.", COUNT(write_failures),
      .of_live = true },
    { "dmi_disk_syncs_total", "Syncs of segments.", COUNT(syncs), .of_live = true },
    { "dmi_disk_sync_seconds_total", "Time that syncs took.", COUNT(sync_ns), .is_ns = true,
      .of_live = true },
    { "dmi_disk_sync_failures_total", "Syncs that failed.", COUNT(sync_failures), .of_live = true },
    { "dmi_link_bytes_per_second", "Rate at which full rings are emptied; 0: not known.",
      COUNT(link_bytes_s), .gauge = true, .of_live = true },
    { "dmi_step_requests", "Requests of the last step that an overload policy judged.",
      COUNT(step_requests), .gauge = true, .of_live = true },
    { "dmi_step_requests_kept", "Those of them that it kept.", COUNT(step_kept), .gauge = true,
      .of_live = true },
    { "dmi_requests_shed_total", "Requests that were shed.", COUNT(requests_shed),
      .of_live = true },
    { "dmi_requests_total", "Requests that began.", COUNT(requests_seen), .of_live = true },
    { "dmi_trace_steps_total", "Steps of the trace that are done.", COUNT(trace_steps),
      .of_trace = true },
    { "dmi_trace_host_seconds_total", "Time that they took on the host.", COUNT(trace_host_ns),
      .is_ns = true, .of_trace = true },
    { "dmi_trace_timed_steps_total", "Those of them with a time on the device.", COUNT(trace_timed),
      .of_trace = true },
    { "dmi_trace_device_seconds_total", "Time that these took on the device.",
      COUNT(trace_device_ns), .is_ns = true, .of_trace = true },
    { "dmi_trace_idle_seconds_total", "Time between steps in which the device had nothing to do.",
      COUNT(trace_gap_ns), .is_ns = true, .of_trace = true },
    { "dmi_trace_lost_steps_total", "Steps that are in no file.", COUNT(trace_lost),
      .of_trace = true },
    { "dmi_edits_in_force", "Edits that are in force and not off.", COUNT(edits_in_force),
      .gauge = true, .of_edits = true },
};

static const struct metric of_sites[] = {
    { "dmi_site_launches_total", "Launches that the site's pattern matched.", SITE(launches) },
    { "dmi_expected_records_total", "Records that the HookSpec asks for.", SITE(expected.records) },
    { "dmi_captured_records_total", "Records that are in a segment.", SITE(captured.records) },
    { "dmi_captured_rows_total", "Their rows.", SITE(captured.rows) },
    { "dmi_captured_bytes_total", "Their bytes before encoding.", SITE(captured.bytes) },
};

static const struct metric of_rings[] = {
    { "dmi_ring_size_bytes", "Size of a ring.", RING(n_bytes), .gauge = true },
    { "dmi_ring_used_bytes", "Bytes in flight.", RING(used_bytes), .gauge = true },
    { "dmi_ring_most_used_bytes", "The most that were in flight.", RING(most_bytes),
      .gauge = true },
    { "dmi_ring_slots", "Slots of a ring.", RING(n_slots), .gauge = true },
    { "dmi_ring_used_slots", "Slots in flight.", RING(used_slots), .gauge = true },
    { "dmi_ring_backlog_batches", "Batches that wait to be encoded or written.", RING(backlog),
      .gauge = true },
};

#define N_OF(a) (sizeof(a) / sizeof(a)[0])

/* ------------------------------------------------------------------------- a sample */

static void begin(struct text *to, const struct metric *m)
{
    text_printf(to, "# HELP %s %s\n# TYPE %s %s\n", m->name, m->help, m->name,
                m->gauge ? "gauge" : "counter");
}

/* A label's value: what a terminal may not print is '?', as everywhere. */
static void add_label(struct text *to, const char *key, const char *value)
{
    struct text printable = { 0 };
    utf8_add_printable(&printable, value, strlen(value));
    text_printf(to, "%s=\"", key);
    for (size_t i = 0; i < printable.n; i++) {
        if (printable.data[i] == '"' || printable.data[i] == '\\')
            text_add(to, "\\", 1);
        text_add(to, &printable.data[i], 1);
    }
    text_add(to, "\"", 1);
    to->failed |= printable.failed;
    text_deinit(&printable);
}

/* NAME{run="...", and leaves the braces open. */
static void begin_sample(struct text *to, const char *name, const struct top_view *v)
{
    text_printf(to, "%s{", name);
    add_label(to, "run", v->run->name);
}

static void end_sample(struct text *to, const struct metric *m, const void *from)
{
    uint64_t n;
    memcpy(&n, (const char *)from + m->at, sizeof n);
    if (!m->is_ns)
        text_printf(to, "} %" PRIu64 "\n", n);
    else
        text_printf(to, "} %" PRIu64 ".%09" PRIu64 "\n", n / 1000000000u, n % 1000000000u);
}

/* ------------------------------------------------------------------------- all of a kind */

static void add_run_metric(struct text *to, const struct metric *m, const struct top_view *views,
                           size_t n)
{
    begin(to, m);
    for (size_t i = 0; i < n; i++) {
        if ((m->of_live && !views[i].has_live) || (m->of_edits && !views[i].has_edits) ||
            (m->of_trace && !views[i].has_trace))
            continue;
        begin_sample(to, m->name, &views[i]);
        end_sample(to, m, &views[i].now);
    }
}

static void add_site_metric(struct text *to, const struct metric *m, const struct top_view *views,
                            size_t n)
{
    begin(to, m);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < views[i].n_sites; k++) {
            begin_sample(to, m->name, &views[i]);
            add_label(to, ",site", views[i].sites[k].name);
            end_sample(to, m, &views[i].sites[k]);
        }
}

static void add_ring_metric(struct text *to, const struct metric *m, const struct top_view *views,
                            size_t n)
{
    begin(to, m);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < views[i].n_rings; k++) {
            begin_sample(to, m->name, &views[i]);
            text_printf(to, ",ring=\"%zu\",device=\"%" PRIu32 "\"", k, views[i].rings[k].device);
            end_sample(to, m, &views[i].rings[k]);
        }
}

static void add_edit_metric(struct text *to, const struct metric *m, const struct top_view *views,
                            size_t n)
{
    begin(to, m);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < views[i].n_edits; k++) {
            begin_sample(to, m->name, &views[i]);
            add_label(to, ",edit", views[i].edits[k].name);
            end_sample(to, m, &views[i].edits[k]);
        }
}

/* Of each edit all reasons that it has. */
static void add_missed(struct text *to, const struct top_view *views, size_t n)
{
    static const struct metric m = { "dmi_edit_rows_missed_total",
                                     "Rows that edits did not write, by why." };
    begin(to, &m);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < views[i].n_edits; k++)
            for (uint32_t d = 0; d < DMI_EDIT_MISS_COUNT; d++) {
                const uint64_t *missed = &views[i].edits[k].missed_by[d];
                if (!*missed)
                    continue;
                begin_sample(to, m.name, &views[i]);
                add_label(to, ",edit", views[i].edits[k].name);
                text_printf(to, ",reason=\"%s\"", dmi_edit_miss_name(d));
                end_sample(to, &m, missed);
            }
}

static void add_edits(struct text *to, const struct top_view *views, size_t n)
{
    static const struct metric of_edits[] = {
        { "dmi_edit_rows_due_total", "Rows that edits want.", offsetof(struct view_edit, due) },
        { "dmi_edit_rows_written_total", "Rows that edits wrote.",
          offsetof(struct view_edit, written) },
    };
    bool any = false;
    for (size_t i = 0; i < n; i++)
        any = any || views[i].has_edits;
    for (size_t i = 0; any && i < N_OF(of_edits); i++)
        add_edit_metric(to, &of_edits[i], views, n);
    if (any)
        add_missed(to, views, n);
}

/* Of each site all reasons that it has. */
static void add_drops(struct text *to, const struct metric *m, const struct top_view *views,
                      size_t n)
{
    begin(to, m);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < views[i].n_sites; k++)
            for (uint32_t d = 0; d < DMI_DROP_COUNT; d++) {
                const struct dmi_tally *t = &views[i].sites[k].dropped_by[d];
                if (!t->records && !t->rows)
                    continue;
                begin_sample(to, m->name, &views[i]);
                add_label(to, ",site", views[i].sites[k].name);
                text_printf(to, ",reason=\"%s\"", dmi_drop_name(d));
                end_sample(to, m, t);
            }
}

static void add_up(struct text *to, const struct top_view *views, size_t n)
{
    static const struct metric up = { "dmi_up", "Whether the process writes its run.",
                                      .gauge = true };
    begin(to, &up);
    for (size_t i = 0; i < n; i++) {
        const struct top_run *run = views[i].run;
        begin_sample(to, up.name, &views[i]);
        text_printf(to, ",pid=\"%" PRIu64 "\"", run->pid);
        add_label(to, ",host", run->host ? run->host : "");
        add_label(to, ",job", run->job ? run->job : "");
        text_printf(to, "} %d\n", run->now.state == TOP_RUNNING && !run->refused.code);
    }
}

void show_prometheus(struct text *to, const struct top_view *views, size_t n)
{
    static const struct metric drops[] = {
        { "dmi_dropped_records_total", "Records that are in no segment, by why.",
          offsetof(struct dmi_tally, records) },
        { "dmi_dropped_rows_total", "Rows that are in no segment, by why.",
          offsetof(struct dmi_tally, rows) },
    };
    add_up(to, views, n);
    for (size_t i = 0; i < N_OF(of_runs); i++)
        add_run_metric(to, &of_runs[i], views, n);
    for (size_t i = 0; i < N_OF(of_sites); i++)
        add_site_metric(to, &of_sites[i], views, n);
    for (size_t i = 0; i < N_OF(drops); i++)
        add_drops(to, &drops[i], views, n);
    for (size_t i = 0; i < N_OF(of_rings); i++)
        add_ring_metric(to, &of_rings[i], views, n);
    add_edits(to, views, n);
}
