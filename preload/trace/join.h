/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which step each thing that ran on a device is of. CUPTI does not say which launch a record belongs to. So launches are counted: a run is
 * what one thread launched in one stream for one step, and the records of a stream, in the order of their correlation ids, are dealt to runs
 * by these counts, which need no clock. Kinds, the names of the first and the last kernel, and the ids of graphs must fit: else nothing of the run is known, and
 * dealing goes on at a later run between two moments at which the stream was known to be idle: steps are alike, so only then no other run can be meant. That compares
 * CUPTI's clock with the system's, so it needs both, by more than their error (join_proof.c). Copies go with the kernel before them, and so do kernels of DMI's but for those that a run says came before its first launch. Pure: the collector's thread.
 */
#pragma once

#include "cupti/own_clock.h"
#include "cupti/records.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* In the place of a name's hash. */
#define JOIN_NO_NAME 0u
#define JOIN_GRAPH   2u

/* The ids of no graph, as struct join_run has them. */
#define JOIN_NO_GRAPHS 1u

/* What one thread launched in one stream, for one step or between two. */
struct join_run {
    uint64_t deal; /* number of the step or of what lies between; they rise in each stream */
    uint32_t context, stream; /* CUPTI's ids */
    uint32_t kernels, graphs; /* launches that the driver took, DMI's own kernels not counted */
    uint64_t graph_ids;       /* of these, in turn: join_graph(); 0: not known */
    uint64_t first, last;     /* join_name() of these, JOIN_GRAPH, JOIN_NO_NAME: not known */
    uint32_t lead;            /* kernels of DMI's before the first of these */
    uint64_t begin_ns;        /* CLOCK_MONOTONIC: no later than just before its first launch */
    uint64_t
        idle_ns; /* likewise: the stream had been waited for by then, and nothing launched in it since; 0: it was not */
    bool in_step; /* join_step() says its number */
    bool unsure;  /* of which step it is nobody knows */
    bool
        shared; /* other threads have steps of their own in the same stream: their order is not known */
};

struct join;

/* Return: NULL without memory. */
struct join *join_new(void);
void join_free(struct join *join);

/* The hash of a kernel's raw name. Thread: any. */
uint64_t join_name(const char *name);

/* @ids, and then that of one more graph, CUPTI's; 0: it is not known, and neither are all together. Thread: any. */
static inline uint64_t join_graph(uint64_t ids, uint32_t graph)
{
    return ids && graph ? (ids ^ graph) * 0x9E3779B97F4A7C15u | 1 : 0;
}

/* A record, in any order. A kernel's name is copied, or counted by join_unnamed(). Return: false without memory. */
bool join_add(struct join *join, const struct records_event *event);

/* A run that is over, in the order of its thread. Return: false without memory: it is not known. */
bool join_add_run(struct join *join, const struct join_run *run);

/* The step of @deal has ended, as step @number of the trace. Return: likewise. */
bool join_step(struct join *join, uint64_t deal, uint64_t number);

/* Records were lost: no stream is sure of its count. */
void join_doubt(struct join *join);

/* So many launches so far are in no run, of any stream: there are more records than launches. */
void join_uncounted(struct join *join, uint64_t n);

/* So was what was launched in one stream. Return: false without memory. */
bool join_doubt_stream(struct join *join, uint32_t context, uint32_t stream);

/* Launches so far for which no records fit: their step has fewer kernels than it ran. */
uint64_t join_unplaced(const struct join *join);

/* Launches so far whose records are of other graphs, by their ids: likewise. */
uint64_t join_misnamed(const struct join *join);

/* Records so far that were of no known step as more of them waited in their stream than there is room for. */
uint64_t join_too_many(const struct join *join);

/* Did records run, by CUPTI's clock, while their stream had nothing to run? Then places are proved by no clock, for a while. */
bool join_clocks_differ(const struct join *join);

/* Do records name graphs by ids that no exec has, or that never fit? Then ids are not compared. */
bool join_ids_differ(const struct join *join);

/* Records so far whose kernel's name found no place, for want of memory or as there are too many names: they are handed on without it. */
uint64_t join_unnamed(const struct join *join);

/* Are launches of a step with a number below @end known, whose records have not come? */
bool join_awaits(const struct join *join, uint64_t end);

/* What is asked of the caller, and what it gets. */
struct join_calls {
    uint64_t (*open)(
        uint32_t context,
        uint32_t
            stream); /* the lowest deal of a run in the stream that is not over; UINT64_MAX: none */
    bool (*is_exec)(uint32_t graph); /* did an exec ever have this id? */
    bool (*is_perhaps)(
        uint32_t graph); /* launches of this exec perhaps leave no record, and are not counted */
    struct placed (*place)(
        struct records_event *event); /* when it ran; once a record, whose times may be corrected */
    void (*take)(const struct records_event *event,
                 uint64_t step); /* DMI_RAN_UNKNOWN and so on; borrowed during the call */
};

/**
 * join_deal() - hand on what is known, once a round, after all that CUPTI has was taken
 * A record waits for a round, as others of its stream may come after it, and for those of a later launch. @now_ns: CLOCK_MONOTONIC, after what was
 * taken came. @last: no record and no run comes any more.
 */
void join_deal(struct join *join, const struct join_calls *calls, uint64_t now_ns, bool last);
