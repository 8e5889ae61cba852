/* SPDX-License-Identifier: Apache-2.0 */
/* Wrappers: functions of modules and libraries, which mean something to the spec by their names, and their end. */
#include "preload/base/functions.h"
#include "preload/hook/wrapper.h"

#include <stddef.h>

static void note_function(const void *handle, enum func_type type, const char *name,
                          const void *owner)
{
    if (handle)
        functions_add(session.spec, handle, type, name, owner);
}

EXPORT CUresult CUDAAPI cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    CUresult r = REAL(cuModuleGetFunction)(function, module, name);
    if (function)
        AFTER_SUCCESS(r, note_function(*function, FUNC_FUNCTION, name, module));
    return r;
}

EXPORT CUresult CUDAAPI cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    CUresult r = REAL(cuLibraryGetKernel)(kernel, library, name);
    if (kernel)
        AFTER_SUCCESS(r, note_function(*kernel, FUNC_KERNEL, name, library));
    return r;
}

/* The driver fills as many as there are, whatever was asked for: the rest is whatever lay there. */
static void note_kernels(const CUkernel *kernels, unsigned n, CUlibrary library)
{
    unsigned there = 0;
    if (!driver_table.cuLibraryGetKernelCount ||
        driver_table.cuLibraryGetKernelCount(&there, library) != CUDA_SUCCESS)
        return;
    for (unsigned i = 0; i < n && i < there; i++)
        note_function(kernels[i], FUNC_KERNEL, NULL, library);
}

EXPORT CUresult CUDAAPI cuLibraryEnumerateKernels(CUkernel *kernels, unsigned n, CUlibrary library)
{
    CUresult r = REAL(cuLibraryEnumerateKernels)(kernels, n, library);
    if (kernels)
        AFTER_SUCCESS(r, note_kernels(kernels, n, library));
    return r;
}

EXPORT CUresult CUDAAPI cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    CUresult r = REAL(cuKernelGetFunction)(function, kernel);
    if (function)
        AFTER_SUCCESS(r, note_function(*function, FUNC_FUNCTION, NULL, functions_owner(kernel)));
    return r;
}

/* Before the driver's call: once it returns, another thread may be given the same handles. */
static void forget_functions(const void *owner)
{
    struct session_call call;
    if (!session_armed())
        return;
    if (session_enter(&call))
        functions_drop_owner(owner);
    session_leave(&call);
}

EXPORT CUresult CUDAAPI cuModuleUnload(CUmodule module)
{
    __typeof__(cuModuleUnload) *real = REAL(cuModuleUnload);
    forget_functions(module);
    return real(module);
}

EXPORT CUresult CUDAAPI cuLibraryUnload(CUlibrary library)
{
    __typeof__(cuLibraryUnload) *real = REAL(cuLibraryUnload);
    forget_functions(library);
    return real(library);
}
