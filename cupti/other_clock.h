/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times of records by a clock that another user gave CUPTI, as torch.profiler gives it the processor's counter: that clock and CLOCK_MONOTONIC are read together
 * again and again, and lie on a straight line between. Not locked: the owner's thread.
 */
#pragma once

#include "core/clock.h"

#include <stdbool.h>
#include <stdint.h>

typedef uint64_t other_clock_read(void);

/* Accepts being zeroed: there is none. */
struct other_clock {
    other_clock_read *read;
    struct clock_pair first, last; /* of the line */
    struct clock_pair next;        /* the first one of the line after it */
};

/* Reads both clocks. @read: whose; another one than before begins a new line. NULL: none. */
void other_clock_look(struct other_clock *clock, other_clock_read *read);

/* Is the line long enough to say times? */
bool other_clock_knows(const struct other_clock *clock);

/* What CLOCK_MONOTONIC said at @ticks, while other_clock_knows(). Pure. */
uint64_t other_clock_mono(const struct other_clock *clock, uint64_t ticks);
