/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA context that is current to the calling thread. Where none is, calls of ours need one for their time. Thread: any.
 */
#pragma once

#include "preload/base/cuda_abi.h"

#include <stdbool.h>

/* NULL: none is. */
CUcontext current_context(void);

/* @handle is current until current_pop(). Return: false: the driver refuses. */
bool current_push(CUcontext handle);
void current_pop(void);

struct current_visit {
    bool pushed;
};
/* @handle (NULL: nothing is done) is current until current_leave(), if no context was. */
struct current_visit current_visit(CUcontext handle);
/* The thread has the context that it had, if any. */
void current_leave(const struct current_visit *visit);
