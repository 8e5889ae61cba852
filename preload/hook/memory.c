/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wrappers: memory. What is known of allocations is stale once one ends. Where one begins, or is mapped, the driver may wait
 * for the device: a context that has no ring gets it then. What is mapped or shared is noted (capture/regions.h).
 */
#include "preload/capture/regions.h"
#include "preload/hook/wrapper.h"

WAITS(cuMemAlloc_v2, (CUdeviceptr * p, size_t n), (p, n))
WAITS(cuMemAllocPitch_v2,
      (CUdeviceptr * p, size_t *pitch, size_t width, size_t height, unsigned element),
      (p, pitch, width, height, element))
WAITS(cuMemAllocManaged, (CUdeviceptr * p, size_t n, unsigned flags), (p, n, flags))
WAITS(cuMemAllocAsync, (CUdeviceptr * p, size_t n, CUstream s), (p, n, s))
WAITS(cuMemAllocAsync_ptsz, (CUdeviceptr * p, size_t n, CUstream s), (p, n, s))
WAITS(cuMemAllocFromPoolAsync, (CUdeviceptr * p, size_t n, CUmemoryPool pool, CUstream s),
      (p, n, pool, s))
WAITS(cuMemAllocFromPoolAsync_ptsz, (CUdeviceptr * p, size_t n, CUmemoryPool pool, CUstream s),
      (p, n, pool, s))
WAITS(cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps *props), (pool, props))
WAITS(cuMemAddressReserve,
      (CUdeviceptr * p, size_t n, size_t alignment, CUdeviceptr at, unsigned long long flags),
      (p, n, alignment, at, flags))
WAITS(cuMemCreate,
      (CUmemGenericAllocationHandle * handle, size_t n, const CUmemAllocationProp *props,
       unsigned long long flags),
      (handle, n, props, flags))
WAITS(cuMemSetAccess, (CUdeviceptr p, size_t n, const CUmemAccessDesc *access, size_t count),
      (p, n, access, count))
WAITS(cuMemHostAlloc, (void **p, size_t n, unsigned flags), (p, n, flags))

/* Before the driver's call: once it returns, another thread may be given the same addresses. */
static void ends(uint64_t base, uint64_t n_bytes)
{
    if (session_armed())
        regions_end(base, n_bytes);
}

/* [@at, @at + @n) ends. */
#define ENDS_MEMORY(name, declare, pass, at, n_bytes)                                              \
    EXPORT CUresult CUDAAPI name declare                                                           \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        ends((uint64_t)(at), (n_bytes));                                                           \
        CUresult r = real pass;                                                                    \
        session_memory_freed();                                                                    \
        return r;                                                                                  \
    }
ENDS_MEMORY(cuMemFree, (CUdeviceptr_v1 p), (p), p, 1)
ENDS_MEMORY(cuMemFree_v2, (CUdeviceptr p), (p), p, 1)
ENDS_MEMORY(cuMemFreeAsync, (CUdeviceptr p, CUstream s), (p, s), p, 1)
ENDS_MEMORY(cuMemFreeAsync_ptsz, (CUdeviceptr p, CUstream s), (p, s), p, 1)
ENDS_MEMORY(cuMemUnmap, (CUdeviceptr p, size_t n), (p, n), p, n)
ENDS_MEMORY(cuMemPoolDestroy, (CUmemoryPool pool), (pool), 0, 0)
ENDS_MEMORY(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep), (pool, keep), 0, 0)
ENDS_MEMORY(cuIpcCloseMemHandle, (CUdeviceptr p), (p), p, 1)
ENDS_MEMORY(cuMemFreeHost, (void *p), (p), (uintptr_t)p, 1)
ENDS_MEMORY(cuMemHostUnregister, (void *p), (p), (uintptr_t)p, 1)
ENDS_MEMORY(cuMemAddressFree, (CUdeviceptr p, size_t n), (p, n), p, n)

/* ------------------------------------------------------------------------- mapped and shared */

EXPORT CUresult CUDAAPI cuMemMap(CUdeviceptr at, size_t n, size_t offset,
                                 CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    CUresult r = REAL(cuMemMap)(at, n, offset, handle, flags);
    AFTER_SUCCESS(r, regions_mapped(at, n, handle));
    lifecycle_waited(r);
    return r;
}

EXPORT CUresult CUDAAPI cuMemExportToShareableHandle(void *shareable,
                                                     CUmemGenericAllocationHandle handle,
                                                     CUmemAllocationHandleType type,
                                                     unsigned long long flags)
{
    CUresult r = REAL(cuMemExportToShareableHandle)(shareable, handle, type, flags);
    AFTER_SUCCESS(r, regions_share_handle(handle));
    return r;
}

EXPORT CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
                                                       void *os_handle,
                                                       CUmemAllocationHandleType type)
{
    CUresult r = REAL(cuMemImportFromShareableHandle)(handle, os_handle, type);
    AFTER_SUCCESS(r, regions_share_handle(*handle));
    return r;
}

EXPORT CUresult CUDAAPI cuMulticastBindMem(CUmemGenericAllocationHandle multicast, size_t at,
                                           CUmemGenericAllocationHandle handle, size_t offset,
                                           size_t n, unsigned long long flags)
{
    CUresult r = REAL(cuMulticastBindMem)(multicast, at, handle, offset, n, flags);
    AFTER_SUCCESS(r, regions_share_handle(handle));
    return r;
}

/* The whole allocation or piece that @p lies in. */
static void share_around(CUdeviceptr p)
{
    CUdeviceptr base;
    size_t size;
    if (driver_table.cuMemGetAddressRange_v2(&base, &size, p) == CUDA_SUCCESS)
        regions_share(base, size);
    else
        session_give_up_all("the driver does not say what memory is shared with other processes");
}

EXPORT CUresult CUDAAPI cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, size_t at,
                                            CUdeviceptr p, size_t n, unsigned long long flags)
{
    CUresult r = REAL(cuMulticastBindAddr)(multicast, at, p, n, flags);
    AFTER_SUCCESS(r, regions_share(p, n));
    return r;
}

EXPORT CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr p)
{
    CUresult r = REAL(cuIpcGetMemHandle)(handle, p);
    AFTER_SUCCESS(r, share_around(p));
    return r;
}

#define IPC_OPENS(name)                                                                            \
    EXPORT CUresult CUDAAPI name(CUdeviceptr *p, CUipcMemHandle handle, unsigned flags)            \
    {                                                                                              \
        CUresult r = REAL(name)(p, handle, flags);                                                 \
        AFTER_SUCCESS(r, share_around(*p));                                                        \
        return r;                                                                                  \
    }
IPC_OPENS(cuIpcOpenMemHandle)
IPC_OPENS(cuIpcOpenMemHandle_v2)
