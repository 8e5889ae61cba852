/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/join.h"

#include "core/grow.h"
#include "core/sorted.h"
#include "cupti/layouts.h"
#include "storage/codec/hash.h"

#include <dmi/trace.h>

#include <stdlib.h>
#include <string.h>

#define WAIT_ROUNDS  40u        /* that a run waits for records that have not come */
#define DOUBT_ROUNDS 10u        /* that records beside those that were lost may come later */
#define MOST_ITEMS   (1u << 18) /* records of a stream that wait; beyond, no step is known */
#define CLOCKS_NS    1000000u   /* by which both clocks may differ */
#define NAMES        16384u     /* places; a power of two */
#define MOST_OTHERS  16u        /* times that ids of graphs do not fit, where they never did */

/* A record. */
struct item {
    struct records_event event;
    uint64_t name;  /* as in struct join_run, of a launch that is counted; 0 of others */
    uint64_t round; /* in which it came */
};

/* All runs of one deal in one stream: one launch at least. */
struct group {
    struct join_run run;
    bool over;      /* its number is known, or there is none */
    bool misnamed;  /* but for the ids of graphs, records fit it */
    uint64_t step;  /* as a record's */
    uint64_t round; /* in which it was over */
};

struct stream {
    uint32_t context, stream;
    struct item *items;
    size_t n_items, items_room;
    bool unsorted;        /* items are in no order */
    struct group *groups; /* by deal */
    size_t n_groups, groups_room;
    uint64_t last_step; /* of the record that was handed on last */
    bool unsure;        /* it lost count: records are missing, or there are more than launches */
    uint64_t doubt;     /* the round in which some were lost last */
    bool shared;
};

struct number {
    uint64_t deal, step;
};

struct join {
    struct stream *streams;
    size_t n_streams, streams_room;
    struct number *numbers; /* of steps that have ended, by deal; those that no run waits for go */
    size_t n_numbers, numbers_room;
    uint64_t round;
    uint64_t unplaced;              /* launches of groups that found no place */
    uint64_t misnamed;              /* launches of those that found others' graphs there */
    bool ids_differ;                /* records name graphs by ids that are none of execs */
    bool ids_fit;                   /* some did */
    uint32_t n_others;              /* groups that others' graphs were at, before */
    const struct join_calls *calls; /* during join_deal() */
    char *names[NAMES];
    size_t n_names;
    uint64_t unnamed; /* records whose name found no place there */
};

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
    for (size_t i = 0; j && i < NAMES; i++)
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

/* The stream, new where it was not there. NULL: no memory. */
static struct stream *stream_of(struct join *j, uint32_t context, uint32_t stream)
{
    for (size_t i = 0; i < j->n_streams; i++)
        if (j->streams[i].stream == stream && j->streams[i].context == context)
            return &j->streams[i];
    if (GROW(j->streams, j->n_streams, j->streams_room))
        return NULL;
    j->streams[j->n_streams] = (struct stream){ .context = context, .stream = stream };
    return &j->streams[j->n_streams++];
}

/* A copy that stays. NULL: no memory, or too many names. */
static const char *keep_name(struct join *j, const char *name, uint64_t hash)
{
    size_t i = hash >> 1;
    for (;; i++) {
        char **place = &j->names[i % NAMES];
        if (*place && !strcmp(*place, name))
            return *place;
        if (*place)
            continue;
        if (2 * j->n_names >= NAMES || !(*place = strdup(name)))
            return NULL;
        j->n_names++;
        return *place;
    }
}

