/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wrappers of the driver entry points in hooks.def. Each makes the real call once, with the
 * host's arguments, and returns what it returned. What is more than a few lines lives elsewhere.
 */
#include "core/atomic.h"
#include "preload/arena.h"
#include "preload/funcs.h"
#include "preload/hooks.h"
#include "preload/launch.h"
#include "preload/process.h"

#include <errno.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

/* ------------------------------------------------------------------------- start, resolver */

EXPORT CUresult CUDAAPI cuInit(unsigned int flags)
{
    CUresult r = REAL(cuInit)(flags);
    if (r == CUDA_SUCCESS)
        process_start();
    return r;
}

/* The answers equal the exported symbols, for every version and stream flag: map by identity. */
static void wrap_answer(void **pfn)
{
    int saved = errno;
    if (pfn)
        *pfn = hooks_wrap(*pfn);
    errno = saved;
}

EXPORT CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int version,
                                         cuuint64_t flags)
{
    CUresult r = REAL(cuGetProcAddress)(symbol, pfn, version, flags);
    if (r == CUDA_SUCCESS)
        wrap_answer(pfn);
    return r;
}

EXPORT CUresult CUDAAPI cuGetProcAddress_v2(const char *symbol, void **pfn, int version,
                                            cuuint64_t flags,
                                            CUdriverProcAddressQueryResult *status)
{
    CUresult r = REAL(cuGetProcAddress_v2)(symbol, pfn, version, flags, status);
    if (r == CUDA_SUCCESS)
        wrap_answer(pfn);
    return r;
}

/* ------------------------------------------------------------------------- launches */

/* The entry of a launch that must be looked at, NULL: none. */
static inline const struct func *interesting(CUfunction f)
{
    if (!process_armed())
        return NULL;
    const struct func *func = funcs_find(f);
    if (__builtin_expect(!func, 0)) {
        int saved = errno;
        func = launch_lookup(f);
        errno = saved;
    }
    return func == &func_unmatched ? NULL : func;
}

#define LAUNCH_KERNEL(name, ptsz)                                                                  \
    EXPORT CUresult CUDAAPI name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, \
                                 unsigned by, unsigned bz, unsigned shared, CUstream stream,       \
                                 void **params, void **extra)                                      \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        const struct func *func = interesting(f);                                                  \
        if (__builtin_expect(!func, 1))                                                            \
            return real(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);                 \
        struct launch launch = { f,      { gx, gy, gz }, { bx, by, bz }, shared,                   \
                                 stream, params,         extra,          ptsz };                   \
        struct launch_job job;                                                                     \
        launch_before(&launch, func, &job);                                                        \
        CUresult r = real(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);               \
        launch_after(&launch, &job, r);                                                            \
        return r;                                                                                  \
    }
LAUNCH_KERNEL(cuLaunchKernel, false)
LAUNCH_KERNEL(cuLaunchKernel_ptsz, true)

#define LAUNCH_COOPERATIVE(name, ptsz)                                                             \
    EXPORT CUresult CUDAAPI name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, \
                                 unsigned by, unsigned bz, unsigned shared, CUstream stream,       \
                                 void **params)                                                    \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        const struct func *func = interesting(f);                                                  \
        if (__builtin_expect(!func, 1))                                                            \
            return real(f, gx, gy, gz, bx, by, bz, shared, stream, params);                        \
        struct launch launch = { f,      { gx, gy, gz }, { bx, by, bz }, shared,                   \
                                 stream, params,         NULL,           ptsz };                   \
        struct launch_job job;                                                                     \
        launch_before(&launch, func, &job);                                                        \
        CUresult r = real(f, gx, gy, gz, bx, by, bz, shared, stream, params);                      \
        launch_after(&launch, &job, r);                                                            \
        return r;                                                                                  \
    }
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel, false)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, true)

#define LAUNCH_EX(name, ptsz)                                                                      \
    EXPORT CUresult CUDAAPI name(const CUlaunchConfig *c, CUfunction f, void **params,             \
                                 void **extra)                                                     \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        const struct func *func = c ? interesting(f) : NULL;                                       \
        if (__builtin_expect(!func, 1))                                                            \
            return real(c, f, params, extra);                                                      \
        struct launch launch = {                                                                   \
            f,                                                                                     \
            { c->gridDimX, c->gridDimY, c->gridDimZ },                                             \
            { c->blockDimX, c->blockDimY, c->blockDimZ },                                          \
            c->sharedMemBytes,                                                                     \
            c->hStream,                                                                            \
            params,                                                                                \
            extra,                                                                                 \
            ptsz,                                                                                  \
        };                                                                                         \
        struct launch_job job;                                                                     \
        launch_before(&launch, func, &job);                                                        \
        CUresult r = real(c, f, params, extra);                                                    \
        launch_after(&launch, &job, r);                                                            \
        return r;                                                                                  \
    }
LAUNCH_EX(cuLaunchKernelEx, false)
LAUNCH_EX(cuLaunchKernelEx_ptsz, true)

/* ------------------------------------------------------------------------- functions */

static void note_function(const void *handle, enum func_type type, const char *name,
                          const void *owner)
{
    int saved = errno;
    if (handle)
        funcs_add(process.spec, handle, type, name, owner);
    errno = saved;
}

EXPORT CUresult CUDAAPI cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    CUresult r = REAL(cuModuleGetFunction)(function, module, name);
    if (r == CUDA_SUCCESS && process_armed() && function)
        note_function(*function, FUNC_FUNCTION, name, module);
    return r;
}

EXPORT CUresult CUDAAPI cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    CUresult r = REAL(cuLibraryGetKernel)(kernel, library, name);
    if (r == CUDA_SUCCESS && process_armed() && kernel)
        note_function(*kernel, FUNC_KERNEL, name, library);
    return r;
}

