/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In which chunks steps and outcomes lie, by the sequence of the step, so that those of a window are found without reading
 * the others. Some bytes for a few dozen chunks stay in memory; the chunks are read again. The index has the steps of chunks
 * of steps; of the others each is read once.
 */
#include "storage/reader/reader_steps.h"

#include <errno.h>

#define CHUNKS_EACH 64u

bool reader_is_incomplete(const struct reader *r)
{
    uint32_t next = 0;
    for (size_t i = 0; i < r->index.n_segments; i++) {
        const struct reader_segment *s = &r->index.segments[i];
        if (r->place.dir < 0 || s->number != next++ || s->lost || s->unsaid || !s->header_ok)
            return true;
    }
    return false;
}

uint64_t reader_outcome_place(const struct reader_outcome *o)
{
    return o->at.step == DMI_NO_STEP ? 0 : o->at.step;
}

bool reader_filter_has(const struct reader_step_filter *f, uint64_t sequence)
{
    if (sequence < f->first || sequence >= f->end)
        return false;
    size_t i = 0;
    if (f->named)
        SEARCH(i, f->n_named, f->named[i] < sequence);
    return !f->named || (i < f->n_named && f->named[i] == sequence);
}

/* Whether one that is meant may lie between. */
static bool meets(const struct reader_step_filter *f, uint64_t low, uint64_t high)
{
    size_t i = 0;
    if (low >= f->end || high < f->first)
        return false;
    if (f->named)
        SEARCH(i, f->n_named, f->named[i] < low);
    return !f->named || (i < f->n_named && f->named[i] <= high);
}

/* ------------------------------------------------------------------------- finding them */

/* The sequences of what a chunk holds. Return: whether it holds anything. */
static bool range_of(const struct reader_chunk *c, uint64_t *low, uint64_t *high)
{
    bool steps = chunk_type_of(c->type) == DMI_CHUNK_STEPS;
    *low = UINT64_MAX;
    *high = 0;
    for (size_t i = 0; i < c->n_held; i++) {
        uint64_t at = steps ? c->steps[i].entry->sequence : reader_outcome_place(&c->outcomes[i]);
        *low = at < *low ? at : *low;
        *high = at > *high ? at : *high;
    }
    return c->n_held != 0;
}

static int add_extent(struct reader_segment *s, uint32_t of, uint32_t chunk, uint64_t low,
                      uint64_t high)
{
    struct reader_extent *e = NULL; /* the last of its kind: both kinds take turns */
    for (size_t k = 1; !e && k <= 2 && k <= s->n_extents; k++)
        e = s->extents[s->n_extents - k].of == of ? &s->extents[s->n_extents - k] : NULL;
    if (!e || chunk - e->first >= CHUNKS_EACH) {
        if (grow((void **)&s->extents, s->n_extents, &s->extents_room, sizeof *s->extents, 4))
            return -ENOMEM;
        e = &s->extents[s->n_extents++];
        *e = (struct reader_extent){ of, chunk, chunk, low, high };
    }
    e->last = chunk;
    e->low = low < e->low ? low : e->low;
    e->high = high > e->high ? high : e->high;
    return 0;
}

/* Frees what a chunk holds, if it can be read again. */
static void leave(struct reader_chunk *c)
{
    if (!c->in_part)
        reader_free_held(c);
}

static int extend(struct reader *r, uint32_t segment, uint32_t chunk)
{
    struct reader_segment *s = &r->index.segments[segment];
    struct reader_chunk *c = &s->chunks[chunk];
    uint32_t of = chunk_type_of(c->type);
    uint64_t low = c->first, high = c->last;
    if (of != DMI_CHUNK_STEPS && of != DMI_CHUNK_OUTCOMES)
        return 0;
    bool any = c->n;
    if (c->type != DMI_CHUNK_STEPS) {
        const char *wrong = NULL;
        int res = reader_load_chunk(r, s, c, &wrong);
        if (res == -EBADMSG)
            return reader_distrust(r, segment, chunk, wrong);
        if (res)
            return res;
        any = range_of(c, &low, &high);
    }
    leave(c);
    return any ? add_extent(s, of, chunk, low, high) : 0;
}

