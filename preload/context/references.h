/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many references the application holds to CUDA contexts: to primary ones by retaining, to others by attaching. The
 * driver does not say. What comes past the library is not counted, so there may be more, and a release that seems to be the
 * last one may not be. One that is said to leave a reference does so, as whoever retains by a way past us releases by it.
 * Thread: any.
 */
#ifndef PRELOAD_CONTEXT_REFERENCES_H
#define PRELOAD_CONTEXT_REFERENCES_H

#include "preload/base/cuda_abi.h"

#include <stdbool.h>

/* A reference that is being given back. */
struct reference {
    CUdevice device;   /* of whose primary context; else @handle counts */
    CUcontext handle;  /* NULL: a primary context */
    CUcontext primary; /* what that was last called, NULL: not known */
    bool counted;      /* it is one of those that we know */
    bool last;         /* no other is known */
};

/* The driver has given one to the primary context of @device. */
void references_retained(CUdevice device, CUcontext handle);

/* One is about to be given back to the driver. */
struct reference references_release(CUdevice device);

/* The context ends whatever is held, and what is held stays: a reset. */
struct reference references_of_all(CUdevice device);

/* The same of a context that is no primary one: its creator holds one reference, each that attaches another. */
void references_attached(CUcontext handle);
struct reference references_detach(CUcontext handle);
void references_ended(CUcontext handle);

/* The driver refused to take it. */
void references_kept(const struct reference *reference);

/* After fork, in the child. */
void references_reset(void);

#endif
