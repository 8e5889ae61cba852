/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What runs on the devices of this process, as CUPTI records it: kernels, copies and fills. It is started once a process, after the application's
 * own successful cuInit, and never again. It asks for nothing else, so that no callback of CUPTI's runs in the application's calls, and
 * never ends CUPTI for others.
 */
#pragma once

#include "core/clock.h"
#include "core/err.h"
#include "cupti/library.h"
#include "cupti/records.h"

#include <stdbool.h>
#include <stdint.h>

/* What became of the records so far. */
struct tracer_counts {
    struct records_walk walk; /* what CUPTI delivered */
    uint64_t dropped;         /* that it did not, as far as it said */
    uint64_t n_untold;        /* times that it did not say it */
    int untold;               /* CUPTI's error when it was last asked; 0: it said it */
};

/**
 * tracer_start() - find libcupti and let it record
 * @lookup, @path, @major: as library_find(). Thread: the one whose cuInit has returned. Return: 0, or below 0 with a sentence in @err: nothing
 * is recorded.
 */
int tracer_start(struct err *err, library_lookup *lookup, const char *path, int major);

/* Was it started, and neither stopped nor lent? Thread: any. */
bool tracer_runs(void);

/* Did the process have no libcupti before the tracer? Thread: any. */
bool tracer_brought(void);

/* Does the tracer ask CUPTI for records of this kind? */
bool tracer_has_kind(int kind);

/* Where the library was found; "". */
const char *tracer_path(void);

/* Does this library know the layouts of its records? Else what all versions have in common is read. */
bool tracer_knows_layouts(void);

/* Kinds that are asked for and that CUPTI does not record, but for kernels, each with its error; "". Thread: after tracer_start(). */
const char *tracer_lacks(void);

/* CUPTI's ids of a stream of the context, and of that. Return: false: it does not know them. Thread: any, with the context current. */
bool tracer_stream_ids(void *context, void *stream, bool per_thread, uint32_t *context_id,
                       uint32_t *stream_id);

/* CUPTI's id of a graph that was instantiated. Return: false: it does not know one, or has none. Thread: any. */
bool tracer_graph_id(void *exec, uint32_t *id);

/* The same of a node of a graph: records of what it ran hold it, as struct records_event says. */
bool tracer_node_id(void *node, uint64_t *id);

/**
 * tracer_clock() - CUPTI's clock and CLOCK_MONOTONIC, read together
 * Records have times of that clock, as far as CUPTI keeps to it. Thread: one of ours. Return: false: CUPTI does not say it.
 */
bool tracer_clock(struct clock_pair *now);

/* Can it say it? */
bool tracer_says_clock(void);

/* CUPTI gives back buffers with records that are complete, or @forced: all. Blocks. Thread: one of ours. Return: CUPTI's result. */
int tracer_flush(bool forced);

/* Hands the records that came back to @fn, buffer by buffer. Thread: one of ours. */
void tracer_take(void (*fn)(void *ctx, const struct records_event *event), void *ctx);

/* Another user of CUPTI in this process: whom CUPTI asks for buffers, and to whom it gives those back that are not the tracer's. */
struct tracer_user {
    library_request *request;
    library_complete *complete;
};

/**
 * tracer_lend() - what CUPTI has recorded for the tracer comes back, and it records nothing for the tracer any more
 * Thread: any; lend.c's lock. Return: false: the tracer does not run.
 */
bool tracer_lend(void);

/* Is CUPTI lent? Thread: any. */
bool tracer_lent(void);

/* @user gives CUPTI its buffers from here on, also where the tracer's callbacks are registered; zeroed: the tracer does. Nothing changes while the tracer runs. Thread: lend.c's lock. */
void tracer_route(const struct tracer_user *user);

/* Registers the tracer's callbacks, which hand on, by CUPTI's @real. Thread: the other user's. Return: CUPTI's result. */
int tracer_register(library_register *real);

/* CUPTI gives the other user what it still has. Calls that user's callbacks. Thread: one of ours. */
void tracer_flush_user(void);

/* CUPTI records for the tracer again. While it is lent. Thread: one of ours, with lend.c's lock. Return: 0; CUPTI's error: the tracer has stopped. */
int tracer_take_back(void);

/* Nothing further is recorded; what is under way may still come. Thread: one of ours. */
void tracer_stop(void);

/* Thread: the one that takes. */
struct tracer_counts tracer_counts(void);

/* After fork, in the child: CUDA has not come through it, and libcupti is not used there again. */
void tracer_reset(void);
