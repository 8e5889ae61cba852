/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/export_ran.h"

#include "core/grow.h"
#include "read/utf8.h"
#include "tools/common/report.h"
#include "tools/common/say.h"
#include "tools/trace/kernels.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST_LANES 16u /* of a stream; beyond, a slice waits for the first one that is free */

struct stream {
    uint32_t device, context, stream;
    uint64_t lanes[MOST_LANES],
        ends[MOST_LANES]; /* tracks, 0: not there yet; and where their last slice ends */
};

struct exporting {
    struct perfetto *out;
    const struct reader *reader;
    const struct runs_steps *steps;
    uint64_t process;
    struct stream *streams;
    size_t n, room;
    struct text name; /* of the slice, printable */
    bool failed;
};

/* NULL: no memory. */
static struct stream *stream_of(struct exporting *e, const struct dmi_trace_shape *shape)
{
    for (size_t i = 0; i < e->n; i++)
        if (e->streams[i].stream == shape->stream && e->streams[i].context == shape->context &&
            e->streams[i].device == shape->device)
            return &e->streams[i];
    if (GROW(e->streams, e->n, e->room))
        return NULL;
    e->streams[e->n] = (struct stream){ .device = shape->device,
                                        .context = shape->context,
                                        .stream = shape->stream };
    return &e->streams[e->n++];
}

/* The first lane that is free at @begin; else the one that is free first. */
static unsigned lane_for(const struct stream *s, uint64_t begin)
{
    unsigned best = 0;
    for (unsigned i = 0; i < MOST_LANES; i++) {
        if (s->ends[i] <= begin)
            return i;
        best = s->ends[i] < s->ends[best] ? i : best;
    }
    return best;
}

static uint64_t track_of(struct exporting *e, struct stream *s, unsigned lane)
{
    char name[96];
    if (s->lanes[lane])
        return s->lanes[lane];
    snprintf(name, sizeof name, "stream %" PRIu32 " of context %" PRIu32 " on device %" PRIu32 "%s",
             s->stream, s->context, s->device, lane ? ", overlapping" : "");
    return s->lanes[lane] = perfetto_track(e->out, e->process, name);
}

static const char *name_of(struct exporting *e, const struct ran *ran)
{
    if (ran->shape.kind != DMI_RAN_KERNEL)
        return kernels_word(&ran->shape);
    e->name.n = 0;
    utf8_add_printable(&e->name, ran->name, ran->shape.name_bytes);
    text_add(&e->name, "", 1);
    e->failed |= e->name.failed;
    return e->name.failed ? "" : e->name.data;
}

static void size_text(char text[40], const uint32_t size[3])
{
    snprintf(text, 40, "%" PRIu32 ",%" PRIu32 ",%" PRIu32, size[0], size[1], size[2]);
}

static void put_kernel(struct exporting *e, uint64_t track, uint64_t begin, const struct ran *ran)
{
    char grid[40], block[40];
    size_text(grid, ran->shape.grid);
    size_text(block, ran->shape.block);
    bool stepped = ran->step >= DMI_RAN_FIRST;
    const char *site = kernels_site(e->reader, ran->place);
    struct perfetto_fact facts[11] = {
        { "grid", 0, grid },
        { "block", 0, block },
        { "registers", ran->shape.registers, NULL },
        { "static shared", ran->shape.static_shared, NULL },
        { "dynamic shared", ran->shape.dynamic_shared, NULL },
        { "correlation", (int64_t)ran->correlation, NULL },
        { "graph", (int64_t)ran->graph, NULL },
        { "node", (int64_t)ran->node, NULL },
    };
    size_t n = 8;
    if (stepped)
        facts[n++] = (struct perfetto_fact){ "step", (int64_t)(ran->step - DMI_RAN_FIRST), NULL };
    if (site)
        facts[n++] = (struct perfetto_fact){ "site", 0, site };
    if (site && ran->place.layer)
        facts[n++] = (struct perfetto_fact){ "layer", (int64_t)ran->place.layer - 1, NULL };
    perfetto_begin(e->out, track, begin, name_of(e, ran), facts, n);
}

static void put_copy(struct exporting *e, uint64_t track, uint64_t begin, const struct ran *ran)
{
    const struct perfetto_fact facts[] = { { "bytes", (int64_t)ran->bytes, NULL } };
    perfetto_begin(e->out, track, begin, name_of(e, ran), facts, 1);
}

static void take_ran(void *ctx, const struct ran *ran)
{
    struct exporting *e = ctx;
    if (!runs_asked(e->steps, ran->step))
        return;
    struct stream *s = stream_of(e, &ran->shape);
    if (!s) {
        e->failed = true;
        return;
    }
    unsigned lane = lane_for(s, ran->begin_ns);
    uint64_t begin = ran->begin_ns > s->ends[lane] ? ran->begin_ns : s->ends[lane];
    uint64_t end = ran->end_ns > begin ? ran->end_ns : begin, track = track_of(e, s, lane);
    if (ran->shape.kind == DMI_RAN_KERNEL)
        put_kernel(e, track, begin, ran);
    else
        put_copy(e, track, begin, ran);
    perfetto_end(e->out, track, end);
    s->ends[lane] = end;
}

int export_ran(struct perfetto *out, const struct trace_run *run, uint64_t process,
               const struct runs_steps *steps)
{
    struct err err = { 0 };
    struct exporting e = { .out = out, .reader = run->reader, .steps = steps, .process = process };
    int r = reader_each_ran(&err, run->reader, take_ran, &e);
    if (r)
        complain("%s", err.msg);
    if (e.failed)
        out->error = ENOMEM;
    free(e.streams);
    text_deinit(&e.name);
    return r ? REPORT_IMPOSSIBLE : 0;
}
