/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/why_turns.h"

#include "core/grow.h"
#include "core/sorted.h"
#include "storage/codec/hash.h"
#include "tools/common/say.h"

#include <dmi/dmi.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MOST_IDS                                                                                   \
    64u /* of a step: those with the smallest hashes, so that two steps agree on which */

#define ROUND_NS 20000000u /* of the collector's, which sees that the clock was set */

/* What a step's requests are, by hash, in order. */
struct ids {
    uint32_t n;
    uint64_t all[MOST_IDS + 1]; /* one more is sorted in, and the last falls out */
};

static void add_id(struct ids *ids, uint64_t hash)
{
    uint32_t at = ids->n;
    while (at && ids->all[at - 1] > hash)
        at--;
    memmove(&ids->all[at + 1], &ids->all[at], (ids->n - at) * sizeof *ids->all);
    ids->all[at] = hash;
    ids->n += ids->n < MOST_IDS;
}

static bool has_common(const struct ids *a, const struct ids *b)
{
    for (uint32_t i = 0, k = 0; i < a->n && k < b->n;) {
        if (a->all[i] == b->all[k])
            return true;
        if (a->all[i] < b->all[k])
            i++;
        else
            k++;
    }
    return false;
}

/* Its ids as the engine said them: one that comes back after an end is another request, which readers tell apart by name. */
static void ids_of(const struct reader_step *step, struct ids *ids)
{
    ids->n = 0;
    for (uint32_t i = 0; i < step->entry->n_spans; i++) {
        size_t n;
        const char *id = reader_span_id(step, i, &n);
        if (!(step->spans[i].flags & DMI_SPAN_PADDING))
            add_id(ids, hash_bytes(id, n));
    }
}

/* ------------------------------------------------------------------------- which step goes on */

/* What is known of the last step that a thread, or the process, began. */
struct strand {
    uint32_t thread;
    struct why_turn *last; /* NULL: there was none */
    struct ids ids;
};

struct going {
    struct why_turns *turns;
    const struct trace_marks *marks;
    struct why_turn **by_sequence; /* turns that have one */
    size_t n;
    struct strand *strands;
    size_t n_strands, room;
};

static int by_begin(const void *pa, const void *pb)
{
    const struct why_turn *a = pa, *b = pb;
    ORDER(a, b, begin_ns);
    ORDER(a, b, at.number);
    return 0;
}

static int sequence_order(const void *pa, const void *pb)
{
    const struct why_turn *const *a = pa, *const *b = pb;
    ORDER(*a, *b, at.step);
    return 0;
}

static struct why_turn *turn_of(const struct going *g, uint64_t sequence)
{
    size_t i = 0;
    SEARCH(i, g->n, g->by_sequence[i]->at.step < sequence);
    return i < g->n && g->by_sequence[i]->at.step == sequence ? g->by_sequence[i] : NULL;
}

/* NULL: no memory. */
static struct strand *strand_of(struct going *g, uint32_t thread)
{
    thread = g->turns->own ? thread : 0;
    for (size_t i = 0; i < g->n_strands; i++)
        if (g->strands[i].thread == thread)
            return &g->strands[i];
    if (GROW(g->strands, g->n_strands, g->room))
        return NULL;
    g->strands[g->n_strands] = (struct strand){ .thread = thread };
    return &g->strands[g->n_strands++];
}

/* A step without times: when it began, which ended the turn of a step before it, is not known. */
static void lose_end(struct going *g, const struct reader_step *step)
{
    struct ids ids;
    ids_of(step, &ids);
    for (size_t i = 0; i < g->n_strands; i++) {
        struct strand *s = &g->strands[i];
        if (!s->last || !has_common(&s->ids, &ids))
            continue;
        s->last->none = TURN_NEXT_LOST;
        s->last = NULL;
    }
}

/*
 * Was the clock set to a later time within the turn? A round of the collector's after it at most, the collector saw it; so the middle of what was left out is in the turn, or less
 * than a round after its end.
 */
static bool is_set_within(const struct trace_clock_set *set, const struct why_turn *turn)
{
    uint64_t by_ns = set->by_ns > 0 ? (uint64_t)set->by_ns : 0, from_ns = set->time_ns - by_ns;
    return by_ns && by_ns <= set->time_ns && turn->begin_ns <= from_ns &&
           turn->end_ns + ROUND_NS >= from_ns + by_ns / 2;
}

/* The step before it in its strand ends its turn where it begins, if they have a request in common. Return: false without memory. */
static bool go_on(struct going *g, struct why_turn *turn, const struct reader_step *step)
{
    struct ids ids;
    struct strand *s = strand_of(g, turn->at.thread);
    if (!s)
        return false;
    ids_of(step, &ids);
    if (s->last && turn->begin_ns >= s->last->begin_ns && has_common(&s->ids, &ids))
        s->last->end_ns = turn->begin_ns;
    for (size_t i = 0; s->last && s->last->end_ns && i < g->marks->n_clock_sets; i++)
        if (is_set_within(&g->marks->clock_sets[i], s->last))
            s->last->none = TURN_CLOCK;
    s->last = turn;
    s->ids = ids;
    return true;
}