/* The segment's footer cannot be read any more. Return: 0: as it was deleted, while windows are read; -EAGAIN, -errno. */
static int pass_over(struct reader *r, uint32_t segment, bool by_window)
{
    struct reader_segment *s = &r->index.segments[segment];
    if (by_window && reader_take_vanished(&r->notes)) {
        s->unsaid = true;
        return 0;
    }
    int res = reader_walk_anew(r, segment);
    return res ? res : -EAGAIN;
}

int reader_find_extents(struct reader *r)
{
    for (uint32_t i = 0; i < r->index.n_segments; i++) {
        struct reader_segment *s = &r->index.segments[i];
        int res = s->indexed && s->n_extended ? 0 : reader_list_chunks(r, s);
        if (res)
            return res == -EBADMSG ? pass_over(r, i, false) : res;
        for (; s->n_extended < s->n_chunks; s->n_extended++)
            if ((res = extend(r, i, (uint32_t)s->n_extended)))
                return res;
    }
    return 0;
}

uint64_t reader_next_sequence(const struct reader *r, uint64_t from)
{
    uint64_t next = UINT64_MAX;
    for (size_t i = 0; i < r->index.n_segments; i++)
        for (size_t k = 0; k < r->index.segments[i].n_extents; k++) {
            const struct reader_extent *e = &r->index.segments[i].extents[k];
            uint64_t low = e->low > from ? e->low : from;
            next = e->high >= from && low < next ? low : next;
        }
    return next;
}

/* ------------------------------------------------------------------------- reading them again */

/* Loads a chunk and hands it over. Return: as reader_visit_extents(); 1: the segment was deleted. */
static int visit_chunk(struct reader *r, uint32_t segment, uint32_t chunk,
                       const struct reader_step_filter *f, reader_chunk_visit *visit,
                       struct reader_steps *out)
{
    struct reader_segment *s = &r->index.segments[segment];
    struct reader_chunk *c = &s->chunks[chunk];
    const char *wrong = NULL;
    int res = reader_load_chunk(r, s, c, &wrong);
    if (res == -EBADMSG && reader_take_vanished(&r->notes)) {
        s->unsaid = true;
        return 1;
    }
    if (res == -EBADMSG)
        return reader_distrust(r, segment, chunk, wrong);
    if (!res)
        res = visit(r, s, c, f, out);
    leave(c);
    return res;
}

static int visit_extent(struct reader *r, uint32_t segment, const struct reader_extent *extent,
                        const struct reader_step_filter *f, reader_chunk_visit *visit,
                        struct reader_steps *out)
{
    const struct reader_extent e = *extent;
    struct reader_segment *s = &r->index.segments[segment];
    bool incomplete = reader_is_incomplete(r);
    int res = reader_list_chunks(r, s);
    if (res)
        return res == -EBADMSG ? pass_over(r, segment, true) : res;
    for (uint32_t i = e.first; !res && i <= e.last && i < s->n_chunks; i++) {
        const struct reader_chunk *c = &s->chunks[i];
        bool counts = chunk_type_repeats(c->type)  ? incomplete
                      : c->type == DMI_CHUNK_STEPS ? meets(f, c->first, c->last)
                                                   : true;
        if (chunk_type_of(c->type) == e.of && counts)
            res = visit_chunk(r, segment, i, f, visit, out);
    }
    return res == 1 ? 0 : res;
}

int reader_visit_extents(struct reader *r, uint32_t of, const struct reader_step_filter *f,
                         reader_chunk_visit *visit, struct reader_steps *out)
{
    int res = 0;
    for (uint32_t i = 0; !res && i < r->index.n_segments; i++) {
        const struct reader_segment *s = &r->index.segments[i];
        for (size_t k = 0; !res && !s->unsaid && k < s->n_extents; k++)
            if (s->extents[k].of == of && meets(f, s->extents[k].low, s->extents[k].high))
                res = visit_extent(r, i, &s->extents[k], f, visit, out);
    }
    return res;
}
