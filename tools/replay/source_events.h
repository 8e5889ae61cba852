/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was said of rows and requests of one run, in the order in which it was said. The events of some steps at a time are in
 * memory: those whose times the replay has come to. A program of one thread.
 */
#pragma once

#include "tools/replay/position.h"

#include "read/tensors.h"

enum source_event_kind { EVENT_OUTCOME, EVENT_END, EVENT_SHED };

/* Something that was said of rows, or of a request. */
struct source_event {
    struct moment at;
    enum source_event_kind kind;
    size_t id, n_id; /* of the request, in the bytes of its steps' events */
    uint32_t reason; /* EVENT_END */

    /* EVENT_OUTCOME: of its span; EVENT_SHED: of the last step before, if there is one */
    bool has_step;
    uint64_t step, sequence;
    int64_t position;
    uint32_t n_tokens;
    size_t accepted, n_accepted; /* [first, rows] of neighbours, likewise */
};

/* The events of some steps. */
struct source_said {
    struct reader_step_place place; /* the steps are read from it on */
    size_t n_ends;                  /* of the run, before them */
    struct moment first, last;

    struct source_event *all; /* those that are left, in order, if they were read */
    size_t n, at, room;
    struct text ids;
    uint32_t *accepted;
    size_t n_accepted, accepted_room;
};

struct source_events {
    const struct selection *select;
    struct source_said *said; /* by the first event */
    size_t n, room, n_opened; /* n_opened: those that were come to */
    size_t next;              /* which of them has the next event; SIZE_MAX: there is none */
    size_t n_ends;            /* of the run, so far */
};

/* While steps are gone through: takes in what was said among @steps, which are those from @place on. Return: 0 or -ENOMEM. */
int source_events_add(struct source_events *events, const struct reader_step_place *place,
                      const struct reader_steps *steps);

/* Then: what comes after @said is next. Return: 0; READER_E_AGAIN; -errno with a sentence in @err. */
int source_events_seek(struct err *err, struct source_events *events, struct reader *reader,
                       const struct moment *said);
/* Passes over what is next. Return: likewise. */
int source_events_pass(struct err *err, struct source_events *events, struct reader *reader,
                       const struct moment *said);

/* What is next; NULL: nothing is left. @of: gets what has its bytes; may be NULL. */
const struct source_event *source_events_next(const struct source_events *events,
                                              const struct source_said **of);

/* Leaves none. Accepts a zeroed struct. */
void source_events_deinit(struct source_events *events);
