/* SPDX-License-Identifier: Apache-2.0 */
/* How a capture context begins and ends, with its threads and its side on the device. */
#pragma once

#include "preload/context/context.h"

/**
 * context_current() - the capture context of the calling thread's current CUDA context
 * Nothing is built: one that is not known yet is COUNTING. Thread: any that entered the session; calls the driver.
 * Return: NULL: there is no CUDA context, too many of them, no memory, or no run.
 */
struct context *context_current(void);

/**
 * context_prepare() - the same, with its ring, module and threads
 * Where these are built, the driver allocates and loads, and may wait for the device: only in calls of the
 * application's that do so themselves, never in a launch. A context that could not be built is FAILED. One that stands
 * still though no call is under way that may end it goes on.
 */
struct context *context_prepare(void);

/**
 * context_host() - the host context, with its ring and threads
 * There is one, from the first tap of host memory on; it ends with the process. What is built waits for no device. Thread: any that entered the
 * session and holds no lock. Return: as context_current(); a context that could not be built is FAILED.
 */
struct context *context_host(void);

/**
 * context_stop() - what is in flight is drained within @timeout_ns, our threads end
 * What is not drained by then is counted under @reason. Its device memory stays: it ends with the CUDA context. Waits where
 * another thread starts, stops or resumes it. Thread: any but the drain. Return: false if a thread of ours did not end in
 * time.
 */
bool context_stop(struct context *context, uint64_t timeout_ns, enum dmi_drop reason);

/* It takes no record from here on, and its threads do not start again. Thread: any. */
void context_close(struct context *context);

/*
 * What the capture context allocated is given back, where the end of the CUDA context would not do so: memory of a green
 * context is the device's. After context_stop(); it is closed. Thread: the one that ends the CUDA context.
 */
void context_release(struct context *context);

/*
 * Of one that stands still, and whose handle is some context's: is what it has on the device still there? Its CUDA context may have ended, and another one have
 * its handle, which is alive. Calls the driver. Thread: any that uses it, or is in a call that may end it.
 */
bool context_is_same(const struct context *context);

/* Has another CUDA context the handle of this one, which has ended unnoticed? Calls the driver. Thread: any that uses it, where it is current. */
bool context_is_over(const struct context *context);

/* The CUDA context has ended: what is in flight is counted. Return: true for the one who says it first. Thread: any. */
bool context_gone(struct context *context);

/**
 * context_call_starts() - a call of the application's gives @reference back, or ends a context whatever is held
 * Where it is the last one our threads are stopped first, within @timeout_ns. Else nothing changes, and nothing is waited
 * for.
 */
void context_call_starts(struct context_call *call, const struct context_reference *reference,
                         uint64_t timeout_ns);

/*
 * After context_call_returns(), which gave @before, and context_gone() if it is. With the last of several calls capture goes
 * on.
 */
void context_call_ends(struct context_call *call, enum context_state before);

/* The caller looks at it no longer. After context_use(). */
void context_unuse(struct context *context);
