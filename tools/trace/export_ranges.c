/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/export_ranges.h"

#include "core/grow.h"
#include "core/sorted.h"
#include "read/utf8.h"
#include "tools/common/report.h"
#include "tools/common/say.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

struct named_range {
    struct dmi_range_entry at;
    char *name, *facts;
};

/* A step whose first launch lies in a range. */
struct launch {
    size_t range;
    uint64_t flow;
};

char *export_text(const char *text, size_t n)
{
    struct text out = { 0 };
    utf8_add_printable(&out, text, n);
    text_add(&out, "", 1);
    if (!out.failed)
        return out.data;
    text_deinit(&out);
    return NULL;
}

/* ------------------------------------------------------------------------- reading */

static void take_range(void *ctx, const struct reader_range *range)
{
    struct export_ranges *r = ctx;
    if (r->failed || range->at.end_ns < r->begin_ns || range->at.begin_ns > r->end_ns)
        return;
    if ((r->failed = GROW(r->all, r->n, r->room)))
        return;
    struct named_range *one = &r->all[r->n++];
    *one = (struct named_range){ range->at, export_text(range->name, range->at.name_bytes),
                                 export_text(range->facts, range->at.facts_bytes) };
    r->failed = !one->name || !one->facts;
}

/* From the first step that is asked for to the last one; all ranges where all steps are. */
static void set_window(struct export_ranges *r, const struct trace_run *t,
                       const struct runs_steps *steps)
{
    bool all = runs_all_asked(steps);
    r->begin_ns = all ? 0 : UINT64_MAX;
    r->end_ns = all ? UINT64_MAX : 0;
    for (size_t i = 0; !all && i < t->n_steps; i++) {
        const struct dmi_step_times *at = &t->steps[i];
        if (!runs_step_asked(steps, at->number))
            continue;
        r->begin_ns = at->begin_ns < r->begin_ns ? at->begin_ns : r->begin_ns;
        r->end_ns = at->end_ns > r->end_ns ? at->end_ns : r->end_ns;
    }
}

int export_ranges_read(struct export_ranges *r, const struct trace_run *run,
                       const struct runs_steps *steps)
{
    struct err err = { 0 };
    *r = (struct export_ranges){ 0 };
    set_window(r, run, steps);
    if (reader_each_range(&err, run->reader, take_range, r)) {
        complain("%s", err.msg);
        return REPORT_IMPOSSIBLE;
    }
    SORT(r->all, r->n, runs_range_order);
    return 0;
}

void export_ranges_deinit(struct export_ranges *r)
{
    for (size_t i = 0; i < r->n; i++) {
        free(r->all[i].name);
        free(r->all[i].facts);
    }
    free(r->all);
    free(r->launches);
}

/* ------------------------------------------------------------------------- launches */

/* The first range that is not before @ns in @thread. */
static size_t after(const struct export_ranges *r, uint32_t thread, uint64_t ns)
{
    size_t i = 0;
    SEARCH(i, r->n,
           r->all[i].at.thread < thread ||
               (r->all[i].at.thread == thread && r->all[i].at.begin_ns <= ns));
    return i;
}

/* The innermost range of a step's thread at its first launch; r->n: none. */
static size_t launching(const struct export_ranges *r, const struct dmi_step_times *at)
{
    for (size_t i = after(r, at->thread, at->launch_ns); i-- > 0;) {
        const struct dmi_range_entry *one = &r->all[i].at;
        if (one->thread != at->thread)
            break;
        if (one->source == DMI_RANGE_OVERLAPS)
            continue;
        if (one->end_ns >= at->launch_ns)
            return i;
        if (!one->depth)
            break; /* what begins before it has ended, too */
    }
    return r->n;
}

bool export_ranges_launch(struct export_ranges *r, const struct dmi_step_times *at, uint64_t flow)
{
    size_t i = launching(r, at);
    if (i == r->n || (r->failed |= GROW(r->launches, r->n_launches, r->launches_room)))
        return false;
    r->launches[r->n_launches++] = (struct launch){ i, flow };
    return true;
}

static int by_range(const void *pa, const void *pb)
{
    const struct launch *a = pa, *b = pb;
    ORDER(a, b, range);
    ORDER(a, b, flow);
    return 0;
}

/* ------------------------------------------------------------------------- threads */

/* Slices that are open on a thread's track: Perfetto's nest, so one that outlasts the one around it is cut there. */
struct open_slices {
    uint64_t ends[64];
    unsigned n;
};

