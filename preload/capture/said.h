/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of the engine's steps a launch is of. A step holds for launches of all threads or, with DMI_STEP_OF_THREAD, for those of the thread that said
 * it. Where steps of two threads overlap and neither has the flag, a launch is of the step in force only if its thread said that one; a thread that
 * says no steps may launch for either. A lock of its own, never held across a call of the driver. Thread: any.
 */
#pragma once

#include "preload/capture/step.h"

#include <stdbool.h>
#include <stdint.h>

/* What the calling thread launches for. */
struct said {
    uint64_t sequence; /* of the step; DMI_NO_STEP: of none, or of none that is known */
    bool overlaps;     /* steps overlap: no step is known */
    bool own;          /* the thread has steps of its own: it is none of others' */
    struct step *rows; /* held, where they were asked for; NULL: there are none */
    /*
     * Launches that follow one another, by which occurrences are counted: 0 those of the process; a thread with steps of its own and a step that pauses each
     * have one. @begins: how many steps began in it.
     */
    uint64_t strand, begins;
};

/* The engine begins @step, noted as @sequence. @rows: taken over; NULL: there are no sites. Return: 0 or -ENOMEM: the launches that follow are of no step. */
int said_begins(const struct dmi_step *step, uint64_t sequence, struct step *rows);

/* Is the step of @sequence over once @next, a struct dmi_step, has begun? */
bool said_is_over(const void *next, uint64_t sequence);

/* It began one that is refused: the launches that follow are of no step. Return: the calling thread's alone, as it has steps of its own. */
bool said_refused(void);

/* It goes on with one that paused. *@sequence: that one; *@own: it is the thread's own. Return: 0 or -ENOENT: as said_refused(), which gives *@own. */
int said_resumes(uint64_t number, uint32_t part, uint64_t *sequence, bool *own);

/* It ends the one that holds for the calling thread. Return: whether that is one of its own. */
bool said_ends(void);

/* @hold: the rows too; step_release() */
struct said said_now(bool hold);

/* The sequence alone. */
uint64_t said_sequence(void);

/* @next, of step_without(), takes the place of the rows that it comes from, if they are still there. */
void said_replace(struct step *next);

/* Has the step of @sequence ended, as far as the engine says? */
bool said_is_gone(uint64_t sequence);

/* May anything still be launched in the strand? */
bool said_strand_lives(uint64_t strand);

/* Steps that overlap another, since the last call. *@number, *@other: of the first pair. */
uint64_t said_overlaps(uint64_t *number, uint64_t *other);

/* After fork, in the child. */
void said_reset(void);
