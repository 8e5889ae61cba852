/* SPDX-License-Identifier: Apache-2.0 */
/* The steps that a selection needs: those that its records name, or all. */
#include "core/cleanup.h"
#include "storage/reader/reader_private.h"

#include <errno.h>
#include <stdlib.h>

bool reader_is_incomplete(const struct reader *r)
{
    uint32_t next = 0;
    for (size_t i = 0; i < r->index.n_segments; i++) {
        const struct reader_segment *s = &r->index.segments[i];
        if (r->place.dir < 0 || s->number != next++ || s->lost || !s->header_ok)
            return true;
    }
    return false;
}

static int step_order(const void *pa, const void *pb)
{
    const struct reader_step *a = pa, *b = pb;
    ORDER(a, b, entry->sequence);
    return a->place < b->place ? -1 : a->place > b->place;
}

/* The first selected step of that number or a later one. */
static size_t lower_step(const struct reader *r, uint64_t sequence)
{
    size_t i;
    SEARCH(i, r->selection.n_steps, r->selection.steps[i].entry->sequence < sequence);
    return i;
}

struct reader_step *reader_find_step(const struct reader *r, uint64_t sequence)
{
    size_t at = lower_step(r, sequence);
    return at < r->selection.n_steps && r->selection.steps[at].entry->sequence == sequence
               ? &r->selection.steps[at]
               : NULL;
}

size_t reader_steps_to(const struct reader *r, uint64_t sequence)
{
    return sequence == UINT64_MAX ? r->selection.n_steps : lower_step(r, sequence + 1);
}

int reader_name_steps(struct reader *r)
{
    struct reader_selection *s = &r->selection;
    uint64_t *list = realloc(s->named, (s->n_named + s->n_records + 1) * sizeof *list);
    if (!list)
        return -ENOMEM;
    s->named = list;
    size_t n = s->n_named;
    for (size_t i = 0; i < s->n_records; i++)
        if (s->records[i].at.step != DMI_NO_STEP && (!n || list[n - 1] != s->records[i].at.step))
            list[n++] = s->records[i].at.step;
    qsort(list, n, sizeof *list, reader_number_order);
    r->selection.n_named = 0;
    for (size_t i = 0; i < n; i++)
        if (!i || list[i] != list[i - 1])
            list[r->selection.n_named++] = list[i];
    return 0;
}

/* Whether one of the sorted @list lies in what the chunk holds. */
static bool meets(const struct reader_chunk *c, const uint64_t *list, size_t n)
{
    size_t i;
    SEARCH(i, n, list[i] < c->first);
    return i < n && list[i] <= c->last;
}

static int add_steps(struct reader *r, const struct reader_chunk *c)
{
    struct reader_selection *s = &r->selection;
    for (size_t i = 0; i < c->n_held; i++) {
        if (GROW(s->steps, s->n_steps, s->steps_room))
            return -ENOMEM;
        struct reader_step *step = &s->steps[s->n_steps++];
        *step = c->steps[i];
        step->again = chunk_type_repeats(c->type);
        step->place = c->sequence;
    }
    return 0;
}

/* Of a step and its repetitions the first counts; one that stands there twice by itself is named by reader_verify(). */
static void drop_repeated(struct reader *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->selection.n_steps; i++)
        if (!n || !r->selection.steps[i].again ||
            r->selection.steps[i].entry->sequence != r->selection.steps[n - 1].entry->sequence)
            r->selection.steps[n++] = r->selection.steps[i];
    r->selection.n_steps = n;
}

int reader_select_steps(struct reader *r, bool all)
{
    const uint64_t *named = r->selection.named;
    size_t n_named = r->selection.n_named;
    bool incomplete = reader_is_incomplete(r);
    int res = 0;
    struct reader_cursor at = { 0 };
    for (struct reader_chunk *c; !res && (c = reader_next_chunk(r, DMI_CHUNK_STEPS, &at));) {
        const char *wrong = NULL;
        if (!(chunk_type_repeats(c->type) ? incomplete : all || meets(c, named, n_named)))
            continue;
        res = reader_load_chunk(r, &r->index.segments[at.segment], c, &wrong);
        if (res == -EBADMSG)
            res = reader_distrust(r, at.segment, at.chunk, wrong);
        if (!res)
            res = add_steps(r, c);
    }
    if (res)
        return res;
    SORT(r->selection.steps, r->selection.n_steps, step_order);
    drop_repeated(r);
    return 0;
}

size_t reader_n_steps(const struct reader *r)
{
    return r->selection.n_steps;
}

const struct reader_step *reader_step(const struct reader *r, size_t i)
{
    return i < r->selection.n_steps ? &r->selection.steps[i] : NULL;
}

const int32_t *reader_cached_ids(const struct reader_step *step, uint32_t span)
{
    const struct dmi_span_entry *s = &step->spans[span];
    return s->n_ids ? (const int32_t *)((const char *)step->entry + s->ids_offset) : NULL;
}
