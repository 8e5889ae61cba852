/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way out of the ring: one drain thread per capture context copies published records to staging memory in
 * batches and frees their ring space; an encoder thread appends each batch to the run as one chunk. Batches keep
 * their order from ring to disk.
 */
#ifndef PRELOAD_CONTEXT_DRAIN_H
#define PRELOAD_CONTEXT_DRAIN_H

#include "preload/context/context.h"

/* Starts both threads. Thread: the one that creates or resumes @context. Return: 0 or -errno. */
int drain_start(struct context *context);

/**
 * drain_stop() - what is in flight within @timeout_ns is written, the rest counted under @reason
 * Thread: one at a time. Return: true if both threads ended within the time; if not, they and their memory stay.
 */
bool drain_stop(struct context *context, uint64_t timeout_ns, enum dmi_drop reason);

/* Waits until the fate of all slots before @slot is counted. Thread: any. Return: true if it is. */
bool drain_wait(struct context *context, uint64_t slot, uint64_t timeout_ns);

/* Frees the staging memory; the threads have ended. Thread: as drain_start(). */
void drain_free(struct context *context);

#endif
