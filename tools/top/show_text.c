/* SPDX-License-Identifier: Apache-2.0 */
#include "read/utf8.h"
#include "tools/common/say.h"
#include "tools/top/show.h"

#include <dmi/format.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define MAX_REQUESTS 16 /* of each run; JSON has all of them */
#define NAME_WIDTH   24

/* ------------------------------------------------------------------------- cells */

/* Columns of a row, each with a space before it. */
static void fill(struct text *to, size_t used, size_t width)
{
    while (used++ < width)
        text_add(to, " ", 1);
}

/* What a run says, in @width columns, cut where it has more. */
static void name_cell(struct text *to, const char *s, size_t n, size_t width)
{
    struct text all = { 0 };
    size_t at = 0, columns = 0;
    utf8_add_printable(&all, s, n);
    while (at < all.n && columns < width) {
        uint32_t c;
        size_t bytes = utf8_next(all.data + at, all.n - at, &c);
        at += bytes ? bytes : 1;
        columns++;
    }
    text_add(to, all.data ? all.data : "", at);
    fill(to, columns, width);
    text_deinit(&all);
}

static void cell(struct text *to, const char *s, size_t width)
{
    text_add(to, " ", 1);
    fill(to, strlen(s), width);
    text_add(to, s, strlen(s));
}

static void count_cell(struct text *to, uint64_t n, size_t width)
{
    char s[32];
    cell(to, grouped(n, s), width);
}

static void rate_cell(struct text *to, double rate, size_t width)
{
    char s[32];
    if (rate >= 100 && rate < 1e18)
        grouped((uint64_t)rate, s);
    else
        snprintf(s, sizeof s, "%.3g", rate);
    cell(to, s, width);
}

static void bytes_cell(struct text *to, double n, size_t width)
{
    char s[24];
    cell(to, bytes_text(n, s), width);
}

/* ------------------------------------------------------------------------- tables */

static void site_row(struct text *to, const struct view_site *s)
{
    text_add(to, "  ", 2);
    name_cell(to, s->name, strlen(s->name), NAME_WIDTH);
    rate_cell(to, s->records_s, 9);
    rate_cell(to, s->rows_s, 10);
    bytes_cell(to, s->bytes_s, 10);
    count_cell(to, s->captured.records, 13);
    count_cell(to, s->captured.rows, 15);
    bytes_cell(to, (double)s->captured.bytes, 10);
    rate_cell(to, s->dropped_s, 9);
    count_cell(to, s->dropped.records, 11);
    text_add(to, "\n", 1);
}

static void sites_table(struct text *to, const struct top_view *v)
{
    text_printf(to, "  %-*s %9s %10s %10s %13s %15s %10s %9s %11s\n", NAME_WIDTH, "SITE",
                "RECORDS/S", "ROWS/S", "BYTES/S", "RECORDS", "ROWS", "BYTES", "DROPPED/S",
                "DROPPED");
    for (size_t i = 0; i < v->n_sites; i++)
        site_row(to, &v->sites[i]);
    if (v->n_sites > 1)
        site_row(to, &v->total);
}

static void request_row(struct text *to, const struct view_request *q)
{
    text_add(to, "  ", 2);
    name_cell(to, q->id, q->n_id, NAME_WIDTH);
    cell(to, view_request_state_name(q->state), 9);
    rate_cell(to, q->rows_s, 10);
    bytes_cell(to, q->bytes_s, 10);
    count_cell(to, q->n_tokens, 13);
    count_cell(to, q->rows, 15);
    bytes_cell(to, (double)q->bytes, 10);
    count_cell(to, q->last_step, 9);
    text_add(to, "\n", 1);
}

static void requests_table(struct text *to, const struct top_view *v)
{
    if (!v->n_requests)
        return;
    text_printf(to, "  %-*s %9s %10s %10s %13s %15s %10s %9s\n", NAME_WIDTH, "REQUEST", "STATE",
                "ROWS/S", "BYTES/S", "TOKENS", "ROWS", "BYTES", "LAST STEP");
    for (size_t i = 0; i < v->n_requests && i < MAX_REQUESTS; i++)
        request_row(to, &v->requests[i]);
    if (v->n_requests > MAX_REQUESTS)
        text_printf(to, "  and %zu more\n", v->n_requests - MAX_REQUESTS);
}

/* ------------------------------------------------------------------------- lines */

static double part(uint64_t n, uint64_t of)
{
    return of ? 100.0 * (double)n / (double)of : 0;
}

