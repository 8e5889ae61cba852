/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps on their way from the thread in which they run to the collector. A step is taken when it begins, put when it ends, and read in the
 * order in which steps were put. Memory is fixed: where all of it is in use, steps are lost, and counted. Thread: any; a lock of
 * its own, never held across a call of the driver.
 */
#pragma once

#include "preload/base/cuda_abi.h"

#include <dmi/trace.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STEPRING_STEPS 1024u
#define STEP_MAX_ENDS  4u /* threads whose last launches are looked at */

struct events_of;
struct trace_thread;

struct trace_step {
    struct dmi_step_times at; /* host times are of CLOCK_MONOTONIC until the collector has it */
    uint64_t real_ns;         /* CLOCK_REALTIME, read when it began */
    struct events_of *events; /* of the context of its first launch; NULL: no event is recorded */
    uint64_t epoch;           /* of the events (events.h) */
    CUevent begin, ends[STEP_MAX_ENDS];
    uint32_t n_ends;
    uint32_t
        late; /* a bit an end: the device was done before it was recorded, or may have been; atomic */

    /* of steps.c, under that lock; @at: the counts */
    uint64_t gate;   /* trace_gate while it ran */
    uint64_t deal;   /* by which launches are dealt to it (join.h), */
    uint64_t *deals; /* and those of before it paused; the collector frees them */
    size_t n_deals, room_deals;
    const struct trace_thread *of; /* whose own it is; NULL: the engine's, for all threads */
    bool pauses;               /* another one of its thread, or of the engine, does not end it */
    struct trace_step *paused; /* that paused before it did */
    uint64_t range;            /* its number among those of ranges; 0: it is none */
    const struct trace_thread *end_of[STEP_MAX_ENDS];
    bool begun;         /* some launch is its first */
    bool timed;         /* the event before that launch is recorded, or was refused */
    uint32_t recording; /* threads that record an event of it */
    bool over;          /* it ended meanwhile: the last of these threads puts it */
    uint64_t end_ns;    /* of CLOCK_MONOTONIC */
    uint32_t end_flags; /* that its end adds */
};

/* A step that begins, zeroed. Return: NULL: there is no room; it is counted as lost when stepring_lose() says so. */
struct trace_step *stepring_take(void);

/* A step of which nothing will be known. */
void stepring_lose(void);

/* The step has ended: its number is drawn. Released here, acquired by stepring_oldest(). */
void stepring_put(struct trace_step *step);

/* The step that was put first of those that are there; NULL: none. Thread: the collector; others only learn whether there is one. */
struct trace_step *stepring_oldest(void);

/* The oldest one is done with. Thread: the collector. */
void stepring_free(struct trace_step *oldest);

/* Steps that were put so far: one more than the last one's number. */
uint64_t stepring_numbered(void);

/* Steps that were put or lost so far. */
uint64_t stepring_ended(void);
/* Those that were lost. */
uint64_t stepring_lost(void);

/* After fork, in the child. */
void stepring_reset(void);
