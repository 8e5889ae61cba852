/* SPDX-License-Identifier: Apache-2.0 */
/* The host context's memory: one mapping, for descriptors, lists of rows and payload. Thread: the one that creates the host context. */
#pragma once

#include "core/err.h"
#include "preload/context/context.h"

/* Fills in what struct context has "fixed once created", and its ring. Return: 0 or -errno; then host_forget(). */
int host_init(struct err *err, struct context *context);

/* Frees the memory. */
void host_forget(struct context *context);
