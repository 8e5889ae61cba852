/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the process stood still: a signal stopped it, a debugger, a frozen container, or the machine itself. A thread that wakes at set times looks at it each time.
 * Thread: that one.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define BEAT_STOPPED_NS 50000000u /* shorter ones are not told from others */

/* Accepts being zeroed. */
struct beat {
    uint64_t mono_ns, cpu_ns; /* of the last look; time that all threads have run by then */
    uint64_t queued_ns;       /* time for which this thread has waited for a CPU by then */
    double rate;              /* how many threads ran, in the time before */
    bool known;               /* the system says the last three */
};

/**
 * beat_look() - looks again, after @nap_ns at most in which the thread slept, or waited for something else
 * @begin_ns, @end_ns: of CLOCK_MONOTONIC
 * Return: whether the process stood still since then, and not this thread alone, for want of a CPU.
 */
bool beat_look(struct beat *beat, uint64_t nap_ns, uint64_t *begin_ns, uint64_t *end_ns);
