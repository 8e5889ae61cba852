/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ran, summed by step and name, into SUMS chunks. Records of a step come in turn; where some come later its sums stand in parts.
 * Thread: the collector.
 */
#pragma once

#include "preload/trace/ran_chunks.h"

#include <stddef.h>
#include <stdint.h>

#define SUMS_NAMES 16u /* of kernels that have a sum of their own in a step */

struct sums_part;

/* Accepts being zeroed. */
struct trace_sums {
    struct sums_part *parts; /* @n that records are added to, then others with their memory */
    size_t n, n_made, room;
    size_t last; /* the part of the record before */
    uint64_t round;
    uint64_t no_memory;   /* records that are in no sum */
    struct aggregate all; /* of all steps, and outside of them; without times */
};

/* A record of @step, as join_calls has it; its name stays. */
void sums_take(struct trace_sums *sums, const struct records_event *event, uint64_t step);

/* Steps to which nothing was added for a while, or @all, go to @to (NULL: nowhere). @second: also what is of no step, as once a second. Once a round. */
void sums_round(struct trace_sums *sums, bool second, bool all, struct ran_chunks *to);

/* "40.1% of it NAME, ...": what kernels took the most time, at most @n_bytes; "" where none ran. Once, after the last round. */
void sums_dearest(struct trace_sums *sums, char *to, size_t n_bytes);

/* Frees all. */
void sums_deinit(struct trace_sums *sums);
