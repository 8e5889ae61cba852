/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The records of the last steps, in a ring of fixed size: where it is full the oldest records go. Thread: the collector.
 */
#pragma once

#include "cupti/records.h"

#include <stdint.h>

struct recent_record {
    struct records_event event; /* its name stays */
    uint64_t step;              /* its number; RECENT_STORED: it is in the run */
};

#define RECENT_STORED (1ull << 63)

/* Accepts being zeroed: then it holds nothing. */
struct recent {
    struct recent_record *records;
    uint64_t room;
    uint64_t n;      /* that were ever added */
    uint64_t gone;   /* of these: that went and were not stored */
    uint64_t whole;  /* the first step of which no record went */
    uint64_t stored; /* records that were handed to be stored */
};

/* @n_bytes of memory, one record at least; a forked child has none of it. Return: 0 or -ENOMEM. */
int recent_init(struct recent *recent, uint64_t n_bytes);

/* One more record of the step with this number. */
void recent_add(struct recent *recent, const struct records_event *event, uint64_t number);

/* Hands records of steps @first to before @end, but those that were stored before, to @fn, and notes that they are. */
void recent_store(struct recent *recent, uint64_t first, uint64_t end,
                  void (*fn)(void *ctx, const struct records_event *event, uint64_t number),
                  void *ctx);

/* Frees all. */
void recent_deinit(struct recent *recent);
