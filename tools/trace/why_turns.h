/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns of a run: a turn lasts from the begin of a step to that of the next one, if that has one of its requests: what a user waits for a token. Else
 * it ends with the last wait for the device in the step. A program of one thread.
 */
#pragma once

#include "tools/trace/runs.h"

#include <dmi/trace.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Why a step has no turn. */
enum why_none { TURN_IS, TURN_NO_WAIT, TURN_NEXT_LOST, TURN_UNENDED, TURN_CLOCK, TURN_REASONS };

struct why_turn {
    struct dmi_step_times at;
    uint64_t begin_ns, end_ns;
    enum why_none none;
    bool by_step; /* the engine said no spans: it ends with the step */
};

/* All turns of a run, in the order in which they begin. Accepts being zeroed. */
struct why_turns {
    struct why_turn *all;
    size_t n, room;
    size_t none[TURN_REASONS]; /* how many have none, by reason */
    size_t n_by_step;
    bool own;    /* threads have steps of their own: each goes on within its thread */
    bool failed; /* no memory */
};

/* Return: 0; REPORT_IMPOSSIBLE, which is said. why_turns_deinit() in any case. */
int why_turns_read(const struct trace_run *run, struct why_turns *out);
void why_turns_deinit(struct why_turns *turns);

/* From the first begin to the last end. */
uint64_t why_turns_ns(const struct why_turns *turns);

/* In a few words. */
const char *why_none_words(enum why_none none);

/* How long it lasts; of one that there is. */
static inline uint64_t why_turn_ns(const struct why_turn *turn)
{
    return turn->end_ns - turn->begin_ns;
}
