/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The drain thread of a capture context: it copies published records to staging memory in batches and frees their ring
 * space. Batches keep their order from ring to disk.
 */
#pragma once

#include "preload/context/context.h"

/* The thread's body; @arg: struct context. Ends once it is asked to, and all is taken that was in the ring then, or given up and
 * counted. */
void *drain_main(void *arg);

/**
 * drain_give_up() - what is left in the ring is counted under @reason
 * Thread: one at a time, after the drain has ended.
 */
void drain_give_up(struct context *context, enum dmi_drop reason);
