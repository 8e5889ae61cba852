/* SPDX-License-Identifier: Apache-2.0 */
/* The steps that a selection needs: those that its records name, or all. */
#include "core/cleanup.h"
#include "storage/reader/reader_steps.h"

#include <errno.h>
#include <stdlib.h>

static int step_order(const void *pa, const void *pb)
{
    const struct reader_step *a = pa, *b = pb;
    ORDER(a, b, entry->sequence);
    return a->place < b->place ? -1 : a->place > b->place;
}

/* The first step of that number or a later one. */
static size_t lower_step(const struct reader_steps *steps, uint64_t sequence)
{
    size_t i;
    SEARCH(i, steps->n, steps->all[i].entry->sequence < sequence);
    return i;
}

struct reader_step *reader_find_step(const struct reader_steps *steps, uint64_t sequence)
{
    size_t at = lower_step(steps, sequence);
    return at < steps->n && steps->all[at].entry->sequence == sequence ? &steps->all[at] : NULL;
}

size_t reader_steps_to(const struct reader_steps *steps, uint64_t sequence)
{
    return sequence == UINT64_MAX ? steps->n : lower_step(steps, sequence + 1);
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
    qsort(list, n, sizeof *list, order_u64);
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

static int add_step(struct reader_steps *out, const struct reader_chunk *c, size_t i)
{
    if (GROW(out->all, out->n, out->room))
        return -ENOMEM;
    struct reader_step *step = &out->all[out->n++];
    *step = c->steps[i];
    step->again = chunk_type_repeats(c->type);
    step->place = c->sequence;
    return 0;
}

/* Of a step and its repetitions the first counts; one that stands there twice by itself is named by reader_verify(). */
static void put_in_order(struct reader_steps *steps)
{
    size_t n = 0;
    SORT(steps->all, steps->n, step_order);
    for (size_t i = 0; i < steps->n; i++)
        if (!n || !steps->all[i].again ||
            steps->all[i].entry->sequence != steps->all[n - 1].entry->sequence)
            steps->all[n++] = steps->all[i];
    steps->n = n;
}

/* ------------------------------------------------------------------------- all of a selection */

int reader_select_steps(struct reader *r, bool all)
{
    const uint64_t *named = r->selection.named;
    size_t n_named = r->selection.n_named;
    bool incomplete = reader_is_incomplete(r);
    struct reader_cursor at = { 0 };
    struct reader_chunk *c;
    int res;
    while (!(res = reader_next_listed(r, DMI_CHUNK_STEPS, &at, &c)) && c) {
        const char *wrong = NULL;
        bool counts = all || c->type == DMI_CHUNK_STEPS_PACKED || meets(c, named, n_named);
        if (!(chunk_type_repeats(c->type) ? incomplete : counts))
            continue;
        res = reader_load_chunk(r, &r->index.segments[at.segment], c, &wrong);
        if (res == -EBADMSG)
            res = reader_distrust(r, at.segment, at.chunk, wrong);
        for (size_t i = 0; !res && i < c->n_held; i++)
            res = add_step(&r->selection.steps, c, i);
        if (res)
            return res;
    }
    if (!res)
        put_in_order(&r->selection.steps);
    return res;
}

/* ------------------------------------------------------------------------- some at a time */

int reader_hold(struct reader_steps *steps, struct reader_chunk *c)
{
    if (c->in_part || !c->bytes)
        return 0;
    /* entries point into both */
    if (PUSH(steps->held, steps->n_held, steps->held_room, 64, steal_ptr(c->bytes)))
        return -ENOMEM;
    if (!c->spans)
        return 0;
    return PUSH(steps->held, steps->n_held, steps->held_room, 64, steal_ptr(c->spans));
}

static int take_steps(struct reader *r, struct reader_segment *s, struct reader_chunk *c,
                      const struct reader_step_filter *filter, struct reader_steps *out)
{
    size_t before = out->n;
    (void)r;
    (void)s;
    for (size_t i = 0; i < c->n_held; i++)
        if (reader_filter_has(filter, c->steps[i].entry->sequence) && add_step(out, c, i))
            return -ENOMEM;
    return out->n > before ? reader_hold(out, c) : 0;
}

int reader_load_steps(struct reader *r, const struct reader_step_filter *filter,
                      struct reader_steps *out)
{
    int res = reader_visit_extents(r, DMI_CHUNK_STEPS, filter, take_steps, out);
    if (!res)
        put_in_order(out);
    return res;
}

void reader_clear_steps(struct reader_steps *steps)
{
    for (size_t i = 0; i < steps->n_held; i++)
        free(steps->held[i]);
    steps->n = steps->n_ends = steps->n_outcomes = steps->n_shown = steps->n_held = 0;
    steps->any_before = false;
}

void reader_free_steps(struct reader_steps *steps)
{
    reader_clear_steps(steps);
    free(steps->all);
    free(steps->ends);
    free(steps->outcomes);
    free(steps->shown);
    free(steps->held);
    *steps = (struct reader_steps){ 0 };
}

/* ------------------------------------------------------------------------- what was selected */

const struct reader_steps *reader_steps(const struct reader *r)
{
    return &r->selection.steps;
}

size_t reader_n_steps(const struct reader *r)
{
    return r->selection.steps.n;
}

const struct reader_step *reader_step(const struct reader *r, size_t i)
{
    return i < r->selection.steps.n ? &r->selection.steps.all[i] : NULL;
}

const int32_t *reader_first_ranks(const struct reader *r)
{
    const struct reader_steps *steps = &r->selection.steps;
    if (r->names.any_step)
        return r->names.ranks;
    return steps->n ? steps->all[0].entry->ranks : NULL;
}

const int32_t *reader_cached_ids(const struct reader_step *step, uint32_t span)
{
    const struct dmi_span_entry *s = &step->spans[span];
    return s->n_ids ? (const int32_t *)((const char *)step->entry + s->ids_offset) : NULL;
}
