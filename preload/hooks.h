/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's entry points: which we stand in front of, and where the real ones are.
 * All functions: any thread, any time, also before our constructor and while the loader runs.
 */
#ifndef PRELOAD_HOOKS_H
#define PRELOAD_HOOKS_H

#include "core/atomic.h"
#include "preload/cuda_abi.h"

#include <stdbool.h>

enum hook_id {
#define HOOK(name) HOOK_##name,
#define USE(name)
#include "preload/hooks.def"
#undef HOOK
#undef USE
    HOOK_COUNT
};

/* The real entry points; NULL until hooks_resolve() met a driver that has them. */
struct driver {
#define HOOK(name) __typeof__(name) *name;
#define USE(name)  __typeof__(name) *name;
#include "preload/hooks.def"
#undef HOOK
#undef USE
};

extern struct driver driver_table;

/**
 * hooks_resolve() - find the real entry points in the driver that this process has loaded
 * Loads nothing: without a driver it changes nothing. Return: true if there is a driver.
 */
bool hooks_resolve(void);

/* The wrapper for a real entry point, or @fn itself if it is none that we stand in front of. */
void *hooks_wrap(void *fn);

/* true if we export a driver entry point of this name */
bool hooks_has_name(const char *name);

/* dlsym as glibc has it */
void *hooks_real_dlsym(void *handle, const char *name);

/*
 * The real function in a wrapper. Where it does not exist (a program that calls us without any
 * driver, or an old driver) it answers as a driver would: see hooks.c.
 */
#define REAL(name)                                                                                 \
    ({                                                                                             \
        __typeof__(name) *_fn = atomic_load_relaxed(&driver_table.name);                           \
        if (__builtin_expect(!_fn, 0)) {                                                           \
            hooks_resolve();                                                                       \
            _fn = atomic_load_relaxed(&driver_table.name);                                         \
            if (!_fn)                                                                              \
                return CUDA_ERROR_NOT_INITIALIZED;                                                 \
        }                                                                                          \
        _fn;                                                                                       \
    })

#endif
