/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OUTCOMES: what became of rows after their step. Those of spans go to the steps that they name, ends of requests into a
 * list. Source: docs/format.md 6.1.
 */
#include "core/cleanup.h"
#include "storage/reader/reader_private.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* ------------------------------------------------------------------------- a chunk */

int reader_take_outcomes(struct reader_chunk *c, uint64_t n_meta, uint8_t *bytes,
                         const char **wrong)
{
    _cleanup_(freep) uint8_t *owned = bytes;
    struct outcomes_view v;
    parse_outcomes(bytes, n_meta, &v, wrong);
    if (*wrong)
        return 0;
    struct reader_outcome *all = calloc(v.n + 1u, sizeof *all);
    if (!all)
        return -ENOMEM;
    for (uint32_t i = 0; i < v.n; i++) {
        struct reader_outcome o = { 0 };
        const char *what = parse_outcome(&v, i, &o.at, &o.list, &o.id);
        if (what && !*wrong)
            *wrong = what;
        else if (!what)
            all[c->n_held++] = o;
    }
    c->bytes = steal_ptr(owned);
    c->outcomes = all;
    return 0;
}

/* ------------------------------------------------------------------------- joined with steps */

/* The span that an outcome is of; NULL: it is of none, or its step is not selected. *@wrong where it cannot be. */
static struct reader_step *step_of(struct reader *r, const struct reader_outcome *o,
                                   const char **wrong)
{
    struct reader_step *step = reader_find_step(r, o->at.step);
    if (o->at.span == DMI_OUTCOME_NO_SPAN || !step)
        return NULL;
    *wrong = "an outcome's span is not in its step";
    if (o->at.span >= step->entry->n_spans)
        return NULL;
    uint32_t n_tokens = step->spans[o->at.span].n_tokens, last = 0;
    *wrong = "an outcome names rows that its span has not";
    if (o->list && o->at.n_accepted)
        memcpy(&last, o->list + (o->at.n_accepted - 1) * sizeof last, sizeof last);
    if (o->at.flags & DMI_OUTCOME_ACCEPTED &&
        (o->at.n_accepted > n_tokens || (o->list && o->at.n_accepted && last >= n_tokens)))
        return NULL;
    *wrong = NULL;
    return step;
}

static int add_end(struct reader *r, const struct reader_outcome *o, const struct reader_step *step)
{
    struct reader_end end = { .shed = !(o->at.flags & DMI_OUTCOME_END),
                              .reason = o->at.reason,
                              .time_ns = o->at.time_ns };
    if (step) {
        end.id = reader_span_id(step, o->at.span, &end.n_id);
        end.after = (size_t)(step - r->steps) + 1;
    } else if (o->at.id_bytes) {
        end.id = o->id;
        end.n_id = o->at.id_bytes;
        end.after = o->at.step == DMI_NO_STEP ? 0 : reader_steps_to(r, o->at.step);
    } else {
        return 0; /* of a step that is not selected */
    }
    if (reader_grow((void **)&r->ends, r->n_ends, &r->ends_room, sizeof *r->ends))
        return -ENOMEM;
    r->ends[r->n_ends++] = end;
    return 0;
}

static int add_outcome(struct reader *r, struct reader_segment *s, struct reader_chunk *c,
                       const struct reader_outcome *o)
{
    const char *wrong = NULL;
    const struct reader_step *step = step_of(r, o, &wrong);
    if (wrong) {
        if (!c->noted)
            reader_note(r, true, s->name, (int64_t)c->sequence, c->offset,
                        "the chunk (%s) contradicts the steps: %s", chunk_type_name(c->type),
                        wrong);
        c->noted = true;
        return 0;
    }
    if (step && o->at.flags & DMI_OUTCOME_ACCEPTED) {
        if (reader_grow((void **)&r->outcomes, r->n_outcomes, &r->outcomes_room,
                        sizeof *r->outcomes))
            return -ENOMEM;
        r->outcomes[r->n_outcomes] = *o;
        r->outcomes[r->n_outcomes].step = (size_t)(step - r->steps);
        r->outcomes[r->n_outcomes].place = r->n_outcomes;
        r->n_outcomes++;
    }
    return o->at.flags & (DMI_OUTCOME_END | DMI_OUTCOME_SHED) ? add_end(r, o, step) : 0;
}

