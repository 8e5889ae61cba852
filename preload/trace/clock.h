/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From CLOCK_MONOTONIC, by which a step is timed, to CLOCK_REALTIME, as files have it: by pairs of both clocks, taken in each round of the
 * collector. Where the clock was set, what began before lies by the clock as it was, and what began later by the new one. A step reads both
 * clocks when it begins; other things that begin between the setting and the next pair lie by the clock as it was. Pure; the caller's lock.
 */
#pragma once

#include <stdint.h>

#define TRACE_CLOCK_JUMP_NS 1000000 /* slower changes are the system's corrections */
#define TRACE_CLOCK_SET     16u     /* times that the clock was set that are remembered */

/* Accepts being zeroed: then no pair was taken. */
struct trace_clock {
    struct trace_clock_part {
        uint64_t from_ns;     /* monotonic: the first pair after the clock was set */
        int64_t ahead_ns;     /* real less monotonic, as of the last pair of this part */
    } parts[TRACE_CLOCK_SET]; /* the last one first */
    uint32_t n;
};

/**
 * trace_clock_pair() - take a pair, both read at one moment
 * Return: the nanoseconds by which the real clock was set since the pair before; 0: it was not.
 */
int64_t trace_clock_pair(struct trace_clock *clock, uint64_t mono_ns, uint64_t real_ns);

/* By how much the real clock was ahead at a monotonic time. */
int64_t trace_clock_ahead(const struct trace_clock *clock, uint64_t mono_ns);

/*
 * The same at a time of which a thread has read both clocks, one after the other. Between two pairs of the collector's the clock may have
 * been set before or after it: that side is taken which the thread's readings are nearer to, as it may have been held up between them.
 */
int64_t trace_clock_ahead_of(const struct trace_clock *clock, uint64_t mono_ns, uint64_t real_ns);

/* @mono_ns in the real time of a clock that is ahead by @ahead_ns: all times of one thing go by one such number. 0 stays 0. */
static inline uint64_t trace_clock_real(int64_t ahead_ns, uint64_t mono_ns)
{
    return mono_ns ? mono_ns + (uint64_t)ahead_ns : 0;
}