EXPORT CUresult CUDAAPI cuLibraryEnumerateKernels(CUkernel *kernels, unsigned n, CUlibrary library)
{
    CUresult r = REAL(cuLibraryEnumerateKernels)(kernels, n, library);
    for (unsigned i = 0; r == CUDA_SUCCESS && process_armed() && kernels && i < n; i++)
        note_function(kernels[i], FUNC_KERNEL, NULL, library);
    return r;
}

EXPORT CUresult CUDAAPI cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    CUresult r = REAL(cuKernelGetFunction)(function, kernel);
    if (r == CUDA_SUCCESS && process_armed() && function)
        note_function(*function, FUNC_FUNCTION, NULL, funcs_owner(kernel));
    return r;
}

/* Before the real call: once it returns, another thread may be given the same handles. */
EXPORT CUresult CUDAAPI cuModuleUnload(CUmodule module)
{
    __typeof__(cuModuleUnload) *real = REAL(cuModuleUnload);
    if (process_armed())
        funcs_drop_owner(module);
    return real(module);
}

EXPORT CUresult CUDAAPI cuLibraryUnload(CUlibrary library)
{
    __typeof__(cuLibraryUnload) *real = REAL(cuLibraryUnload);
    if (process_armed())
        funcs_drop_owner(library);
    return real(library);
}

/* ------------------------------------------------------------------------- memory */

/* What is known of allocations is stale from here on; acquired by within_allocation() in launch.c. */
#define ENDS_MEMORY(name, declare, pass)                                                           \
    EXPORT CUresult CUDAAPI name declare                                                           \
    {                                                                                              \
        CUresult r = REAL(name) pass;                                                              \
        if (process_armed())                                                                       \
            atomic_add_acq_rel(&process.memory_epoch, 1);                                          \
        return r;                                                                                  \
    }
ENDS_MEMORY(cuMemFree, (CUdeviceptr_v1 p), (p))
ENDS_MEMORY(cuMemFree_v2, (CUdeviceptr p), (p))
ENDS_MEMORY(cuMemFreeAsync, (CUdeviceptr p, CUstream s), (p, s))
ENDS_MEMORY(cuMemFreeAsync_ptsz, (CUdeviceptr p, CUstream s), (p, s))
ENDS_MEMORY(cuMemUnmap, (CUdeviceptr p, size_t n), (p, n))
ENDS_MEMORY(cuMemPoolDestroy, (CUmemoryPool pool), (pool))
ENDS_MEMORY(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep), (pool, keep))
ENDS_MEMORY(cuIpcCloseMemHandle, (CUdeviceptr p), (p))

/* ------------------------------------------------------------------------- contexts */

/* Our threads use the context: they end before it does. */
static struct arena *context_ends(CUcontext context)
{
    if (!process_armed() || !context)
        return NULL;
    int saved = errno;
    funcs_drop_functions();
    struct arena *a = arena_find(context);
    if (a)
        arena_stop(a, process.exit_ns, DMI_DROP_CONTEXT_GONE);
    errno = saved;
    return a;
}

static void context_ended(struct arena *a, bool gone)
{
    if (!a)
        return;
    int saved = errno;
    if (gone)
        arena_forget(a);
    else
        arena_resume(a);
    atomic_add_acq_rel(&process.memory_epoch, 1);
    errno = saved;
}

#define CONTEXT_ENDS(name)                                                                         \
    EXPORT CUresult CUDAAPI name(CUcontext context)                                                \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        struct arena *a = context_ends(context);                                                   \
        /* once the call returns, another thread may be given the same handle */                   \
        if (a)                                                                                     \
            arena_detach(a);                                                                       \
        CUresult r = real(context);                                                                \
        if (a && r != CUDA_SUCCESS)                                                                \
            arena_attach(a, context);                                                              \
        context_ended(a, r == CUDA_SUCCESS);                                                       \
        return r;                                                                                  \
    }
CONTEXT_ENDS(cuCtxDestroy)
CONTEXT_ENDS(cuCtxDestroy_v2)
CONTEXT_ENDS(cuCtxDetach)

/* The handle of a device's primary context, NULL: it is not active, so nobody uses it. */
static CUcontext primary_context(CUdevice device)
{
    unsigned flags = 0;
    int active = 0;
    CUcontext context = NULL;
    if (!process_armed() ||
        driver_table.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || !active)
        return NULL;
    /* the only way to its handle; the reference is given back at once */
    if (driver_table.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
        return NULL;
    if (driver_table.cuDevicePrimaryCtxRelease_v2)
        driver_table.cuDevicePrimaryCtxRelease_v2(device);
    return context;
}

static bool primary_is_gone(CUdevice device)
{
    unsigned flags = 0;
    int active = 0;
    return driver_table.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS ||
           !active;
}

/* A reset leaves nothing in it, also where it stays active. */
#define PRIMARY_ENDS(name, is_gone)                                                                \
    EXPORT CUresult CUDAAPI name(CUdevice device)                                                  \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        struct arena *a = context_ends(primary_context(device));                                   \
        CUresult r = real(device);                                                                 \
        context_ended(a, a &&r == CUDA_SUCCESS && (is_gone));                                      \
        return r;                                                                                  \
    }
PRIMARY_ENDS(cuDevicePrimaryCtxRelease, primary_is_gone(device))
PRIMARY_ENDS(cuDevicePrimaryCtxRelease_v2, primary_is_gone(device))
PRIMARY_ENDS(cuDevicePrimaryCtxReset, true)
PRIMARY_ENDS(cuDevicePrimaryCtxReset_v2, true)
