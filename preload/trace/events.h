/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timing events of CUDA contexts, kept for use again, and what they say. They end with their context: the collector, which asks the driver
 * about them, stays out of it while one may end. Thread: any, where nothing else is said; a lock of its own, never held across
 * a call of the driver.
 */
#pragma once

#include "preload/base/stream.h"
#include "preload/trace/stepring.h"

#include <stdbool.h>
#include <stdint.h>

#define EVENTS_CONTEXTS 16u /* of further ones no device time is known */

/**
 * events_begin() - the event of a step's first launch, which comes next, in @stream
 * Sets the step's events, epoch, begin and device, or the flag that says why there is none. Never records in a stream that is being
 * captured. Thread: the launching one.
 */
void events_begin(struct trace_step *step, struct stream stream);

/*
 * The event after the last launch that a thread made so far, in @stream, becomes end number @i of the step. @own: it is the calling
 * thread; @there: else the context of that launch, NULL: not known. As events_begin().
 */
void events_end(struct trace_step *step, uint32_t i, struct stream stream, bool own,
                CUcontext there);

/* Is anything known of the device's time to come? Else the step is done, and its flags say why. Thread: the collector. */
bool events_pending(const struct trace_step *step);

/**
 * events_settle() - device time and gap of a step, if the device is done with it
 * Its events go back. Thread: the collector. Return: false: it is not done yet, or a context may be ending.
 */
bool events_settle(struct trace_step *step);

/* The step's events go back unread. Where it launched something, the steps after it have no gap. Thread: the collector. */
void events_drop(struct trace_step *step);

/* A call that may end a context begins: until it has returned the collector asks nothing, and all events are forgotten. */
void events_context_ends(void);
void events_context_ended(void);

/* @stream ends: another one may come under its handle. */
void events_stream_ends(CUstream stream);

/* After fork, in the child. */
void events_reset(void);
