/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUPTI's own clock against CLOCK_MONOTONIC, by pairs of both that are taken again and again: when a record ran, and how sure that is. Where
 * the clock was set between two pairs, records of that time may be of either side. Pure: one thread.
 */
#pragma once

#include "core/clock.h"

#include <stdint.h>

#define OWN_CLOCK_PAIRS  256u   /* those before them are forgotten */
#define OWN_CLOCK_SET_NS 200000 /* by more than this between two pairs: it was set */
#define OWN_CLOCK_ERR_NS                                                                           \
    4000u /* that CUPTI may be off where it turns the device's times into its own */
#define OWN_CLOCK_NEVER (1ull << 62) /* an error: it is not known when */

/* Begin and end of what ran, of CLOCK_MONOTONIC: both within @error_ns, in the same direction. */
struct placed {
    uint64_t begin_ns, end_ns, error_ns;
};

/* Accepts being zeroed: then no pair was taken. */
struct own_clock {
    struct own_pair {
        uint64_t mono_ns, error_ns;
        int64_t ahead_ns; /* CUPTI's less monotonic */
    } pairs[OWN_CLOCK_PAIRS];
    uint64_t n;   /* that were taken; number I is at I % OWN_CLOCK_PAIRS */
    uint64_t set; /* the number of the pair that showed last that the clock was set; 0: none did */
};

/* Return: the nanoseconds by which the clock was set since the pair before; 0: it was not. */
int64_t own_clock_take(struct own_clock *clock, const struct clock_pair *now);

/* When what CUPTI says ran from @begin to @end did so. */
struct placed own_clock_place(const struct own_clock *clock, uint64_t begin, uint64_t end);
