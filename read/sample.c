/* SPDX-License-Identifier: Apache-2.0 */
#include "read/sample.h"

#include "core/any.h"
#include "core/words.h"
#include "read/fill.h"

#include <inttypes.h>

#define MOST_GAPS 4 /* that are named */

const char *sample_fault_name(enum sample_fault fault)
{
    static const char *const names[SAMPLE_N_FAULTS] = {
        [SAMPLE_WHOLE] = "whole",
        [SAMPLE_OF_NOBODY] = "of no request",
        [SAMPLE_OF_BEAMS] = "of beams",
        [SAMPLE_MIXED] = "of changing type or scale",
        [SAMPLE_LACKS_ROWS] = "without all rows",
        [SAMPLE_LACKS_CACHE] = "with a cached prefix",
        [SAMPLE_ROWS_TWICE] = "with rows that do not count",
        [SAMPLE_INCOMPLETE] = "without all tensors",
        [SAMPLE_LACKS_MASK] = "without a loss mask",
        [SAMPLE_GREW] = "that grew after they were written",
        [SAMPLE_NO_PROMPT] = "whose generation begins at an unknown token",
        [SAMPLE_NO_TOKENS] = "without the tokens that are asked for",
        [SAMPLE_RUNS] = "that still run",
    };
    return names[fault];
}

/* The positions that a whole sample has. */
static struct ranges wanted_of(const struct request *q, const struct requests *requests,
                               const struct selection *select)
{
    struct ranges all = { .all = { { 0, q->end } }, .n = 1 };
    if (!select || !select->n_tokens)
        return all;
    struct ranges some = selection_ranges(select, requests, q->id, q->n_id, q->end);
    for (size_t i = 0; i < some.n; i++) {
        struct range *r = &some.all[i];
        r->first = r->first > 0 ? r->first : 0;
        r->end = r->end < q->end ? r->end : q->end;
    }
    return some;
}

struct gaps {
    struct text *to;
    size_t n;
    int64_t n_positions, first, end; /* of the first gap */
};

static void add_gap(struct gaps *g, int64_t first, int64_t end)
{
    if (first >= end)
        return;
    if (!g->n) {
        g->first = first;
        g->end = end;
    }
    g->n_positions += end - first;
    if (g->n++ >= MOST_GAPS)
        return;
    text_printf(g->to, g->n > 1 ? ", %" PRId64 : " %" PRId64, first);
    if (end > first + 1)
        text_printf(g->to, "-%" PRId64, end - 1);
}

/* Stretches are in order, and share no position. */
static void find_gaps(struct gaps *g, const struct tensor *t, const struct range *wanted)
{
    int64_t at = wanted->first;
    for (size_t i = 0; i < t->n_stretches; i++) {
        const struct stretch *s = &t->stretches[i];
        if (s->position + (int64_t)s->n_rows <= wanted->first)
            continue;
        add_gap(g, at, s->position < wanted->end ? s->position : wanted->end);
        int64_t end = s->position + (int64_t)s->n_rows;
        at = end > at ? end : at;
    }
    add_gap(g, at, wanted->end);
}

static enum sample_fault lacks(const struct tensor *t, const struct request *q,
                               const struct ranges *wanted, struct text *why)
{
    struct text places = { 0 };
    struct gaps g = { .to = &places };
    for (size_t i = 0; i < wanted->n; i++)
        find_gaps(&g, t, &wanted->all[i]);
    bool cached =
        g.n == 1 && (g.first == wanted->all[0].first || t->unfilled) && g.end <= q->cached_end;
    if (g.n)
        text_printf(why, "lacks %s%s", word_for((uint64_t)g.n_positions, "position", "positions"),
                    places.data ? places.data : "");
    if (g.n > MOST_GAPS)
        text_printf(why, " and %zu more %s", g.n - MOST_GAPS,
                    word_for(g.n - MOST_GAPS, "range", "ranges"));
    if (cached)
        text_printf(why, ", which a prefix cache had");
    if (g.n)
        fill_add_fault(why, t);
    text_deinit(&places);
    return !g.n ? SAMPLE_WHOLE : cached ? SAMPLE_LACKS_CACHE : SAMPLE_LACKS_ROWS;
}

static bool has_flags(const struct tensor *t)
{
    return ANY(i, t->n_stretches, t->stretches[i].flags);
}

static enum sample_fault fail(struct text *why, enum sample_fault fault, const char *what)
{
    text_printf(why, "%s", what);
    return fault;
}

enum sample_fault sample_fault(const struct tensor *t, const struct requests *requests,
                               const struct selection *select, struct text *why)
{
    const struct request *q = t->request ? requests_find(requests, t->request, t->n_request) : NULL;
    if (!q)
        return fail(why, SAMPLE_OF_NOBODY, "has rows of no request");
    if (q->has_beams)
        return fail(why, SAMPLE_OF_BEAMS,
                    "has rows of beams: those of one position are of several sequences");
    if (t->mixed)
        return fail(why, SAMPLE_MIXED, tensor_mixed_text(t));
    if (has_flags(t))
        return fail(why, SAMPLE_ROWS_TWICE,
                    "has rejected or superseded rows, which were asked for");
    const struct ranges wanted = wanted_of(q, requests, select);
    return lacks(t, q, &wanted, why);
}
