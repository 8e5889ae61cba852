/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/top/view.h"

#include "core/any.h"
#include "core/sorted.h"
#include "tools/top/view_edits.h"
#include "storage/codec/rung.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- numbers */

/* Whatever a file says: never less than nothing. */
static uint64_t since(uint64_t now, uint64_t before)
{
    return now > before ? now - before : 0;
}

static uint64_t at_most(uint64_t n, uint64_t most)
{
    return n < most ? n : most;
}

double view_rate(const struct top_view *v, uint64_t now, uint64_t before)
{
    return v->seconds > 0 ? (double)since(now, before) / v->seconds : 0;
}

double view_share(const struct top_view *v, uint64_t now_ns, uint64_t before_ns)
{
    double share = view_rate(v, now_ns, before_ns) / 1e9;
    return share < 1 ? share : 1;
}

static double mean(uint64_t sum, uint64_t n)
{
    return n ? (double)sum / (double)n : -1;
}

double view_step_host_ns(const struct top_view *v)
{
    const struct view_counts *c = &v->now, *b = &v->before;
    return mean(since(c->trace_host_ns, b->trace_host_ns), since(c->trace_steps, b->trace_steps));
}

double view_step_device_ns(const struct top_view *v)
{
    const struct view_counts *c = &v->now, *b = &v->before;
    return mean(since(c->trace_device_ns, b->trace_device_ns),
                since(c->trace_timed, b->trace_timed));
}

double view_idle(const struct top_view *v)
{
    double gap_ns = (double)since(v->now.trace_gap_ns, v->before.trace_gap_ns);
    double device_ns = (double)since(v->now.trace_device_ns, v->before.trace_device_ns);
    return gap_ns + device_ns > 0 ? gap_ns / (gap_ns + device_ns) : -1;
}

const char *view_state_name(enum top_state state)
{
    return state == TOP_RUNNING ? "running" : state == TOP_CLOSED ? "closed" : "killed";
}

const char *view_request_state_name(uint32_t state)
{
    switch (state) {
    case DMI_LIVE_REQUEST_RUNS: return "running";
    case DMI_LIVE_REQUEST_SHED: return "shed";
    case DMI_LIVE_REQUEST_ENDED: return "ended";
    default: return "unknown";
    }
}

const char *view_rung_name(uint32_t rung)
{
    static const char *const names[CODEC_RUNGS] = { "smallest", "packed", "stored" };
    return rung < CODEC_RUNGS ? names[rung] : "unknown";
}

static void add_tally(struct dmi_tally *to, const struct dmi_tally *t)
{
    to->records += t->records;
    to->rows += t->rows;
    to->bytes += t->bytes;
}

/* ------------------------------------------------------------------------- sites */

static void add_site(struct view_site *to, const struct dmi_site_counters *now,
                     const struct dmi_site_counters *before)
{
    add_tally(&to->expected, &now->expected);
    add_tally(&to->captured, &now->captured);
    to->launches += now->launches;
    for (uint32_t d = 0; d < DMI_DROP_ROOM; d++) {
        add_tally(&to->dropped_by[d], &now->dropped[d]);
        add_tally(&to->dropped, &now->dropped[d]);
        add_tally(&to->dropped_before, &(before ? before : now)->dropped[d]);
    }
    add_tally(&to->captured_before, &(before ? before : now)->captured);
}

static void find_rates(const struct top_view *v, struct view_site *s)
{
    s->records_s = view_rate(v, s->captured.records, s->captured_before.records);
    s->rows_s = view_rate(v, s->captured.rows, s->captured_before.rows);
    s->bytes_s = view_rate(v, s->captured.bytes, s->captured_before.bytes);
    s->dropped_s = view_rate(v, s->dropped.records, s->dropped_before.records);
}

static int busiest_first(const void *pa, const void *pb)
{
    const struct view_site *a = pa, *b = pb;
    ORDER(b, a, bytes_s);
    ORDER(b, a, captured.bytes);
    return strcmp(a->name, b->name);
}

static int by_name(const void *pa, const void *pb)
{
    const struct view_site *a = pa, *b = pb;
    return strcmp(a->name, b->name);
}

/* Into one site, what is added to it. */
static void join_site(struct view_site *to, const struct view_site *s)
{
    add_tally(&to->expected, &s->expected);
    add_tally(&to->captured, &s->captured);
    add_tally(&to->dropped, &s->dropped);
    add_tally(&to->captured_before, &s->captured_before);
    add_tally(&to->dropped_before, &s->dropped_before);
    for (uint32_t d = 0; d < DMI_DROP_ROOM; d++)
        add_tally(&to->dropped_by[d], &s->dropped_by[d]);
    to->launches += s->launches;
}

