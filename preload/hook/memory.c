/* SPDX-License-Identifier: Apache-2.0 */
/* Wrappers: memory that ends. What is known of allocations is stale from then on. */
#include "preload/hook/wrapper.h"

#define ENDS_MEMORY(name, declare, pass)                                                           \
    EXPORT CUresult CUDAAPI name declare                                                           \
    {                                                                                              \
        CUresult r = REAL(name) pass;                                                              \
        session_memory_freed();                                                                    \
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