/* Whose memory a ring takes tensors from. */
static const char *owner_text(uint32_t device, char out[24])
{
    if (device == DMI_NO_DEVICE)
        return "the host";
    snprintf(out, 24, "device %" PRIu32, device);
    return out;
}

static void ring_line(struct text *to, const struct view_ring *r)
{
    char used[24], all[24], rate[24], owner[24];
    text_printf(to,
                "  ring of %s: %s of %s (%.0f%%, most %.0f%%), %" PRIu64 " of %" PRIu64
                " slots (most %" PRIu64 "), %s/s drained\n",
                owner_text(r->device, owner), bytes_text((double)r->used_bytes, used),
                bytes_text((double)r->n_bytes, all), part(r->used_bytes, r->n_bytes),
                part(r->most_bytes, r->n_bytes), r->used_slots, r->n_slots, r->most_slots,
                bytes_text(r->drained_s, rate));
    text_printf(to,
                "  encoders of %s: %" PRIu32 ", busy %.0f%% of the time, %" PRIu64
                " batch%s waiting, rung %s\n",
                owner_text(r->device, owner), r->n_encoders, 100 * r->encoder_share, r->backlog,
                r->backlog == 1 ? "" : "es", view_rung_name(r->rung));
}

static void disk_lines(struct text *to, const struct top_view *v)
{
    const struct view_counts *c = &v->now, *b = &v->before;
    char in[24], out[24], rate[24];
    text_printf(to, "  encoded: %s to %s (ratio %.2f), %s/s\n",
                bytes_text((double)c->raw_bytes, in), bytes_text((double)c->stored_bytes, out),
                c->stored_bytes ? (double)c->raw_bytes / (double)c->stored_bytes : 1.0,
                bytes_text(view_rate(v, c->raw_bytes, b->raw_bytes), rate));
    text_printf(to,
                "  disk: %s written, %s/s, writing %.0f%% and syncing %.0f%% of the time, %" PRIu64
                " failed\n",
                bytes_text((double)c->written_bytes, out),
                bytes_text(view_rate(v, c->written_bytes, b->written_bytes), rate),
                100 * view_share(v, c->write_ns, b->write_ns),
                100 * view_share(v, c->sync_ns, b->sync_ns), c->write_failures + c->sync_failures);
}

static void overload_line(struct text *to, const struct top_view *v)
{
    const struct view_counts *c = &v->now;
    char rate[24];
    if (!c->step_requests && !c->requests_shed)
        return;
    text_printf(to,
                "  overload: %" PRIu64 " of %" PRIu64 " requests of the last step kept, %" PRIu64
                " shed so far; link %s%s\n",
                c->step_kept, c->step_requests, c->requests_shed,
                c->link_bytes_s ? bytes_text((double)c->link_bytes_s, rate) : "never full",
                c->link_bytes_s ? "/s" : "");
}

/* "24.1 ms"; "-": there is none. */
static const char *ms_text(double ns, char out[32])
{
    if (ns < 0)
        return "-";
    snprintf(out, 32, "%.3g ms", ns / 1e6);
    return out;
}

static void trace_line(struct text *to, const struct top_view *v)
{
    const struct view_counts *c = &v->now, *b = &v->before;
    const double idle = view_idle(v);
    char device[32], host[32], share[32] = "-";
    if (!v->has_trace)
        return;
    if (idle >= 0)
        snprintf(share, sizeof share, "%.1f%%", 100 * idle);
    text_printf(to,
                "  trace: %.3g steps a second, a step takes %s on the device and %s on the host; "
                "the device is idle between them for %s of the time; %" PRIu64 " lost\n",
                view_rate(v, c->trace_steps, b->trace_steps),
                ms_text(view_step_device_ns(v), device), ms_text(view_step_host_ns(v), host), share,
                c->trace_lost);
}

static void waits_line(struct text *to, const struct top_view *v)
{
    const struct view_counts *c = &v->now, *b = &v->before;
    text_printf(to, "  waits: %" PRIu64 " (%.3g a second), %" PRIu64 " in vain, %.3g s together\n",
                c->waits, view_rate(v, c->waits, b->waits), c->waits_over,
                (double)c->wait_ns / 1e9);
}

static void dropped_line(struct text *to, const struct top_view *v)
{
    bool any = false;
    for (uint32_t d = 0; d < DMI_DROP_ROOM; d++) {
        const struct dmi_tally *t = &v->total.dropped_by[d];
        if (!t->records && !t->rows)
            continue;
        text_printf(to, "%s %s %" PRIu64 " (%" PRIu64 " rows)",
                    any ? "," : "  dropped:", dmi_drop_name(d), t->records, t->rows);
        any = true;
    }
    text_printf(to, "%s\n", any ? "" : "  dropped: nothing");
}

