/* SPDX-License-Identifier: Apache-2.0 */
/* What join.c, join_take.c and join_proof.c share: nobody else includes it. */
#pragma once

#include "preload/trace/join.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JOIN_NAMES  16384u /* places; a power of two */
#define JOIN_HINTS  1024u  /* likewise */
#define JOIN_ROUNDS 40u    /* that a run waits for records that have not come */

/* A record. */
struct join_item {
    struct records_event event;
    struct placed at; /* in the first round */
    uint64_t name;    /* as in struct join_run, of a launch that is counted; 0 of others */
    bool loose;       /* of a launch that is not, as of some no record comes */
    uint64_t round;   /* in which it came */
};

/* All runs of one deal in one stream: one launch at least. */
struct dealt_runs {
    struct join_run run;
    bool over;     /* its number is known, or there is none */
    bool misnamed; /* but for the ids of graphs, records fit it */
    bool
        judged; /* what ran around the time in which the stream was idle before it was compared with that */
    uint64_t step;  /* as a record's */
    uint64_t round; /* in which it was over */
};

struct join_stream {
    uint32_t context, stream;
    struct join_item *items;
    size_t n_items, items_room;
    size_t n_placed;           /* of them */
    bool unsorted;             /* items are in no order */
    struct dealt_runs *groups; /* by deal */
    size_t n_groups, groups_room;
    uint64_t last_step; /* of the record that was handed on last */
    struct placed prev; /* the launch that was handed on last; its end is 0: there was none */
    bool unsure;        /* it lost count: records are missing, or there are more than launches */
    uint64_t doubt;     /* the round in which some were lost last */
    int64_t missing; /* since then: launches less records of launches, among what is dealt with */
    uint32_t quiet;  /* rounds without a record and a run */
    bool shared;
    /* Launches of the first groups whose records are gone, of no known step, as there were too many of them. */
    uint64_t gone_kernels, gone_graphs;
};

struct join {
    struct join_stream *streams;
    size_t n_streams, streams_room;
    uint32_t hints[JOIN_HINTS]; /* where a stream may be */
    struct number {
        uint64_t deal, step;
    } * numbers; /* of steps that have ended, by deal; those that no run waits for go */
    size_t n_numbers, numbers_room;
    uint64_t round;
    uint64_t now_ns;
    uint64_t unplaced;              /* launches of groups that found no place */
    uint64_t misnamed;              /* launches of those that found others' graphs there */
    uint64_t too_many;              /* records that were not waited with */
    uint64_t uncounted;             /* launches that are in no run */
    bool ids_differ;                /* records name graphs by ids that are none of execs */
    bool ids_fit;                   /* some did */
    uint32_t n_others;              /* groups that others' graphs were at, before */
    const struct join_calls *calls; /* during join_deal() */
    char *names[JOIN_NAMES];
    size_t n_names;
    uint64_t unnamed; /* records whose name found no place there */

    /* join_proof.c's: what is known of CUPTI's clock */
    uint32_t n_clean; /* times that records lay as they had to, one after another */
    uint64_t strange; /* the round in which one did not last; 0: none did */
    bool broken;      /* whole runs lie elsewhere than by their counts: either may be wrong */
};

/* All that one launch ran. */
struct unit {
    size_t begin, end; /* of the items */
    uint64_t name;
};

/* How many the group counts. */
static inline uint32_t launches_of(const struct dealt_runs *g)
{
    return g->run.kernels + g->run.graphs;
}

/* ---- join_take.c ---- */

/* For qsort(): items in the order of their launches. */
int join_order(const void *a, const void *b);

/* ---- join.c ---- */

/* The first launch that is counted, from item @at on. */
bool next_unit(const struct join_stream *s, size_t at, struct unit *u);

/* Are the launches from item @from on those of the group? *@end: the item after them. */
bool fits(struct join *j, const struct join_stream *s, size_t from, struct dealt_runs *g,
          size_t *end);

/* ---- join_proof.c ---- */

/* The record cannot have run by then: it came before. */
void proof_look_ahead(struct join *j, const struct placed *at);

/* The first group's launches are items up to @end, by their counts. Return: whether clocks do not say otherwise. */
bool proof_agrees(struct join *j, const struct join_stream *s, size_t end);

/* Compares what ran in a stream that lost count with when it was idle. */
void proof_look(struct join *j, struct join_stream *s, bool last);

/*
 * A stream that lost count: which items are of the first @m groups, of which the first began in an idle stream, as did group @m (none: it is the last)?
 * *@from: the first of them. Return: whether it is proved.
 */
bool proof_find(struct join *j, const struct join_stream *s, size_t m, size_t *from);

/* Is anything proved by clocks now? */
bool proof_may_be(const struct join *j);
