/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/join_parts.h"

#include "core/sorted.h"
#include "cupti/layouts.h"

#include <dmi/trace.h>

#include <stdlib.h>
#include <string.h>

#define DOUBT_ROUNDS 10u /* that records beside those that were lost may come later */
#define MORE_PAUSES                                                                                \
    2u /* after what is proved: by them records could have said that clocks differ */
#define GONE_ROUNDS 200u /* after which nothing is kept of a stream in which nothing runs */
#define MOST_ITEMS                                                                                 \
    (1u << 18) /* records of a stream that wait; of more the first are of no known step */
#define MOST_WAITS                                                                                 \
    3u /* of a stream that lost count: what lies between two that are so far apart is looked at together */

/* ------------------------------------------------------------------------- launches, from records */

/* Launches whose records have all been there for a round, up to @most. */
static uint32_t launches_there(const struct join_stream *s, uint64_t round, uint32_t most)
{
    struct unit u = { 0 };
    uint32_t n = 0;
    while (n < most && next_unit(s, u.end, &u))
        n += s->items[u.end - 1].round < round && s->items[u.begin].round < round;
    return n;
}

/* ------------------------------------------------------------------------- dealing */

/* The first @n items are of @step; loose ones are if they lie between launches of it. */
static void hand_on(const struct join *j, struct join_stream *s, size_t n, uint64_t step)
{
    size_t last = n;
    bool within = false; /* between launches of the step */
    while (last && !s->items[last - 1].name)
        last--;
    if (!n)
        return;
    for (size_t i = 0; i < n; i++) {
        const struct join_item *item = &s->items[i];
        within |= item->name != 0;
        if (item->name)
            s->prev = item->at;
        j->calls->take(&item->event, item->loose && !(within && i < last) ? DMI_RAN_UNKNOWN : step);
    }
    s->n_items -= n;
    s->n_placed -= n;
    memmove(s->items, s->items + n, s->n_items * sizeof *s->items);
    s->last_step = step;
}

/* Copies, and kernels of DMI's, that come before the next launch. @round: those that came before it. */
static size_t uncounted(const struct join_stream *s, uint64_t round)
{
    size_t n = 0;
    while (n < s->n_items && !s->items[n].name && s->items[n].round < round)
        n++;
    return n;
}

/* They go with the launch before them; where count was lost, that may be missing. @all: also those that are not older than a round. */
static void hand_on_uncounted(const struct join *j, struct join_stream *s, bool all)
{
    size_t n = uncounted(s, all ? UINT64_MAX : j->round);
    hand_on(j, s, n, s->unsure ? DMI_RAN_UNKNOWN : s->last_step);
}

/* The next group after group @i before which the stream was waited for; their number: there is none. */
static size_t next_idle(const struct join_stream *s, size_t i)
{
    do
        i++;
    while (i < s->n_groups && !s->groups[i].run.idle_ns);
    return i;
}

/* Kernels of DMI's right before item @end, up to @most, but none before item @first. */
static uint32_t own_before(const struct join_stream *s, size_t first, size_t end, uint32_t most)
{
    uint32_t n = 0;
    while (n < most && end - n > first && !s->items[end - n - 1].name &&
           s->items[end - n - 1].event.kind == LAYOUTS_KERNEL)
        n++;
    return n;
}

/* Did the item begin before @until? UINT64_MAX: of course. */
static bool is_before(const struct join_item *item, uint64_t until)
{
    return until == UINT64_MAX || item->at.begin_ns + item->at.error_ns < until;
}

/*
 * Copies and kernels of DMI's from item @at on that go with the launch before them: what began before @until. Of kernels of DMI's right before
 * another launch its run says whose they are; @lead: that before @until has such. Return: the item after those that go.
 */
static size_t after_copies(const struct join_stream *s, size_t at, uint64_t until, bool lead)
{
    size_t first = at;
    while (at < s->n_items && !s->items[at].name && is_before(&s->items[at], until))
        at++;
    bool launch = at < s->n_items && s->items[at].name && until == UINT64_MAX;
    return launch || lead ? at - own_before(s, first, at, UINT32_MAX) : at;
}

/*
 * The group's launches, up to item @end, and what goes with them. @sure: no record was lost, so of kernels of DMI's before them as many are of the
 * group as it says. @lead_follows: as after_copies() has it.
 */
