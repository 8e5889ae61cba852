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
#include <string.h>

#define NO_RANGE SIZE_MAX

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

/* From the first of the steps to the last one. */
static void set_window(struct export_ranges *r, const struct runs_times *times, bool all)
{
    r->begin_ns = all ? 0 : UINT64_MAX;
    r->end_ns = all ? UINT64_MAX : 0;
    for (size_t i = 0; !all && i < times->n; i++) {
        const struct dmi_step_times *at = &times->all[i];
        r->begin_ns = at->begin_ns < r->begin_ns ? at->begin_ns : r->begin_ns;
        r->end_ns = at->end_ns > r->end_ns ? at->end_ns : r->end_ns;
    }
}

/* The range of its thread that began last of those that were open when each began. */
static void find_parents(struct export_ranges *r)
{
    size_t open = NO_RANGE;
    r->parents = calloc(r->n + 1, sizeof *r->parents);
    r->failed |= !r->parents;
    for (size_t i = 0; r->parents && i < r->n; i++) {
        const struct dmi_range_entry *one = &r->all[i].at;
        r->parents[i] = NO_RANGE;
        if (one->source == DMI_RANGE_OVERLAPS)
            continue;
        if (open != NO_RANGE && r->all[open].at.thread != one->thread)
            open = NO_RANGE;
        while (open != NO_RANGE && r->all[open].at.end_ns <= one->begin_ns)
            open = r->parents[open];
        r->parents[i] = open;
        open = i;
    }
}

int export_ranges_read(struct export_ranges *r, const struct trace_run *run,
                       const struct runs_times *times, bool all)
{
    struct err err = { 0 };
    *r = (struct export_ranges){ 0 };
    set_window(r, times, all);
    if (reader_each_range(&err, run->reader, take_range, r)) {
        complain("%s", err.msg);
        return REPORT_IMPOSSIBLE;
    }
    SORT(r->all, r->n, runs_range_order);
    find_parents(r);
    return 0;
}