static void close_until(struct perfetto *p, uint64_t track, struct open_slices *open, uint64_t ns)
{
    while (open->n && open->ends[open->n - 1] <= ns)
        perfetto_end(p, track, open->ends[--open->n]);
}

static void begin_slice(struct perfetto *p, uint64_t track, const struct named_range *r,
                        const struct perfetto_flows *flows)
{
    struct perfetto_fact facts[] = { { "facts", 0, r->facts } };
    perfetto_begin_linked(p, track, r->at.begin_ns, r->name, facts, *r->facts ? 1 : 0, flows);
}

static void open_slice(struct perfetto *p, uint64_t track, struct open_slices *open,
                       const struct named_range *r, const struct perfetto_flows *flows)
{
    uint64_t around = open->n ? open->ends[open->n - 1] : UINT64_MAX;
    if (open->n == sizeof open->ends / sizeof *open->ends)
        return;
    begin_slice(p, track, r, flows);
    open->ends[open->n++] = r->at.end_ns < around ? r->at.end_ns : around;
}

/* Steps that the range @i launches; @next: of the first launch that no range before it has. */
static struct perfetto_flows flows_of(const struct export_ranges *r, size_t i, size_t *next)
{
    struct perfetto_flows flows = { .n = 0 };
    while (*next < r->n_launches && r->launches[*next].range == i) {
        if (flows.n < PERFETTO_MOST_FLOWS)
            flows.ids[flows.n++] = r->launches[*next].flow;
        (*next)++;
    }
    return flows;
}

static void put_threads(struct perfetto *p, const struct export_ranges *r, uint64_t process,
                        int32_t pid)
{
    struct open_slices open = { .n = 0 };
    uint64_t track = 0;
    uint32_t thread = 0;
    size_t next = 0;
    for (size_t i = 0; i < r->n; i++) {
        const struct named_range *one = &r->all[i];
        if (one->at.source == DMI_RANGE_OVERLAPS)
            continue;
        if (!track || one->at.thread != thread) {
            char name[32];
            close_until(p, track, &open, UINT64_MAX);
            snprintf(name, sizeof name, "thread %" PRIu32, one->at.thread);
            track = perfetto_thread(p, process, pid, one->at.thread, name);
            thread = one->at.thread;
        }
        struct perfetto_flows flows = flows_of(r, i, &next);
        close_until(p, track, &open, one->at.begin_ns);
        open_slice(p, track, &open, one, &flows);
    }
    close_until(p, track, &open, UINT64_MAX);
}

/* ------------------------------------------------------------------------- requests */

struct lane {
    uint64_t track, end;
};

static int by_begin(const void *pa, const void *pb)
{
    const struct dmi_range_entry *a = pa, *b = pb; /* that a named_range begins with */
    ORDER(a, b, begin_ns);
    ORDER(a, b, end_ns);
    return 0;
}

/* A lane that is free at @ns, in a list of @n with @room. NULL: no memory. */
static struct lane *free_lane(struct lane **lanes, size_t *n, size_t *room, uint64_t ns)
{
    for (size_t i = 0; i < *n; i++)
        if ((*lanes)[i].end <= ns)
            return &(*lanes)[i];
    if (GROW(*lanes, *n, *room))
        return NULL;
    (*lanes)[*n] = (struct lane){ 0 };
    return &(*lanes)[(*n)++];
}

/* Ranges that overlap: each on the first track of its process that is free. It leaves them in the order of their begins. */
static void put_requests(struct perfetto *p, struct export_ranges *r, uint64_t process)
{
    struct lane *lanes = NULL;
    size_t n = 0, room = 0;
    SORT(r->all, r->n, by_begin);
    for (size_t i = 0; i < r->n && !r->failed; i++) {
        const struct named_range *one = &r->all[i];
        if (one->at.source != DMI_RANGE_OVERLAPS)
            continue;
        struct lane *lane = free_lane(&lanes, &n, &room, one->at.begin_ns);
        if (!lane) {
            r->failed = true;
            break;
        }
        char name[32];
        snprintf(name, sizeof name, "requests %zu", (size_t)(lane - lanes) + 1);
        lane->track = lane->track ? lane->track : perfetto_track(p, process, name);
        lane->end = one->at.end_ns;
        begin_slice(p, lane->track, one, NULL);
        perfetto_end(p, lane->track, lane->end);
    }
    free(lanes);
}

void export_ranges_put(struct perfetto *p, struct export_ranges *r, uint64_t process, int32_t pid)
{
    SORT(r->launches, r->n_launches, by_range);
    put_threads(p, r, process, pid);
    put_requests(p, r, process);
    if (r->failed)
        p->error = ENOMEM;
}
