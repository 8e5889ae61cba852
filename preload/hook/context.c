/* SPDX-License-Identifier: Apache-2.0 */
/* Wrappers: CUDA contexts that begin, become current and end. Our threads use them: they end first. */
#include "preload/base/stream.h"
#include "preload/context/lifetime.h"
#include "preload/context/references.h"
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

/* One that becomes current is about to be used; the code that it runs may have been loaded in another one. */
#define BECOMES_CURRENT(name)                                                                      \
    EXPORT CUresult CUDAAPI name(CUcontext context)                                                \
    {                                                                                              \
        CUresult r = REAL(name)(context);                                                          \
        lifecycle_waited_in(r, context);                                                           \
        return r;                                                                                  \
    }
BECOMES_CURRENT(cuCtxSetCurrent)
BECOMES_CURRENT(cuCtxPushCurrent)
BECOMES_CURRENT(cuCtxPushCurrent_v2)
WAITS(cuStreamCreate, (CUstream * stream, unsigned flags), (stream, flags))
WAITS(cuStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority),
      (stream, flags, priority))

EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CUresult r = REAL(cuDevicePrimaryCtxRetain)(context, device);
    if (r == CUDA_SUCCESS)
        references_retained(device, context ? *context : NULL);
    if (context)
        lifecycle_waited_in(r, *context);
    return r;
}

EXPORT CUresult CUDAAPI cuCtxAttach(CUcontext *context, unsigned flags)
{
    CUresult r = REAL(cuCtxAttach)(context, flags);
    if (r == CUDA_SUCCESS && context)
        references_attached(*context);
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

/* Of what the driver says nothing our threads must not use it if it is gone. */
static bool primary_is_gone(const struct context *c, CUdevice device)
{
    return primary_state(device) != PRIMARY_ACTIVE || !context_is_same(c);
}

/*
 * The handle of a device's primary context, NULL: it is not active, so nobody uses it. Where @noted is NULL, to retain it is
 * the only way to its handle. The caller holds a reference, so to give that one back ends nothing.
 */
static CUcontext primary_context(CUcontext noted, CUdevice device)
{
    CUcontext context = noted;
    if (context || primary_state(device) != PRIMARY_ACTIVE ||
        driver_table.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
        return context;
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

/* These end it, whoever holds references. */
static struct reference all_of(CUcontext context)
{
    references_ended(context);
    return (struct reference){ .last = true };
}

static struct reference all_of_green(CUgreenCtx green)
{
    (void)green;
    return (struct reference){ .last = true };
}

/* A call that may end a context, or gives one of several references to it back. */
struct ending {
    struct reference reference;
    bool entered;
    struct session_call session;
    CUcontext handle;
    struct context_call call;
};

/* Whoever was certain that it would live does not ask, unless another call may have ended it. */
static bool asks(const struct ending *e)
{
    return e->call.context && (e->call.may_end || context_state(e->call.context) != CONTEXT_READY);
}

/*
 * @given_back: the reference that the call gives back. @let_go: before the driver's call. Once that returns, another thread
 * may be given the same handle. @is_gone: what lies in the context is, after a call that succeeded.
 */
#define CONTEXT_ENDS(name, type, given_back, handle_of, let_go, is_gone)                           \
    EXPORT CUresult CUDAAPI name(type it)                                                          \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        struct ending e = { .reference = given_back(it), .entered = session_armed() };             \
        if (e.entered) {                                                                           \
            e.handle = session_enter(&e.session) ? (handle_of) : NULL;                             \
            lifecycle_context_ends(&e.call, e.handle, e.reference.last);                           \
            if (e.call.context && e.call.may_end)                                                  \
                let_go(e.call.context);                                                            \
            session_pause(&e.session);                                                             \
        }                                                                                          \
        CUresult r = real(it);                                                                     \
        if (r != CUDA_SUCCESS)                                                                     \
            references_kept(&e.reference);                                                         \
        if (e.entered) {                                                                           \
            session_resume(&e.session);                                                            \
            lifecycle_context_ended(&e.call, e.handle,                                             \
                                    r == CUDA_SUCCESS && asks(&e) && (is_gone));                   \
            session_leave(&e.session);                                                             \
        }                                                                                          \
        return r;                                                                                  \
    }
CONTEXT_ENDS(cuCtxDestroy, CUcontext, all_of, it, context_detach, true)
CONTEXT_ENDS(cuCtxDestroy_v2, CUcontext, all_of, it, context_detach, true)
CONTEXT_ENDS(cuCtxDetach, CUcontext, references_detach, it, context_detach, e.call.may_end)
CONTEXT_ENDS(cuGreenCtxDestroy, CUgreenCtx, all_of_green, green_context(it), release_and_detach,
             true)
#define PRIMARY primary_context(e.reference.primary, it)
CONTEXT_ENDS(cuDevicePrimaryCtxRelease, CUdevice, references_release, PRIMARY, keep_handle,
             primary_is_gone(e.call.context, it))
CONTEXT_ENDS(cuDevicePrimaryCtxRelease_v2, CUdevice, references_release, PRIMARY, keep_handle,
             primary_is_gone(e.call.context, it))
/* A reset leaves nothing in it, also where it stays active. */
CONTEXT_ENDS(cuDevicePrimaryCtxReset, CUdevice, references_of_all, PRIMARY, keep_handle, true)
CONTEXT_ENDS(cuDevicePrimaryCtxReset_v2, CUdevice, references_of_all, PRIMARY, keep_handle, true)
