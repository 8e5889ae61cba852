/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each function handle means to the spec: a cache that a launch reads without lock, call or
 * allocation. Handles are reused by the driver: an entry ends with its module or library.
 */
#pragma once

#include "policy/spec.h"
#include "preload/base/cuda_abi.h"
#include "preload/function/layouts.h"

#include <stdbool.h>
#include <stddef.h>

/* A kernel that the spec names. Never freed: a launch may be looking at it. */
struct func {
    char *name;
    struct spec_match match;
    const void *handle; /* whom to ask for the layout, and by which call */
    enum func_type type;
    struct params_layout *layout; /* of functions_layout(), which see */
    int asked;                    /* 1: at a launch too; atomic */
    const struct func *base; /* that this is a variant of (function/variants.h); NULL: it is none */
};

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

/* As functions_add(), of the function that the driver made of @kernel for the current context: it has its name. */
void functions_add_of_kernel(const struct spec *spec, CUfunction function, CUkernel kernel);

/**
 * functions_layout() - where the parameters of @func lie
 * Asked of the driver again at the first launch if that failed when the function was looked up: there may have been
 * no context yet. Return: NULL where neither the driver nor the image says it. Thread: any that entered; no lock is held.
 */
const struct params_layout *functions_layout(const struct func *func);

/*
 * @module is the module of @library in some context, so that its functions end with the library; NULL: it is one of
 * its own, whatever the handle was before. Thread: any.
 */
void functions_note_module(const void *module, const void *library);

/* Forgets the handles of a module or library, before the driver unloads it. Thread: any. */
void functions_drop_owner(const void *owner);

/*
 * Forgets all CUfunctions, before a context and the modules in it end: which ones those are only the
 * driver knows. Kernels of libraries belong to no context. Thread: any.
 */
void functions_drop_functions(void);

/* The same for what the driver lists as @owner's; where it does not tell the name, the application's lookup will. */
void functions_add_listed(const struct spec *spec, const void *handle, enum func_type type,
                          const void *owner);

/**
 * functions_lookup() - the entry of @handle at a launch, or of a node's kernel
 * @type: what it is where it is not known here. FUNC_UNKNOWN at a launch, where a kernel may be given as a function:
 * then a kernel is not asked, as drivers read a handle as what the call says it is.
 * From the cache or, once, from the driver. Thread: any that entered the session. Return: never NULL.
 */
const struct func *functions_lookup(const void *handle, enum func_type type);

/* The raw name of what @handle, of a launch, stands for; to be freed. NULL: nobody says it. As functions_lookup(), and keeps nothing. */
char *functions_name(const void *handle);

/* Launches of @func can be neither captured nor counted from here on: its sites are switched off, and @why is said. */
void functions_give_up(const struct func *func, const char *why);

/* A function of the spec's will be looked up. Thread: any. */
void functions_expect(void);

/* Has any function matched the spec so far, or is one to be expected? Takes no lock. Thread: any. */
bool functions_matched(void);

/*
 * A kernel that matched the site and is still loaded, NULL: there is none. Of sites that ask for a range it is any kernel
 * that may be one. Thread: any.
 */
const char *functions_of_site(uint32_t site);

/* All entries end: the child after fork, which has no driver state. */
void functions_reset(void);
