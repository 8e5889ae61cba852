/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a capture context's payload lies, and how the drain gets at it: on a CUDA device, by the driver, or in host memory. All else of a
 * capture context is the same. An answer is the driver's, or CUDA_SUCCESS.
 */
#pragma once

#include "core/err.h"
#include "preload/context/context.h"

#include <dmi/edit.h>

#include <stddef.h>
#include <stdint.h>

struct context_side {
    /* as device_init(), device_give_back() and device_forget() of device.h. Thread: the one that creates or ends the capture context */
    int (*init)(struct err *err, struct context *context);
    void (*give_back)(struct context *context);
    void (*forget)(struct context *context);
    /* Staging memory is about to be used: it may be copied to faster. Thread: of workers_start() */
    void (*pin)(void *map, size_t n_bytes);
    /* Thread: the drain. It begins; */
    CUresult (*enter)(struct context *context);
    /* @n_bytes of the payload from @from on go to @to, which has them after finish(). */
    CUresult (*fetch)(struct context *context, void *to, uint64_t from, uint64_t n_bytes);
    CUresult (*finish)(struct context *context);
    /* Memory for edits, as their action finds it. Thread: of init(), of give_back(). */
    CUresult (*alloc)(CUdeviceptr *at, uint64_t n_bytes);
    void (*free)(CUdeviceptr at, uint64_t n_bytes);
    /* After finish() @n_bytes are there; rows of donors have left the bank. Thread: of init(), the drain. */
    CUresult (*put)(struct context *context, CUdeviceptr at, const void *from, uint64_t n_bytes);
    CUresult (*drop)(struct context *context, struct dmi_bank_drop *drop);
};
