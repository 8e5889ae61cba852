/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ran, summed by name: of one step, or of all. Pure; the owner's thread. Names are compared by where they lie: the caller keeps one
 * copy of each. Source: docs/format.md 6.8.
 */
#pragma once

#include "core/hashed.h"
#include "cupti/records.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Kernels of one name on a device; copies of one kind, or fills, on it. */
struct aggregate_sum {
    uint32_t kind; /* enum layouts_kind, of the first one; 0: kernels whose sums were folded */
    uint32_t how;  /* as a record's */
    uint32_t device;
    uint32_t static_shared, dynamic_shared, registers; /* the most */
    const char *name;                                  /* NULL: not said */
    uint64_t n, sum_ns, most_ns, bytes;
};

struct aggregate_span {
    uint64_t begin_ns, end_ns;
};

/* Accepts being zeroed. */
struct aggregate {
    struct aggregate_sum *sums;
    size_t n, room;
    struct hashed by_hash;        /* of sums */
    struct aggregate_span *spans; /* in which something ran; they may overlap where @unsorted */
    size_t n_spans, spans_room;
    bool unsorted;
    uint64_t n_records;
};

/* When one at least of the records ran. */
struct aggregate_busy {
    uint64_t begin_ns, end_ns; /* of the first one, of the last one */
    uint64_t busy_ns;          /* in which one of them ran */
    uint64_t longest_ns;       /* the longest time between, in which none did */
};

/* One more record. Return: false without memory: it is in no sum. */
bool aggregate_add(struct aggregate *a, const struct records_event *event);

/* All records of a sum of another aggregate, without their times. Return: likewise. */
bool aggregate_merge(struct aggregate *a, const struct aggregate_sum *sum);

/* When the records that were added ran. One at least was. */
struct aggregate_busy aggregate_busy(struct aggregate *a);

/* Orders sums, the most time first. Nothing is added before aggregate_clear(). */
void aggregate_order(struct aggregate *a);

/* Orders sums, too, and kernels beyond the first @most names become one sum of kind 0. Copies, fills and kernels of this library keep sums of their own. */
void aggregate_fold(struct aggregate *a, size_t most);

/* Empty, with its memory. */
void aggregate_clear(struct aggregate *a);

/* Frees all. */
void aggregate_deinit(struct aggregate *a);
