/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a module says of itself. Translated code holds it (emit_info.c), so that a module whose code is in the cache is
 * loaded without its PTX being parsed. This text comes before rt.h where kernels are compiled.
 */
#ifndef STANDIN_PTX_INFO_H
#define STANDIN_PTX_INFO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptx_param_info {
    size_t offset, size, align; /* bytes, in the packed buffer */
};

/* What a kernel says of itself; valid while its module lives. */
struct ptx_kernel_info {
    const char *name;
    unsigned n_params;
    const struct ptx_param_info *params;
    size_t params_bytes;
    unsigned static_shared; /* bytes a block */
    unsigned local_bytes;   /* a thread */
    unsigned max_threads;   /* a block: .maxntid or .reqntid; 0: not said */
    unsigned registers;     /* 32-bit ones, roughly: there is no allocator here */
};

/* A module-scope variable (.global or .const). */
struct ptx_global {
    const char *name;
    size_t size, align;
    bool constant;
    bool external;
    const unsigned char *init; /* @size bytes, NULL: zero */
};

/* The bytes from @at on of one variable are the address of another, and @addend. */
struct ptx_fixup {
    int global;
    size_t at;
    int target;
    int64_t addend;
};

struct rt_env; /* rt.h */
struct ptx_code {
    struct ptx_kernel_info info;
    void (*run)(const struct rt_env *env);
    const uint64_t *frame_bytes; /* a thread */
};

/* The symbol `ptx_module_info` of an object is one. */
struct ptx_module_info {
    const struct ptx_code *kernels;
    const struct ptx_global *globals;
    const struct ptx_fixup *fixups;
    size_t n_kernels, n_globals, n_fixups;
    size_t extern_align; /* the strictest of its .extern .shared arrays */
};

#endif
