/* SPDX-License-Identifier: Apache-2.0 */
/* What both test programs of cupti/judge do with made turns. */
#pragma once

#include "tests/unit/made_turns.h"

#include <check.h>

#define TURNS         20000 /* of a run */
#define COUNTED       500   /* turns from this one on count */
#define SHARE(n, all) (100.0 * (double)(n) / (double)(all))

static struct judge_answer answers[JUDGE_FIRST];

/* The same run for the same numbers. */
static inline struct made made_of(enum made_way way, double noise, int seed)
{
    return (struct made){ .seed = 1000 * (uint64_t)seed + (uint64_t)(noise * 100),
                          .n = TURNS,
                          .way = way,
                          .noise = noise };
}

/* A judge that has seen @n quiet turns. */
static inline struct judge *taught(struct made *m, int n)
{
    struct judge *j = judge_new();
    struct judge_turn t;
    ck_assert_ptr_nonnull(j);
    for (int i = 0; i < n; i++) {
        made_turn(m, &t);
        judge_take(j, &t, answers);
    }
    return j;
}

/* One more turn. Return: what is said of it. */
static inline struct judge_view take(struct judge *j, const struct judge_turn *t,
                                     enum judge_series series)
{
    ck_assert_uint_eq(judge_take(j, t, answers), 1);
    ck_assert_uint_eq(answers[0].number, t->number);
    return answers[0].of[series];
}
