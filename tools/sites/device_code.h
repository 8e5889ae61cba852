/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels in files of machine code: cubins, fatbins, and programs and libraries that hold fatbins. One thread. */
#ifndef TOOLS_SITES_DEVICE_CODE_H
#define TOOLS_SITES_DEVICE_CODE_H

#include "core/err.h"

#include <dmi/recording.h>

#include <stddef.h>
#include <stdint.h>

#define DEVICE_CODE_MAX_PARAMS 4096u

/* Who wants to know of them. */
struct device_code_sink {
    /* The machine code that the next kernels are of: 80 for sm_80, 0: not known. */
    void (*image)(void *ctx, uint32_t arch);
    /* @params: @n places, by number; borrowed during the call */
    void (*kernel)(void *ctx, const char *name, const struct dmi_recording_param *params,
                   uint32_t n);
    void *ctx;
};

/**
 * device_code_read() - all kernels of a file
 * Return: 0 or an error in @err: it holds no machine code, is damaged, or this program was built without libelf.
 */
int device_code_read(struct err *err, const void *data, size_t n,
                     const struct device_code_sink *sink);

#endif
