/* SPDX-License-Identifier: Apache-2.0 */
/* Wrappers: launches of kernels. One that no pattern of the spec names goes straight to the driver; a trace counts it. */
#include "core/any.h"
#include "preload/capture/forward.h"
#include "preload/eager/launch.h"
#include "preload/hook/wrapper.h"
#include "preload/nvtx/ranges.h"
#include "preload/recording/recorder.h"
#include "preload/trace/steps.h"

#include <stddef.h>

/* Once a function: the driver is asked for its name. */
static const struct func *look_up(CUfunction f)
{
    return IN_SESSION(functions_lookup(f, FUNC_UNKNOWN), &func_unmatched);
}

/* What the spec says of a kernel, NULL: nothing. */
static inline const struct func *matched(CUfunction f)
{
    if (!session_armed())
        return NULL;
    const struct func *func = functions_find(f);
    if (__builtin_expect(!func, 0))
        func = look_up(f);
    return func == &func_unmatched || (!func_concerns(func) && !ranges_any()) ? NULL : func;
}

/* What is done around one launch. */
struct around {
    bool recorded;               /* the recorder is at it */
    bool captured;               /* the spec's sites are */
    struct eager_job job;        /* of those */
    struct trace_thread *traced; /* NULL: it is not counted */
};

static void before(const struct eager_launch *launch, const struct func *func, bool armed,
                   struct around *around)
{
    around->recorded =
        armed && session_is_for(SESSION_RECORDING) && recorder_before(launch, func, false);
    around->captured = armed && session_is_for(SESSION_SITES);
    if (around->captured)
        eager_before(launch, func, &around->job);
    if (around->captured && forward_take_begun() && around->traced)
        steps_begins(DMI_STEP_FORWARD, launch->stream);
    steps_own_ahead(eager_take_own(), launch->stream);
}

static void after(const struct eager_launch *launch, CUresult result, struct around *around)
{
    if (around->recorded)
        recorder_after(launch, result);
    if (around->captured)
        eager_after(launch, &around->job, result);
    trace_launched(around->traced, launch->function, launch->stream, result);
    steps_own(eager_take_own());
}

/* The driver's call @real, which no pattern names, of @f in @cu_stream; gives its result. */
#define COUNTED(f, cu_stream, ptsz, real)                                                          \
    ({                                                                                             \
        struct stream _stream = { cu_stream, ptsz };                                               \
        struct trace_thread *_traced = trace_launch_begins(f, _stream);                            \
        CUresult _r = (real);                                                                      \
        trace_launched(_traced, f, _stream, _r);                                                   \
        _r;                                                                                        \
    })

/* The driver's call @real with our work around it; gives its result. */
#define CAPTURED(launch, func, real)                                                               \
    ({                                                                                             \
        struct session_call _call;                                                                 \
        struct around _around;                                                                     \
        _around.traced = trace_launch_begins((launch).function, (launch).stream);                  \
        before(&(launch), func, session_enter(&_call), &_around);                                  \
        session_pause(&_call);                                                                     \
        CUresult _r = (real);                                                                      \
        session_resume(&_call);                                                                    \
        after(&(launch), _r, &_around);                                                            \
        session_leave(&_call);                                                                     \
        _r;                                                                                        \
    })

#define LAUNCH_KERNEL(name, ptsz)                                                                  \
    static inline CUresult name##_captured(                                                        \
        __typeof__(name) *real, CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,  \
        unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params, void **extra)   \
    {                                                                                              \
        const struct func *func = matched(f);                                                      \
        if (__builtin_expect(!func, 1))                                                            \
            return COUNTED(f, stream, ptsz,                                                        \
                           real(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra));        \
        struct eager_launch launch = { f,      { gx, gy, gz },   { bx, by, bz },                   \
                                       shared, { stream, ptsz }, params,                           \
                                       extra };                                                    \
        return CAPTURED(launch, func,                                                              \
                        real(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra));           \
    }                                                                                              \
    EXPORT CUresult CUDAAPI name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, \
                                 unsigned by, unsigned bz, unsigned shared, CUstream stream,       \
                                 void **params, void **extra)                                      \
    {                                                                                              \
        PASS_ON(name, name##_captured, f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);  \
    }
LAUNCH_KERNEL(cuLaunchKernel, false)
LAUNCH_KERNEL(cuLaunchKernel_ptsz, true)

#define LAUNCH_COOPERATIVE(name, ptsz)                                                             \
    static inline CUresult name##_captured(                                                        \
        __typeof__(name) *real, CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,  \
        unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params)                 \
    {                                                                                              \
        const struct func *func = matched(f);                                                      \
        if (__builtin_expect(!func, 1))                                                            \
            return COUNTED(f, stream, ptsz,                                                        \
                           real(f, gx, gy, gz, bx, by, bz, shared, stream, params));               \
        struct eager_launch launch = { f,      { gx, gy, gz },   { bx, by, bz },                   \
                                       shared, { stream, ptsz }, params,                           \
                                       NULL };                                                     \
        return CAPTURED(launch, func, real(f, gx, gy, gz, bx, by, bz, shared, stream, params));    \
    }                                                                                              \
    EXPORT CUresult CUDAAPI name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, \
                                 unsigned by, unsigned bz, unsigned shared, CUstream stream,       \
                                 void **params)                                                    \
    {                                                                                              \
        PASS_ON(name, name##_captured, f, gx, gy, gz, bx, by, bz, shared, stream, params);         \
    }
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel, false)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, true)

/* What waits for such an event may overwrite the kernel's tensors before the kernel has ended. */
static bool lets_others_start(const CUlaunchConfig *c)
{
    return ANY(i, c->attrs ? c->numAttrs : 0,
               c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT ||
                   c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT);
}

#define LAUNCH_EX(name, ptsz)                                                                      \
    static inline CUresult name##_captured(__typeof__(name) *real, const CUlaunchConfig *c,        \
                                           CUfunction f, void **params, void **extra)              \
    {                                                                                              \
        const struct func *func = c ? matched(f) : NULL;                                           \
        if (__builtin_expect(!func, 1))                                                            \
            return c ? COUNTED(f, c->hStream, ptsz, real(c, f, params, extra))                     \
                     : real(c, f, params, extra);                                                  \
        struct eager_launch launch = { f,                                                          \
                                       { c->gridDimX, c->gridDimY, c->gridDimZ },                  \
                                       { c->blockDimX, c->blockDimY, c->blockDimZ },               \
                                       c->sharedMemBytes,                                          \
                                       { c->hStream, ptsz },                                       \
                                       params,                                                     \
                                       extra };                                                    \
        launch.lets_others_start = lets_others_start(c);                                           \
        return CAPTURED(launch, func, real(c, f, params, extra));                                  \
    }                                                                                              \
    EXPORT CUresult CUDAAPI name(const CUlaunchConfig *c, CUfunction f, void **params,             \
                                 void **extra)                                                     \
    {                                                                                              \
        PASS_ON(name, name##_captured, c, f, params, extra);                                       \
    }
LAUNCH_EX(cuLaunchKernelEx, false)
LAUNCH_EX(cuLaunchKernelEx_ptsz, true)
