/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/join_parts.h"

#include "core/any.h"
#include "core/grow.h"
#include "core/sorted.h"
#include "cupti/layouts.h"
#include "storage/codec/hash.h"

#include <dmi/trace.h>

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- what comes */

struct join *join_new(void)
{
    struct join *j = calloc(1, sizeof *j);
    if (j)
        j->round = 1;
    return j;
}

void join_free(struct join *j)
{
    for (size_t i = 0; j && i < j->n_streams; i++) {
        free(j->streams[i].items);
        free(j->streams[i].groups);
    }
    for (size_t i = 0; j && i < JOIN_NAMES; i++)
        free(j->names[i]);
    if (j) {
        free(j->streams);
        free(j->numbers);
    }
    free(j);
}

uint64_t join_name(const char *name)
{
    return hash_bytes(name, strlen(name)) | 1; /* neither JOIN_NO_NAME nor JOIN_GRAPH */
}

/* Where the stream may be found. */
static uint32_t *hint_of(struct join *j, uint32_t context, uint32_t stream)
{
    return &j->hints[(stream + context * 31) % JOIN_HINTS];
}

static struct join_stream *find_stream(struct join *j, uint32_t context, uint32_t stream)
{
    uint32_t *hint = hint_of(j, context, stream);
    for (size_t n = 0, i = *hint; n < j->n_streams; n++, i++) {
        struct join_stream *s = &j->streams[i % j->n_streams];
        if (s->stream != stream || s->context != context)
            continue;
        *hint = (uint32_t)(i % j->n_streams);
        return s;
    }
    return NULL;
}

/* The stream, new where it was not there. NULL: no memory. */
static struct join_stream *stream_of(struct join *j, uint32_t context, uint32_t stream)
{
    struct join_stream *s = find_stream(j, context, stream);
    if (s || GROW(j->streams, j->n_streams, j->streams_room))
        return s;
    *hint_of(j, context, stream) = (uint32_t)j->n_streams;
    j->streams[j->n_streams] = (struct join_stream){ .context = context, .stream = stream };
    return &j->streams[j->n_streams++];
}

/* A copy that stays. NULL: no memory, or too many names. */
static const char *keep_name(struct join *j, const char *name, uint64_t hash)
{
    size_t i = hash >> 1;
    for (;; i++) {
        char **place = &j->names[i % JOIN_NAMES];
        if (*place && !strcmp(*place, name))
            return *place;
        if (*place)
            continue;
        if (2 * j->n_names >= JOIN_NAMES || !(*place = strdup(name)))
            return NULL;
        j->n_names++;
        return *place;
    }
}

static struct join_item item_of(struct join *j, const struct records_event *event)
{
    struct join_item item = { .event = *event, .round = j->round };
    bool kernel = event->kind == LAYOUTS_KERNEL;
    uint64_t name = kernel && event->name ? join_name(event->name) : JOIN_NO_NAME;
    if (name) {
        item.event.name = keep_name(j, event->name, name);
        j->unnamed += !item.event.name;
    }
    if (event->graph)
        item.name = JOIN_GRAPH;
    else if (kernel && !records_is_own(event->name)) /* DMI's own are not counted */
        item.name = name ? name : 1;                 /* it counts, and fits no name */
    return item;
}

int join_order(const void *pa, const void *pb)
{
    const struct join_item *a = pa, *b = pb;
    int32_t ahead = (int32_t)(a->event.correlation - b->event.correlation); /* ids may begin anew */
    if (ahead)
        return ahead < 0 ? -1 : 1;
    ORDER(a, b, event.begin_ns);
    return 0;
}

bool join_add(struct join *j, const struct records_event *event)
{
    struct join_stream *s = stream_of(j, event->context, event->stream);
    if (!s || GROW(s->items, s->n_items, s->items_room))
        return false;
    struct join_item *item = &s->items[s->n_items++];
    *item = item_of(j, event);
    s->unsorted |= item > s->items && join_order(item - 1, item) > 0;
    return true;
}

static struct dealt_runs *group_at(struct join_stream *s, uint64_t deal, size_t *place)
{
    size_t i;
    SEARCH(i, s->n_groups, s->groups[i].run.deal < deal);
    *place = i;
    return i < s->n_groups && s->groups[i].run.deal == deal ? &s->groups[i] : NULL;
}

