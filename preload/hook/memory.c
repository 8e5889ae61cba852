/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wrappers: memory. What is known of allocations is stale once one ends. Where one begins, the driver may wait for the
 * device: a context that has no ring gets it then.
 */
#include "preload/hook/wrapper.h"
#include "preload/lifecycle.h"

#define BEGINS_MEMORY(name, declare, pass)                                                         \
    EXPORT CUresult CUDAAPI name declare                                                           \
    {                                                                                              \
        CUresult r = REAL(name) pass;                                                              \
        lifecycle_waited(r);                                                                       \
        return r;                                                                                  \
    }
BEGINS_MEMORY(cuMemAlloc_v2, (CUdeviceptr * p, size_t n), (p, n))
BEGINS_MEMORY(cuMemHostAlloc, (void **p, size_t n, unsigned flags), (p, n, flags))

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
ENDS_MEMORY(cuMemFreeHost, (void *p), (p))
ENDS_MEMORY(cuMemHostUnregister, (void *p), (p))
ENDS_MEMORY(cuMemAddressFree, (CUdeviceptr p, size_t n), (p, n))
