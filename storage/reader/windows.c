/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Some records of a run at a time, with the steps that they name; or some of its steps. What a window holds is read when it is
 * asked for and freed with it, so that memory does not grow with the run.
 */
#include "core/err.h"
#include "storage/reader/reader_steps.h"

#include <errno.h>

#define STEPS_AT_A_TIME 1024u

/* ------------------------------------------------------------------------- records */

/* The window ends before the first chunk that would come after @most records; UINT64_MAX: no chunk is left. */
static int find_end(struct reader *r, size_t most, uint64_t *n_gone)
{
    struct reader_wanted *w = &r->selection.wanted;
    uint64_t end = w->first_chunk;
    size_t n = 0;
    for (uint32_t i = 0; i < r->index.n_segments; i++) {
        const struct reader_segment *s = &r->index.segments[i];
        TRY(s->gone || s->end_chunk <= w->first_chunk ? 0 : reader_need_index(r, i, n_gone));
        for (size_t k = 0; !s->gone && s->end_chunk > w->first_chunk && k < s->n_chunks; k++) {
            const struct reader_chunk *c = &s->chunks[k];
            if (c->type != DMI_CHUNK_RECORDS || c->sequence < w->first_chunk)
                continue;
            w->end_chunk = end;
            if (n >= most && c->sequence >= end)
                return 0;
            n += c->n;
            end = c->sequence >= end ? c->sequence + 1 : end;
        }
    }
    w->end_chunk = UINT64_MAX;
    return 0;
}

/* The steps that the records at hand name. */
static int load_named(struct reader *r)
{
    r->selection.n_named = 0;
    int res = reader_name_steps(r);
    const struct reader_step_filter filter = { .end = UINT64_MAX,
                                               .named = r->selection.named,
                                               .n_named = r->selection.n_named };
    reader_clear_steps(&r->selection.steps);
    if (!res && filter.n_named)
        res = reader_load_steps(r, &filter, &r->selection.steps);
    if (!res && filter.n_named)
        res = reader_load_outcomes(r, &filter, &r->selection.steps);
    return res ? res : reader_show_ids(&r->names, &r->selection.steps);
}

static int select_window(struct reader *r, size_t most, uint64_t *n_gone)
{
    const struct reader_wanted *w = &r->selection.wanted;
    int res = find_end(r, most, n_gone);
    for (uint32_t i = 0; !res && i < r->index.n_segments; i++) {
        struct reader_segment *s = &r->index.segments[i];
        if (s->gone || s->end_chunk <= w->first_chunk || s->first_chunk >= w->end_chunk)
            continue;
        s->n_given = w->first_chunk <= s->first_chunk ? 0 : s->n_given;
        res = reader_select_segment(r, i, n_gone);
    }
    return res;
}

/* An index was wrong: all is selected anew. */
static int again(struct err *err, struct reader *r, int res)
{
    if (res == -EAGAIN && !(res = reader_select_again(err, r)) && !(res = reader_sum(r)))
        return READER_E_AGAIN;
    return res < 0 ? err_set_errno(err, -res, "cannot read the records of %s", r->place.path) : 0;
}

int reader_window_one(struct err *err, struct reader *r, uint64_t first, size_t most,
                      uint64_t *next, uint64_t *n_gone)
{
    struct reader_wanted *w = &r->selection.wanted;
    *n_gone = 0;
    reader_free_records(r);
    w->first_chunk = first > w->query->first_chunk ? first : w->query->first_chunk;
    int res = select_window(r, most, n_gone);
    *next = w->end_chunk;
    if (!res)
        res = load_named(r);
    if (!res)
        reader_order_records(r);
    return again(err, r, res);
}

/* ------------------------------------------------------------------------- steps */

/* Numbers may have gaps, as steps were released or a file is odd: the next span is longer or shorter. */
static void set_span(struct reader_step_place *place, size_t n)
{
    if (n < STEPS_AT_A_TIME / 4 && place->span < UINT64_MAX / 4)
        place->span *= 2;
    else if (n > STEPS_AT_A_TIME && place->span > 1)
        place->span /= 2;
}

int reader_fill_steps(struct reader *r, struct reader_step_place *place, struct reader_steps *out)
{
    place->span = place->span ? place->span : STEPS_AT_A_TIME;
    uint64_t first = reader_next_sequence(r, place->next), end;
    if (__builtin_add_overflow(first, place->span, &end))
        end = UINT64_MAX;
    const struct reader_step_filter filter = { .first = first, .end = end, .ends = true };
    reader_clear_steps(out);
    place->done = first == UINT64_MAX;
    int res = place->done ? 0 : reader_load_steps(r, &filter, out);
    if (!res && !place->done)
        res = reader_load_outcomes(r, &filter, out);
    if (res)
        return res;
    out->any_before = place->any_before;
    out->before = place->before;
    if (out->n) {
        place->any_before = true;
        place->before = *out->all[out->n - 1].entry;
    }
    place->next = end;
    place->done |= reader_next_sequence(r, end) == UINT64_MAX;
    set_span(place, out->n);
    return 0;
}

int reader_next_steps_one(struct err *err, struct reader *r, struct reader_step_place *place,
                          struct reader_steps *out)
{
    int res = reader_fill_steps(r, place, out);
    if (!res)
        res = reader_show_ids(&r->names, out);
    return again(err, r, res);
}
