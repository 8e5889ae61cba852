/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's real entry points. All functions: any thread, any time, also before our constructor and
 * while the loader runs.
 */
#pragma once

#include "core/atomic.h"
#include "preload/base/cuda_abi.h"

#include <stdbool.h>

/* NULL until driver_resolve() met a driver that has the entry point. */
struct driver {
#define HOOK(name) __typeof__(name) *name;
#define USE(name)  __typeof__(name) *name;
#include "preload/hooks.def"
#undef HOOK
#undef USE
};

extern struct driver driver_table;

/*
 * What comes after us under the names of our hooks where that is not the driver: hooks of a library that was
 * preloaded after this one. A program that is linked against the driver would call them. NULL: nothing.
 */
extern struct driver driver_after;

/**
 * driver_resolve() - find the real entry points in the driver that this process has loaded
 * Loads nothing: without a driver it changes nothing. Return: true if there is a driver.
 */
bool driver_resolve(void);

/* A function that the library cannot do without, and that the driver has not, NULL: it has all. After driver_resolve(). */
const char *driver_lacks(void);

/* dlsym as glibc has it; with @name NULL it only finds that function. */
void *driver_real_dlsym(void *handle, const char *name);
