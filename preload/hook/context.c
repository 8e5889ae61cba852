/* SPDX-License-Identifier: Apache-2.0 */
/* Wrappers: CUDA contexts that begin, become current and end. Our threads use them: they end first. */
#include "preload/base/stream.h"
#include "preload/context/lifetime.h"
#include "preload/hook/wrapper.h"
#include "preload/lifecycle.h"

#include <stddef.h>

/* ------------------------------------------------------------------------- beginning */

/* The new context is current. */
#define CONTEXT_BEGINS(name, declare, pass)                                                        \
    EXPORT CUresult CUDAAPI name declare                                                           \
    {                                                                                              \
        CUresult r = REAL(name) pass;                                                              \
        lifecycle_waited(r);                                                                       \
        return r;                                                                                  \
    }
CONTEXT_BEGINS(cuCtxCreate, (CUcontext * c, unsigned flags, CUdevice d), (c, flags, d))
CONTEXT_BEGINS(cuCtxCreate_v2, (CUcontext * c, unsigned flags, CUdevice d), (c, flags, d))
CONTEXT_BEGINS(cuCtxCreate_v3,
               (CUcontext * c, CUexecAffinityParam *params, int n, unsigned flags, CUdevice d),
               (c, params, n, flags, d))
CONTEXT_BEGINS(cuCtxCreate_v4,
               (CUcontext * c, CUctxCreateParams *params, unsigned flags, CUdevice d),
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
    CUcontext context;
    CUresult r = REAL(cuGreenCtxStreamCreate)(stream, green, flags, priority);
    if (r == CUDA_SUCCESS && session_armed() && driver_table.cuCtxFromGreenCtx &&
        driver_table.cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS)
        lifecycle_waited_in(r, context);
    return r;
}

/* ------------------------------------------------------------------------- ending */

#define CONTEXT_ENDS(name)                                                                         \
    EXPORT CUresult CUDAAPI name(CUcontext handle)                                                 \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        struct session_call call;                                                                  \
        if (!session_armed())                                                                      \
            return real(handle);                                                                   \
        struct context *c = session_enter(&call) ? lifecycle_context_ends(handle) : NULL;          \
        /* once the call returns, another thread may be given the same handle */                   \
        if (c)                                                                                     \
            context_detach(c);                                                                     \
        session_pause(&call);                                                                      \
        CUresult r = real(handle);                                                                 \
        session_resume(&call);                                                                     \
        lifecycle_context_ended(c, handle, r == CUDA_SUCCESS);                                     \
        session_leave(&call);                                                                      \
        return r;                                                                                  \
    }
CONTEXT_ENDS(cuCtxDestroy)
CONTEXT_ENDS(cuCtxDestroy_v2)
CONTEXT_ENDS(cuCtxDetach)

EXPORT CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx green)
{
    __typeof__(cuGreenCtxDestroy) *real = REAL(cuGreenCtxDestroy);
    struct session_call call;
    CUcontext handle = NULL;
    if (!session_armed())
        return real(green);
    bool known = session_enter(&call) && driver_table.cuCtxFromGreenCtx &&
                 driver_table.cuCtxFromGreenCtx(&handle, green) == CUDA_SUCCESS;
    struct context *c = known ? lifecycle_context_ends(handle) : NULL;
    if (c) {
        context_release(c);
        context_detach(c);
    }
    session_pause(&call);
    CUresult r = real(green);
    session_resume(&call);
    lifecycle_context_ended(c, handle, r == CUDA_SUCCESS);
    session_leave(&call);
    return r;
}

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

/* A reset leaves nothing in it, also where it stays active. */
#define PRIMARY_ENDS(name, is_gone)                                                                \
    EXPORT CUresult CUDAAPI name(CUdevice device)                                                  \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        struct session_call call;                                                                  \
        if (!session_armed())                                                                      \
            return real(device);                                                                   \
        CUcontext handle = session_enter(&call) ? primary_context(device) : NULL;                  \
        struct context *c = lifecycle_context_ends(handle);                                        \
        session_pause(&call);                                                                      \
        CUresult r = real(device);                                                                 \
        session_resume(&call);                                                                     \
        lifecycle_context_ended(c, handle, c &&r == CUDA_SUCCESS && (is_gone));                    \
        session_leave(&call);                                                                      \
        return r;                                                                                  \
    }
PRIMARY_ENDS(cuDevicePrimaryCtxRelease, primary_is_gone(device))
PRIMARY_ENDS(cuDevicePrimaryCtxRelease_v2, primary_is_gone(device))
PRIMARY_ENDS(cuDevicePrimaryCtxReset, true)
PRIMARY_ENDS(cuDevicePrimaryCtxReset_v2, true)
