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

/* ------------------------------------------------------------------------- joined with steps */

/* Entry @i of the list of accepted rows, which is not aligned. */
static uint32_t listed(const struct reader_outcome *o, size_t i)
{
    uint32_t row;
    memcpy(&row, o->list + i * sizeof row, sizeof row);
    return row;
}

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
    uint32_t n_tokens = step->spans[o->at.span].n_tokens, n = o->at.n_accepted;
    *wrong = "an outcome names rows that its span has not";
    if (o->at.flags & DMI_OUTCOME_ACCEPTED &&
        (n > n_tokens || (o->list && n && listed(o, n - 1) >= n_tokens)))
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
        end.after = (size_t)(step - r->selection.steps) + 1;
    } else if (o->at.id_bytes) {
        end.id = o->id;
        end.n_id = o->at.id_bytes;
        end.after = o->at.step == DMI_NO_STEP ? 0 : reader_steps_to(r, o->at.step);
    } else {
        return 0; /* of a step that is not selected */
    }
    if (GROW(r->selection.ends, r->selection.n_ends, r->selection.ends_room))
        return -ENOMEM;
    r->selection.ends[r->selection.n_ends++] = end;
    return 0;
}

static int add_outcome(struct reader *r, struct reader_segment *s, struct reader_chunk *c,
                       const struct reader_outcome *o)
{
    const char *wrong = NULL;
    const struct reader_step *step = step_of(r, o, &wrong);
    if (wrong) {
        if (!c->noted)
            NOTE_CHUNK(r, s, c, "the chunk (%s) contradicts the steps: %s",
                       chunk_type_name(c->type), wrong);
        c->noted = true;
        return 0;
    }
    if (step && o->at.flags & DMI_OUTCOME_ACCEPTED) {
        if (GROW(r->selection.outcomes, r->selection.n_outcomes, r->selection.outcomes_room))
            return -ENOMEM;
        struct reader_outcome *to = &r->selection.outcomes[r->selection.n_outcomes];
        *to = *o;
        to->step = (size_t)(step - r->selection.steps);
        to->place = r->selection.n_outcomes++;
    }
    return o->at.flags & (DMI_OUTCOME_END | DMI_OUTCOME_SHED) ? add_end(r, o, step) : 0;
}

static int outcome_order(const void *pa, const void *pb)
{
    const struct reader_outcome *a = pa, *b = pb;
    ORDER(a, b, step);
    ORDER(a, b, at.span);
    return a->place < b->place ? -1 : a->place > b->place;
}

static int end_order(const void *pa, const void *pb)
{
    const struct reader_end *a = pa, *b = pb;
    ORDER(a, b, after);
    ORDER(a, b, time_ns);
    if (a->shed != b->shed)
        return a->shed ? -1 : 1;
    ORDER(a, b, n_id);
    return a->n_id ? memcmp(a->id, b->id, a->n_id) : 0;
}

/* A segment may repeat what an earlier one says. */
static void drop_repeated_ends(struct reader *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->selection.n_ends; i++)
        if (!n || end_order(&r->selection.ends[n - 1], &r->selection.ends[i]))
            r->selection.ends[n++] = r->selection.ends[i];
    r->selection.n_ends = n;
}

void reader_attach_outcomes(struct reader *r)
{
    size_t kept = 0;
    SORT(r->selection.outcomes, r->selection.n_outcomes, outcome_order);
    for (size_t i = 0; i < r->selection.n_outcomes;
         i++) { /* of several for one span the last counts */
        const struct reader_outcome *o = &r->selection.outcomes[i];
        bool again =
            i + 1 < r->selection.n_outcomes && o[1].step == o->step && o[1].at.span == o->at.span;
        if (!again)
            r->selection.outcomes[kept++] = *o;
    }
    r->selection.n_outcomes = kept;
    for (size_t i = 0; i < kept; i++) {
        struct reader_step *step = &r->selection.steps[r->selection.outcomes[i].step];
        step->outcomes = step->n_outcomes ? step->outcomes : &r->selection.outcomes[i];
        step->n_outcomes++;
    }
    SORT(r->selection.ends, r->selection.n_ends, end_order);
    drop_repeated_ends(r);
}

/* Adds those of a chunk to the selection, whose steps are there. Return: as reader_load_chunk(). */
static int select_chunk(struct reader *r, struct reader_segment *s, struct reader_chunk *c,
                        const char **wrong)
{
    int res = reader_load_chunk(r, s, c, wrong);
    for (size_t i = 0; !res && i < c->n_held; i++)
        res = add_outcome(r, s, c, &c->outcomes[i]);
    return res;
}

int reader_select_outcomes(struct reader *r)
{
    bool incomplete = reader_is_incomplete(r);
    int res = 0;
    struct reader_cursor at = { 0 };
    for (struct reader_chunk *c; !res && (c = reader_next_chunk(r, DMI_CHUNK_OUTCOMES, &at));) {
        const char *wrong = NULL;
        if (chunk_type_repeats(c->type) && !incomplete)
            continue;
        res = select_chunk(r, &r->index.segments[at.segment], c, &wrong);
        if (res == -EBADMSG)
            res = reader_distrust(r, at.segment, at.chunk, wrong);
    }
    if (!res)
        reader_attach_outcomes(r);
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
    return r->selection.n_ends;
}

const struct reader_end *reader_end(const struct reader *r, size_t i)
{
    return i < r->selection.n_ends ? &r->selection.ends[i] : NULL;
}
