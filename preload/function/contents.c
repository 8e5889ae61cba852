/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/function/contents.h"

#include "core/cleanup.h"
#include "preload/base/driver.h"
#include "preload/base/stream.h"
#include "preload/function/layouts.h"
#include "preload/session/session.h"

#include <stdlib.h>

#define MAX_LISTED 100000u /* a library of more is looked at when its kernels are asked for */

/* What an enumeration fills: all of one type. */
union handle {
    CUfunction function;
    CUkernel kernel;
    const void *any;
};

unsigned contents_count(const void *owner, enum func_type type)
{
    unsigned n = 0;
    __typeof__(cuModuleGetFunctionCount) *of_module = driver_table.cuModuleGetFunctionCount;
    __typeof__(cuLibraryGetKernelCount) *of_library = driver_table.cuLibraryGetKernelCount;
    CUresult r = CUDA_ERROR_NOT_FOUND;
    if (type == FUNC_FUNCTION && of_module)
        r = of_module(&n, (CUmodule)owner);
    else if (type == FUNC_KERNEL && of_library)
        r = of_library(&n, (CUlibrary)owner);
    return r == CUDA_SUCCESS ? n : 0;
}

static CUresult enumerate(union handle *handles, unsigned n, const void *owner, enum func_type type)
{
    __typeof__(cuModuleEnumerateFunctions) *of_module = driver_table.cuModuleEnumerateFunctions;
    __typeof__(cuLibraryEnumerateKernels) *of_library = driver_table.cuLibraryEnumerateKernels;
    if (type == FUNC_FUNCTION && of_module)
        return of_module(&handles->function, n, (CUmodule)owner);
    if (type == FUNC_KERNEL && of_library)
        return of_library(&handles->kernel, n, (CUlibrary)owner);
    return CUDA_ERROR_NOT_FOUND;
}

void contents_of(const void *owner, enum func_type type)
{
    struct stream_relaxed relaxed = stream_relax();
    unsigned n = contents_count(owner, type);
    _cleanup_(freep) union handle *handles =
        n && n <= MAX_LISTED ? calloc(n, sizeof *handles) : NULL;
    bool listed = handles && enumerate(handles, n, owner, type) == CUDA_SUCCESS;
    stream_unrelax(&relaxed);
    for (unsigned i = 0; listed && i < n; i++)
        functions_add_listed(session.spec, handles[i].any, type, owner);
    if (!listed && layouts_has(owner))
        functions_expect();
}
