/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A capture context's side on the device: kernels of ours, payload, descriptors, the drain's stream. Thread: the one
 * that creates the capture context, with its CUDA context current.
 */
#pragma once

#include "core/err.h"
#include "preload/context/context.h"

/**
 * device_use_kernels() - the names of the actions' kernels, for all capture contexts to come
 * @names: @n of them, at most CONTEXT_KERNELS; borrowed for good
 * Thread: the one that arms the session.
 */
void device_use_kernels(const char *const *names, uint32_t n);

/* Fills in what struct context has "fixed once created", and its ring. Return: 0 or -errno; then device_give_back() and device_forget(). */
int device_init(struct err *err, struct context *context);

/* Gives back what lies on the device, or is the driver's. device_forget() comes later: threads may look at the ring still. */
void device_give_back(struct context *context);

/* The CUDA context is gone, and with it all that lay on the device. Frees the memory on the host. */
void device_forget(struct context *context);

/* Device memory that is free in the current context; UINT64_MAX where the driver does not say. Calls the driver. */
uint64_t device_free_bytes(void);
