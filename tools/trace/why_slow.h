/* SPDX-License-Identifier: Apache-2.0 */
/* Which turns of a run took too long, given what they had to compute (cupti/judge/judge.h). A program of one thread. */
#pragma once

#include "cupti/judge/judge.h"
#include "tools/trace/why_turns.h"

#include <stddef.h>

struct why_verdict {
    enum judge_state state;
    bool slow;
    double expected_ns;
    double sees; /* the least excess that is found in 99 of 100 turns */
};

/* Slow turns of one kind of batch, one after the other in the run, and about as slow. */
struct why_slow {
    size_t first, n;               /* in the turns of the run */
    double excess_ns, expected_ns; /* of all of them */
};

/* Accepts being zeroed. */
struct why_judged {
    struct why_verdict *of; /* a verdict a turn of the run */
    size_t n_judged, n_rare,
        n_early; /* turns: that were judged; of loads seen too rarely; fewer than JUDGE_FIRST came */
    struct why_slow *slow; /* the greatest excess first */
    size_t n_slow, room, n_slow_turns;
};

/* Return: false without memory. why_judged_deinit() in any case. */
bool why_judge(const struct why_turns *turns, struct why_judged *out);
void why_judged_deinit(struct why_judged *judged);
