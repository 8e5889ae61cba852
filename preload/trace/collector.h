/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread of the library's own: it asks the driver when steps were over, turns their times into those of files, and appends them to the run,
 * in chunks, once a second or when there are many.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Thread: lifecycle.c's, with a run. Return: 0 or -errno. */
int collector_start(void);

/* Waits, for a moment at most, until the collector has asked about all steps that have ended: a context is about to end. Thread: any. */
void collector_catch_up(void);

/**
 * collector_stop() - what the device is done with by @end_ns (CLOCK_MONOTONIC) is timed, all of it is written, the thread ends
 * After steps_stop(). Thread: lifecycle.c's. Return: false if the thread did not end: the run is in use.
 */
bool collector_stop(uint64_t end_ns);

/* After fork, in the child. */
void collector_reset(void);
