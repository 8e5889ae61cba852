/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tier full: what ran on the device, from CUPTI's records, each with its step, into TRACE chunks. Where CUPTI cannot be had, or what it
 * says cannot be believed, steps alone go on, and log and marks say why. Thread: the collector, where nothing else is said.
 */
#ifndef PRELOAD_TRACE_ACTIVITY_H
#define PRELOAD_TRACE_ACTIVITY_H

#include "preload/trace/clock.h"

#include <dmi/trace.h>

#include <stdbool.h>
#include <stdint.h>

/* What is to stand in a mark. */
typedef void activity_mark(enum dmi_mark_kind kind, int64_t value, const char *text);

/* The tier is asked for: known before the collector begins. Thread: lifecycle.c's. */
void activity_want(void);

/* Is it, or was it until it ended? Thread: any. */
bool activity_wanted(void);

/* CUPTI is looked for and records from here on, if the tier is asked for: once, when cuInit has succeeded. Thread: the one that called that. */
void activity_start(void);

/* The step of @deal is step @number of the trace. */
void activity_step(uint64_t deal, uint64_t number);

/* Takes what came, and deals it to steps; @write: what is known becomes a chunk. */
void activity_round(const struct trace_clock *clock, bool write, activity_mark *mark);

/* The last round: all that CUPTI has is flushed, and the account is marked. */
void activity_finish(const struct trace_clock *clock, activity_mark *mark);

/* After fork, in the child. */
void activity_reset(void);

#endif
