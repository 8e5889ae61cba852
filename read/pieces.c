/* SPDX-License-Identifier: Apache-2.0 */
#include "read/pieces.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

static int order(const void *pa, const void *pb)
{
    const struct piece *a = pa, *b = pb;
    if (a->position != b->position)
        return a->position < b->position ? -1 : 1;
    if (a->record != b->record)
        return a->record < b->record ? -1 : 1;
    return a->first_row < b->first_row ? -1 : a->first_row > b->first_row;
}

/* After its last position. Positions and their rows stay below 2^63: the reader has checked it. */
static int64_t end_of(const struct piece *p)
{
    return (int64_t)((uint64_t)p->position + p->n_rows);
}

static bool overlap(const struct piece *pieces, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (end_of(&pieces[i - 1]) > pieces[i].position)
            return true;
    return false;
}

/* ------------------------------------------------------------------------- the latest record */

/* Pieces that cover the position where a sweep is, the latest record on top. */
struct heap {
    const struct piece **all;
    size_t n;
};

static bool later(const struct piece *a, const struct piece *b)
{
    return a->record != b->record ? a->record > b->record : a->first_row > b->first_row;
}

static void swap(struct heap *h, size_t a, size_t b)
{
    const struct piece *p = h->all[a];
    h->all[a] = h->all[b];
    h->all[b] = p;
}

static void push(struct heap *h, const struct piece *p)
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
static void emit(struct piece *out, size_t *n_out, const struct piece *p, int64_t from, int64_t end)
{
    uint32_t first = p->first_row + (uint32_t)(from - p->position);
    struct piece *last = *n_out ? &out[*n_out - 1] : NULL;
    if (last && last->record == p->record && end_of(last) == from &&
        last->first_row + last->n_rows == first)
        last->n_rows += (uint32_t)(end - from);
    else
        out[(*n_out)++] = (struct piece){ p->record, first, (uint32_t)(end - from), from };
}

static size_t sweep(const struct piece *pieces, size_t n, struct heap *h, struct piece *out)
{
    size_t n_out = 0;
    int64_t at = 0;
    for (size_t next = 0; next < n || h->n;) {
        if (!h->n)
            at = pieces[next].position;
        for (; next < n && pieces[next].position <= at; next++)
            push(h, &pieces[next]);
        while (h->n && end_of(h->all[0]) <= at)
            pop(h);
        if (!h->n)
            continue;
        const struct piece *top = h->all[0];
        int64_t end = end_of(top);
        if (next < n && pieces[next].position < end)
            end = pieces[next].position;
        emit(out, &n_out, top, at, end);
        at = end;
    }
    return n_out;
}

static uint64_t rows_of(const struct piece *pieces, size_t n)
{
    uint64_t n_rows = 0;
    for (size_t i = 0; i < n; i++)
        n_rows += pieces[i].n_rows;
    return n_rows;
}

int pieces_arrange(struct piece **pieces, size_t *n, uint64_t *n_superseded)
{
    if (*n < 2)
        return 0;
    qsort(*pieces, *n, sizeof **pieces, order);
    if (!overlap(*pieces, *n))
        return 0;
    struct heap h = { .all = calloc(*n, sizeof *h.all) };
    struct piece *out = calloc(2 * *n, sizeof *out); /* a piece ends, or another begins */
    int r = h.all && out ? 0 : -ENOMEM;
    if (!r) {
        size_t n_out = sweep(*pieces, *n, &h, out);
        *n_superseded += rows_of(*pieces, *n) - rows_of(out, n_out);
        *n = n_out;
        free(*pieces);
        *pieces = out;
        out = NULL;
    }
    free(out);
    free(h.all);
    return r;
}
