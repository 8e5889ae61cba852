/* SPDX-License-Identifier: Apache-2.0 */
/* A treap: ordered by address, a heap by random ranks, which keep it flat whatever the order of the calls. */
#include "preload/capture/intervals.h"

#include <stddef.h>

static uint64_t end_of(const struct interval *r)
{
    return r->base + r->n_bytes;
}

/* ------------------------------------------------------------------------- the tree */

static void sum_up(struct interval *r)
{
    const struct interval *before = r->child[0], *after = r->child[1];
    r->all.first = before ? before->all.first : r->base;
    r->all.end = after ? after->all.end : end_of(r);
    r->all.readable = r->readable & (before ? before->all.readable : UINT64_MAX) &
                      (after ? after->all.readable : UINT64_MAX);
    r->all.shared = r->shared || (before && before->all.shared) || (after && after->all.shared);
    r->all.joined = r->mapping && (!before || (before->all.joined && before->all.end == r->base)) &&
                    (!after || (after->all.joined && after->all.first == end_of(r)));
}

/* The finalizer of splitmix64: neighbours in, nothing in common out. */
static uint64_t mixed(uint64_t n)
{
    n += 0x9e3779b97f4a7c15u;
    n = (n ^ n >> 30) * 0xbf58476d1ce4e5b9u;
    n = (n ^ n >> 27) * 0x94d049bb133111ebu;
    return n ^ n >> 31;
}

enum side { BEGINS, ENDS };

/* Takes @t apart: intervals that begin before @at (BEGINS), or end at it or before (ENDS), and the others. */
static void split(struct interval *t, uint64_t at, enum side side, struct interval **before,
                  struct interval **after)
{
    if (!t) {
        *before = *after = NULL;
        return;
    }
    bool is_before = side == BEGINS ? t->base < at : end_of(t) <= at;
    if (is_before) {
        split(t->child[1], at, side, &t->child[1], after);
        *before = t;
    } else {
        split(t->child[0], at, side, before, &t->child[0]);
        *after = t;
    }
    sum_up(t);
}

/* All of @a lies before all of @b. */
static struct interval *join(struct interval *a, struct interval *b)
{
    if (!a || !b)
        return a ? a : b;
    struct interval *top = a->rank > b->rank ? a : b;
    if (top == a)
        a->child[1] = join(a->child[1], b);
    else
        b->child[0] = join(a, b->child[0]);
    sum_up(top);
    return top;
}

void intervals_add(struct intervals *intervals, struct interval *interval)
{
    struct interval *before, *after;
    interval->child[0] = interval->child[1] = NULL;
    interval->rank = mixed(intervals->n_added++);
    sum_up(interval);
    split(intervals->root, interval->base, BEGINS, &before, &after);
    intervals->root = join(join(before, interval), after);
}

struct interval *intervals_cut(struct intervals *intervals, uint64_t base, uint64_t n_bytes)
{
    struct interval *before, *cut, *after;
    split(intervals->root, base, ENDS, &before, &after);
    split(after, intervals_end(base, n_bytes), BEGINS, &cut, &after);
    intervals->root = join(before, after);
    return cut;
}

struct interval *intervals_pop(struct interval **tree)
{
    struct interval *top = *tree;
    if (top)
        *tree = join(top->child[0], top->child[1]);
    return top;
}

/* ------------------------------------------------------------------------- changes */

static void permit(struct interval *t, uint64_t granted, uint64_t revoked)
{
    if (!t)
        return;
    permit(t->child[0], granted, revoked);
    permit(t->child[1], granted, revoked);
    t->readable = (t->readable & ~revoked) | granted;
    sum_up(t);
}

void intervals_permit(struct intervals *intervals, uint64_t base, uint64_t n_bytes,
                      uint64_t granted, uint64_t revoked)
{
    struct interval *before, *within, *after;
    split(intervals->root, base, ENDS, &before, &after);
    split(after, intervals_end(base, n_bytes), BEGINS, &within, &after);
    permit(within, granted, revoked);
    intervals->root = join(join(before, within), after);
}

/* Sums anew from @interval up to @t. */
static void sum_up_to(struct interval *t, const struct interval *interval)
{
    if (!t)
        return;
    if (t != interval)
        sum_up_to(t->child[interval->base > t->base], interval);
    sum_up(t);
}

void intervals_share(struct intervals *intervals, struct interval *interval)
{
    interval->shared = true;
    sum_up_to(intervals->root, interval);
}

/* ------------------------------------------------------------------------- looking */

struct interval *intervals_after(const struct intervals *intervals, uint64_t address)
{
    struct interval *t = intervals->root, *found = NULL;
    while (t) {
        bool after = end_of(t) > address;
        if (after)
            found = t;
        t = t->child[!after];
    }
    return found;
}

struct interval *intervals_find(const struct intervals *intervals, uint64_t address)
{
    struct interval *r = intervals_after(intervals, address);
    return r && r->base <= address ? r : NULL;
}

/* A run that is being followed. */
struct interval_walk {
    struct interval_run run;
    uint64_t device; /* its bit */
    uint64_t limit;
};

/* The run takes @t, which comes next, if it may. Return: whether it may go on after it. */
static bool take(const struct interval *t, struct interval_walk *w)
{
    bool next = t->mapping && t->base == w->run.end, readable = t->readable & w->device;
    w->run.closed = !next || !readable;
    w->run.barred = next && !readable;
    if (w->run.closed)
        return false;
    w->run.end = end_of(t);
    w->run.shared = w->run.shared || t->shared;
    return true;
}

/* Follows the run through those of @t that it has not passed. Return: whether it may go on after them. */
static bool follow(const struct interval *t, struct interval_walk *w)
{
    if (!t || t->all.end <= w->run.end)
        return true;
    if (w->run.end >= w->limit)
        return false;
    if (t->all.joined && t->all.first == w->run.end && t->all.readable & w->device &&
        t->all.end <= w->limit) {
        w->run.end = t->all.end;
        w->run.shared = w->run.shared || t->all.shared;
        return true;
    }
    if (!follow(t->child[0], w))
        return false;
    if (w->run.end >= w->limit)
        return false;
    if (end_of(t) > w->run.end && !take(t, w))
        return false;
    return follow(t->child[1], w);
}

struct interval_run intervals_run(const struct intervals *intervals,
                                  const struct interval *interval, int device, uint64_t limit)
{
    struct interval_walk w = { .run = { .end = interval->base }, .limit = limit };
    if (!interval->mapping)
        return (struct interval_run){ .end = end_of(interval),
                                      .shared = interval->shared,
                                      .closed = true };
    w.device = device >= 0 && device < INTERVALS_DEVICES ? (uint64_t)1 << device : 0;
    if (follow(intervals->root, &w))
        w.run.closed = true; /* nothing comes after it */
    return w.run;
}