static struct item item_of(struct join *j, const struct records_event *event)
{
    struct item item = { .event = *event, .round = j->round };
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

static int by_correlation(const void *pa, const void *pb)
{
    const struct item *a = pa, *b = pb;
    int32_t ahead = (int32_t)(a->event.correlation - b->event.correlation); /* ids may begin anew */
    if (ahead)
        return ahead < 0 ? -1 : 1;
    ORDER(a, b, event.begin_ns);
    return 0;
}

bool join_add(struct join *j, const struct records_event *event)
{
    struct stream *s = stream_of(j, event->context, event->stream);
    if (!s || GROW(s->items, s->n_items, s->items_room))
        return false;
    struct item *item = &s->items[s->n_items++];
    *item = item_of(j, event);
    s->unsorted |= item > s->items && by_correlation(item - 1, item) > 0;
    return true;
}

static struct group *group_at(struct stream *s, uint64_t deal, size_t *place)
{
    size_t i;
    SEARCH(i, s->n_groups, s->groups[i].run.deal < deal);
    *place = i;
    return i < s->n_groups && s->groups[i].run.deal == deal ? &s->groups[i] : NULL;
}

/* More of the same deal: by another thread. Which of them launched first and last is not known. */
static void add_to_group(struct group *g, const struct join_run *run)
{
    g->run.kernels += run->kernels;
    g->run.graphs += run->graphs;
    g->run.first = g->run.last = JOIN_NO_NAME;
    g->run.graph_ids = 0;
    g->run.lead = 0;
    g->run.begin_ns = run->begin_ns < g->run.begin_ns ? run->begin_ns : g->run.begin_ns;
    g->run.shared |= run->shared;
}

static void over(struct group *g, uint64_t step, uint64_t round)
{
    g->over = true;
    g->step = step;
    g->round = round;
}

/* Its step may have ended before. */
static void look_up_number(const struct join *j, struct group *g)
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
    struct stream *s = stream_of(j, run->context, run->stream);
    if (!s)
        return false;
    s->shared |= run->shared;
    struct group *g = group_at(s, run->deal, &place);
    if (g) {
        add_to_group(g, run);
        return true;
    }
    if (GROW(s->groups, s->n_groups, s->groups_room))
        return false;
    g = &s->groups[place];
    memmove(g + 1, g, (s->n_groups++ - place) * sizeof *g);
    *g = (struct group){ .run = *run };
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
        struct group *g = group_at(&j->streams[i], deal, &place);
        if (g && !g->over)
            over(g, DMI_RAN_FIRST + number, j->round);
    }
    return true;
}

void join_doubt(struct join *j)
{
    for (size_t i = 0; i < j->n_streams; i++) {
        j->streams[i].unsure = true;
        j->streams[i].doubt = j->round;
    }
}

/* ------------------------------------------------------------------------- launches, from records */

/* All that one launch ran. */
struct unit {
    size_t begin, end; /* of the items */
    uint64_t name;
};

/* The first launch that is counted, from item @at on. */
static bool next_unit(const struct stream *s, size_t at, struct unit *u)
{
    while (at < s->n_items && !s->items[at].name)
        at++;
    if (at == s->n_items)
        return false;
    *u = (struct unit){ at, at + 1, s->items[at].name };
    while (u->name == JOIN_GRAPH && u->end < s->n_items && s->items[u->end].name == JOIN_GRAPH &&
           s->items[u->end].event.correlation == s->items[at].event.correlation)
        u->end++;
    return true;
}

static uint32_t launches_of(const struct group *g)
{
    return g->run.kernels + g->run.graphs;
}

static bool fits_name(uint64_t wanted, uint64_t name)
{
    return wanted == JOIN_NO_NAME || wanted == name;
}

/* Do items @from to before @end name only graphs that were instantiated? */
static bool names_execs(const struct join *j, const struct stream *s, size_t from, size_t end)
{
    for (size_t i = from; i < end; i++)
        if (s->items[i].name == JOIN_GRAPH && !j->calls->is_exec(s->items[i].event.graph))
            return false;
    return true;
}

/* Are the graphs that items @from to before @end name, together @ids, those of the group? */
static bool fits_graphs(struct join *j, const struct stream *s, size_t from, size_t end,
                        struct group *g, uint64_t ids)
{
    bool alike = g->run.graph_ids == ids;
    j->ids_fit |= alike && g->run.graphs;
    if (j->ids_differ || !g->run.graph_ids || alike)
        return true;
    j->ids_differ = !names_execs(j, s, from, end) || (!j->ids_fit && ++j->n_others == MOST_OTHERS);
    g->misnamed = !j->ids_differ;
    return j->ids_differ;
}

/* Are the launches from item @from on those of the group? *@end: the item after them. */
static bool fits(struct join *j, const struct stream *s, size_t from, struct group *g, size_t *end)
{
    struct unit u = { .end = from };
    uint32_t kernels = 0, graphs = 0, n = launches_of(g);
    uint64_t ids = JOIN_NO_GRAPHS;
    for (uint32_t i = 0; i < n; i++) {
        if (!next_unit(s, u.end, &u))
            return false;
        *(u.name == JOIN_GRAPH ? &graphs : &kernels) += 1;
        if (u.name == JOIN_GRAPH)
            ids = join_graph(ids, s->items[u.begin].event.graph);
        if (!i && (!fits_name(g->run.first, u.name) ||
                   s->items[u.begin].event.begin_ns + CLOCKS_NS < g->run.begin_ns))
            return false;
        if (i == n - 1 && !fits_name(g->run.last, u.name))
            return false;
    }
    *end = u.end;
    return kernels == g->run.kernels && graphs == g->run.graphs &&
           fits_graphs(j, s, from, u.end, g, ids);
}

