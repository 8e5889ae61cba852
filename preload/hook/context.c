/* SPDX-License-Identifier: Apache-2.0 */
/* Wrappers: CUDA contexts that begin, become current and end. Our threads use them: they end first. */
#include "core/clock.h"
#include "preload/base/stream.h"
#include "preload/context/lifetime.h"
#include "preload/context/references.h"
#include "preload/hook/wrapper.h"
#include "preload/trace/collector.h"
#include "preload/trace/events.h"
#include "preload/trace/lanes.h"
#include "preload/trace/named.h"
#include "preload/trace/steps.h"

#include <errno.h>
#include <sched.h>
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
static void creates(CUresult r, const CUcontext *c)
{
    if (r == CUDA_SUCCESS)
        context_created(*c);
    lifecycle_waited(r);
}
#define CREATES(name, declare, pass) FOLLOWED(name, declare, pass, creates(r, c))
CREATES(cuCtxCreate, (CUcontext * c, unsigned flags, CUdevice d), (c, flags, d))
CREATES(cuCtxCreate_v2, (CUcontext * c, unsigned flags, CUdevice d), (c, flags, d))
CREATES(cuCtxCreate_v3,
        (CUcontext * c, CUexecAffinityParam *params, int n, unsigned flags, CUdevice d),
        (c, params, n, flags, d))
CREATES(cuCtxCreate_v4, (CUcontext * c, CUctxCreateParams *params, unsigned flags, CUdevice d),
        (c, params, flags, d))

/* One that becomes current is about to be used; the code that it runs may have been loaded in another one. */
#define BECOMES_CURRENT(name)                                                                      \
    FOLLOWED(name, (CUcontext context), (context), lifecycle_waited_in(r, context))
BECOMES_CURRENT(cuCtxSetCurrent)
BECOMES_CURRENT(cuCtxPushCurrent)
BECOMES_CURRENT(cuCtxPushCurrent_v2)
WAITS(cuStreamCreate, (CUstream * stream, unsigned flags), (stream, flags))
WAITS(cuStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority),
      (stream, flags, priority))

/* What was launched last there ends with it. */
#define STREAM_ENDS(name)                                                                          \
    EXPORT CUresult CUDAAPI name(CUstream stream)                                                  \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        if (session_does(SESSION_TRACE) && stream)                                                 \
            steps_stream_ends(stream);                                                             \
        return real(stream);                                                                       \
    }
STREAM_ENDS(cuStreamDestroy)
STREAM_ENDS(cuStreamDestroy_v2)

#define MOST_ASKED 1000 /* times, where contexts begin all the while */

/* The caller holds a reference, so to give the one that asks back ends nothing. */
static void ask_primary(CUdevice device)
{
    CUcontext context = NULL;
    bool sure = false;
    for (int i = 0; i < MOST_ASKED && !sure; i++) {
        uint64_t before = context_retains(device);
        bool good = driver_table.cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS;
        sure = context_retained(device, good ? context : NULL, before);
        if (good && driver_table.cuDevicePrimaryCtxRelease_v2 &&
            driver_table.cuDevicePrimaryCtxRelease_v2(device) != CUDA_SUCCESS)
            driver_table.cuDevicePrimaryCtxRelease_v2(device);
    }
}

EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    __typeof__(cuDevicePrimaryCtxRetain) *real = REAL(cuDevicePrimaryCtxRetain);
    uint64_t before = context_retains(device);
    CUresult r = real(context, device);
    bool good = r == CUDA_SUCCESS && context;
    if (!context_retained(device, good ? *context : NULL, before))
        ask_primary(device);
    if (good)
        references_retained(device);
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
    CUcontext context = r == CUDA_SUCCESS && session_armed() ? green_context(*green) : NULL;
    if (context)
        context_created(context);
    if (r == CUDA_SUCCESS)
        stream_green_begins();
    return r;
}

FOLLOWED(cuCtxFromGreenCtx, (CUcontext * context, CUgreenCtx green), (context, green),
         context ? lifecycle_waited_in(r, *context) : (void)0)

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

#define ASK_NS 5000000000u

/*
 * Where the driver does not say whether the context is gone, the answer is that it is: our threads must not use one that
 * is. An active context may be another one: its handle is known if no thread is just retaining it. Before that ours is not
 * used: it may be no context's.
 */
static bool primary_is_gone(const struct context *c, CUdevice device)
{
    uint64_t end = clock_mono_ns() + ASK_NS, before, after;
    do {
        bool none = context_retain_stamp(device, &before);
        if (primary_state(device) != PRIMARY_ACTIVE)
            return true;
        if (none && context_retain_stamp(device, &after) && before == after)
            return context_primary(device) != context_handle(c) || !context_is_same(c);
        sched_yield();
    } while (clock_mono_ns() < end);
    return true;
}

