/* SPDX-License-Identifier: Apache-2.0 */
/* When records ran: from times of CUPTI's to those of this process. Thread: the collector. */
#pragma once

#include "cupti/own_clock.h"
#include "cupti/records.h"
#include "preload/trace/clock.h"

#include <stdbool.h>

/* CUPTI's clock and the system's are read, after records were taken; the log says how they differ. @other: CUPTI has a clock of another user's, which is not CUPTI's own. */
void moments_look(const struct trace_clock *clock, bool other);

/* When the record ran, by CLOCK_MONOTONIC. Its own times are moved by what CUPTI's clock is off; where it is not known when it ran they stay. */
struct placed moments_place(struct records_event *event);

/* After fork, in the child. */
void moments_reset(void);
