/* SPDX-License-Identifier: Apache-2.0 */
/* Wrappers: start, and the driver's own resolver. */
#include "preload/hook/hook.h"
#include "preload/hook/wrapper.h"
#include "preload/lifecycle.h"

EXPORT CUresult CUDAAPI cuInit(unsigned int flags)
{
    CUresult r = REAL(cuInit)(flags);
    if (r == CUDA_SUCCESS)
        lifecycle_start();
    return r;
}

/* The answers equal the exported symbols, for every version and stream flag: map by identity. */
static void wrap_answer(CUresult r, void **pfn)
{
    if (r == CUDA_SUCCESS && pfn)
        *pfn = hook_wrap(*pfn);
}

EXPORT CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int version,
                                         cuuint64_t flags)
{
    CUresult r = REAL(cuGetProcAddress)(symbol, pfn, version, flags);
    wrap_answer(r, pfn);
    return r;
}

EXPORT CUresult CUDAAPI cuGetProcAddress_v2(const char *symbol, void **pfn, int version,
                                            cuuint64_t flags,
                                            CUdriverProcAddressQueryResult *status)
{
    CUresult r = REAL(cuGetProcAddress_v2)(symbol, pfn, version, flags, status);
    wrap_answer(r, pfn);
    return r;
}
