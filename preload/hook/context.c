/* SPDX-License-Identifier: Apache-2.0 */
/* Wrappers: CUDA contexts that begin, become current and end. Our threads use them: they end first. */
#include "preload/base/stream.h"
#include "preload/context/lifetime.h"
#include "preload/hook/wrapper.h"

#include <stddef.h>

/* ------------------------------------------------------------------------- beginning */

/* The context of @green, NULL: the driver does not say. */
static CUcontext green_context(CUgreenCtx green)
{
    CUcontext context;
    return driver_table.cuCtxFromGreenCtx &&
                   driver_table.cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS
               ? context
               : NULL;
}

/* The new context is current. */
WAITS(cuCtxCreate, (CUcontext * c, unsigned flags, CUdevice d), (c, flags, d))
WAITS(cuCtxCreate_v2, (CUcontext * c, unsigned flags, CUdevice d), (c, flags, d))
WAITS(cuCtxCreate_v3,
      (CUcontext * c, CUexecAffinityParam *params, int n, unsigned flags, CUdevice d),
      (c, params, n, flags, d))
WAITS(cuCtxCreate_v4, (CUcontext * c, CUctxCreateParams *params, unsigned flags, CUdevice d),
      (c, params, flags, d))

/* The primary contexts that the application was given, for when the driver does not say at their end. */
#define MAX_DEVICES 64

static CUcontext primaries[MAX_DEVICES];

static CUcontext primary_noted(CUdevice device)
{
    return device >= 0 && device < MAX_DEVICES ? atomic_load_relaxed(&primaries[device]) : NULL;
}

static void note_primary(CUdevice device, CUcontext context)
{
    if (device >= 0 && device < MAX_DEVICES)
        atomic_store_relaxed(&primaries[device], context);
}

EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CUresult r = REAL(cuDevicePrimaryCtxRetain)(context, device);
    if (r == CUDA_SUCCESS && context)
        note_primary(device, *context);
    if (context)
        lifecycle_waited_in(r, *context);
    return r;
}

EXPORT CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc resources,
                                         CUdevice device, unsigned flags)
{
    CUresult r = REAL(cuGreenCtxCreate)(green, resources, device, flags);
    if (r == CUDA_SUCCESS)
        stream_green_begins();
    return r;
}

EXPORT CUresult CUDAAPI cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
    CUresult r = REAL(cuCtxFromGreenCtx)(context, green);
    if (context)
        lifecycle_waited_in(r, *context);
    return r;
}

/* Its streams may be used without ever making it current. */
EXPORT CUresult CUDAAPI cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned flags,
                                               int priority)
{
    CUresult r = REAL(cuGreenCtxStreamCreate)(stream, green, flags, priority);
    CUcontext context = r == CUDA_SUCCESS && session_armed() ? green_context(green) : NULL;
    if (context)
        lifecycle_waited_in(r, context);
    return r;
}

/* ------------------------------------------------------------------------- ending */

enum primary_state { PRIMARY_INACTIVE, PRIMARY_ACTIVE, PRIMARY_UNKNOWN };

/* Asked again where the driver does not answer. */
static enum primary_state primary_state(CUdevice device)
{
    unsigned flags = 0;
    int active = 0;
    for (int i = 0; i < 2; i++)
        if (driver_table.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS)
            return active ? PRIMARY_ACTIVE : PRIMARY_INACTIVE;
    return PRIMARY_UNKNOWN;
}

/* It is over: so is what the driver says nothing of, as our threads must not use it if it is. */
static bool primary_is_gone(CUdevice device)
{
    return primary_state(device) != PRIMARY_ACTIVE;
}

/* The handle of a device's primary context, NULL: it is not active, so nobody uses it. */
static CUcontext primary_context(CUdevice device)
{
    CUcontext context = NULL;
    enum primary_state state = primary_state(device);
    if (state == PRIMARY_INACTIVE)
        return NULL;
    /* the only way to its handle; the reference is given back at once */
    if (state == PRIMARY_UNKNOWN ||
        driver_table.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
        return primary_noted(device); /* else our threads would use it when it is gone */
    if (driver_table.cuDevicePrimaryCtxRelease_v2 &&
        driver_table.cuDevicePrimaryCtxRelease_v2(device) != CUDA_SUCCESS)
        driver_table.cuDevicePrimaryCtxRelease_v2(device);
    return context;
}

/* What the library allocated in a green context belongs to the device, and would stay. */
static void release_and_detach(struct context *c)
{
    context_release(c);
    context_detach(c);
}

/* A primary context has the same handle when it is used again. */
static void keep_handle(struct context *c)
{
    (void)c;
}

/*
 * @let_go: before the driver's call. Once that returns, another thread may be given the same handle. @is_gone: what
 * lies in the context is, after a call that succeeded.
 */
#define CONTEXT_ENDS(name, type, handle_of, let_go, is_gone)                                       \
    EXPORT CUresult CUDAAPI name(type it)                                                          \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        struct session_call call;                                                                  \
        if (!session_armed())                                                                      \
            return real(it);                                                                       \
        CUcontext handle = session_enter(&call) ? (handle_of) : NULL;                              \
        struct context *c = lifecycle_context_ends(handle);                                        \
        if (c)                                                                                     \
            let_go(c);                                                                             \
        session_pause(&call);                                                                      \
        CUresult r = real(it);                                                                     \
        session_resume(&call);                                                                     \
        lifecycle_context_ended(c, handle, c &&r == CUDA_SUCCESS && (is_gone));                    \
        session_leave(&call);                                                                      \
        return r;                                                                                  \
    }
CONTEXT_ENDS(cuCtxDestroy, CUcontext, it, context_detach, true)
CONTEXT_ENDS(cuCtxDestroy_v2, CUcontext, it, context_detach, true)
CONTEXT_ENDS(cuCtxDetach, CUcontext, it, context_detach, true)
CONTEXT_ENDS(cuGreenCtxDestroy, CUgreenCtx, green_context(it), release_and_detach, true)
CONTEXT_ENDS(cuDevicePrimaryCtxRelease, CUdevice, primary_context(it), keep_handle,
             primary_is_gone(it))
CONTEXT_ENDS(cuDevicePrimaryCtxRelease_v2, CUdevice, primary_context(it), keep_handle,
             primary_is_gone(it))
/* A reset leaves nothing in it, also where it stays active. */
CONTEXT_ENDS(cuDevicePrimaryCtxReset, CUdevice, primary_context(it), keep_handle, true)
CONTEXT_ENDS(cuDevicePrimaryCtxReset_v2, CUdevice, primary_context(it), keep_handle, true)
