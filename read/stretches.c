/* SPDX-License-Identifier: Apache-2.0 */
#include "read/stretches.h"

#include "core/grow.h"
#include "core/sorted.h"

#include <errno.h>
#include <stdlib.h>

static int order(const void *pa, const void *pb)
{
    const struct stretch *a = pa, *b = pb;
    ORDER(a, b, position);
    ORDER(a, b, record);
    return a->first_row < b->first_row ? -1 : a->first_row > b->first_row;
}

/* After its last position. Positions and their rows stay below 2^63: the reader has checked it. */
static int64_t end_of(const struct stretch *p)
{
    return (int64_t)((uint64_t)p->position + p->n_rows);
}

static bool overlap(const struct stretch *stretches, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (end_of(&stretches[i - 1]) > stretches[i].position)
            return true;
    return false;
}

/* ------------------------------------------------------------------------- the latest record */

/* Pieces that cover the position where a sweep is, the latest record on top. */
struct heap {
    const struct stretch **all;
    size_t n;
};

static bool later(const struct stretch *a, const struct stretch *b)
{
    return a->record != b->record ? a->record > b->record : a->first_row > b->first_row;
}

static void swap(struct heap *h, size_t a, size_t b)
{
    const struct stretch *p = h->all[a];
    h->all[a] = h->all[b];
    h->all[b] = p;
}

static void push(struct heap *h, const struct stretch *p)
{
    size_t at = h->n++;
    h->all[at] = p;
    for (; at && later(h->all[at], h->all[(at - 1) / 2]); at = (at - 1) / 2)
        swap(h, at, (at - 1) / 2);
}

static void pop(struct heap *h)
{
    h->all[0] = h->all[--h->n];
    for (size_t at = 0;;) {
        size_t child = 2 * at + 1;
        if (child + 1 < h->n && later(h->all[child + 1], h->all[child]))
            child++;
        if (child >= h->n || !later(h->all[child], h->all[at]))
            return;
        swap(h, at, child);
        at = child;
    }
}

/* Adds the rows of @p from position @from to before @end. */
static void emit(struct stretch *out, size_t *n_out, const struct stretch *p, int64_t from,
                 int64_t end)
{
    uint32_t first = p->first_row + (uint32_t)(from - p->position);
    struct stretch *last = *n_out ? &out[*n_out - 1] : NULL;
    if (last && last->record == p->record && end_of(last) == from &&
        last->first_row + last->n_rows == first)
        last->n_rows += (uint32_t)(end - from);
    else
        out[(*n_out)++] =
            (struct stretch){ p->record, first, (uint32_t)(end - from), from, 0, STRETCH_OWN };
}

static size_t sweep(const struct stretch *stretches, size_t n, struct heap *h, struct stretch *out)
{
    size_t n_out = 0;
    int64_t at = 0;
    for (size_t next = 0; next < n || h->n;) {
        if (!h->n)
            at = stretches[next].position;
        for (; next < n && stretches[next].position <= at; next++)
            push(h, &stretches[next]);
        while (h->n && end_of(h->all[0]) <= at)
            pop(h);
        if (!h->n)
            continue;
        const struct stretch *top = h->all[0];
        int64_t end = end_of(top);
        if (next < n && stretches[next].position < end)
            end = stretches[next].position;
        emit(out, &n_out, top, at, end);
        at = end;
    }
    return n_out;
}

uint64_t stretches_rows(const struct stretch *stretches, size_t n)
{
    uint64_t n_rows = 0;
    for (size_t i = 0; i < n; i++)
        n_rows += stretches[i].n_rows;
    return n_rows;
}

/* ------------------------------------------------------------------------- what no longer counts */

struct stretch_list {
    struct stretch *all;
    size_t n, room, most;
};

static int add(struct stretch_list *l, const struct stretch *p)
{
    if (l->n == l->most)
        return -E2BIG;
    return PUSH(l->all, l->n, l->room, 16, *p);
}

/* The first of @out that ends after @at: they are in order and share no position. */
static size_t find(const struct stretch *out, size_t n, int64_t at)
{
    size_t i;
    SEARCH(i, n, end_of(&out[i]) <= at);
    return i;
}

static int add_flagged(struct stretch_list *l, const struct stretch *p, int64_t from, int64_t end)
{
    const struct stretch part = { p->record,
                                  p->first_row + (uint32_t)(from - p->position),
                                  (uint32_t)(end - from),
                                  from,
                                  STRETCH_SUPERSEDED,
                                  STRETCH_OWN };
    return from < end ? add(l, &part) : 0;
}

/* Adds the rows of @p that are not among those that count, @out. */
static int add_rest(struct stretch_list *l, const struct stretch *p, const struct stretch *out,
                    size_t n)
{
    int r = 0;
    int64_t at = p->position;
    for (size_t i = find(out, n, at); !r && i < n && out[i].position < end_of(p); i++) {
        const struct stretch *o = &out[i];
        bool own = o->record == p->record &&
                   o->first_row - p->first_row == (uint64_t)(o->position - p->position);
        if (!own)
            continue;
        r = add_flagged(l, p, at, o->position);
        at = end_of(o);
    }
    return r ? r : add_flagged(l, p, at, end_of(p));
}

