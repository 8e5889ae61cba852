/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which turns of a process took too long, given what they had to compute. A turn is what a user waits for a token (docs/glossary.md). The
 * judge learns from the turns that it is given, and follows when loads or times change; nothing is learned once and kept. It looks at
 * nothing but its arguments and what it remembers of earlier ones: no clock, no file, no lock, no libm. The same turns get the same answers.
 *
 * One thread at a time, and no launching thread: a turn costs 0.5 us, and one turn in 1,024 costs 4 ms, as the fit begins anew. A judge
 * takes JUDGE_BYTES at most; judge_new() alone allocates.
 */
#pragma once

#include "cupti/judge/load.h"
#include "cupti/judge/usual.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JUDGE_FIRST 128u         /* turns before the first answer */
#define JUDGE_BYTES (200u << 10) /* of a judge, at most */

/* No engine runs a longer turn, or one with a greater number of tokens or rows: a day, and 2^31. */
#define JUDGE_MOST_NS     (INT64_C(86400) * 1000000000)
#define JUDGE_MOST_TOKENS (UINT32_C(1) << 31)

struct judge;

/* Two times of a turn, each with a fit, levels and a threshold of its own. */
enum judge_series {
    JUDGE_TURN, /* from its begin to its end */
    JUDGE_BUSY, /* in which the device had work */
    JUDGE_SERIES,
};

struct judge_turn {
    uint64_t number; /* the caller's, for the answer */
    struct load load;
    int64_t ns[JUDGE_SERIES]; /* JUDGE_BUSY: below 0: it is not known */
};

/* Whether a time is judged, or why not. */
enum judge_state {
    JUDGE_JUDGED,
    JUDGE_RARE, /* fewer than 8 turns of its kind of load came before: only a far slower one is slow */
    JUDGE_UNKNOWN, /* the time is not known, or too few of its series were: nothing is fitted yet */
    JUDGE_NO_TIME, /* the turn's time is 0 or below */
    JUDGE_WILD,    /* a number is above JUDGE_MOST_NS or JUDGE_MOST_TOKENS */
    JUDGE_STATES,
};

/* What a time should be. All is 0 where the state is neither JUDGED nor RARE. */
struct judge_view {
    enum judge_state state;
    bool is_slow;        /* the time is above the threshold */
    double expected_ns;  /* the usual time of such a load */
    double threshold_ns; /* a RARE one has a wider one */
    double noise;        /* robust standard deviation of times over expected ones, 0.02 is 2% */
    double excess;       /* time / expected - 1 */
};

struct judge_answer {
    uint64_t number;
    struct judge_view of[JUDGE_SERIES]; /* a turn is judged, and slow, as of[JUDGE_TURN] says */
};

/* Sums over all answers. turns = waiting + the sum of by_state[S], for each series S. */
struct judge_counts {
    uint64_t turns;
    uint64_t waiting; /* turns without an answer yet: below JUDGE_FIRST */
    uint64_t by_state[JUDGE_SERIES][JUDGE_STATES];
    uint64_t slow[JUDGE_SERIES];
    uint64_t fits;      /* of both series */
    uint64_t forgotten; /* kinds of load whose place others took */
};

/* Return: NULL without memory. */
struct judge *judge_new(void);

/* NULL is fine. */
void judge_free(struct judge *judge);

/**
 * judge_take() - one more turn
 * @answers: filled in; room for JUDGE_FIRST
 * The first turns wait until there are JUDGE_FIRST of them; then all are answered, in their order. After that each turn is answered at once.
 * A turn that is JUDGE_NO_TIME or JUDGE_WILD is always answered at once; nothing is learned from it.
 * Return: how many answers there are.
 */
size_t judge_take(struct judge *judge, const struct judge_turn *turn,
                  struct judge_answer answers[]);

/* What the judge expects of a load now. It learns nothing; is_slow and excess are 0. */
struct judge_view judge_ask(const struct judge *judge, const struct load *load,
                            enum judge_series series);

/* Return: the least excess that is found in 99 of 100 turns: 0.2 is +20%. INFINITY where noise hides any, or where nothing is expected. */
double judge_sees(const struct judge_view *view);

/* The usual time of turns by phase and rows, borrowed: for a step that is still open. */
const struct usual *judge_usual(const struct judge *judge);

/* Borrowed. */
const struct judge_counts *judge_counts(const struct judge *judge);
