/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many references the application holds to CUDA contexts: to primary ones by retaining, to others by attaching. The
 * driver does not say. What comes past the library is not counted, so there may be more, and a release that seems to be the
 * last one may not be. One that is said to leave a reference does so, as an application that retains by a way past us releases by the same way.
 * Thread: any.
 */
#pragma once

#include "preload/base/cuda_abi.h"

#include <stdbool.h>

#define REFERENCES_DEVICES 64 /* contexts of further ones are not followed */

/* Are references to the primary context of @device counted? */
static inline bool references_follow(CUdevice device)
{
    return device >= 0 && device < REFERENCES_DEVICES;
}

/* A reference that is being given back, or all of them where the call ends the context whatever is held. */
struct context_reference {
    CUdevice device;  /* of whose primary context */
    CUcontext handle; /* not NULL: of this context, which is no primary one */
    bool counted;     /* it is one of those that are known */
    bool last;        /* no other is known */
};

/* The driver has given one to the primary context of @device. */
void references_retained(CUdevice device);

/* One is about to be given back to the driver. */
struct context_reference references_release(CUdevice device);

/* The same of a context that is no primary one: its creator holds one reference, each that attaches another. */
void references_attached(CUcontext handle);
struct context_reference references_detach(CUcontext handle);
void references_ended(CUcontext handle);

/* The driver refused to take it. */
void references_kept(const struct context_reference *reference);

/* After fork, in the child. */
void references_reset(void);
