/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels in files of machine code: cubins, fatbins, and programs and libraries that hold fatbins; what each takes of the device. For tools: it is no part of
 * the preloaded library. One thread.
 */
#pragma once

#include "core/err.h"

#include <dmi/recording.h>

#include <stddef.h>
#include <stdint.h>

#define CUBIN_MAX_PARAMS 4096u
#define CUBIN_BANKS      18u /* of constants, as CUDA numbers them */
#define CUBIN_UNKNOWN    UINT32_MAX

struct cubin_kernel {
    const char *name;
    const struct dmi_recording_param *params; /* @n_params places, by number */
    uint32_t n_params;
    uint32_t registers;             /* a thread; CUBIN_UNKNOWN */
    uint32_t local;                 /* bytes of stack a thread; CUBIN_UNKNOWN */
    uint64_t shared;                /* static bytes a block */
    uint64_t constant[CUBIN_BANKS]; /* bytes of each bank */
};

/* Who wants to know of them. */
struct cubin_sink {
    /* The machine code that the next kernels are of: 80 for sm_80, 0: not known. */
    void (*image)(void *ctx, uint32_t arch);
    /* @kernel: borrowed during the call */
    void (*kernel)(void *ctx, const struct cubin_kernel *kernel);
    void *ctx;
};

/**
 * cubin_read() - all kernels of a file
 * Return: 0 or an error in @err: it holds no machine code, or is damaged.
 */
int cubin_read(struct err *err, const void *data, size_t n, const struct cubin_sink *sink);
