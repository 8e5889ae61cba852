/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shape of a wrapper: it calls the driver once, with the application's arguments, and returns what the driver
 * returned. Its own work lies between session_enter() and session_leave() (preload/session/session.h), which keep
 * errno and say whether there is anything to do. Any thread.
 */
#pragma once

#include "core/clock.h"
#include "preload/base/driver.h"
#include "preload/lifecycle.h"
#include "preload/session/session.h"
#include "preload/trace/range_ring.h"
#include "preload/trace/steps.h"

#define EXPORT __attribute__((visibility("default")))

/*
 * The real function in a wrapper. Where it does not exist (a program that calls us without any driver, or an old
 * driver) the wrapper answers CUDA_ERROR_NOT_INITIALIZED.
 */
#define REAL(name)                                                                                 \
    ({                                                                                             \
        __typeof__(name) *_fn = atomic_load_relaxed(&driver_table.name);                           \
        if (__builtin_expect(!_fn, 0)) {                                                           \
            driver_resolve();                                                                      \
            _fn = atomic_load_relaxed(&driver_table.name);                                         \
            if (!_fn)                                                                              \
                return CUDA_ERROR_NOT_INITIALIZED;                                                 \
        }                                                                                          \
        _fn;                                                                                       \
    })

/*
 * A launch goes on to the hook of a library after us, where there is one (driver_after), with our work around it. That hook
 * may find the driver's function by dlsym(), which gives ours: the same launch then comes again, and goes straight to
 * the driver. @captured: a function with our work, whose first argument is where the launch goes on to.
 */
#define PASS_ON(name, captured, ...)                                                               \
    do {                                                                                           \
        __typeof__(name) *_real = REAL(name), *_after = atomic_load_relaxed(&driver_after.name);   \
        if (__builtin_expect(!_after, 1))                                                          \
            return captured(_real, __VA_ARGS__);                                                   \
        if (hook_passed_on)                                                                        \
            return _real(__VA_ARGS__);                                                             \
        hook_passed_on = true;                                                                     \
        CUresult _passed = captured(_after, __VA_ARGS__);                                          \
        hook_passed_on = false;                                                                    \
        return _passed;                                                                            \
    } while (0)

/* The calling thread is in the hook of a library after us. */
extern __thread
    __attribute__((tls_model("initial-exec"), visibility("hidden"))) bool hook_passed_on;

/* Does @work after a driver call that succeeded, where the session is armed. */
#define AFTER_SUCCESS(result, work)                                                                \
    do {                                                                                           \
        struct session_call _call;                                                                 \
        if ((result) != CUDA_SUCCESS || !session_armed())                                          \
            break;                                                                                 \
        if (session_enter(&_call))                                                                 \
            work;                                                                                  \
        session_leave(&_call);                                                                     \
    } while (0)

/* A call, and what follows it, which sees its result, r. @declare: its parameters; @pass: their names. */
#define FOLLOWED(name, declare, pass, work)                                                        \
    EXPORT CUresult CUDAAPI name declare                                                           \
    {                                                                                              \
        CUresult r = REAL(name) pass;                                                              \
        work;                                                                                      \
        return r;                                                                                  \
    }

/* The same, where it succeeded: AFTER_SUCCESS(). */
#define NOTED(name, declare, pass, work) FOLLOWED(name, declare, pass, AFTER_SUCCESS(r, work))

/* A call in which the driver may wait for the device. */
#define WAITS(name, declare, pass) FOLLOWED(name, declare, pass, lifecycle_waited(r))

/* What a call that loads code, or allocates memory, takes of a step. */
static inline uint64_t stall_begins(void)
{
    return session_does(SESSION_TRACE) ? clock_mono_ns() : 0;
}

/* It is over, a call of @name. @begin_ns: of stall_begins(); @loads: it loads code. */
static inline void stall_ends(uint64_t begin_ns, bool loads, const char *name)
{
    if (__builtin_expect(!begin_ns, 1))
        return;
    uint64_t now_ns = clock_mono_ns();
    steps_stalled(loads, now_ns - begin_ns);
    range_ring_call(name, begin_ns, now_ns);
}

/* A call that waits for the device. Return: when it begins; 0: no trace. */
static inline uint64_t wait_begins(void)
{
    if (!session_does(SESSION_TRACE))
        return 0;
    steps_look();
    return clock_mono_ns();
}

/* It is over, a call of @name. @begin_ns: of wait_begins(). Return: when; 0: there is no trace. */
static inline uint64_t wait_ends(uint64_t begin_ns, const char *name)
{
    if (__builtin_expect(!begin_ns, 1))
        return 0;
    uint64_t now_ns = clock_mono_ns();
    steps_waited(now_ns - begin_ns, now_ns);
    range_ring_call(name, begin_ns, now_ns);
    return now_ns;
}

/* WAITS of a call that allocates memory. */
#define ALLOCATES(name, declare, pass)                                                             \
    EXPORT CUresult CUDAAPI name declare                                                           \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        uint64_t begin_ns = stall_begins();                                                        \
        CUresult r = real pass;                                                                    \
        stall_ends(begin_ns, false, #name);                                                        \
        lifecycle_waited(r);                                                                       \
        return r;                                                                                  \
    }
