/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/source_events.h"

#include "core/grow.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- of some steps */

/* What is found among steps: to be counted, or to be kept. */
struct listing {
    const struct source_events *events;
    struct source_said *said;
    const struct moment
        *after; /* only later ones are kept; NULL: none is kept, their times are taken in */
    bool any;
};

static int keep(struct listing *l, struct source_event event, const char *id, size_t n_id)
{
    struct source_said *said = l->said;
    if (moment_order(&event.at, l->after) <= 0)
        return 0;
    event.id = said->ids.n;
    event.n_id = n_id;
    text_add(&said->ids, id, n_id);
    if (said->ids.failed || GROW(said->all, said->n, said->room))
        return -ENOMEM;
    said->all[said->n++] = event;
    return 0;
}

static void take_time(struct listing *l, const struct moment *at)
{
    if (!l->any || moment_order(at, &l->said->first) < 0)
        l->said->first = *at;
    if (!l->any || moment_order(at, &l->said->last) > 0)
        l->said->last = *at;
    l->any = true;
}

/* The rows of the span that were accepted, each by its number in the span. */
static int keep_accepted(struct source_said *said, const struct reader_step *step, uint32_t span,
                         struct source_event *event)
{
    const struct reader_outcome *o = reader_outcome_of(step, span);
    uint32_t n_tokens = step->spans[span].n_tokens, n;
    event->accepted = said->n_accepted;
    for (uint32_t t = 0; t < n_tokens; t += n) {
        bool has = reader_outcome_has(o, t, &n);
        n = n < n_tokens - t ? n : n_tokens - t;
        if (!has)
            continue;
        if (GROW(said->accepted, said->n_accepted + 1, said->accepted_room))
            return -ENOMEM;
        said->accepted[said->n_accepted++] = t;
        said->accepted[said->n_accepted++] = n;
        event->n_accepted++;
    }
    return 0;
}

static int list_outcome(struct listing *l, const struct reader_step *step, uint32_t k)
{
    const struct reader_outcome *o = reader_outcome_of(step, k);
    size_t n_id;
    const char *id = reader_span_id(step, k, &n_id);
    if (!o || !selection_wants_request(l->events->select, id, n_id))
        return 0;
    struct source_event event = { .at = { o->at.time_ns, step->entry->sequence, k },
                                  .kind = EVENT_OUTCOME,
                                  .has_step = true,
                                  .step = step->entry->step,
                                  .sequence = step->entry->sequence,
                                  .position = step->spans[k].first_position,
                                  .n_tokens = step->spans[k].n_tokens };
    if (!l->after) {
        take_time(l, &event.at);
        return 0;
    }
    if (moment_order(&event.at, l->after) > 0 && keep_accepted(l->said, step, k, &event))
        return -ENOMEM;
    return keep(l, event, id, n_id);
}

static int list_end(struct listing *l, const struct reader_steps *steps, size_t i)
{
    const struct reader_end *e = &steps->ends[i];
    const struct dmi_step_entry *before = e->after            ? steps->all[e->after - 1].entry
                                          : steps->any_before ? &steps->before
                                                              : NULL;
    /* After what was said of the rows of its steps at the same time. */
    struct source_event event = { .at = { e->time_ns, UINT64_MAX, (uint32_t)(l->said->n_ends + i) },
                                  .kind = e->shed ? EVENT_SHED : EVENT_END,
                                  .reason = e->reason,
                                  .has_step = before != NULL,
                                  .sequence = before ? before->sequence : 0 };
    if (!selection_wants_request(l->events->select, e->id, e->n_id))
        return 0;
    if (l->after)
        return keep(l, event, e->id, e->n_id);
    take_time(l, &event.at);
    return 0;
}

static int list(struct listing *l, const struct reader_steps *steps)
{
    int r = 0;
    for (size_t i = 0; !r && i < steps->n; i++)
        for (uint32_t k = 0; !r && steps->all[i].n_outcomes && k < steps->all[i].entry->n_spans;
             k++)
            r = list_outcome(l, &steps->all[i], k);
    for (size_t i = 0; !r && i < steps->n_ends; i++)
        r = list_end(l, steps, i);
    return r;
}

