/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Start and end of everything: the session, capture contexts, a forked child. The one place that knows all parts
 * of the library. Thread: any, unless a function says otherwise.
 */
#pragma once

#include "preload/base/cuda_abi.h"
#include "preload/context/context.h"
#include "preload/session/session.h"

#include <stdbool.h>

/* The driver works in this process: reads DMI_SPEC and the rest, arms the session, opens the run. Once. Keeps errno. */
void lifecycle_start(void);

/*
 * A program says something that a run is wanted for, and has not initialised CUDA. SESSION_TRACE: it says a step, or what its threads do, as an engine's scheduler,
 * which never initialises CUDA; the run begins here where a trace is wanted and no spec is. SESSION_SITES: it taps, says whose rows it is about
 * to tap, or switches taps; the run begins here where a spec has taps, as they may be of host memory. Thread: any. Keeps errno.
 */
void lifecycle_start_early(enum session_work what);

/* Reads the spec before the driver works, where it was not read yet: NVTX ranges may come first. Once. */
void lifecycle_read_spec(void);

/**
 * lifecycle_waited() - after a call in which the driver allocates or loads, and so may have waited for the device
 * In such calls the current context gets its ring, once a function of the spec was looked up. A successful call means
 * that the driver works: it arms the session if cuInit came unseen. Keeps errno.
 */
void lifecycle_waited(CUresult result);

/* The same for @handle, which need not be current. */
void lifecycle_waited_in(CUresult result, CUcontext handle);

/* The last flush: drains all contexts within DMI_EXIT_MS, closes the run, disarms. Once. Keeps errno. */
void lifecycle_finish(void);

/**
 * lifecycle_context_ends() - a call gives @reference back, or ends a context whatever is held
 * If no other reference is known our threads let go of it, and what is known of functions is forgotten. What is launched
 * there meanwhile is captured if the context lives on, else a counted drop. Thread: any that entered, until
 * lifecycle_context_ended().
 */
void lifecycle_context_ends(struct context_call *call, const struct context_reference *reference);

/* After context_call_returns(), which gave @before. @gone: the context is; else it lives on, or another call will say. */
void lifecycle_context_ended(struct context_call *call, enum context_state before, bool gone);
