/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/export_ran.h"

#include "core/grow.h"
#include "core/hashed.h"
#include "read/utf8.h"
#include "storage/codec/hash.h"
#include "tools/common/report.h"
#include "tools/common/say.h"
#include "tools/trace/kernels.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_LANES 16u /* of a stream; beyond, a slice waits for the first one that is free */

/* A track, 0: not there yet; and where its last slice ends. */
struct slice_track {
    uint64_t track, end;
};

struct stream_tracks {
    uint32_t key[3]; /* device, context, stream */
    unsigned n_lanes;
    struct slice_track first, *more; /* @more: MOST_LANES - 1 of them, once slices overlap */
};

struct exporting {
    struct perfetto *out;
    const struct reader *reader;
    const struct runs_steps *steps;
    uint64_t process;
    struct stream_tracks *streams;
    size_t n, room;
    struct hashed by_hash; /* of streams */
    struct text name;      /* of the slice, printable */
    bool failed;
};

static uint64_t hash_of(const uint32_t key[3])
{
    return hash_bytes(key, 3 * sizeof *key);
}

/* NULL: no memory. */
static struct stream_tracks *stream_of(struct exporting *e, const struct dmi_trace_shape *shape)
{
    const uint32_t key[3] = { shape->device, shape->context, shape->stream };
    if (GROW(e->streams, e->n, e->room) ||
        !HASHED_MAKE_ROOM(&e->by_hash, e->n, i, hash_of(e->streams[i].key)))
        return NULL;
    uint32_t *place =
        HASHED_FIND(&e->by_hash, hash_of(key), i, !memcmp(e->streams[i].key, key, sizeof key));
    if (!*place) {
        e->streams[e->n] = (struct stream_tracks){ .n_lanes = 1 };
        memcpy(e->streams[e->n].key, key, sizeof key);
        *place = (uint32_t)++e->n;
    }
    return &e->streams[*place - 1];
}

static struct slice_track *lane_at(struct stream_tracks *s, unsigned i)
{
    return i ? &s->more[i - 1] : &s->first;
}

/* The first lane that is free at @begin; else a new one; else the one that is free first. NULL: no memory. */
static struct slice_track *lane_for(struct stream_tracks *s, uint64_t begin)
{
    struct slice_track *best = &s->first;
    for (unsigned i = 0; i < s->n_lanes; i++) {
        struct slice_track *lane = lane_at(s, i);
        if (lane->end <= begin)
            return lane;
        best = lane->end < best->end ? lane : best;
    }
    if (s->n_lanes == MOST_LANES)
        return best;
    if (!s->more && !(s->more = calloc(MOST_LANES - 1, sizeof *s->more)))
        return NULL;
    return lane_at(s, s->n_lanes++);
}

static uint64_t track_of(struct exporting *e, struct stream_tracks *s, struct slice_track *lane)
{
    char name[96];
    if (lane->track)
        return lane->track;
    snprintf(name, sizeof name, "stream %" PRIu32 " of context %" PRIu32 " on device %" PRIu32 "%s",
             s->key[2], s->key[1], s->key[0], lane != &s->first ? ", overlapping" : "");
    return lane->track = perfetto_track(e->out, e->process, name);
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
    struct stream_tracks *s = stream_of(e, &ran->shape);
    struct slice_track *lane = s ? lane_for(s, ran->begin_ns) : NULL;
    if (!lane) {
        e->failed = true;
        return;
    }
    uint64_t begin = ran->begin_ns > lane->end ? ran->begin_ns : lane->end;
    uint64_t end = ran->end_ns > begin ? ran->end_ns : begin, track = track_of(e, s, lane);
    if (ran->shape.kind == DMI_RAN_KERNEL)
        put_kernel(e, track, begin, ran);
    else
        put_copy(e, track, begin, ran);
    perfetto_end(e->out, track, end);
    lane->end = end;
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
    for (size_t i = 0; i < e.n; i++)
        free(e.streams[i].more);
    free(e.streams);
    hashed_deinit(&e.by_hash);
    text_deinit(&e.name);
    return r ? REPORT_IMPOSSIBLE : 0;
}