/* Those of one name become one; rates, sum and order follow. */
static void settle_sites(struct top_view *v)
{
    size_t n = 0;
    if (v->n_sites)
        qsort(v->sites, v->n_sites, sizeof *v->sites, by_name);
    for (size_t i = 0; i < v->n_sites; i++)
        if (n && !strcmp(v->sites[n - 1].name, v->sites[i].name))
            join_site(&v->sites[n - 1], &v->sites[i]);
        else
            v->sites[n++] = v->sites[i];
    v->n_sites = n;
    for (size_t i = 0; i < n; i++) {
        find_rates(v, &v->sites[i]);
        join_site(&v->total, &v->sites[i]);
    }
    find_rates(v, &v->total);
    if (n)
        qsort(v->sites, n, sizeof *v->sites, busiest_first);
}

/* ------------------------------------------------------------------------- what `live` says */

static const struct dmi_live *live_before(const struct top_run *run)
{
    return run->before.live ? run->before.live : run->now.live;
}

static struct view_ring ring_of(const struct top_view *v, const struct dmi_live_ring *now,
                                const struct dmi_live_ring *before)
{
    uint64_t encode_ns = since(now->encode_ns, before->encode_ns);
    return (struct view_ring){
        .device = now->device,
        .n_encoders = now->n_encoders,
        .rung = now->rung,
        .n_bytes = now->n_bytes,
        .used_bytes = dmi_live_in_flight(now),
        .most_bytes = at_most(now->most_bytes, now->n_bytes),
        .n_slots = now->n_slots,
        .used_slots = at_most(since(now->head_slots, now->tail_slots), now->n_slots),
        .most_slots = at_most(now->most_slots, now->n_slots),
        .backlog = since(now->given, now->ended),
        .drained_s = view_rate(v, now->drained_bytes, before->drained_bytes),
        .encoder_share = now->n_encoders ? view_share(v, encode_ns / now->n_encoders, 0) : 0,
    };
}

static void add_rings(struct top_view *v, const struct top_run *run)
{
    const struct dmi_live *now = run->now.live, *before = live_before(run);
    for (uint32_t i = 0; now && i < DMI_LIVE_RINGS; i++)
        if (now->rings[i].n_bytes)
            v->rings[v->n_rings++] = ring_of(v, &now->rings[i], &before->rings[i]);
}

static int latest_first(const void *pa, const void *pb)
{
    const struct view_request *a = pa, *b = pb;
    ORDER(b, a, last_ns);
    ORDER(b, a, rows);
    return 0;
}

/* The same entry may be of another request than before. */
static bool same_request(const struct dmi_live_request *a, const struct dmi_live_request *b)
{
    return a->first_step == b->first_step && a->n_id == b->n_id && !memcmp(a->id, b->id, a->n_id);
}

static void add_request(struct top_view *v, const struct dmi_live_request *now,
                        const struct dmi_live_request *before)
{
    bool same = before && same_request(now, before);
    uint64_t rows = same ? before->rows : 0, bytes = same ? before->bytes : 0;
    v->requests[v->n_requests++] = (struct view_request){
        .id = now->id,
        .n_id = now->n_id,
        .state = now->state,
        .rows = now->rows,
        .bytes = now->bytes,
        .n_tokens = now->n_tokens,
        .first_step = now->first_step,
        .last_step = now->last_step,
        .begin_ns = now->begin_ns,
        .last_ns = now->last_ns,
        .rows_s = view_rate(v, now->rows, rows),
        .bytes_s = view_rate(v, now->bytes, bytes),
    };
}

static void add_requests(struct top_view *v, const struct top_run *run)
{
    const struct dmi_live *now = run->now.live, *before = run->before.live;
    for (uint32_t i = 0; now && i < DMI_LIVE_REQUESTS; i++)
        if (run->now.whole[i] && now->requests[i].state != DMI_LIVE_REQUEST_FREE)
            add_request(v, &now->requests[i],
                        before && run->before.whole[i] ? &before->requests[i] : NULL);
}

/* ------------------------------------------------------------------------- counts */

