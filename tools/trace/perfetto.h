/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace as Perfetto reads it, packet by packet: tracks, slices, instants and counters. Source: Perfetto's perfetto_trace.proto, of which
 * tools/trace/perfetto.proto has what is used. A program of one thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Packets on their way to a file; the first error stays. */
struct perfetto {
    FILE *to;
    int error;         /* errno; 0 */
    uint64_t last;     /* number of a track */
    uint64_t n_slices; /* written so far */
};

/* A number that a slice carries, or a text. */
struct perfetto_fact {
    const char *name;
    int64_t value;
    const char *text; /* NULL: @value */
};

#define PERFETTO_MOST_FLOWS 16u

/* Arrows between slices, by numbers of their own. */
struct perfetto_flows {
    uint64_t ids[PERFETTO_MOST_FLOWS];
    size_t n;
    bool ends; /* they end in the slice; else they leave it */
};

/* Tracks. Return: the number by which what follows names it. Children of a process show below it. */
uint64_t perfetto_process(struct perfetto *p, int32_t pid, const char *name);
uint64_t perfetto_thread(struct perfetto *p, uint64_t process, int32_t pid, uint32_t tid,
                         const char *name);
uint64_t perfetto_track(struct perfetto *p, uint64_t process, const char *name);
uint64_t perfetto_counter(struct perfetto *p, uint64_t process, const char *name, const char *unit);

/* Slices of one track nest; of those that begin at one moment the outer one comes first. Times: nanoseconds. */
void perfetto_begin(struct perfetto *p, uint64_t track, uint64_t ns, const char *name,
                    const struct perfetto_fact *facts, size_t n_facts);
/* @flows: NULL: none. */
void perfetto_begin_linked(struct perfetto *p, uint64_t track, uint64_t ns, const char *name,
                           const struct perfetto_fact *facts, size_t n_facts,
                           const struct perfetto_flows *flows);
void perfetto_end(struct perfetto *p, uint64_t track, uint64_t ns);
void perfetto_instant(struct perfetto *p, uint64_t track, uint64_t ns, const char *name,
                      const struct perfetto_fact *facts, size_t n_facts);
void perfetto_count(struct perfetto *p, uint64_t track, uint64_t ns, int64_t value);
