/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The threads of a capture context, the way out of the ring: one drain (drain.h), and encoders (encoder.h), as many as
 * DMI_ENCODERS says, or the machine has to spare. They run on the CPUs that the process was given at its start, beside
 * those that the thread which starts them has pinned itself to.
 */
#pragma once

#include "preload/context/context.h"

/* Starts all threads. Thread: the one that creates or resumes @context. Return: 0 or -errno; then none runs. */
int workers_start(struct context *context);

/**
 * workers_stop() - what is in flight now is written within @timeout_ns, or counted under @reason
 * What is reserved later stays in the ring, for workers_start() or drain_give_up().
 * Thread: one at a time. Return: true if all threads ended within the time; if not, they and their memory stay.
 */
bool workers_stop(struct context *context, uint64_t timeout_ns, enum dmi_drop reason);

/* How much longer workers_stop() may take than it was given. */
#define WORKERS_GRACE_NS 1000000000u

/* After a workers_stop() in vain: have all threads ended by now? Thread: as workers_stop(). */
bool workers_ended(struct context *context);

/* Waits until the fate of all slots before @slot is counted. Thread: any. Return: true if it is. */
bool workers_wait(struct context *context, uint64_t slot, uint64_t timeout_ns);

/* Frees the staging memory; the threads have ended. Thread: as workers_start(). */
void workers_free(struct context *context);