/* Launches whose records have all been there for a round, up to @most. */
static uint32_t launches_there(const struct stream *s, uint64_t round, uint32_t most)
{
    struct unit u = { 0 };
    uint32_t n = 0;
    while (n < most && next_unit(s, u.end, &u))
        n += s->items[u.end - 1].round < round && s->items[u.begin].round < round;
    return n;
}

/* ------------------------------------------------------------------------- dealing */

/* The first @n items are of @step. */
static void hand_on(const struct join *j, struct stream *s, size_t n, uint64_t step)
{
    if (!n)
        return;
    for (size_t i = 0; i < n; i++)
        j->calls->take(&s->items[i].event, step);
    s->n_items -= n;
    memmove(s->items, s->items + n, s->n_items * sizeof *s->items);
    s->last_step = step;
}

/* Copies, and kernels of DMI's, that come before the next launch. @round: those that came before it. */
static size_t uncounted(const struct stream *s, uint64_t round)
{
    size_t n = 0;
    while (n < s->n_items && !s->items[n].name && s->items[n].round < round)
        n++;
    return n;
}

/* They go with the launch before them; where count was lost, that may be missing. @all: also those that are not older than a round. */
static void hand_on_uncounted(const struct join *j, struct stream *s, bool all)
{
    size_t n = uncounted(s, all ? UINT64_MAX : j->round);
    hand_on(j, s, n, s->unsure ? DMI_RAN_UNKNOWN : s->last_step);
}

/* The next group after the first one before which the stream was waited for; their number: there is none. */
static size_t next_idle(const struct stream *s)
{
    size_t i = 1;
    while (i < s->n_groups && !s->groups[i].run.idle)
        i++;
    return i;
}

/*
 * A stream that lost count: steps are alike, so places must be proved. Before the first launch of the first group, and before that of group @m, at @until,
 * the stream had been waited for. So what began between the two is of the groups before @m, and nothing else is. Return: whether it fits.
 */
static bool is_proved(struct join *j, const struct stream *s, size_t m, uint64_t until,
                      size_t *from)
{
    struct unit u = { 0 };
    size_t end;
    do
        if (!next_unit(s, u.end, &u))
            return false;
    while (s->items[u.begin].event.begin_ns < s->groups[0].run.begin_ns);
    *from = end = u.begin;
    for (size_t i = 0; i < m; i++)
        if (!fits(j, s, end, &s->groups[i], &end))
            return false;
    return s->items[end - 1].event.begin_ns < until &&
           (!next_unit(s, end, &u) || s->items[u.begin].event.begin_ns >= until);
}

/* Kernels of DMI's right before item @end, up to @most, but none before item @first. */
static uint32_t own_before(const struct stream *s, size_t first, size_t end, uint32_t most)
{
    uint32_t n = 0;
    while (n < most && end - n > first && !s->items[end - n - 1].name &&
           s->items[end - n - 1].event.kind == LAYOUTS_KERNEL)
        n++;
    return n;
}

/*
 * Copies and kernels of DMI's from item @at on that go with the launch before them: what began before @until. Of kernels of DMI's right before
 * another launch its run says whose they are. Return: the item after those that go.
 */
static size_t after_copies(const struct stream *s, size_t at, uint64_t until)
{
    size_t first = at;
    while (at < s->n_items && !s->items[at].name && s->items[at].event.begin_ns < until)
        at++;
    bool launch = at < s->n_items && s->items[at].name && until == UINT64_MAX;
    return launch ? at - own_before(s, first, at, UINT32_MAX) : at;
}

/*
 * The group's launches, up to item @end, and what goes with them. @sure: no record was lost, so of kernels of DMI's before them as many are of the
 * group as it says.
 */
static void deal_one(const struct join *j, struct stream *s, const struct group *g, size_t end,
                     uint64_t until, bool sure)
{
    uint64_t step = g->over ? g->step : DMI_RAN_UNKNOWN;
    size_t n = uncounted(s, UINT64_MAX);
    uint32_t lead = own_before(s, 0, n, sure || !g->run.lead ? g->run.lead : UINT32_MAX);
    hand_on(j, s, n - lead, s->last_step);
    if (!sure)
        hand_on(j, s, lead, DMI_RAN_UNKNOWN);
    end -= sure ? n - lead : n;
    hand_on(j, s, after_copies(s, end, until), step);
}