/* ------------------------------------------------------------------------- all of it */

/* Moves rejected stretches to the end. Return: how many are left before them. */
static size_t set_aside(struct stretch *stretches, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (stretches[i].flags & STRETCH_REJECTED)
            continue;
        struct stretch p = stretches[kept];
        stretches[kept++] = stretches[i];
        stretches[i] = p;
    }
    return kept;
}

/* Those that count, into @l; then what no longer does. */
static int resolve(struct stretch_list *l, const struct stretch *stretches, size_t n, bool keep,
                   uint64_t *n_superseded)
{
    struct heap h = { .all = calloc(n, sizeof *h.all) };
    l->all = calloc(2 * n, sizeof *l->all); /* a stretch ends, or another begins */
    l->room = 2 * n;
    int r = h.all && l->all ? 0 : -ENOMEM;
    if (!r) {
        l->n = sweep(stretches, n, &h, l->all);
        *n_superseded += stretches_rows(stretches, n) - stretches_rows(l->all, l->n);
    }
    struct stretch_list rest = { .most = l->most };
    for (size_t i = 0; !r && keep && i < n; i++)
        r = add_rest(&rest, &stretches[i], l->all, l->n);
    for (size_t i = 0; !r && i < rest.n; i++)
        r = add(l, &rest.all[i]);
    free(rest.all);
    free(h.all);
    return r;
}

/* Adds the rows of a stretch, each by itself. */
static int add_rows(struct stretch_list *l, const struct stretch *p)
{
    int r = 0;
    for (uint32_t i = 0; !r && i < p->n_rows; i++) {
        const struct stretch row = { p->record,       p->first_row + i, 1,
                                     p->position + i, p->flags,         p->donor };
        r = add(l, &row);
    }
    return r;
}

/* Where stretches share positions, their rows must alternate: such stretches are cut into rows. @stretches: in order. */
static int alternate(struct stretch **stretches, size_t *n, size_t most)
{
    struct stretch_list l = { .most = most };
    int r = 0;
    for (size_t i = 0, end; !r && i < *n; i = end) {
        int64_t last = end_of(&(*stretches)[i]);
        for (end = i + 1; end < *n && (*stretches)[end].position < last; end++)
            last = end_of(&(*stretches)[end]) > last ? end_of(&(*stretches)[end]) : last;
        for (size_t k = i; !r && k < end; k++)
            r = end == i + 1 ? add(&l, &(*stretches)[k]) : add_rows(&l, &(*stretches)[k]);
    }
    if (r) {
        free(l.all);
        return r;
    }
    free(*stretches);
    *stretches = l.all;
    *n = l.n;
    if (*n)
        qsort(*stretches, *n, sizeof **stretches, order);
    return 0;
}

int stretches_arrange(struct stretch **stretches, size_t *n, size_t most, bool keep,
                      uint64_t *n_superseded)
{
    size_t n_counting = set_aside(*stretches, *n);
    if (n_counting > 1)
        qsort(*stretches, n_counting, sizeof **stretches, order);
    struct stretch_list l = { .most = most };
    int r = 0;
    if (overlap(*stretches, n_counting)) {
        r = resolve(&l, *stretches, n_counting, keep, n_superseded);
        for (size_t i = n_counting; !r && i < *n; i++)
            r = add(&l, &(*stretches)[i]);
        if (!r) {
            free(*stretches);
            *stretches = l.all;
            *n = l.n;
            l.all = NULL;
        }
        free(l.all);
    }
    if (!r && *n > 1)
        qsort(*stretches, *n, sizeof **stretches, order);
    return !r && overlap(*stretches, *n) ? alternate(stretches, n, most) : r;
}

void stretches_sort(struct stretch *stretches, size_t n)
{
    if (n > 1)
        qsort(stretches, n, sizeof *stretches, order);
}

bool stretch_cut(struct stretch *p, const struct range *range)
{
    int64_t from = p->position > range->first ? p->position : range->first;
    int64_t to = end_of(p) < range->end ? end_of(p) : range->end;
    if (p->position < 0 || from >= to)
        return false;
    p->first_row += (uint32_t)(from - p->position);
    p->position = from;
    p->n_rows = (uint32_t)(to - from);
    return true;
}

int stretches_clip(struct stretch **stretches, size_t *n, const struct range *ranges,
                   size_t n_ranges)
{
    struct stretch *kept = NULL;
    size_t n_kept = 0, room = 0;
    for (size_t i = 0; i < *n; i++)
        for (size_t k = 0; k < n_ranges; k++) {
            struct stretch p = (*stretches)[i];
            if (!stretch_cut(&p, &ranges[k]))
                continue;
            if (grow((void **)&kept, n_kept, &room, sizeof *kept, *n)) {
                free(kept);
                return -ENOMEM;
            }
            kept[n_kept++] = p;
        }
    free(*stretches);
    *stretches = kept;
    *n = n_kept;
    return 0;
}
