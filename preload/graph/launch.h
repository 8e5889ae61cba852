/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One launch of an exec with nodes of ours: occurrences, places in the ring, the ticket, and how all of it is taken
 * back. One launch's ticket is a parameter of open, set right before the launch; actions find it in the exec's own
 * state. Thread: whoever launches, entered; one thread at a time per exec, as with the driver.
 */
#pragma once

#include "preload/graph/exec.h"

#include <stdbool.h>

struct graph_job {
    struct stream stream;
    struct context *context; /* used until graph_after(); NULL: it is not known, or has ended */
    CUcontext guest_in;      /* as in eager/launch.h */
    bool embedded;           /* the stream is being captured: the launch becomes a child graph */
    bool homeless;           /* neither the thread nor the stream says which context it runs in */
    bool repeats;            /* the last launch: its items say what that one's did */
    bool counted;  /* occurrences and records are to be taken back if the driver refuses */
    bool by_event; /* it runs, and only an event tells when it is over */
    struct admission_launch launch;
};

/* @armed: session_enter() said so; else the exec runs without a ticket. */
void graph_before(struct exec *exec, struct stream stream, bool armed, struct graph_job *job);
void graph_after(struct exec *exec, struct graph_job *job, CUresult result);
