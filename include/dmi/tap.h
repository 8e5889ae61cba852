/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dmi_tap() for programs that run without DMI too: nothing to link, and without libdmi_preload.so a tap is a load and a
 * branch. Needs dlfcn.h, so glibc and, in C++, -D_GNU_SOURCE (which g++ sets by itself).
 */
#ifndef DMI_TAP_H
#define DMI_TAP_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <dlfcn.h>

#include <dmi/dmi.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int dmi_tap_fn(const struct dmi_tap *tap);

/* Stands for dmi_tap() where there is no library. Thread: any. Return: DMI_STATUS_OFF. */
static inline int dmi_tap_nothing(const struct dmi_tap *tap)
{
    (void)tap;
    return DMI_STATUS_OFF;
}

/* The library's dmi_tap(), or a function that does nothing. */
static inline dmi_tap_fn *dmi_tap_find(void)
{
    void *found = dlsym(RTLD_DEFAULT, "dmi_tap");
    union {
        void *object;
        dmi_tap_fn *function;
    } as;
    as.object = found;
    return found ? as.function : dmi_tap_nothing;
}

/* NULL until the first look. One a file that includes this. */
static dmi_tap_fn *dmi_tap_function __attribute__((unused));

/**
 * dmi_tap_is_on() - is there a library that takes taps?
 * For callers that have to work to fill in a struct dmi_tap. Thread: any.
 */
static inline int dmi_tap_is_on(void)
{
    dmi_tap_fn *function = __atomic_load_n(&dmi_tap_function, __ATOMIC_RELAXED);
    if (__builtin_expect(!function, 0)) {
        function = dmi_tap_find();
        __atomic_store_n(&dmi_tap_function, function, __ATOMIC_RELAXED);
    }
    return function != dmi_tap_nothing;
}

/**
 * dmi_tap_here() - dmi_tap() if the library is there
 * Thread and return: as dmi_tap(); DMI_STATUS_OFF without the library.
 */
static inline int dmi_tap_here(const struct dmi_tap *tap)
{
    return dmi_tap_is_on() ? dmi_tap_function(tap) : (int)DMI_STATUS_OFF;
}

#ifdef __cplusplus
}
#endif
#endif
