/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where steps begin and end. What the engine says (dmi_step_begin()) counts for all threads, or for the one that says it; without it each thread has steps
 * of its own, which begin at a forward of the HookSpec or at what the user named, and end where the next one begins, or with their range. The best source that came so far is
 * the one in force. A lock of its own, never held across a call of the driver: once a step and thread, not at a launch.
 */
#pragma once

#include "preload/trace/lanes.h"
#include "preload/trace/threads.h"

#include <dmi/dmi.h>
#include <dmi/trace.h>

#include <stdbool.h>
#include <stdint.h>

/* Launches are counted from here on. @named_kernel: steps_enter() is to see each launch of a kernel. */
void steps_start(bool named_kernel);

/* They are not any more; steps that are open end with DMI_STEP_UNENDED. */
void steps_stop(void);

/* The engine begins a step, noted as @sequence. Thread: the one that says it. */
void steps_engine_begins(const struct dmi_step *said, uint64_t sequence);
/* It goes on with one, of the calling thread or of all. */
void steps_engine_resumes(uint64_t sequence, bool is_own);
/* It ends the step, if there is one. */
void steps_engine_ends(bool is_own);

/* The calling thread begins a step at the launch in @stream that it is about to make. */
void steps_begins(enum dmi_step_source source, struct stream stream);

/*
 * The same at its next launch, at a range: until another one begins, which it goes on after, or the range ends. Return: for steps_range_ends(), which any
 * thread may call; 0: it begins none.
 */
uint64_t steps_range_begins(void);
void steps_range_ends(uint64_t range);

/* The deal (threads.h) of what the engine's threads launch for now; 0: it says no steps. Thread: any. */
uint64_t steps_deal(void);

/* The source in force; 0: none came yet. Thread: any. */
uint32_t steps_source(void);

/* Some stream begins or ends being captured: its launches are not counted. Thread: any. */
void steps_capture_begins(void);
void steps_capture_ends(void);

/* @stream ends: NULL, any stream may. Before the driver's call. Thread: any. */
void steps_stream_ends(CUstream stream);

/* A call that loads code (or else allocates memory) took @ns. */
void steps_stalled(bool loads, uint64_t ns);

/*
 * The calling thread is about to wait for the device, or to ask whether it is done: what it launched last may be the end of its step, and
 * gets an event. Without it the device would seem busy until the host says the end.
 */
void steps_look(void);

/* It waited @ns for the device, until @now_ns of CLOCK_MONOTONIC. */
void steps_waited(uint64_t ns, uint64_t now_ns);

/* Kernels of DMI's own that the calling thread launched. */
void steps_own(uint32_t n);

/* Those that it launched in the stream, ahead of a launch of its own. */
static inline void steps_own_ahead(uint32_t n, struct stream stream)
{
    steps_own(n);
    lanes_own(n, stream);
}

/* After fork, in the child. */
void steps_reset(void);
