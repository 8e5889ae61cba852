/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/plan_rows.h"

#include "core/err.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALL_POSITIONS (1 << 30)

int64_t plan_first_key(const struct plan_layer *l, int64_t query)
{
    return l->about.window && query >= l->about.window ? query - l->about.window + 1 : 0;
}

/* ------------------------------------------------------------------------- queries */

/* Positions of a layer's q, those of all its sources. Return: how many; @to gets them unless it is NULL. */
static size_t positions_of(const struct sources *s, int64_t *to)
{
    size_t n = 0;
    for (int64_t at = 0; at < ALL_POSITIONS;) {
        uint64_t some;
        bool there = sources_at(s, at, (uint64_t)(ALL_POSITIONS - at), &some) != NULL;
        for (uint64_t i = 0; there && to && i < some; i++)
            to[n + i] = at + (int64_t)i;
        n += there ? some : 0;
        at += (int64_t)some;
    }
    return n;
}

static int take_queries(struct err *err, struct plan *p, const int64_t *asked, size_t n_asked)
{
    const struct sources *q = &p->layers[0].q;
    p->n_queries = asked ? n_asked : positions_of(q, NULL);
    p->queries = calloc(p->n_queries + 1, sizeof *p->queries);
    if (!p->queries)
        return err_set(err, -ENOMEM, "no memory for the positions of queries");
    if (asked)
        memcpy(p->queries, asked, n_asked * sizeof *asked);
    else
        positions_of(q, p->queries);
    for (size_t i = 0; i < p->n_queries; i++)
        if (p->queries[i] < 0 || p->queries[i] >= ALL_POSITIONS ||
            (i && p->queries[i] <= p->queries[i - 1]))
            return err_set(err, -EINVAL, "positions of queries are not ascending from 0 on");
    if (!p->n_queries)
        return err_set(err, -ENODATA, "no query is left");
    p->n_keys = p->queries[p->n_queries - 1] + 1;
    return 0;
}

/* ------------------------------------------------------------------------- what is there */

/* The first positions that lack. */
static int say_lacks(struct err *err, const struct plan *p, const struct plan_layer *l,
                     size_t offset, const char *name, int64_t first, uint64_t n)
{
    char positions[256];
    if (n == 1)
        snprintf(positions, sizeof positions, " at position %" PRId64, first);
    else
        snprintf(positions, sizeof positions, " at positions %" PRId64 " to %" PRId64, first,
                 first + (int64_t)n - 1);
    if (!first && offset != offsetof(struct plan_layer, q))
        strcat(positions, " (--fill-cached or --prefix finds rows of cached tokens)");
    return plan_lacks(err, p, l, offset, name, positions);
}

/* Every position from @first to before @end has a row. */
static int check_range(struct err *err, const struct plan *p, const struct plan_layer *l,
                       size_t offset, const char *name, int64_t first, int64_t end)
{
    const struct sources *s = (const void *)((const char *)l + offset);
    while (first < end) {
        uint64_t n;
        if (!sources_at(s, first, (uint64_t)(end - first), &n))
            return say_lacks(err, p, l, offset, name, first, n);
        first += (int64_t)n;
    }
    return 0;
}

/* The keys that queries see are ranges that overlap, or lie apart where queries do and there is a window. */
static int check_keys(struct err *err, const struct plan *p, const struct plan_layer *l,
                      size_t offset, const char *name)
{
    for (size_t i = 0; i < p->n_queries;) {
        int64_t first = plan_first_key(l, p->queries[i]), end = p->queries[i] + 1;
        for (i++; i < p->n_queries && plan_first_key(l, p->queries[i]) <= end; i++)
            end = p->queries[i] + 1;
        TRY(check_range(err, p, l, offset, name, first, end));
    }
    return 0;
}

static int check_queries(struct err *err, const struct plan *p, const struct plan_layer *l)
{
    for (size_t i = 0; i < p->n_queries; i++) {
        TRY(check_range(err, p, l, offsetof(struct plan_layer, q), "q or q_rot", p->queries[i],
                        p->queries[i] + 1));
    }
    return 0;
}

/* What shows that rows are wrong is A v = z alone: without v at a key that is seen, nothing is checked. */
static void look_for_proof(struct plan *p, struct plan_layer *l)
{
    struct err none = { 0 };
    uint64_t keys = sources_borrowed(&l->k, p->n_keys), values = sources_borrowed(&l->v, p->n_keys);
    l->is_checked = p->value_dim && l->v.n && l->z.n &&
                    !check_keys(&none, p, l, offsetof(struct plan_layer, v), "v");
    l->n_borrowed = keys > values ? keys : values;
    p->n_borrowed = l->n_borrowed > p->n_borrowed ? l->n_borrowed : p->n_borrowed;
}

int plan_rows(struct err *err, struct plan *p, const int64_t *asked, size_t n_asked)
{
    int r = take_queries(err, p, asked, n_asked);
    for (size_t i = 0; i < p->n_layers && !r; i++) {
        r = check_queries(err, p, &p->layers[i]);
        if (!r)
            r = check_keys(err, p, &p->layers[i], offsetof(struct plan_layer, k), "k or k_rot");
        if (!r)
            look_for_proof(p, &p->layers[i]);
    }
    return r;
}
