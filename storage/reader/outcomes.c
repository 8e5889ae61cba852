/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OUTCOMES: what became of rows after their step. Those of spans go to the steps that they name, ends of requests into a
 * list. Source: docs/format.md 6.1.
 */
#include "storage/reader/reader_steps.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* ------------------------------------------------------------------------- joined with steps */

/* Entry @i of the list of accepted rows, which is not aligned. */
static uint32_t listed(const struct reader_outcome *o, size_t i)
{
    uint32_t row;
    memcpy(&row, o->list + i * sizeof row, sizeof row);
    return row;
}

/* The span that an outcome is of; NULL: it is of none, or its step is not there. *@wrong where it cannot be. */
static struct reader_step *step_of(const struct reader_steps *steps, const struct reader_outcome *o,
                                   const char **wrong)
{
    struct reader_step *step = reader_find_step(steps, o->at.step);
    if (o->at.span == DMI_OUTCOME_NO_SPAN || !step)
        return NULL;
    *wrong = "an outcome's span is not in its step";
    if (o->at.span >= step->entry->n_spans)
        return NULL;
    uint32_t n_tokens = step->spans[o->at.span].n_tokens, n = o->at.n_accepted;
    *wrong = "an outcome names rows that its span has not";
    if (o->at.flags & DMI_OUTCOME_ACCEPTED &&
        (n > n_tokens || (o->list && n && listed(o, n - 1) >= n_tokens)))
        return NULL;
    *wrong = NULL;
    return step;
}

static int add_end(struct reader_steps *steps, const struct reader_chunk *c, uint32_t number,
                   const struct reader_step *step)
{
    const struct reader_outcome *o = &c->outcomes[number];
    struct reader_end end = { .shed = !(o->at.flags & DMI_OUTCOME_END),
                              .reason = o->at.reason,
                              .time_ns = o->at.time_ns,
                              .place = c->sequence,
                              .number = number };
    if (step) {
        end.id = reader_span_id(step, o->at.span, &end.n_id);
        end.after = (size_t)(step - steps->all) + 1;
    } else if (o->at.id_bytes) {
        end.id = o->id;
        end.n_id = o->at.id_bytes;
        end.after = o->at.step == DMI_NO_STEP ? 0 : reader_steps_to(steps, o->at.step);
    } else {
        return 0; /* of a step that is not selected */
    }
    return PUSH(steps->ends, steps->n_ends, steps->ends_room, 64, end);
}

/* Outcome @number of a chunk. @ends: also an end. */
static int add_outcome(struct reader *r, struct reader_segment *s, struct reader_chunk *c,
                       uint32_t number, bool ends, struct reader_steps *steps)
{
    const struct reader_outcome *o = &c->outcomes[number];
    const char *wrong = NULL;
    const struct reader_step *step = step_of(steps, o, &wrong);
    if (wrong) {
        if (!c->noted)
            NOTE_CHUNK(r, s, c, "the chunk (%s) contradicts the steps: %s",
                       chunk_type_name(c->type), wrong);
        c->noted = true;
        return 0;
    }
    if (step && o->at.flags & DMI_OUTCOME_ACCEPTED) {
        if (GROW(steps->outcomes, steps->n_outcomes, steps->outcomes_room))
            return -ENOMEM;
        struct reader_outcome *to = &steps->outcomes[steps->n_outcomes];
        *to = *o;
        to->step = (size_t)(step - steps->all);
        to->place = steps->n_outcomes++;
    }
    bool end = o->at.flags & (DMI_OUTCOME_END | DMI_OUTCOME_SHED);
    return end && ends ? add_end(steps, c, number, step) : 0;
}

static int outcome_order(const void *pa, const void *pb)
{
    const struct reader_outcome *a = pa, *b = pb;
    ORDER(a, b, step);
    ORDER(a, b, at.span);
    return a->place < b->place ? -1 : a->place > b->place;
}

static int same_end(const struct reader_end *a, const struct reader_end *b)
{
    ORDER(a, b, after);
    ORDER(a, b, time_ns);
    if (a->shed != b->shed)
        return a->shed ? -1 : 1;
    ORDER(a, b, n_id);
    return a->n_id ? memcmp(a->id, b->id, a->n_id) : 0;
}

static int end_order(const void *pa, const void *pb)
{
    const struct reader_end *a = pa, *b = pb;
    int c = same_end(a, b);
    if (c)
        return c;
    ORDER(a, b, place);
    ORDER(a, b, number);
    return 0;
}

