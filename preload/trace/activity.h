/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tiers kernels and full: what ran on the device, from CUPTI's records, each with its step: sums of it into SUMS chunks, and the last
 * steps into memory, which are stored when a user asks (keep.h), or all of it into TRACE chunks. Where CUPTI cannot be had, or what it says cannot be believed, steps alone go on, and log, manifest and marks say why.
 * Thread: the collector, where nothing else is said.
 */
#pragma once

#include "preload/trace/clock.h"

#include <dmi/trace.h>

#include <stdbool.h>
#include <stdint.h>

enum activity_tier {
    ACTIVITY_NONE, /* steps alone */
    ACTIVITY_KERNELS,
    ACTIVITY_FULL,
};

/* What is to stand in a mark. */
typedef void activity_mark(enum dmi_mark_kind kind, int64_t value, const char *text);

/* Writes what there is of steps and marks. */
typedef void activity_write(void);

/* The tier that is asked for: known before the collector begins. Thread: lifecycle.c's. */
void activity_want(enum activity_tier tier);

/* The name of the tier. Thread: any. */
const char *activity_tier(void);

/* Does the tier use CUPTI? Thread: any. */
bool activity_wanted(void);

/* CUPTI is looked for and records from here on, if a tier asks for it: once, when cuInit has succeeded. Thread: the one that called that. */
void activity_start(void);

/* The step of @deal is step @number of the trace. */
void activity_step(uint64_t deal, uint64_t number);

/* Takes what came, and deals it to steps; @second: a second is over: what is known becomes chunks. */
void activity_round(const struct trace_clock *clock, bool second, activity_mark *mark,
                    activity_write *write);

/* The last round: all that CUPTI has is flushed, and the account is marked. */
void activity_finish(const struct trace_clock *clock, activity_mark *mark, activity_write *write);

/* Which kernels took the most time, for the log; "": none ran, or steps are alone. After activity_finish(). */
const char *activity_dearest(void);

/* After fork, in the child. */
void activity_reset(void);