/* More of the same deal: by another thread. Which of them launched first and last is not known. */
static void add_to_group(struct dealt_runs *g, const struct join_run *run)
{
    g->run.kernels += run->kernels;
    g->run.graphs += run->graphs;
    g->run.first = g->run.last = JOIN_NO_NAME;
    g->run.graph_ids = 0;
    g->run.lead = 0;
    if (run->begin_ns <
        g->run.begin_ns) /* no later than what it launched here, which came after the wait */
        g->run.begin_ns = run->begin_ns > g->run.idle_ns ? run->begin_ns : g->run.idle_ns;
    g->run.shared |= run->shared;
}

static void over(struct dealt_runs *g, uint64_t step, uint64_t round)
{
    g->over = true;
    g->step = step;
    g->round = round;
}

/* Its step may have ended before. */
static void look_up_number(const struct join *j, struct dealt_runs *g)
{
    size_t i;
    SEARCH(i, j->n_numbers, j->numbers[i].deal < g->run.deal);
    if (g->run.unsure)
        over(g, DMI_RAN_UNKNOWN, j->round);
    else if (!g->run.in_step)
        over(g, DMI_RAN_OUTSIDE, j->round);
    else if (i < j->n_numbers && j->numbers[i].deal == g->run.deal)
        over(g, j->numbers[i].step, j->round);
}

bool join_add_run(struct join *j, const struct join_run *run)
{
    size_t place;
    if (!run->kernels && !run->graphs) /* closed between its beginning and its first launch */
        return true;
    struct join_stream *s = stream_of(j, run->context, run->stream);
    if (!s)
        return false;
    s->shared |= run->shared;
    struct dealt_runs *g = group_at(s, run->deal, &place);
    if (g) {
        add_to_group(g, run);
        return true;
    }
    if (GROW(s->groups, s->n_groups, s->groups_room))
        return false;
    g = &s->groups[place];
    memmove(g + 1, g, (s->n_groups++ - place) * sizeof *g);
    *g = (struct dealt_runs){ .run = *run };
    look_up_number(j, g);
    return true;
}

bool join_step(struct join *j, uint64_t deal, uint64_t number)
{
    size_t i, place;
    if (GROW(j->numbers, j->n_numbers, j->numbers_room))
        return false;
    SEARCH(i, j->n_numbers, j->numbers[i].deal < deal);
    memmove(&j->numbers[i + 1], &j->numbers[i], (j->n_numbers++ - i) * sizeof *j->numbers);
    j->numbers[i] = (struct number){ deal, DMI_RAN_FIRST + number };
    for (i = 0; i < j->n_streams; i++) {
        struct dealt_runs *g = group_at(&j->streams[i], deal, &place);
        if (g && !g->over)
            over(g, DMI_RAN_FIRST + number, j->round);
    }
    return true;
}

static void doubt(const struct join *j, struct join_stream *s)
{
    s->missing = s->unsure ? s->missing : 0;
    s->unsure = true;
    s->doubt = j->round;
}

void join_doubt(struct join *j)
{
    for (size_t i = 0; i < j->n_streams; i++)
        doubt(j, &j->streams[i]);
}

void join_uncounted(struct join *j, uint64_t n)
{
    j->uncounted = n;
}

bool join_doubt_stream(struct join *j, uint32_t context, uint32_t stream)
{
    struct join_stream *s = stream_of(j, context, stream);
    if (s)
        doubt(j, s);
    return s;
}

/* ------------------------------------------------------------------------- what is asked */

uint64_t join_unplaced(const struct join *j)
{
    return j->unplaced;
}

uint64_t join_misnamed(const struct join *j)
{
    return j->misnamed;
}

bool join_ids_differ(const struct join *j)
{
    return j->ids_differ;
}

uint64_t join_unnamed(const struct join *j)
{
    return j->unnamed;
}

uint64_t join_too_many(const struct join *j)
{
    return j->too_many;
}

static bool stream_awaits(const struct join_stream *s, uint64_t end)
{
    for (size_t i = 0; i < s->n_groups; i++) {
        const struct dealt_runs *g = &s->groups[i];
        if (g->over && g->step >= DMI_RAN_FIRST && g->step - DMI_RAN_FIRST < end)
            return true;
    }
    return false;
}

bool join_awaits(const struct join *j, uint64_t end)
{
    return ANY(i, j->n_streams, stream_awaits(&j->streams[i], end));
}
