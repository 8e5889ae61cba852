/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of which nobody knows yet whether they are wanted: the last kernel of a range is known once the range has ended.
 * Each matching kernel's tensor is copied right after it, and the drain leaves the record in the ring until it is
 * decided; one that a later kernel follows is as if nobody had asked for it.
 * Thread: the one that launched it, entered; no lock is held.
 */
#ifndef PRELOAD_CAPTURE_UNDECIDED_H
#define PRELOAD_CAPTURE_UNDECIDED_H

#include "preload/capture/admission.h"

/* What is left of a launch of which it is not decided whether it counts. */
struct undecided {
    struct admission item; /* of the launch, whose plan is gone */
    struct session_deferred problem;
};

/* A later launch is about to be counted in its place: it takes its occurrence. */
void undecided_withdraw(const struct undecided *record);

/* The driver refused the later launch: after undecided_withdraw(). */
void undecided_restore(const struct undecided *record);

/* A later launch came: after undecided_withdraw(). */
void undecided_discard(struct undecided *record);

/* It was the last one. */
void undecided_keep(struct undecided *record);

#endif