/* Steps of several threads overlap where each has its own. */
static void find_own(struct why_turns *t)
{
    for (size_t i = 1; i < t->n && !t->own; i++)
        t->own = t->all[i].at.thread != t->all[i - 1].at.thread &&
                 t->all[i].begin_ns < t->all[i - 1].at.end_ns;
}

static int read_ids(struct err *err, struct reader *reader, struct going *g)
{
    struct reader_query all = { .by_window = true };
    struct reader_step_place place = { 0 };
    struct reader_steps steps = { 0 };
    int r = reader_select(err, reader, &all);
    while (!r && !place.done && !(r = reader_next_steps(err, reader, &place, &steps)))
        for (size_t i = 0; i < steps.n && !g->turns->failed; i++) {
            struct why_turn *turn = turn_of(g, steps.all[i].entry->sequence);
            if (turn)
                g->turns->failed = !go_on(g, turn, &steps.all[i]);
            else
                lose_end(g, &steps.all[i]);
        }
    reader_free_steps(&steps);
    return r;
}

/* Ends where the next step begins, of those that have a request in common with it. */
static int find_ends(struct err *err, const struct trace_run *run, struct why_turns *t)
{
    struct going g = { .turns = t,
                       .marks = &run->marks,
                       .by_sequence = calloc(t->n + 1, sizeof *g.by_sequence) };
    int r = 0;
    t->failed |= !g.by_sequence;
    for (size_t i = 0; g.by_sequence && i < t->n; i++)
        if (t->all[i].at.step != DMI_NO_STEP)
            g.by_sequence[g.n++] = &t->all[i];
    if (g.n && !t->failed) {
        SORT(g.by_sequence, g.n, sequence_order);
        do
            r = read_ids(err, run->reader, &g);
        while (r == READER_E_AGAIN);
    }
    free(g.by_sequence);
    free(g.strands);
    return r;
}

/* ------------------------------------------------------------------------- all of them */

static void take_step(void *ctx, const struct dmi_step_times *at)
{
    struct why_turns *t = ctx;
    if ((t->failed = t->failed || GROW(t->all, t->n, t->room)))
        return;
    t->all[t->n++] = (struct why_turn){ .at = *at, .begin_ns = at->begin_ns };
}

/* Where no step goes on from it: with its last wait, or with the step where nothing is known of requests. */
static void end(struct why_turn *turn)
{
    turn->by_step = !turn->at.requests && !turn->end_ns;
    if (turn->none != TURN_IS)
        return;
    if (turn->by_step)
        turn->end_ns = turn->at.end_ns;
    if (!turn->end_ns && turn->at.waited_ns > turn->begin_ns)
        turn->end_ns = turn->at.waited_ns;
    if (!turn->end_ns)
        turn->none = turn->at.flags & DMI_STEP_UNENDED ? TURN_UNENDED : TURN_NO_WAIT;
    else if (turn->at.flags & DMI_STEP_UNENDED && turn->by_step)
        turn->none = TURN_UNENDED;
    else if (turn->end_ns <= turn->begin_ns || turn->end_ns < turn->at.launch_ns)
        turn->none = TURN_CLOCK;
}

int why_turns_read(const struct trace_run *run, struct why_turns *out)
{
    struct err err = { 0 };
    *out = (struct why_turns){ 0 };
    int r = reader_each_step_times(&err, run->reader, take_step, out);
    SORT(out->all, out->n, by_begin);
    find_own(out);
    if (!r && !out->failed)
        r = find_ends(&err, run, out);
    for (size_t i = 0; i < out->n; i++) {
        struct why_turn *turn = &out->all[i];
        end(turn);
        out->none[turn->none]++;
        out->n_by_step += turn->none == TURN_IS && turn->by_step;
    }
    if (!r && out->failed)
        r = err_set_errno(&err, ENOMEM, "cannot read %s", run->run->path);
    if (r)
        complain("%s", err.msg);
    return r ? REPORT_IMPOSSIBLE : 0;
}

uint64_t why_turns_ns(const struct why_turns *t)
{
    uint64_t end_ns = 0;
    for (size_t i = 0; i < t->n; i++)
        end_ns = t->all[i].at.end_ns > end_ns ? t->all[i].at.end_ns : end_ns;
    return t->n && end_ns > t->all[0].begin_ns ? end_ns - t->all[0].begin_ns : 0;
}

void why_turns_deinit(struct why_turns *t)
{
    free(t->all);
    *t = (struct why_turns){ 0 };
}

const char *why_none_words(enum why_none none)
{
    static const char *const words[] = { "have a turn",
                                         "none of their requests goes on, and no wait ends them",
                                         "the step that goes on from them has no times: it was "
                                         "lost, or is not written yet",
                                         "the process or the thread ended within them",
                                         "the clock was set within them" };
    return words[none];
}