int source_events_add(struct source_events *events, const struct reader_step_place *place,
                      const struct reader_steps *steps)
{
    struct source_said said = { .place = *place, .n_ends = events->n_ends };
    struct listing l = { .events = events, .said = &said };
    list(&l, steps);
    events->n_ends += steps->n_ends;
    if (!l.any)
        return 0;
    return PUSH(events->said, events->n, events->room, 64, said);
}

/* ------------------------------------------------------------------------- in order */

static void forget(struct source_said *said)
{
    free(said->all);
    free(said->accepted);
    text_deinit(&said->ids);
    said->all = NULL;
    said->accepted = NULL;
    said->ids = (struct text){ 0 };
    said->n = said->at = said->room = said->n_accepted = said->accepted_room = 0;
}

static int event_order(const void *pa, const void *pb)
{
    const struct source_event *a = pa, *b = pb;
    return moment_order(&a->at, &b->at);
}

/* Reads the events of @said that come after @after. */
static int read_said(struct err *err, const struct source_events *events, struct reader *reader,
                     struct source_said *said, const struct moment *after)
{
    struct reader_step_place place = said->place;
    struct reader_steps steps = { 0 };
    struct listing l = { .events = events, .said = said, .after = after };
    int r = reader_next_steps(err, reader, &place, &steps);
    if (!r && list(&l, &steps))
        r = err_set_errno(err, ENOMEM, "cannot replay");
    reader_free_steps(&steps);
    if (!r && said->n)
        qsort(said->all, said->n, sizeof *said->all, event_order);
    return r;
}

/* Finds what is next: steps whose first event is not later are come to. */
static int settle(struct err *err, struct source_events *events, struct reader *reader,
                  const struct moment *after)
{
    int r = 0;
    for (;;) {
        const struct source_event *next = NULL;
        events->next = SIZE_MAX;
        for (size_t i = 0; i < events->n_opened; i++) {
            const struct source_said *said = &events->said[i];
            if (said->at == said->n ||
                (next && moment_order(&said->all[said->at].at, &next->at) > 0))
                continue;
            next = &said->all[said->at];
            events->next = i;
        }
        if (r || events->n_opened == events->n)
            return r;
        struct source_said *more = &events->said[events->n_opened];
        if (next && moment_order(&more->first, &next->at) > 0)
            return 0;
        events->n_opened++;
        if (moment_order(&more->last, after) > 0)
            r = read_said(err, events, reader, more, after);
    }
}

static int first_order(const void *pa, const void *pb)
{
    const struct source_said *a = pa, *b = pb;
    return moment_order(&a->first, &b->first);
}

int source_events_seek(struct err *err, struct source_events *events, struct reader *reader,
                       const struct moment *said)
{
    for (size_t i = 0; i < events->n; i++)
        forget(&events->said[i]);
    events->n_opened = 0;
    if (events->n)
        qsort(events->said, events->n, sizeof *events->said, first_order);
    return settle(err, events, reader, said);
}

int source_events_pass(struct err *err, struct source_events *events, struct reader *reader,
                       const struct moment *said)
{
    struct source_said *of = &events->said[events->next];
    if (++of->at == of->n)
        forget(of);
    return settle(err, events, reader, said);
}

const struct source_event *source_events_next(const struct source_events *events,
                                              const struct source_said **of)
{
    if (events->next == SIZE_MAX || !events->n)
        return NULL;
    const struct source_said *said = &events->said[events->next];
    if (of)
        *of = said;
    return &said->all[said->at];
}

void source_events_deinit(struct source_events *events)
{
    for (size_t i = 0; i < events->n; i++)
        forget(&events->said[i]);
    free(events->said);
    *events = (struct source_events){ .select = events->select };
}
