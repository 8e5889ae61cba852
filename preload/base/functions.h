/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each function handle means to the spec: a cache that a launch reads without lock, call or
 * allocation. Handles are reused by the driver: an entry ends with its module or library.
 */
#ifndef PRELOAD_BASE_FUNCTIONS_H
#define PRELOAD_BASE_FUNCTIONS_H

#include "policy/spec.h"
#include "preload/base/cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>

#define FUNCTIONS_MAX_PARAMS 256 /* of a kernel; a HookSpec can name no parameter beyond them */

/* Where a kernel's parameters lie in its packed buffer. */
struct params_layout {
    uint32_t n;
    struct {
        uint32_t offset, size; /* bytes */
    } at[];
};

/* A kernel that the spec names. Never freed: a launch may be looking at it. */
struct func {
    char *name;
    struct spec_match match;
    struct params_layout *layout; /* NULL: the driver does not tell */
};

enum func_type { FUNC_FUNCTION, FUNC_KERNEL }; /* CUfunction, or CUkernel cast to one */

/* The entry of kernels that the spec does not name. */
extern const struct func func_unmatched;

/**
 * functions_find() - the entry of @handle
 * Return: NULL if it is not cached (ask functions_add()), &func_unmatched, or what to do.
 * Thread: any. Acquires what functions_add() released.
 */
const struct func *functions_find(const void *handle);

/**
 * functions_add() - look @handle up in the spec and cache the outcome
 * @name: raw kernel name; NULL: asked of the driver
 * @owner: module or library that it ends with; NULL: unknown, so it ends with any
 * Thread: any; takes a lock, allocates, calls the driver. Return: never NULL.
 */
const struct func *functions_add(const struct spec *spec, const void *handle, enum func_type type,
                                 const char *name, const void *owner);

/* Forgets the handles of a module or library, before the driver unloads it. Thread: any. */
void functions_drop_owner(const void *owner);

/*
 * Forgets all CUfunctions, before a context and the modules in it end: which ones those are only the
 * driver knows. Kernels of libraries belong to no context. Thread: any.
 */
void functions_drop_functions(void);

/* The owner noted for @handle, NULL: none. Thread: any. */
const void *functions_owner(const void *handle);

/**
 * functions_lookup() - the entry of @handle at a launch, or of a node's kernel
 * From the cache or, once, from the driver. Thread: any that entered the session. Return: never NULL.
 */
const struct func *functions_lookup(CUfunction handle);

/* Launches of @func can be neither captured nor counted from here on: its sites are switched off, and @why is said. */
void functions_give_up(const struct func *func, const char *why);

/* All entries end: the child after fork, which has no driver state. */
void functions_reset(void);

#endif