static void deal_one(const struct join *j, struct join_stream *s, const struct dealt_runs *g,
                     size_t end, uint64_t until, bool lead_follows, bool sure)
{
    uint64_t step = g->over ? g->step : DMI_RAN_UNKNOWN;
    size_t n = uncounted(s, UINT64_MAX);
    uint32_t lead = own_before(s, 0, n, sure || !g->run.lead ? g->run.lead : UINT32_MAX);
    hand_on(j, s, n - lead, s->last_step);
    if (!sure)
        hand_on(j, s, lead, DMI_RAN_UNKNOWN);
    end -= sure ? n - lead : n;
    hand_on(j, s, after_copies(s, end, until, lead_follows), step);
}

static void drop_groups(struct join_stream *s, size_t n)
{
    s->n_groups -= n;
    memmove(s->groups, s->groups + n, s->n_groups * sizeof *s->groups);
}

/* Group @m may end what is proved: records after it do not say that clocks differ, or none come. */
static bool is_held(const struct join *j, const struct join_stream *s, size_t m, bool last)
{
    uint32_t n = 0;
    if (last || m == s->n_groups)
        return last;
    for (size_t i = m; i < s->n_groups && n <= MORE_PAUSES; i++)
        n += s->groups[i].judged;
    return s->groups[m].over && (n > MORE_PAUSES || j->round - s->groups[m].round > JOIN_ROUNDS);
}

/* Groups before which items are proved to be, from *@from on. Return: 0: there are none. */
static size_t find_proof(struct join *j, const struct join_stream *s, bool last, size_t *from)
{
    size_t m = 0;
    for (uint32_t i = 0; i < MOST_WAITS && m < s->n_groups && proof_may_be(j); i++) {
        m = next_idle(s, m);
        if (is_held(j, s, m, last) && proof_find(j, s, m, from))
            return m;
    }
    return 0;
}

/* Deals the first group, and those up to the next one that begins in an idle stream. Return: false: it has to wait. */
static bool deal_proved(struct join *j, struct join_stream *s, bool last)
{
    bool idle = s->groups[0].run.idle_ns;
    if (idle && !is_held(j, s, next_idle(s, 0), last))
        return false;
    size_t from, end, m = idle ? find_proof(j, s, last, &from) : 0;
    if (!m) {
        const struct dealt_runs *g = &s->groups[0];
        *(g->misnamed ? &j->misnamed : &j->unplaced) += launches_of(g);
        s->missing += launches_of(g);
        drop_groups(s, 1);
        return true;
    }
    uint64_t until = m < s->n_groups ? s->groups[m].run.begin_ns : UINT64_MAX;
    bool lead = m < s->n_groups && s->groups[m].run.lead;
    s->unsure = s->items[from].round <= s->doubt + DOUBT_ROUNDS;
    s->missing = 0;
    hand_on(j, s, from, DMI_RAN_UNKNOWN);
    for (size_t i = 0; i < m; i++) {
        struct dealt_runs *g = &s->groups[i];
        if (fits(j, s, 0, g, &end))
            deal_one(j, s, g, end, i + 1 < m ? UINT64_MAX : until, lead && i + 1 == m, false);
    }
    drop_groups(s, m);
    return true;
}

/* Copies after the last launch go with it. */
static bool deal_next(struct join *j, struct join_stream *s, struct dealt_runs *g)
{
    size_t end;
    if (!fits(j, s, 0, g, &end) || !proof_agrees(j, s, end))
        return false;
    deal_one(j, s, g, end, UINT64_MAX, false, true);
    return true;
}

/*
 * Are all records of the group there, or will they not come? Those of one graph may come in parts. They are all there when a later launch's are, as
 * a stream's records come in turn.
 */
static bool is_ready(const struct join *j, const struct join_stream *s, const struct dealt_runs *g)
{
    uint32_t n = launches_of(g);
    return g->over && j->calls->open(s->context, s->stream) > g->run.deal &&
           (j->round - g->round > JOIN_ROUNDS || launches_there(s, j->round, n + 1) > n);
}

/* Deals the first group. Return: false: it has to wait. */
static bool deal_group(struct join *j, struct join_stream *s, bool last)
{
    if (!last && !is_ready(j, s, &s->groups[0]))
        return false;
    if (!s->unsure && !deal_next(j, s, &s->groups[0])) {
        s->unsure = true;
        s->missing = 0;
    }
    if (s->unsure)
        return deal_proved(j, s, last);
    drop_groups(s, 1);
    return true;
}

