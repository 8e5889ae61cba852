/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What CUPTI's clock and CLOCK_MONOTONIC prove together. While a stream is known to be idle nothing runs in it. A record that did, by CUPTI's clock and by
 * more than the error of both, shows that a clock is not what it is taken for. Then nothing is proved by clocks for a while, and launches are dealt by
 * their counts alone, which need no clock.
 */
#include "preload/trace/join_parts.h"

#define STRANGE_ROUNDS 600u /* for which nothing is proved after that: half a minute */
#define SOME_CLEAN     1u /* times that records have to lie as they must, before anything is proved */
#define FEW_CLEAN                                                                                  \
    8u /* times that clocks have to agree with counts, before they are believed and counts are not */
#define SETTLED_ROUNDS 2u /* after which all records around a time are there */

static void note_strange(struct join *j)
{
    j->strange = j->round;
    j->n_clean = 0;
}

static void note_clean(struct join *j)
{
    j->n_clean += j->n_clean < FEW_CLEAN;
}

bool join_clocks_differ(const struct join *j)
{
    return j->strange || j->broken;
}

bool proof_may_be(const struct join *j)
{
    return !j->broken && j->n_clean >= SOME_CLEAN &&
           (!j->strange || j->round - j->strange > STRANGE_ROUNDS);
}

/* Did it begin and end at the wrong side of a time, however clocks err? */
static bool begins_after(const struct placed *at, uint64_t ns)
{
    return at->begin_ns > ns + at->error_ns;
}

static bool begins_before(const struct placed *at, uint64_t ns)
{
    return at->begin_ns + at->error_ns < ns;
}

static bool ends_after(const struct placed *at, uint64_t ns)
{
    return at->end_ns > ns + at->error_ns;
}

static bool ends_before(const struct placed *at, uint64_t ns)
{
    return at->end_ns + at->error_ns < ns;
}

void proof_look_ahead(struct join *j, const struct placed *at)
{
    if (ends_after(at, j->now_ns))
        note_strange(j);
}

/* ------------------------------------------------------------------------- while a stream was idle */

/* Nothing ran from @from_ns, when the stream had been waited for, to @to_ns, when it was launched in again. */
struct pause {
    uint64_t from_ns, to_ns;
};

static bool lies_in(const struct placed *at, const struct pause *p)
{
    return ends_after(at, p->from_ns) && begins_before(at, p->to_ns);
}

/* Did something run meanwhile that is counted: what was handed on last, or an item? */
static bool ran_in(const struct join_stream *s, const struct pause *p)
{
    if (s->prev.end_ns && lies_in(&s->prev, p))
        return true;
    for (size_t i = 0; i < s->n_items; i++) {
        if (!s->items[i].name)
            continue;
        if (lies_in(&s->items[i].at, p))
            return true;
        if (begins_after(&s->items[i].at, p->to_ns))
            return false;
    }
    return false;
}

/* Could clocks that are off be seen by it? */
static bool tells(const struct pause *p, const struct placed *at)
{
    return p->from_ns && p->to_ns - p->from_ns > 2 * at->error_ns;
}

/* Launches of the first group that were over before @from_ns, and those that began after @to_ns (0: there is no such time). */
static uint32_t outside(const struct join_stream *s, uint64_t from_ns, uint64_t to_ns,
                        uint32_t *after)
{
    struct unit u = { 0 };
    uint32_t before = *after = 0;
    for (uint32_t i = launches_of(&s->groups[0]); i && next_unit(s, u.end, &u); i--) {
        before += ends_before(&s->items[u.end - 1].at, from_ns);
        *after += to_ns && begins_after(&s->items[u.begin].at, to_ns);
    }
    return before;
}

static struct pause pause_before(const struct dealt_runs *g)
{
    return (struct pause){ g->run.idle_ns, g->run.begin_ns };
}

/* Records and counts differ, by clocks that are believed. */
static bool disagrees(struct join *j, const struct join_stream *s, uint64_t to_ns)
{
    const struct dealt_runs *g = &s->groups[0];
    uint32_t n = launches_of(g), after, before = outside(s, g->run.begin_ns, to_ns, &after);
    bool prev_after = g->run.idle_ns && s->prev.end_ns && begins_after(&s->prev, g->run.idle_ns);
    if (!before && !after && !prev_after)
        return false;
    if (j->n_clean < FEW_CLEAN || !proof_may_be(j)) {
        note_strange(j);
        return false;
    }
    j->broken |= before == n || after == n;
    return true;
}