void export_ranges_deinit(struct export_ranges *r)
{
    for (size_t i = 0; i < r->n; i++) {
        free(r->all[i].name);
        free(r->all[i].facts);
    }
    free(r->all);
    free(r->parents);
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

/* The range of a step's thread that began last of those that were open at its first launch; NO_RANGE: none. */
static size_t launching(const struct export_ranges *r, const struct dmi_step_times *at)
{
    size_t i = after(r, at->thread, at->launch_ns);
    while (i-- > 0 && r->all[i].at.source == DMI_RANGE_OVERLAPS)
        ;
    if (i == NO_RANGE || r->all[i].at.thread != at->thread || !r->parents)
        return NO_RANGE;
    while (i != NO_RANGE && r->all[i].at.end_ns < at->launch_ns)
        i = r->parents[i];
    return i;
}

bool export_ranges_launch(struct export_ranges *r, const struct dmi_step_times *at, uint64_t flow)
{
    size_t i = launching(r, at);
    if (i == NO_RANGE || (r->failed |= GROW(r->launches, r->n_launches, r->launches_room)))
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

#define MOST_OPEN  64u /* slices in one another */
#define MOST_LANES 16u /* tracks of a thread */

/* A track: slices that are open on it lie in one another, as Perfetto nests them. */
struct nested_track {
    uint64_t track; /* 0: not there yet */
    uint64_t begins[MOST_OPEN], ends[MOST_OPEN];
    unsigned n;
};

static void close_until(struct perfetto *p, struct nested_track *lane, uint64_t ns)
{
    while (lane->n && lane->ends[lane->n - 1] <= ns)
        perfetto_end(p, lane->track, lane->ends[--lane->n]);
}

/* @cut_ns: by how much it is shorter than it was. */
static void begin_slice(struct perfetto *p, uint64_t track, const struct named_range *r,
                        const struct perfetto_flows *flows, uint64_t cut_ns)
{
    struct perfetto_fact facts[2];
    size_t n = 0;
    if (*r->facts)
        facts[n++] = (struct perfetto_fact){ "facts", 0, r->facts };
    if (cut_ns)
        facts[n++] = (struct perfetto_fact){ "cut ns", (int64_t)cut_ns, NULL };
    perfetto_begin_linked(p, track, r->at.begin_ns, r->name, facts, n, flows);
}

/* Where the range nests: of such lanes the one whose innermost slice began last. MOST_LANES: in none. */
static unsigned lane_for(const struct nested_track lanes[MOST_LANES],
                         const struct dmi_range_entry *at)
{
    unsigned best = MOST_LANES;
    uint64_t begin = 0;
    for (unsigned i = 0; i < MOST_LANES; i++) {
        const struct nested_track *l = &lanes[i];
        bool nests = l->n < MOST_OPEN && (!l->n || l->ends[l->n - 1] >= at->end_ns);
        uint64_t inner = l->n ? l->begins[l->n - 1] : 0;
        if (nests && (best == MOST_LANES || inner > begin)) {
            best = i;
            begin = inner;
        }
    }
    return best;
}

/* A thread's tracks. */
struct thread_tracks {
    uint32_t number;
    int32_t pid;
    uint64_t process;
    struct nested_track lanes[MOST_LANES];
};

static void make_track(struct perfetto *p, struct thread_tracks *t, unsigned i)
{
    char name[64];
    if (t->lanes[i].track)
        return;
    if (t->number)
        snprintf(name, sizeof name, "thread %" PRIu32 "%s", t->number, i ? ", overlapping" : "");
    else
        snprintf(name, sizeof name, "all threads");
    if (i > 1)
        snprintf(name + strlen(name), sizeof name - strlen(name), " %u", i);
    t->lanes[i].track = i || !t->number ? perfetto_track(p, t->process, name)
                                        : perfetto_thread(p, t->process, t->pid, t->number, name);
}

/* One that nests in no lane is cut in the first one. */
static void open_slice(struct perfetto *p, struct thread_tracks *t, const struct named_range *r,
                       const struct perfetto_flows *flows)
{
    for (unsigned i = 0; i < MOST_LANES; i++)
        close_until(p, &t->lanes[i], r->at.begin_ns);
    unsigned at = lane_for(t->lanes, &r->at);
    struct nested_track *lane = &t->lanes[at < MOST_LANES ? at : 0];
    if (lane->n == MOST_OPEN)
        return;
    uint64_t end = r->at.end_ns > r->at.begin_ns ? r->at.end_ns : r->at.begin_ns;
    uint64_t around = lane->n ? lane->ends[lane->n - 1] : UINT64_MAX;
    make_track(p, t, (unsigned)(lane - t->lanes));
    begin_slice(p, lane->track, r, flows, end > around ? end - around : 0);
    lane->begins[lane->n] = r->at.begin_ns;
    lane->ends[lane->n++] = end < around ? end : around;
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

static void end_thread(struct perfetto *p, struct thread_tracks *t)
{
    for (unsigned i = 0; i < MOST_LANES; i++)
        close_until(p, &t->lanes[i], UINT64_MAX);
}

static void put_threads(struct perfetto *p, const struct export_ranges *r, uint64_t process,
                        int32_t pid)
{
    struct thread_tracks t = { .process = process, .pid = pid };
    size_t next = 0;
    for (size_t i = 0; i < r->n; i++) {
        const struct named_range *one = &r->all[i];
        if (one->at.source == DMI_RANGE_OVERLAPS)
            continue;
        if (one->at.thread != t.number) {
            end_thread(p, &t);
            t = (struct thread_tracks){ .number = one->at.thread, .process = process, .pid = pid };
        }
        struct perfetto_flows flows = flows_of(r, i, &next);
        open_slice(p, &t, one, &flows);
    }
    end_thread(p, &t);
}

/* ------------------------------------------------------------------------- requests */

/* Tracks of requests: a heap of those that have one, by its end, and one of those that are free, by their number. */
struct request_track {
    uint64_t track, end;
    size_t number;
};

struct request_tracks {
    struct request_track *busy, *unused;
    size_t n_busy, busy_room, n_unused, unused_room, n;
};

static bool is_before(const struct request_track *a, const struct request_track *b, bool by_end)
{
    return by_end && a->end != b->end ? a->end < b->end : a->number < b->number;
}

static void swap(struct request_track *a, struct request_track *b)
{
    struct request_track t = *a;
    *a = *b;
    *b = t;
}

/* The last of @n was added. */
static void rise(struct request_track *heap, size_t n, bool by_end)
{
    for (size_t i = n - 1; i && is_before(&heap[i], &heap[(i - 1) / 2], by_end); i = (i - 1) / 2)
        swap(&heap[i], &heap[(i - 1) / 2]);
}

/* Takes the first of @n. */
static struct request_track pop(struct request_track *heap, size_t n, bool by_end)
{
    struct request_track first = heap[0];
    heap[0] = heap[--n];
    for (size_t i = 0, k; (k = 2 * i + 1) < n; i = k) {
        k += k + 1 < n && is_before(&heap[k + 1], &heap[k], by_end);
        if (!is_before(&heap[k], &heap[i], by_end))
            break;
        swap(&heap[i], &heap[k]);
    }
    return first;
}

/* The first that is free from @begin on, taken until @end; its track may be 0. Return: NULL: no memory. */
static struct request_track *take_track(struct request_tracks *t, uint64_t begin, uint64_t end)
{
    while (t->n_busy && t->busy[0].end <= begin) {
        if (GROW(t->unused, t->n_unused, t->unused_room))
            return NULL;
        t->unused[t->n_unused] = pop(t->busy, t->n_busy--, true);
        rise(t->unused, ++t->n_unused, false);
    }
    if (GROW(t->busy, t->n_busy, t->busy_room))
        return NULL;
    struct request_track one = { .number = t->n + 1 };
    if (t->n_unused)
        one = pop(t->unused, t->n_unused--, false);
    else
        t->n++;
    one.end = end;
    t->busy[t->n_busy] = one;
    return &t->busy[t->n_busy++];
}

static int by_begin(const void *pa, const void *pb)
{
    const struct dmi_range_entry *a = pa, *b = pb; /* that a named_range begins with */
    ORDER(a, b, begin_ns);
    ORDER(a, b, end_ns);
    return 0;
}

/* Ranges that overlap: each on the first track of its process that is free. It leaves them in the order of their begins. */
static void put_requests(struct perfetto *p, struct export_ranges *r, uint64_t process)
{
    struct request_tracks tracks = { 0 };
    SORT(r->all, r->n, by_begin);
    for (size_t i = 0; i < r->n && !r->failed; i++) {
        const struct named_range *one = &r->all[i];
        uint64_t end = one->at.end_ns > one->at.begin_ns ? one->at.end_ns : one->at.begin_ns;
        if (one->at.source != DMI_RANGE_OVERLAPS)
            continue;
        struct request_track *track = take_track(&tracks, one->at.begin_ns, end);
        if (!track) {
            r->failed = true;
            break;
        }
        char name[40];
        snprintf(name, sizeof name, "requests %zu", track->number);
        track->track = track->track ? track->track : perfetto_track(p, process, name);
        begin_slice(p, track->track, one, NULL, 0);
        perfetto_end(p, track->track, end);
        rise(tracks.busy, tracks.n_busy, true);
    }
    free(tracks.busy);
    free(tracks.unused);
}

void export_ranges_put(struct perfetto *p, struct export_ranges *r, uint64_t process, int32_t pid)
{
    SORT(r->launches, r->n_launches, by_range);
    put_threads(p, r, process, pid);
    put_requests(p, r, process);
    if (r->failed)
        p->error = ENOMEM;
}
