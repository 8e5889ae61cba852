/* SPDX-License-Identifier: Apache-2.0 */
/* How a capture context begins and ends, with its threads and its side on the device. */
#ifndef PRELOAD_CONTEXT_LIFETIME_H
#define PRELOAD_CONTEXT_LIFETIME_H

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
 * application's that do so themselves, never in a launch. A context that could not be built is FAILED.
 */
struct context *context_prepare(void);

/**
 * context_stop() - drain what is in flight, within @timeout_ns, and end our threads
 * What is not drained by then is counted under @reason. Its device memory stays: it ends with the CUDA context.
 * Thread: any but the drain. Return: false if a thread of ours did not end in time.
 */
bool context_stop(struct context *context, uint64_t timeout_ns, enum dmi_drop reason);

/*
 * What the capture context allocated is given back, where the end of the CUDA context would not do so: memory of a green
 * context is the device's. After context_stop(); it can not be resumed. Thread: the one that ends the CUDA context.
 */
void context_release(struct context *context);

/*
 * Whoever is given the CUDA context's handle from here on finds no capture context under it; and the opposite, where
 * the CUDA context did not end. After context_stop(). Thread: the one that ends the CUDA context.
 */
void context_detach(struct context *context);
void context_attach(struct context *context, CUcontext handle);

/* The CUDA context lives on after all: threads start again. Thread: as context_detach(). */
void context_resume(struct context *context);

/* The CUDA context has ended and its handle may be reused. After context_stop(). Thread: as context_detach(). */
void context_forget(struct context *context);

#endif
