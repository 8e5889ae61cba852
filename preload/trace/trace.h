/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trace of a process: when its steps ran. DMI_TRACE says which tier: `steps` takes no more than a pair of timing events a step,
 * `kernels` and `full` take CUPTI's records too.
 * Thread: lifecycle.c's.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Is a trace asked for, that this library has? What it cannot do is said in the log, once. */
bool trace_wanted(void);

/* What the user named to begin steps is known from here on: before NVTX asks for consumers. */
void trace_read(void);

/* Steps are timed from here on; there is a run. */
void trace_start(void);

/* CUDA is initialised after a trace began. Thread: the one that did it. */
void trace_meets_driver(void);

/* As collector_stop(), and no launch is counted any more. */
bool trace_stop(uint64_t end_ns);

/* After fork, in the child. */
void trace_reset(void);