static void drop_groups(struct stream *s, size_t n)
{
    s->n_groups -= n;
    memmove(s->groups, s->groups + n, s->n_groups * sizeof *s->groups);
}

/* Deals the first group, and those up to the next one that begins in an idle stream. Return: false: it has to wait. */
static bool deal_proved(struct join *j, struct stream *s, bool last)
{
    size_t m = next_idle(s), from, end;
    uint64_t until = m < s->n_groups ? s->groups[m].run.begin_ns : UINT64_MAX;
    bool idle = s->groups[0].run.idle;
    if (idle && m == s->n_groups && !last)
        return false;
    if (!idle || !is_proved(j, s, m, until, &from)) {
        const struct group *g = &s->groups[0];
        *(g->misnamed ? &j->misnamed : &j->unplaced) += launches_of(g);
        drop_groups(s, 1);
        return true;
    }
    s->unsure = s->items[from].round <= s->doubt + DOUBT_ROUNDS;
    hand_on(j, s, from, DMI_RAN_UNKNOWN);
    for (size_t i = 0; i < m; i++) {
        struct group *g = &s->groups[i];
        if (fits(j, s, 0, g, &end))
            deal_one(j, s, g, end, i + 1 < m ? UINT64_MAX : until, false);
    }
    drop_groups(s, m);
    return true;
}

/* Copies after the last launch go with it. */
static bool deal_next(struct join *j, struct stream *s, struct group *g)
{
    size_t end;
    if (!fits(j, s, 0, g, &end))
        return false;
    deal_one(j, s, g, end, UINT64_MAX, true);
    return true;
}

/*
 * Are all records of the group there, or will they not come? Those of one graph may come in parts. They are all there when a later launch's are, as
 * a stream's records come in turn.
 */
static bool is_ready(const struct join *j, const struct stream *s, const struct group *g)
{
    uint32_t n = launches_of(g);
    return g->over && j->calls->open(s->context, s->stream) > g->run.deal &&
           (j->round - g->round > WAIT_ROUNDS || launches_there(s, j->round, n + 1) > n);
}

/* Deals the first group. Return: false: it has to wait. */
static bool deal_group(struct join *j, struct stream *s, bool last)
{
    if (!last && !is_ready(j, s, &s->groups[0]))
        return false;
    s->unsure = s->unsure || !deal_next(j, s, &s->groups[0]);
    if (s->unsure)
        return deal_proved(j, s, last);
    drop_groups(s, 1);
    return true;
}

static void deal_stream(struct join *j, struct stream *s, bool last)
{
    if (s->unsorted)
        SORT(s->items, s->n_items, by_correlation);
    s->unsorted = false;
    if (s->shared || s->n_items > MOST_ITEMS) {
        hand_on(j, s, s->n_items, DMI_RAN_UNKNOWN);
        s->n_groups = 0;
    }
    while (s->n_groups && deal_group(j, s, last))
        ;
    if (!s->n_groups && (last || j->calls->open(s->context, s->stream) == UINT64_MAX))
        hand_on_uncounted(j, s, last);
    if (last)
        hand_on(j, s, s->n_items, DMI_RAN_UNKNOWN);
}

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

static bool stream_awaits(const struct stream *s, uint64_t end)
{
    for (size_t i = 0; i < s->n_groups; i++) {
        const struct group *g = &s->groups[i];
        if (g->over && g->step >= DMI_RAN_FIRST && g->step - DMI_RAN_FIRST < end)
            return true;
    }
    return false;
}

bool join_awaits(const struct join *j, uint64_t end)
{
    for (size_t i = 0; i < j->n_streams; i++)
        if (stream_awaits(&j->streams[i], end))
            return true;
    return false;
}

/* Steps whose runs have all been dealt: those long over. */
static void forget_numbers(struct join *j)
{
    const size_t most = 4096;
    if (j->n_numbers <= 2 * most)
        return;
    j->n_numbers -= most;
    memmove(j->numbers, j->numbers + most, j->n_numbers * sizeof *j->numbers);
}

void join_deal(struct join *j, const struct join_calls *calls, bool last)
{
    j->calls = calls;
    for (size_t i = 0; i < j->n_streams; i++)
        deal_stream(j, &j->streams[i], last);
    forget_numbers(j);
    j->round++;
}