static int outcome_order(const void *pa, const void *pb)
{
    const struct reader_outcome *a = pa, *b = pb;
    if (a->step != b->step)
        return a->step < b->step ? -1 : 1;
    if (a->at.span != b->at.span)
        return a->at.span < b->at.span ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

static int end_order(const void *pa, const void *pb)
{
    const struct reader_end *a = pa, *b = pb;
    if (a->after != b->after)
        return a->after < b->after ? -1 : 1;
    if (a->time_ns != b->time_ns)
        return a->time_ns < b->time_ns ? -1 : 1;
    if (a->shed != b->shed)
        return a->shed ? -1 : 1;
    if (a->n_id != b->n_id)
        return a->n_id < b->n_id ? -1 : 1;
    return a->n_id ? memcmp(a->id, b->id, a->n_id) : 0;
}

/* A segment may repeat what an earlier one says. */
static void drop_repeated_ends(struct reader *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n_ends; i++)
        if (!n || end_order(&r->ends[n - 1], &r->ends[i]))
            r->ends[n++] = r->ends[i];
    r->n_ends = n;
}

void reader_attach_outcomes(struct reader *r)
{
    size_t kept = 0;
    if (r->n_outcomes)
        qsort(r->outcomes, r->n_outcomes, sizeof *r->outcomes, outcome_order);
    for (size_t i = 0; i < r->n_outcomes; i++) { /* of several for one span the last counts */
        const struct reader_outcome *o = &r->outcomes[i];
        bool again = i + 1 < r->n_outcomes && o[1].step == o->step && o[1].at.span == o->at.span;
        if (!again)
            r->outcomes[kept++] = *o;
    }
    r->n_outcomes = kept;
    for (size_t i = 0; i < kept; i++) {
        struct reader_step *step = &r->steps[r->outcomes[i].step];
        step->outcomes = step->n_outcomes ? step->outcomes : &r->outcomes[i];
        step->n_outcomes++;
    }
    if (r->n_ends)
        qsort(r->ends, r->n_ends, sizeof *r->ends, end_order);
    drop_repeated_ends(r);
}

int reader_select_outcomes(struct reader *r, uint32_t segment, uint32_t chunk, const char **wrong)
{
    struct reader_segment *s = &r->segments[segment];
    struct reader_chunk *c = &s->chunks[chunk];
    int res = reader_load_chunk(r, s, c, wrong);
    for (size_t i = 0; !res && i < c->n_held; i++)
        res = add_outcome(r, s, c, &c->outcomes[i]);
    return res;
}

/* ------------------------------------------------------------------------- what was selected */

const struct reader_outcome *reader_outcome_of(const struct reader_step *step, uint32_t span)
{
    size_t low = 0, high = step->n_outcomes;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (step->outcomes[mid].at.span < span)
            low = mid + 1;
        else
            high = mid;
    }
    return low < step->n_outcomes && step->outcomes[low].at.span == span ? &step->outcomes[low]
                                                                         : NULL;
}

bool reader_outcome_has(const struct reader_outcome *o, uint32_t token, uint32_t *n)
{
    if (!o || !o->list) {
        bool has = !o || token < o->at.n_accepted;
        *n = o && has ? o->at.n_accepted - token : UINT32_MAX;
        return has;
    }
    uint32_t low = 0, high = o->at.n_accepted, row = 0;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        memcpy(&row, o->list + mid * sizeof row, sizeof row);
        if (row < token)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == o->at.n_accepted) {
        *n = UINT32_MAX;
        return false;
    }
    memcpy(&row, o->list + low * sizeof row, sizeof row);
    *n = row == token ? 1 : row - token;
    return row == token;
}

size_t reader_n_ends(const struct reader *r)
{
    return r->n_ends;
}

const struct reader_end *reader_end(const struct reader *r, size_t i)
{
    return i < r->n_ends ? &r->ends[i] : NULL;
}
