/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parameters of one launch, however they were given: an array of pointers (kernelParams) or one
 * packed buffer (extra). Reads are bounded by what the driver says of the kernel, so a spec that
 * asks for a parameter that is not there gets an error, never a wild read. Any thread.
 */
#pragma once

#include "policy/expr.h"
#include "preload/image/layout.h"

#include <stddef.h>
#include <stdint.h>

/* Borrowed from the application's call. */
struct params {
    const struct params_layout *layout; /* NULL: nobody knows it */
    void *const *pointers;              /* kernelParams, or NULL */
    const unsigned char *packed;        /* extra's buffer, or NULL */
    size_t n_packed;
};

/* @extra: as in cuLaunchKernel; NULL and unknown entries are accepted, as the driver rejects them. */
void params_init(struct params *params, const struct params_layout *layout, void **kernel_params,
                 void **extra);

/**
 * params_read() - @n bytes of a parameter; an expr_env's `param`
 * @ctx: struct params
 * Return: 0 or -ENOENT.
 */
int params_read(void *ctx, struct expr_ref ref, void *dst, size_t n);
