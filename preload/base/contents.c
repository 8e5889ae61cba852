/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/base/contents.h"

#include "core/cleanup.h"
#include "preload/base/driver.h"
#include "preload/base/functions.h"
#include "preload/base/layouts.h"
#include "preload/base/session.h"
#include "preload/base/stream.h"

#include <stdlib.h>

#define MAX_LISTED 100000u /* a library of more is looked at when its kernels are asked for */

static CUfunction *list_functions(CUmodule module, unsigned *n)
{
    if (!driver_table.cuModuleGetFunctionCount || !driver_table.cuModuleEnumerateFunctions ||
        driver_table.cuModuleGetFunctionCount(n, module) != CUDA_SUCCESS || *n > MAX_LISTED)
        return NULL;
    CUfunction *functions = calloc(*n + 1, sizeof *functions);
    if (functions && driver_table.cuModuleEnumerateFunctions(functions, *n, module) != CUDA_SUCCESS)
        *n = 0;
    return functions;
}

static CUkernel *list_kernels(CUlibrary library, unsigned *n)
{
    if (!driver_table.cuLibraryGetKernelCount || !driver_table.cuLibraryEnumerateKernels ||
        driver_table.cuLibraryGetKernelCount(n, library) != CUDA_SUCCESS || *n > MAX_LISTED)
        return NULL;
    CUkernel *kernels = calloc(*n + 1, sizeof *kernels);
    if (kernels && driver_table.cuLibraryEnumerateKernels(kernels, *n, library) != CUDA_SUCCESS)
        *n = 0;
    return kernels;
}

void contents_of_module(CUmodule module)
{
    unsigned n = 0;
    struct stream_relaxed relaxed = stream_relax();
    _cleanup_(freep) CUfunction *functions = list_functions(module, &n);
    stream_unrelax(&relaxed);
    for (unsigned i = 0; functions && i < n; i++)
        functions_add_listed(session.spec, functions[i], FUNC_FUNCTION, module);
    if (!functions && layouts_has(module))
        functions_expect();
}

void contents_of_library(CUlibrary library)
{
    unsigned n = 0;
    struct stream_relaxed relaxed = stream_relax();
    _cleanup_(freep) CUkernel *kernels = list_kernels(library, &n);
    stream_unrelax(&relaxed);
    for (unsigned i = 0; kernels && i < n; i++)
        functions_add_listed(session.spec, kernels[i], FUNC_KERNEL, library);
    if (!kernels && layouts_has(library))
        functions_expect();
}