/* A segment may repeat what an earlier one says. */
static void drop_repeated_ends(struct reader_steps *steps)
{
    size_t n = 0;
    for (size_t i = 0; i < steps->n_ends; i++)
        if (!n || same_end(&steps->ends[n - 1], &steps->ends[i]))
            steps->ends[n++] = steps->ends[i];
    steps->n_ends = n;
}

void reader_attach_outcomes(struct reader_steps *steps)
{
    size_t kept = 0;
    SORT(steps->outcomes, steps->n_outcomes, outcome_order);
    for (size_t i = 0; i < steps->n_outcomes; i++) { /* of several for one span the last counts */
        const struct reader_outcome *o = &steps->outcomes[i];
        bool again =
            i + 1 < steps->n_outcomes && o[1].step == o->step && o[1].at.span == o->at.span;
        if (!again)
            steps->outcomes[kept++] = *o;
    }
    steps->n_outcomes = kept;
    for (size_t i = 0; i < kept; i++) {
        struct reader_step *step = &steps->all[steps->outcomes[i].step];
        step->outcomes = step->n_outcomes ? step->outcomes : &steps->outcomes[i];
        step->n_outcomes++;
    }
    SORT(steps->ends, steps->n_ends, end_order);
    drop_repeated_ends(steps);
}

int reader_select_outcomes(struct reader *r)
{
    bool incomplete = reader_is_incomplete(r);
    struct reader_cursor at = { 0 };
    struct reader_chunk *c;
    int res;
    while (!(res = reader_next_listed(r, DMI_CHUNK_OUTCOMES, &at, &c)) && c) {
        struct reader_segment *s = &r->index.segments[at.segment];
        const char *wrong = NULL;
        if (chunk_type_repeats(c->type) && !incomplete)
            continue;
        res = reader_load_chunk(r, s, c, &wrong);
        for (uint32_t i = 0; !res && i < c->n_held; i++)
            res = add_outcome(r, s, c, i, true, &r->selection.steps);
        if (res == -EBADMSG)
            res = reader_distrust(r, at.segment, at.chunk, wrong);
        if (res)
            return res;
    }
    if (!res)
        reader_attach_outcomes(&r->selection.steps);
    return res;
}

/* ------------------------------------------------------------------------- some at a time */

static int take_outcomes(struct reader *r, struct reader_segment *s, struct reader_chunk *c,
                         const struct reader_step_filter *filter, struct reader_steps *out)
{
    size_t before = out->n_outcomes + out->n_ends;
    for (uint32_t i = 0; i < c->n_held; i++)
        if (reader_filter_has(filter, reader_outcome_place(&c->outcomes[i])) &&
            add_outcome(r, s, c, i, filter->ends, out))
            return -ENOMEM;
    return out->n_outcomes + out->n_ends > before ? reader_hold(out, c) : 0;
}

int reader_load_outcomes(struct reader *r, const struct reader_step_filter *filter,
                         struct reader_steps *out)
{
    int res = reader_visit_extents(r, DMI_CHUNK_OUTCOMES, filter, take_outcomes, out);
    if (!res)
        reader_attach_outcomes(out);
    return res;
}

/* ------------------------------------------------------------------------- what was selected */

const struct reader_outcome *reader_outcome_of(const struct reader_step *step, uint32_t span)
{
    size_t i;
    SEARCH(i, step->n_outcomes, step->outcomes[i].at.span < span);
    return i < step->n_outcomes && step->outcomes[i].at.span == span ? &step->outcomes[i] : NULL;
}

bool reader_outcome_has(const struct reader_outcome *o, uint32_t token, uint32_t *n)
{
    if (!o || !o->list) {
        bool has = !o || token < o->at.n_accepted;
        *n = o && has ? o->at.n_accepted - token : UINT32_MAX;
        return has;
    }
    size_t i;
    SEARCH(i, o->at.n_accepted, listed(o, i) < token);
    if (i == o->at.n_accepted) {
        *n = UINT32_MAX;
        return false;
    }
    uint32_t row = listed(o, i);
    *n = row == token ? 1 : row - token;
    return row == token;
}

size_t reader_n_ends(const struct reader *r)
{
    return r->selection.steps.n_ends;
}

const struct reader_end *reader_end(const struct reader *r, size_t i)
{
    return i < r->selection.steps.n_ends ? &r->selection.steps.ends[i] : NULL;
}
