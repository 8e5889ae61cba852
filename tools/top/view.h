/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is shown of a run, or of several as one: the numbers of now, and rates since the snapshot before. Names are borrowed from
 * the runs. A program of one thread.
 */
#pragma once

#include "tools/top/runs.h"

/* All entries of the dictionary with one name. */
struct view_site {
    const char *name;
    struct dmi_tally expected, captured, dropped;
    struct dmi_tally dropped_by[DMI_DROP_ROOM];
    uint64_t launches;
    struct dmi_tally captured_before, dropped_before;
    double records_s, rows_s, bytes_s, dropped_s; /* captured; records dropped */
};

struct view_ring {
    uint32_t device, n_encoders, rung;
    uint64_t n_bytes, used_bytes, most_bytes; /* never more in use than there are */
    uint64_t n_slots, used_slots, most_slots;
    uint64_t backlog;     /* batches that were filled and not appended */
    double drained_s;     /* bytes a second that left it */
    double encoder_share; /* of the encoders' time, 0 to 1 */
};

struct view_request {
    const char *id; /* any bytes */
    size_t n_id;
    uint32_t state; /* enum dmi_live_request_state */
    uint64_t rows, bytes, n_tokens, first_step, last_step, begin_ns, last_ns;
    double rows_s, bytes_s;
};

/* All accounts of edits with one name. */
struct view_edit {
    const char *name;
    uint64_t due, written, missed; /* rows */
    uint64_t missed_by[DMI_EDIT_MISS_ROOM];
    uint64_t written_before;
};

/* What counters and the header of `live` count; of several runs their sums. */
struct view_counts {
    uint64_t forwards, steps, steps_refused, launches, waits, waits_over, wait_ns;
    uint64_t raw_bytes, stored_bytes, encode_ns;
    uint64_t written_bytes, writes, write_failures, write_ns, syncs, sync_failures, sync_ns;
    uint64_t link_bytes_s, step_requests, step_kept, requests_shed, requests_seen, stray_rows;
    uint64_t trace_steps, trace_host_ns, trace_timed, trace_device_ns, trace_gap_ns, trace_lost;
    uint64_t edits_in_force, edit_rows_due, edit_rows_written, edit_rows_missed;
};

struct top_view {
    const struct top_run *run; /* NULL: a sum */
    size_t n_runs, n_running;
    bool has_trace;          /* some of the runs have a trace, and the numbers of `live` */
    bool has_live;           /* some of the runs have the numbers of `live` */
    double seconds;          /* since the snapshot before; 0: there is none, and all rates are 0 */
    struct view_site *sites; /* busiest first */
    size_t n_sites;
    struct view_site total;
    struct view_ring *rings;
    size_t n_rings;
    struct view_request *requests; /* latest step first */
    size_t n_requests;
    bool has_edits;          /* some of the runs have places for edits */
    struct view_edit *edits; /* as they come */
    size_t n_edits, edits_room;
    struct view_counts now, before;
};

/* Of one run. Return: 0 or -ENOMEM; view_deinit() in any case. */
int view_of(const struct top_run *run, struct top_view *out);

/* Of all runs that are shown. Return: as view_of(). */
int view_sum(const struct top_runs *runs, struct top_view *out);

/* Frees what view_of() and view_sum() have made. */
void view_deinit(struct top_view *view);

/* Of a count of @view: per second. */
double view_rate(const struct top_view *view, uint64_t now, uint64_t before);

/* Of nanoseconds that @view counts: the share of the time, 0 to 1. */
double view_share(const struct top_view *view, uint64_t now_ns, uint64_t before_ns);

/* What a step took since the snapshot before, in nanoseconds; below 0: none was done. */
double view_step_host_ns(const struct top_view *view);

/* The same on the device; below 0: none was done that has a time there. */
double view_step_device_ns(const struct top_view *view);

/* The share of the time in which the device had nothing to do between these steps, 0 to 1; below 0: as view_step_device_ns(). */
double view_idle(const struct top_view *view);

/* "running", "closed", "killed" */
const char *view_state_name(enum top_state state);

/* "running", "shed", "ended"; "unknown" for a number that is none. */
const char *view_request_state_name(uint32_t state);

/* "smallest", "packed", "stored"; "unknown" for a number that is none. */
const char *view_rung_name(uint32_t rung);
