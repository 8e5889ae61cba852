/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches by thread and stream, for the tiers kernels and full: what join.h deals the device's records by. A launch adds to memory of its own thread; the
 * first one for a step, in a stream, takes a lock, which is never held across a call of the driver's or of CUPTI's.
 */
#pragma once

#include "preload/trace/join.h"
#include "preload/trace/threads.h"

#include <stdbool.h>
#include <stdint.h>

/* Launches are counted from here on, or no more. */
void lanes_use(bool use);

/* Hands on what is over, or @all there is. @engine_deal: steps_deal(). lanes_open() tells of the other runs. Thread: the collector. */
void lanes_take(bool all, uint64_t engine_deal, void (*fn)(const struct join_run *run));

/* @fn gets each stream of which runs or launches were lost for want of room since it was asked last. Thread: the collector. */
void lanes_take_lost(void (*fn)(uint32_t context, uint32_t stream));

/* Launches that were lost as their threads launch in more streams at a time than there are places. */
uint64_t lanes_crowded(void);

/* Runs that were lost for want of room in streams that are not known any more. */
uint64_t lanes_lost(void);

/* Launches that are in no run, as CUPTI did not know their stream. */
uint64_t lanes_unknown(void);

/* As struct join_calls has it. */
uint64_t lanes_open(uint32_t context, uint32_t stream);

/* The calling thread launched @n kernels of DMI's in the stream, ahead of a launch of its own: they are of that launch's step. */
void lanes_own(uint32_t n, struct stream stream);

/* By @now_ns (CLOCK_MONOTONIC) the calling thread has waited for all that is in the stream, or in the context (NULL: the current one). */
void lanes_stream_idle(struct stream stream, uint64_t now_ns);
void lanes_context_idle(CUcontext context, uint64_t now_ns);

/* @stream ends: NULL, any stream may. Thread: any. */
void lanes_stream_ends(CUstream stream);

/* Functions may have ended: their handles may be used again. Thread: any. */
void lanes_forget(void);

/* The thread ends. */
void lanes_leave(struct trace_thread *thread);

/* After fork, in the child. */
void lanes_reset(void);
