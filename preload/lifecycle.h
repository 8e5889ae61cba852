/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Start and end of everything: the session, capture contexts, a forked child. The one place that knows all parts
 * of the library. Thread: any, unless a function says otherwise.
 */
#ifndef PRELOAD_LIFECYCLE_H
#define PRELOAD_LIFECYCLE_H

#include "preload/base/cuda_abi.h"

#include <stdbool.h>

/* After a successful cuInit: reads DMI_SPEC and the rest, arms the session. Once a process. Keeps errno. */
void lifecycle_start(void);

/* The last flush: drains all contexts within DMI_EXIT_MS, closes the run, disarms. Once. Keeps errno. */
void lifecycle_finish(void);

struct context;

/**
 * lifecycle_context_ends() - @handle is about to end: our threads let go of it
 * While the driver's call that ends it lasts, launches of that context are counted drops. Return: what
 * lifecycle_context_ended() wants, NULL: it holds nothing of ours.
 */
struct context *lifecycle_context_ends(CUcontext handle);

/* The driver's call has returned. @gone: the context is; else it lives on. Does nothing with NULL. */
void lifecycle_context_ended(struct context *context, CUcontext handle, bool gone);

#endif