bool proof_agrees(struct join *j, const struct join_stream *s, size_t end)
{
    const struct dealt_runs *g = &s->groups[0], *next = s->n_groups > 1 ? g + 1 : NULL;
    const struct pause none = { 0 }, p = pause_before(g);
    const struct pause q = next && next->run.idle_ns ? pause_before(next) : none;
    bool first = !s->prev.end_ns;
    struct unit u;
    if ((!p.from_ns && !first && !q.from_ns) || !next_unit(s, 0, &u))
        return true;
    const struct placed *begins = &s->items[u.begin].at, *ends = &s->items[end - 1].at;
    bool here = (!p.from_ns && !first) || !begins_before(begins, p.to_ns);
    bool prev = !p.from_ns || first || !ends_after(&s->prev, p.from_ns);
    if (here && prev && (!q.from_ns || !ends_after(ends, q.from_ns))) {
        if (tells(&p, begins))
            note_clean(j);
        return true;
    }
    if (((p.from_ns || first) && ran_in(s, &p)) || (q.from_ns && ran_in(s, &q))) {
        note_strange(j);
        return true;
    }
    return !disagrees(j, s, q.from_ns);
}

/* ------------------------------------------------------------------------- a stream that lost count */

void proof_look(struct join *j, struct join_stream *s, bool last)
{
    size_t at = 0;
    bool before = s->prev.end_ns != 0;
    for (size_t i = 0; i < s->n_groups; i++) {
        struct dealt_runs *g = &s->groups[i];
        const struct pause p = pause_before(g);
        bool settled = last || (g->over && j->round - g->round >= SETTLED_ROUNDS);
        if (!p.from_ns || g->judged || !settled)
            continue;
        g->judged = true;
        for (; at < s->n_items; at++) {
            if (s->items[at].name && ends_after(&s->items[at].at, p.from_ns))
                break;
            before |= s->items[at].name != 0;
        }
        if (at == s->n_items)
            return;
        if (begins_before(&s->items[at].at, p.to_ns))
            note_strange(j);
        else if (before && tells(&p, &s->items[at].at))
            note_clean(j);
    }
}

/* Are all launches of items @from to before @end between the two, and is none after them that is? */
static bool are_between(const struct join_stream *s, size_t from, size_t end, const struct pause *p,
                        const struct pause *q)
{
    struct unit u = { .end = from };
    while (next_unit(s, u.end, &u) && u.begin < end) {
        const struct placed *begin = &s->items[u.begin].at, *over = &s->items[u.end - 1].at;
        if (!ends_after(over, p->from_ns) || begins_before(begin, p->to_ns))
            return false;
        if (q && (!begins_before(begin, q->to_ns) || ends_after(over, q->from_ns)))
            return false;
    }
    return u.begin < end || (q && !begins_before(&s->items[u.begin].at, q->to_ns));
}

/*
 * Records may be missing, not launches: as many records as came before item @from are of launches before the first group. Are there a whole
 * proof's too many? @n: its launches. Then it is off by as much as that, and all that is between fits as steps are alike.
 */
static bool too_many_before(const struct join *j, const struct join_stream *s, size_t from,
                            uint32_t n)
{
    struct unit u = { 0 };
    int64_t before = 0;
    while (next_unit(s, u.end, &u) && u.begin < from)
        before++;
    return before - s->missing >= (int64_t)(n + j->uncounted);
}

bool proof_find(struct join *j, const struct join_stream *s, size_t m, size_t *from)
{
    uint32_t n = 0;
    const struct pause p = pause_before(&s->groups[0]);
    const struct pause q = m < s->n_groups ? pause_before(&s->groups[m]) : (struct pause){ 0 };
    struct unit u = { 0 };
    size_t end;
    do
        if (!next_unit(s, u.end, &u))
            return false;
    while (!ends_after(&s->items[u.end - 1].at, p.from_ns));
    *from = end = u.begin;
    for (size_t i = 0; i < m; n += launches_of(&s->groups[i++]))
        if (!fits(j, s, end, &s->groups[i], &end))
            return false;
    if (too_many_before(j, s, *from, n)) {
        if (s->items[0].at.error_ns <= 2 * OWN_CLOCK_ERR_NS) /* else the clock was set */
            note_strange(j);
        return false;
    }
    if (!tells(&p, &s->items[*from].at) || (q.to_ns && !tells(&q, &s->items[end - 1].at)))
        return false;
    return are_between(s, *from, end, &p, q.to_ns ? &q : NULL);
}