/*
 * Where the primary context was retained by a way past the library, to ask is the only way to its handle. The caller holds a
 * reference.
 */
static void note_primary(CUdevice device)
{
    if (!context_primary(device) && primary_state(device) == PRIMARY_ACTIVE)
        ask_primary(device);
}

/* These calls end it, whatever references are held. */
static struct context_reference all_of(CUcontext context)
{
    references_ended(context);
    return (struct context_reference){ .device = -1, .handle = context, .last = true };
}

static struct context_reference all_of_green(CUgreenCtx green)
{
    CUcontext context = session_armed() ? green_context(green) : NULL;
    return (struct context_reference){ .device = -1, .handle = context, .last = true };
}

static struct context_reference all_of_primary(CUdevice device)
{
    if (session_armed())
        note_primary(device);
    return (struct context_reference){ .device = device, .last = true };
}

static struct context_reference one_of_primary(CUdevice device)
{
    if (session_armed())
        note_primary(device);
    return references_release(device);
}

/* A call that may end a context, or gives one of several references to it back. */
struct context_ending {
    struct context_reference reference;
    bool traced; /* its events and streams may end */
    bool entered, armed;
    struct session_call session;
    struct context_call call;
    enum context_state before;
};

static void begin(struct context_ending *e)
{
    e->traced = session_does(SESSION_TRACE) && e->reference.last;
    if (e->traced) {
        collector_catch_up();
        steps_stream_ends(NULL);
        named_forget(); /* functions of its modules end: their handles may be used again */
        lanes_forget();
        events_context_ends();
    }
    e->entered = session_armed();
    if (!e->entered)
        return;
    e->armed = session_enter(&e->session);
    if (e->armed)
        lifecycle_context_ends(&e->call, &e->reference);
}

/* The driver has returned. Return: whether it may have ended a context of ours. */
static bool returns(struct context_ending *e, CUresult r)
{
    if (r != CUDA_SUCCESS)
        references_kept(&e->reference);
    if (!e->entered)
        return false;
    session_resume(&e->session);
    e->before = e->armed ? context_call_returns(&e->call) : CONTEXT_FREE;
    return r == CUDA_SUCCESS && e->armed && e->call.context;
}

static void end(struct context_ending *e, bool gone)
{
    if (e->armed)
        lifecycle_context_ended(&e->call, e->before, gone);
    if (e->entered)
        session_leave(&e->session);
    if (e->traced)
        events_context_ended();
}

/* What the library allocated in a green context belongs to the device, and would stay. */
static void let_go(const struct context_ending *e, bool release)
{
    if (release && e->armed && e->call.context)
        context_release(e->call.context);
    if (e->entered)
        session_pause(&e->session);
}

/* @given_back: the reference that the call gives back. @is_gone: what lies in the context is, after a call that succeeded. */
#define CONTEXT_ENDS(name, type, given_back, is_green, is_gone)                                    \
    EXPORT CUresult CUDAAPI name(type it)                                                          \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        int saved = errno;                                                                         \
        struct context_ending e = { .reference = given_back(it) };                                 \
        errno = saved;                                                                             \
        begin(&e);                                                                                 \
        let_go(&e, is_green);                                                                      \
        CUresult r = real(it);                                                                     \
        end(&e, returns(&e, r) && (is_gone));                                                      \
        return r;                                                                                  \
    }
CONTEXT_ENDS(cuCtxDestroy, CUcontext, all_of, false, true)
CONTEXT_ENDS(cuCtxDestroy_v2, CUcontext, all_of, false, true)
CONTEXT_ENDS(cuCtxDetach, CUcontext, references_detach, false, e.reference.last)
CONTEXT_ENDS(cuGreenCtxDestroy, CUgreenCtx, all_of_green, true, true)
CONTEXT_ENDS(cuDevicePrimaryCtxRelease, CUdevice, one_of_primary, false,
             e.before != CONTEXT_FREE && primary_is_gone(e.call.context, it))
CONTEXT_ENDS(cuDevicePrimaryCtxRelease_v2, CUdevice, one_of_primary, false,
             e.before != CONTEXT_FREE && primary_is_gone(e.call.context, it))
/* A reset leaves nothing in it, also where it stays active. */
CONTEXT_ENDS(cuDevicePrimaryCtxReset, CUdevice, all_of_primary, false, true)
CONTEXT_ENDS(cuDevicePrimaryCtxReset_v2, CUdevice, all_of_primary, false, true)
