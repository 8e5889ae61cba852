/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step that the engine said: which rows of a launch belong to whom, and which of them each choice of the spec keeps. Worked out
 * once, when the engine says so, not at each launch (said.h: which step that is of). A step is immutable, and lives until nobody holds it.
 */
#pragma once

#include "policy/select.h"
#include "preload/edit/edits.h"

#include <dmi/dmi.h>

#include <stdbool.h>
#include <stdint.h>

#define STEP_MAX_ROWS (1u << 24) /* of a batch; steps with more are refused */

struct step {
    uint32_t refs;
    uint64_t sequence;     /* of the run */
    uint64_t number;       /* the engine's own */
    struct dmi_step *said; /* a copy, where requests may be shed; else NULL */
    struct step *before;   /* what step_without() made it of, held: its lists stay; NULL: none */
    struct step *all;      /* the first of these, in which nothing was shed. Held by @before */
    bool *keeps;           /* per span of @said; NULL: all */
    struct edit_step
        edits; /* of a step with @before those of that: shedding takes no row from them */
    struct select_rows *
        last; /* in @rows, behind those: rows by request, for taps that have them; NULL: no site is a tap */
    struct select_rows rows[]; /* per entry of spec->selects */
};

/* From the engine's words, which must have been checked. @is_over: as edits_step() has it. Thread: any that entered. Return: NULL without memory. */
struct step *step_new(uint64_t sequence, const struct dmi_step *said, edits_is_over *is_over);

/**
 * step_without() - the same step with the rows of some of its requests alone
 * @step: has @said; taken over, and held until the new one is freed
 * @keeps: per span of it, copied
 * Thread: as step_new(). Return: NULL without memory: @step is as it was.
 */
struct step *step_without(struct step *step, const bool *keeps);

/* One more who holds it. Accepts NULL. Return: @step. */
struct step *step_hold(struct step *step);

/* Accepts NULL. */
void step_release(struct step *step);

/* After fork, in the child: the lock may have been held by a thread that is not there. */
void step_reset(void);
