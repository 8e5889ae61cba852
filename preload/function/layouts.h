/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the parameters of kernels lie: from the driver, or, where it does not say (before CUDA 12.4), from what their
 * module or library was loaded from. Of an image only the kernels that the spec names are kept, until its owner ends.
 */
#pragma once

#include "policy/spec.h"
#include "preload/base/cuda_abi.h"
#include "preload/image/layout.h"

#include <stdbool.h>

/* What a handle is. Drivers read it as what the call says it is: it may not be asked by a call for the other. */
enum func_type {
    FUNC_FUNCTION,
    FUNC_KERNEL,  /* perhaps cast to a CUfunction */
    FUNC_UNKNOWN, /* one of them: no call is right for it */
};

/**
 * layouts_ask() - the layout of a kernel as the driver tells it
 * In relaxed capture mode, as the driver may load the kernel for it. Return: NULL where it does not; free() it.
 */
struct params_layout *layouts_ask(const void *handle, enum func_type type);

/* From now on images are read on this driver too: it has the calls, but they fail at a launch. */
void layouts_driver_fails(void);

/**
 * layouts_note() - keep what the image that @owner was loaded from says, where it may be needed
 * @image: in memory, of unknown length, accepted by the driver; borrowed
 * @library: @owner is a library, whose kernels run on any device; else a module of the current context
 * Thread: any that entered. Forgets what was kept of @owner before.
 */
void layouts_note(const struct spec *spec, const void *owner, bool library, const void *image);

/* As layouts_note(), of an image in a file. */
void layouts_note_file(const struct spec *spec, const void *owner, bool library, const char *path);

/* The layout of @owner's kernel @name. Return: NULL if none is known; free() it. Thread: any. */
struct params_layout *layouts_find(const void *owner, const char *name);

/* Is anything kept of @owner: has it kernels that the spec names? Thread: any. */
bool layouts_has(const void *owner);

/* @owner ends. Thread: any. */
void layouts_drop(const void *owner);

/* All ends: the child after fork. */
void layouts_reset(void);