static void add_live_counts(struct view_counts *to, const struct dmi_live *l)
{
    to->raw_bytes += l->raw_bytes;
    to->stored_bytes += l->stored_bytes;
    to->written_bytes += l->written_bytes;
    to->writes += l->writes;
    to->write_failures += l->write_failures;
    to->write_ns += l->write_ns;
    to->syncs += l->syncs;
    to->sync_failures += l->sync_failures;
    to->sync_ns += l->sync_ns;
    to->link_bytes_s += l->link_bytes_s;
    to->step_requests += l->step_requests;
    to->step_kept += l->step_kept;
    to->requests_shed += l->requests_shed;
    to->requests_seen += l->requests_seen;
    to->stray_rows += l->stray_rows;
    to->trace_steps += l->trace_steps;
    to->trace_host_ns += l->trace_host_ns;
    to->trace_timed += l->trace_timed;
    to->trace_device_ns += l->trace_device_ns;
    to->trace_gap_ns += l->trace_gap_ns;
    to->trace_lost += l->trace_lost;
    for (uint32_t i = 0; i < DMI_LIVE_RINGS; i++)
        to->encode_ns += l->rings[i].encode_ns;
}

static void add_counts(struct view_counts *to, const struct dmi_counters *c,
                       const struct dmi_live *l)
{
    to->forwards += c->forwards;
    to->steps += c->steps;
    to->steps_refused += c->steps_refused;
    to->launches += c->launches_matched;
    to->waits += c->waits;
    to->waits_over += c->waits_over;
    to->wait_ns += c->wait_ns;
    if (l)
        add_live_counts(to, l);
}

/* ------------------------------------------------------------------------- views */

static double seconds_of(const struct top_run *run)
{
    return run->before.counters ? (double)(run->now.mono_ns - run->before.mono_ns) / 1e9 : 0;
}

static void add_run(struct top_view *v, const struct top_run *run)
{
    const struct snapshot *now = &run->now, *before = &run->before;
    const struct dmi_counters *c = now->counters, *b = before->counters ? before->counters : c;
    v->n_runs++;
    v->n_running += now->state == TOP_RUNNING;
    v->has_live = v->has_live || now->live;
    v->has_trace = v->has_trace || (now->live && now->live->traces);
    for (size_t i = 0; i < run->n_sites; i++) {
        if (!run->sites[i])
            continue;
        struct view_site *s = &v->sites[v->n_sites++];
        *s = (struct view_site){ .name = run->sites[i] };
        add_site(s, &c->sites[i], &b->sites[i]);
    }
    add_rings(v, run);
    add_requests(v, run);
    add_counts(&v->now, c, now->live);
    add_counts(&v->before, b, now->live ? live_before(run) : NULL);
}

/* Room for @n_runs runs with @n_sites entries together. Return: 0 or -ENOMEM. */
static int make_room(struct top_view *v, size_t n_runs, size_t n_sites)
{
    v->total.name = "total";
    v->sites = calloc(n_sites + 1, sizeof *v->sites);
    v->rings = calloc(n_runs * DMI_LIVE_RINGS + 1, sizeof *v->rings);
    v->requests = calloc(n_runs * DMI_LIVE_REQUESTS + 1, sizeof *v->requests);
    return v->sites && v->rings && v->requests ? 0 : -ENOMEM;
}

static void settle(struct top_view *v)
{
    settle_sites(v);
    if (v->n_requests)
        qsort(v->requests, v->n_requests, sizeof *v->requests, latest_first);
}

int view_of(const struct top_run *run, struct top_view *out)
{
    *out = (struct top_view){ .run = run };
    if (make_room(out, 1, run->n_sites))
        return -ENOMEM;
    if (!run->now.counters)
        return 0;
    out->seconds = seconds_of(run);
    add_run(out, run);
    settle(out);
    return view_add_edits(out, run);
}

static bool is_part(const struct top_run *run)
{
    return run->shown && run->now.counters;
}

int view_sum(const struct top_runs *runs, struct top_view *out)
{
    size_t n_sites = 0;
    *out = (struct top_view){ 0 };
    for (size_t i = 0; i < runs->n; i++)
        n_sites += is_part(runs->list[i]) ? runs->list[i]->n_sites : 0;
    if (make_room(out, runs->n, n_sites))
        return -ENOMEM;
    for (size_t i = 0; i < runs->n; i++)
        if (is_part(runs->list[i]) && seconds_of(runs->list[i]) > out->seconds)
            out->seconds = seconds_of(runs->list[i]);
    for (size_t i = 0; i < runs->n; i++)
        if (is_part(runs->list[i]))
            add_run(out, runs->list[i]);
    settle(out);
    return FIRST(i, runs->n, is_part(runs->list[i]) && view_add_edits(out, runs->list[i]), -ENOMEM,
                 0);
}

void view_deinit(struct top_view *v)
{
    free(v->sites);
    free(v->rings);
    free(v->requests);
    free(v->edits);
    *v = (struct top_view){ 0 };
}
