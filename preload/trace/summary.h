/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process says of its steps when it ends: counts, and quantiles from histograms of fixed size. Pure; the caller's lock.
 */
#pragma once

#include <dmi/trace.h>

#include <stddef.h>
#include <stdint.h>

#define SUMMARY_LINES 6
#define SUMMARY_BYTES 256 /* of a line */
#define SUMMARY_PARTS 32u /* of a power of two: a quantile is within 1/32 */

/* Times of steps, by size. Accepts being zeroed. */
struct summary_times {
    uint64_t n;
    uint32_t of[64 * SUMMARY_PARTS];
};

struct summary {
    uint64_t steps, timed, launches, graphs, own;
    uint64_t device_ns, gap_ns, host_ns; /* sums; of gaps that are positive */
    struct summary_times device, host;
};

/* A step that is done. */
void summary_add(struct summary *summary, const struct dmi_step_times *at);

/* Below or at which @share of the times are, 0 to 1; the middle of the part that it lies in. 0: there are none. */
uint64_t summary_quantile(const struct summary_times *times, double share);

/**
 * summary_lines() - sentences for the log
 * @lost: steps that are in no file; @ranges_lost: likewise; @source: what begins steps, in words; where none came: what the user named, NULL or "": nothing; @dearest: the kernels with the most time, "": not
 * known; @path: of the run
 * Return: how many lines there are.
 */
size_t summary_lines(const struct summary *summary, uint64_t lost, uint64_t ranges_lost,
                     const char *source, const char *dearest, const char *path,
                     char lines[SUMMARY_LINES][SUMMARY_BYTES]);
