/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of steps.h share. */
#pragma once

#include "preload/trace/stepring.h"
#include "preload/trace/steps.h"

#include <pthread.h>

struct steps {
    pthread_mutex_t lock; /* all below, and what threads.h says */
    struct trace_thread threads[TRACE_THREADS];
    uint32_t top;              /* places that were ever in use; atomic */
    struct trace_step *engine; /* the engine's step, NULL: none is under way */
    bool lost;                 /* one is, and had no room */
    struct trace_step *paused; /* steps that may go on, of all threads; the last one first */
    uint32_t source;           /* the best that came; atomic */
    uint32_t captures;         /* streams that are being captured */
    uint64_t deals;            /* the last deal (struct trace_thread) that was drawn */
    uint64_t deal;             /* the gate's; atomic */
    uint64_t ranges;           /* steps of ranges so far; atomic */
};

extern struct steps steps __attribute__((visibility("hidden")));

/* What is to be recorded of a step, once the lock is released. */
struct step_ending {
    struct trace_step *step; /* NULL: nothing */
    bool pauses;             /* it goes on later */
    struct {
        struct stream stream;
        uint32_t i;        /* place in its ends */
        bool own;          /* the stream is of the calling thread */
        CUcontext context; /* else: of the launch, NULL: not known */
    } at[STEP_MAX_ENDS];
    uint32_t n;
};

/* The calling thread's place. Return: NULL: all are taken. */
struct trace_thread *steps_self(void);

/* The gate without its bits. */
static inline uint64_t steps_plain_gate(void)
{
    return atomic_load_relaxed(&trace_gate) & ~TRACE_GATE_BITS;
}

/* How many launches the thread has made. */
static inline uint64_t steps_made(const struct trace_thread *t)
{
    return atomic_load_relaxed(&t->now.launches) + atomic_load_relaxed(&t->now.graphs);
}

/* What the calling thread launches for is found out anew, and counted from here on. Under the lock. */
void steps_follow(struct trace_thread *t);

/*
 * An event after what the thread launched last is to be recorded, unless there is one. @unended: it is not, as the driver must not be called.
 * Under the lock.
 */
void steps_add_end(struct step_ending *e, struct trace_thread *t, bool unended);

/* Records what was added. Not under the lock. */
void steps_record(struct step_ending *e);

/* The calling thread has recorded what it had to, of the step. Not under the lock. */
void steps_recorded(struct trace_step *step);

/* The gate's bit for streams that are being captured. Under the lock. */
void steps_set_captures(void);

/* ------------------------------------------------------------------------- one step after another; under the lock, where nothing else is said */

/* A step that begins. Return: NULL: there is no room, which is counted. Not under the lock. */
struct trace_step *steps_new(enum dmi_step_source source, uint64_t sequence, uint64_t now_ns);

/* What threads did for the engine's step, or for the thread's own, since it began or went on is that step's; none is under way then. */
void steps_collect(struct step_ending *e, bool unended);
void steps_collect_own(struct step_ending *e, struct trace_thread *t, bool unended);

/* The step that was collected ended at @now_ns: nothing is added to it any more. The last thread that records puts it. */
void steps_take(struct step_ending *e, uint64_t now_ns, uint32_t flags);

/* The same, unless it is one that pauses: it goes on later. */
void steps_put_aside(struct step_ending *e, uint64_t now_ns);
/* It pauses no more. */
void steps_unpause(struct trace_step *step);

/* Launches are dealt to the step by another number from here on: those that rise. */
void steps_draw_deal(struct trace_step *step);

/* The thread's own is @step from here on, NULL: it has none. @begun: a launch follows at once. */
void steps_put_own(struct trace_thread *t, struct trace_step *step, bool begun);

/* Launches from here on see another gate. Acquired by enter(). */
void steps_next_gate(void);

/* What is as steps_counts() says from here on counts for the step that the thread has by now. */
struct trace_counts steps_counts(const struct trace_thread *t);

/* What was taken or put aside is recorded. Not under the lock. */
void steps_finish(struct step_ending *e);

/* The step's first launch comes next. Not under the lock. */
void steps_first_launch(struct trace_step *step, struct stream stream);

/* Steps that pause, and that the engine has forgotten, are over. Not under the lock. */
void steps_end_forgotten(void);

/* Steps that threads have of their own, but for the engine's, end where the engine says steps; @all: all of them. Not under the lock. */
void steps_end_own(bool all);

/* The thread sees the gate of a step for the first time. Return: the step, if this launch is its first; NULL: it is not. */
struct trace_step *steps_see_gate(struct trace_thread *thread);