/* When what came since the last round ran. */
static void place(struct join *j, struct join_stream *s)
{
    for (; s->n_placed < s->n_items; s->n_placed++) {
        struct join_item *item = &s->items[s->n_placed];
        item->at = j->calls->place(&item->event);
        proof_look_ahead(j, &item->at);
        item->loose = item->name == JOIN_GRAPH && j->calls->is_perhaps(item->event.graph);
        item->name = item->loose ? JOIN_NO_NAME : item->name;
    }
    if (s->unsorted)
        SORT(s->items, s->n_items, join_order);
    s->unsorted = false;
}

/* Launches whose records are gone are none of the first groups' any more; what is left of such a group has no first name. */
static void forget_gone(struct join_stream *s)
{
    while (s->n_groups && (s->gone_kernels || s->gone_graphs)) {
        struct join_run *run = &s->groups[0].run;
        uint32_t kernels =
            run->kernels < s->gone_kernels ? run->kernels : (uint32_t)s->gone_kernels;
        uint32_t graphs = run->graphs < s->gone_graphs ? run->graphs : (uint32_t)s->gone_graphs;
        s->gone_kernels -= kernels;
        s->gone_graphs -= graphs;
        run->kernels -= kernels;
        run->graphs -= graphs;
        run->first = JOIN_NO_NAME;
        run->graph_ids = 0;
        run->lead = 0;
        run->idle_ns = 0;
        if (run->kernels + run->graphs)
            return;
        drop_groups(s, 1);
    }
}

/* More wait than there is room for: the first half is of no known step, and its launches are counted. */
static void let_go(struct join *j, struct join_stream *s)
{
    struct unit u = { 0 };
    size_t end = 0;
    if (s->n_items <= MOST_ITEMS)
        return;
    while (u.end < s->n_items / 2 && next_unit(s, u.end, &u)) {
        *(u.name == JOIN_GRAPH ? &s->gone_graphs : &s->gone_kernels) += 1;
        end = u.end;
    }
    end = end ? end : s->n_items; /* copies alone */
    j->too_many += end;
    hand_on(j, s, end, DMI_RAN_UNKNOWN);
}

/* A stream that lost count has it again when nothing is missing any more, as nothing ran for a while. */
static void look_for_quiet(struct join *j, struct join_stream *s)
{
    bool quiet = !s->n_items && !s->n_groups && j->calls->open(s->context, s->stream) == UINT64_MAX;
    s->quiet = quiet ? s->quiet + 1 : 0;
    if (s->quiet < JOIN_ROUNDS)
        return;
    s->unsure = false;
    s->gone_kernels = s->gone_graphs = 0;
}

/* Records that no launch waits for, where count is lost. */
static void hand_on_rest(struct join *j, struct join_stream *s)
{
    size_t n = 0;
    if (!s->unsure || s->n_groups || j->calls->open(s->context, s->stream) != UINT64_MAX)
        return;
    while (n < s->n_items && j->round - s->items[n].round > JOIN_ROUNDS)
        n++;
    hand_on(j, s, n, DMI_RAN_UNKNOWN);
}

static void deal_stream(struct join *j, struct join_stream *s, bool last)
{
    place(j, s);
    if (s->shared) {
        hand_on(j, s, s->n_items, DMI_RAN_UNKNOWN);
        s->n_groups = 0;
    }
    forget_gone(s);
    let_go(j, s);
    forget_gone(s);
    if (s->unsure)
        proof_look(j, s, last);
    while (s->n_groups && deal_group(j, s, last))
        ;
    if (!s->n_groups && (last || j->calls->open(s->context, s->stream) == UINT64_MAX))
        hand_on_uncounted(j, s, last);
    hand_on_rest(j, s);
    if (last)
        hand_on(j, s, s->n_items, DMI_RAN_UNKNOWN);
    look_for_quiet(j, s);
}

/* Streams in which nothing has run for long: a process may make one a request. */
static void forget_streams(struct join *j)
{
    for (size_t i = j->n_streams; i-- > 0;) {
        struct join_stream *s = &j->streams[i];
        if (s->quiet < GONE_ROUNDS || s->shared)
            continue;
        free(s->items);
        free(s->groups);
        *s = j->streams[--j->n_streams];
    }
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

void join_deal(struct join *j, const struct join_calls *calls, uint64_t now_ns, bool last)
{
    j->calls = calls;
    j->now_ns = now_ns;
    for (size_t i = 0; i < j->n_streams; i++)
        deal_stream(j, &j->streams[i], last);
    forget_numbers(j);
    forget_streams(j);
    j->round++;
}
