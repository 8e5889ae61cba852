/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From CLOCK_MONOTONIC, by which a step is timed, to CLOCK_REALTIME, as files have it: by pairs of both clocks, taken every
 * second or so. Pure; the caller's lock.
 */
#ifndef PRELOAD_TRACE_CLOCK_H
#define PRELOAD_TRACE_CLOCK_H

#include <stdint.h>

#define TRACE_CLOCK_JUMP_NS 1000000 /* slower changes are the system's corrections */

/* Accepts being zeroed: then no pair was taken. */
struct trace_clock {
    int64_t ahead_ns; /* real less monotonic, as of the last pair */
    int taken;
};

/**
 * trace_clock_pair() - take a pair, both read at one moment
 * Return: the nanoseconds by which the real clock was set since the pair before; 0: it was not.
 */
int64_t trace_clock_pair(struct trace_clock *clock, uint64_t mono_ns, uint64_t real_ns);

/* The real time of a monotonic one, by the last pair; 0 stays 0. */
uint64_t trace_clock_real(const struct trace_clock *clock, uint64_t mono_ns);

#endif
