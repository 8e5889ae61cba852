/* SPDX-License-Identifier: Apache-2.0 */
/* Clocks, in nanoseconds. Any thread; no system call where the vDSO serves. */
#pragma once

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

/* Another clock and CLOCK_MONOTONIC, read together: the second within @error_ns of when the first was read. */
struct clock_pair {
    uint64_t other, mono_ns, error_ns;
};
#define CLOCK_READINGS 8
#define CLOCK_FEW_NS   2000u /* a reading that takes no longer is good enough */

/* Of several readings the one that took least: between two clocks the machine may do something else for milliseconds. */
static inline struct clock_pair clock_pair(uint64_t (*other)(void))
{
    struct clock_pair best = { 0 };
    uint64_t least_ns = UINT64_MAX;
    for (int i = 0; i < CLOCK_READINGS && least_ns > CLOCK_FEW_NS; i++) {
        uint64_t before = clock_mono_ns(), value = other(), took_ns = clock_mono_ns() - before;
        if (took_ns < least_ns) {
            least_ns = took_ns;
            best = (struct clock_pair){ value, before + took_ns / 2, took_ns / 2 + 1 };
        }
    }
    return best;
}
