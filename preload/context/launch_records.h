/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The records of a launch of a graph, as the drain makes them: one list for all of its slots. Launches that repeat one another share it, so it says nothing
 * that differs between them. It is immutable once a slot has it, and lives until nobody holds it. Any thread.
 */
#pragma once

#include "preload/context/context.h"

#include <stdint.h>

/* The note's forward is counted from the launch's; its step and time are the launch's. */
struct launch_record {
    uint32_t site;
    uint64_t n_bytes, at; /* @at: of its first byte, from that of the launch's */
    struct record_note note;
};

struct launch_records {
    uint32_t refs;
    uint32_t n;
    uint64_t n_bytes; /* of all, each rounded up to RING_ALIGN */
    struct launch_record all[];
};

/* The user data of a launch's slots. */
struct launch_note {
    struct launch_records *records; /* held by the slot */
    uint32_t first;                 /* of those that the slot tells of */
    uint64_t step, time_ns, forward;
};
static_assert(sizeof(struct launch_note) <= RING_USER_BYTES, "it is a slot's user data");

/* Room for @n, of which there is none yet. Return: held once; NULL without memory. */
struct launch_records *launch_records_new(uint32_t n);

/* @n more who hold it. */
void launch_records_hold(struct launch_records *records, uint32_t n);

/* Accepts NULL. */
void launch_records_release(struct launch_records *records);

/* That of launch slot @index. Thread: as ring_user(). */
static inline const struct launch_note *launch_note(const struct ring *ring, uint64_t index)
{
    return ring_user(ring, index);
}

/* Number @i of those that the slot tells of. */
static inline const struct launch_record *launch_record(const struct launch_note *note, uint32_t i)
{
    return &note->records->all[note->first + i];
}
