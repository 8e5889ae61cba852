/* SPDX-License-Identifier: Apache-2.0 */
/* Clocks, in nanoseconds. Any thread; no system call where the vDSO serves. */
#ifndef CORE_CLOCK_H
#define CORE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* The time of the clock @id. */
static inline uint64_t clock_ns(clockid_t id)
{
    struct timespec ts;
    clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* A time or a duration as system calls take it. */
static inline struct timespec clock_timespec(uint64_t ns)
{
    return (struct timespec){ .tv_sec = (time_t)(ns / 1000000000u),
                              .tv_nsec = (long)(ns % 1000000000u) };
}

/* CLOCK_MONOTONIC: for durations and deadlines. */
static inline uint64_t clock_mono_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

/* CLOCK_REALTIME: for times that are stored. */
static inline uint64_t clock_real_ns(void)
{
    return clock_ns(CLOCK_REALTIME);
}

#endif