static void edit_row(struct text *to, const struct top_view *v, const struct view_edit *e)
{
    bool any = false;
    text_add(to, "  ", 2);
    name_cell(to, e->name, strlen(e->name), NAME_WIDTH);
    rate_cell(to, view_rate(v, e->written, e->written_before), 10);
    count_cell(to, e->due, 13);
    count_cell(to, e->written, 13);
    count_cell(to, e->missed, 11);
    for (uint32_t k = 0; k < DMI_EDIT_MISS_COUNT; k++) {
        if (e->missed_by[k])
            text_printf(to, "%s %s %" PRIu64, any ? "," : " ", dmi_edit_miss_name(k),
                        e->missed_by[k]);
        any = any || e->missed_by[k];
    }
    text_add(to, "\n", 1);
}

static void edits_table(struct text *to, const struct top_view *v)
{
    const struct view_counts *c = &v->now;
    if (!v->has_edits)
        return;
    text_printf(to,
                "  edits: %" PRIu64 " in force; %" PRIu64 " rows due, %" PRIu64 " written, %" PRIu64
                " missed\n",
                c->edits_in_force, c->edit_rows_due, c->edit_rows_written, c->edit_rows_missed);
    if (v->n_edits)
        text_printf(to, "  %-*s %10s %13s %13s %11s\n", NAME_WIDTH, "EDIT", "WRITTEN/S", "DUE",
                    "WRITTEN", "MISSED");
    for (size_t i = 0; i < v->n_edits; i++)
        edit_row(to, v, &v->edits[i]);
}

/* Whatever folders and files are called: no line of its own. */
static void add_name(struct text *to, const char *s)
{
    utf8_add_printable(to, s, strlen(s));
}

static void refused_line(struct text *to, const struct err *err)
{
    text_printf(to, "  refused: ");
    add_name(to, err->msg);
    text_add(to, "\n", 1);
}

static void head_line(struct text *to, const struct top_view *v)
{
    const struct view_counts *c = &v->now, *b = &v->before;
    if (v->run) {
        add_name(to, v->run->name);
        text_printf(to, ": process %" PRIu64 ", ", v->run->pid);
        text_printf(to, "%s",
                    v->run->now.state == TOP_KILLED ? "killed: it has ended without closing its run"
                                                    : view_state_name(v->run->now.state));
    } else {
        text_printf(to, "all %zu runs: %zu running", v->n_runs, v->n_running);
    }
    text_printf(to, "; %" PRIu64 " forwards (%.3g a second), %" PRIu64 " steps (%.3g a second)\n",
                c->forwards, view_rate(v, c->forwards, b->forwards), c->steps,
                view_rate(v, c->steps, b->steps));
}

static void live_lines(struct text *to, const struct top_view *v)
{
    for (size_t i = 0; i < v->n_rings && v->run; i++)
        ring_line(to, &v->rings[i]);
    if (v->has_live) {
        disk_lines(to, v);
        overload_line(to, v);
    }
    if (v->run && v->run->live_refused.code)
        refused_line(to, &v->run->live_refused);
    else if (v->run && !v->has_live && v->run->now.state == TOP_RUNNING)
        text_printf(to, "  no file live: ring, encoder, disk and requests are not known\n");
}

static void block(struct text *to, const struct top_view *v)
{
    head_line(to, v);
    if (v->run && v->run->refused.code)
        refused_line(to, &v->run->refused);
    live_lines(to, v);
    trace_line(to, v);
    waits_line(to, v);
    dropped_line(to, v);
    sites_table(to, v);
    edits_table(to, v);
    if (v->run)
        requests_table(to, v);
}

void show_text(struct text *to, const struct top_runs *runs, const struct top_view *views,
               size_t n_views, const struct top_view *sum)
{
    char now[32] = "";
    time_t t = time(NULL);
    struct tm tm;
    if (localtime_r(&t, &tm))
        strftime(now, sizeof now, "%Y-%m-%d %H:%M:%S", &tm);
    text_printf(to, "dmi-top, ");
    add_name(to, runs->path);
    text_printf(to, ", %s, rates of %.1f s\n", now, sum->seconds);
    if (n_views > 1)
        block(to, sum);
    for (size_t i = 0; i < n_views; i++)
        block(to, &views[i]);
}
