/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wrappers: memory. What is known of it (capture/regions.h) ends with it; what is mapped or shared is noted. Where memory begins,
 * or is mapped, the driver may wait for the device: a context that has no ring gets it then.
 */
#include "preload/capture/intervals.h"
#include "preload/capture/regions.h"
#include "preload/hook/wrapper.h"

/* What was known there has ended unseen: with its context, say. */
static void begins(CUdeviceptr p, size_t n)
{
    regions_ended(p, n, regions_end(p, n), true);
}

EXPORT CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *p, size_t n)
{
    __typeof__(cuMemAlloc_v2) *real = REAL(cuMemAlloc_v2);
    uint64_t begin_ns = stall_begins();
    CUresult r = real(p, n);
    stall_ends(begin_ns, false, "cuMemAlloc_v2");
    AFTER_SUCCESS(r, begins(*p, n));
    lifecycle_waited(r);
    return r;
}

ALLOCATES(cuMemAllocPitch_v2,
          (CUdeviceptr * p, size_t *pitch, size_t width, size_t height, unsigned element),
          (p, pitch, width, height, element))
ALLOCATES(cuMemAllocManaged, (CUdeviceptr * p, size_t n, unsigned flags), (p, n, flags))
ALLOCATES(cuMemAllocAsync, (CUdeviceptr * p, size_t n, CUstream s), (p, n, s))
ALLOCATES(cuMemAllocAsync_ptsz, (CUdeviceptr * p, size_t n, CUstream s), (p, n, s))
ALLOCATES(cuMemAllocFromPoolAsync, (CUdeviceptr * p, size_t n, CUmemoryPool pool, CUstream s),
          (p, n, pool, s))
ALLOCATES(cuMemAllocFromPoolAsync_ptsz, (CUdeviceptr * p, size_t n, CUmemoryPool pool, CUstream s),
          (p, n, pool, s))
WAITS(cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps *props), (pool, props))
WAITS(cuMemAddressReserve,
      (CUdeviceptr * p, size_t n, size_t alignment, CUdeviceptr at, unsigned long long flags),
      (p, n, alignment, at, flags))
ALLOCATES(cuMemCreate,
          (CUmemGenericAllocationHandle * handle, size_t n, const CUmemAllocationProp *props,
           unsigned long long flags),
          (handle, n, props, flags))
ALLOCATES(cuMemHostAlloc, (void **p, size_t n, unsigned flags), (p, n, flags))

/* Memory that a call of the application's is to end. */
struct memory_ending {
    uint64_t base, n_bytes;
    struct region *known;
    bool noted;
};

/* The session is not held while the driver is in the call: it may wait for the device, and the last flush for who is in. */
static void ends(struct memory_ending *e, uint64_t base, uint64_t n_bytes)
{
    struct session_call call;
    *e = (struct memory_ending){ .base = base, .n_bytes = n_bytes };
    e->noted = session_enter(&call);
    if (e->noted)
        e->known = regions_end(base, n_bytes);
    session_leave(&call);
}

static bool is_alive(CUdeviceptr p)
{
    CUdeviceptr base;
    size_t size;
    return driver_table.cuMemGetAddressRange_v2(&base, &size, p) == CUDA_SUCCESS;
}

/* @asks: the call may have succeeded without ending it. */
static void ended(const struct memory_ending *e, CUresult r, bool asks)
{
    struct session_call call;
    if (!e->noted)
        return;
    session_enter(&call);
    regions_ended(e->base, e->n_bytes, e->known,
                  r == CUDA_SUCCESS && (!asks || !is_alive(e->base)));
    session_leave(&call);
}

/* [@at, @at + @n) ends. */
#define ENDS_MEMORY(name, declare, pass, at, n_bytes, asks)                                        \
    EXPORT CUresult CUDAAPI name declare                                                           \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        struct memory_ending ending;                                                               \
        if (!session_armed())                                                                      \
            return real pass;                                                                      \
        ends(&ending, (uint64_t)(at), (n_bytes));                                                  \
        CUresult r = real pass;                                                                    \
        ended(&ending, r, asks);                                                                   \
        return r;                                                                                  \
    }
ENDS_MEMORY(cuMemFree, (CUdeviceptr_v1 p), (p), p, 1, false)
ENDS_MEMORY(cuMemFree_v2, (CUdeviceptr p), (p), p, 1, false)
ENDS_MEMORY(cuMemFreeAsync, (CUdeviceptr p, CUstream s), (p, s), p, 1, false)
ENDS_MEMORY(cuMemFreeAsync_ptsz, (CUdeviceptr p, CUstream s), (p, s), p, 1, false)
ENDS_MEMORY(cuMemUnmap, (CUdeviceptr p, size_t n), (p, n), p, n, false)
/* It may have been opened more than once. */
ENDS_MEMORY(cuIpcCloseMemHandle, (CUdeviceptr p), (p), p, 1, true)
ENDS_MEMORY(cuMemFreeHost, (void *p), (p), (uintptr_t)p, 1, false)
ENDS_MEMORY(cuMemHostUnregister, (void *p), (p), (uintptr_t)p, 1, false)
ENDS_MEMORY(cuMemAddressFree, (CUdeviceptr p, size_t n), (p, n), p, n, false)

/* Which allocations end is not said. */
NOTED(cuMemPoolDestroy, (CUmemoryPool pool), (pool), regions_unsure())
NOTED(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep), (pool, keep), regions_unsure())

/* ------------------------------------------------------------------------- mapped */

EXPORT CUresult CUDAAPI cuMemMap(CUdeviceptr at, size_t n, size_t offset,
                                 CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    CUresult r = REAL(cuMemMap)(at, n, offset, handle, flags);
    AFTER_SUCCESS(r, regions_mapped(at, n, handle));
    lifecycle_waited(r);
    return r;
}

static void permit(CUdeviceptr at, size_t n, const CUmemAccessDesc *desc, size_t count)
{
    uint64_t granted = 0, revoked = 0;
    for (size_t i = 0; i < count; i++) {
        if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || desc[i].location.id < 0 ||
            desc[i].location.id >= INTERVALS_DEVICES)
            continue;
        uint64_t bit = (uint64_t)1 << desc[i].location.id;
        bool reads = desc[i].flags & CU_MEM_ACCESS_FLAGS_PROT_READ;
        granted = reads ? granted | bit : granted & ~bit; /* the last word counts */
        revoked = reads ? revoked & ~bit : revoked | bit;
    }
    regions_permit(at, n, granted, revoked);
}

EXPORT CUresult CUDAAPI cuMemSetAccess(CUdeviceptr at, size_t n, const CUmemAccessDesc *desc,
                                       size_t count)
{
    CUresult r = REAL(cuMemSetAccess)(at, n, desc, count);
    AFTER_SUCCESS(r, permit(at, n, desc, count));
    lifecycle_waited(r);
    return r;
}

NOTED(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *at), (handle, at),
      regions_retained((uintptr_t)at, *handle))

EXPORT CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
    __typeof__(cuMemRelease) *real = REAL(cuMemRelease);
    struct session_call call;
    if (!session_armed())
        return real(handle);
    struct memory *releasing = IN_SESSION(regions_release(handle), NULL);
    CUresult r = real(handle);
    session_enter(&call);
    regions_released(handle, releasing, r == CUDA_SUCCESS);
    session_leave(&call);
    return r;
}

/* ------------------------------------------------------------------------- shared */

NOTED(cuMemExportToShareableHandle,
      (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
       unsigned long long flags),
      (shareable, handle, type, flags), regions_share_handle(handle))
NOTED(cuMemImportFromShareableHandle,
      (CUmemGenericAllocationHandle * handle, void *os_handle, CUmemAllocationHandleType type),
      (handle, os_handle, type), regions_imported(*handle))
NOTED(cuMulticastBindMem,
      (CUmemGenericAllocationHandle multicast, size_t at, CUmemGenericAllocationHandle handle,
       size_t offset, size_t n, unsigned long long flags),
      (multicast, at, handle, offset, n, flags),
      (regions_share_handle(handle), regions_share_handle(multicast)))

/* The allocations and mappings that [@p, @p + @n) lies in, each as a whole. */
static void share_around(CUdeviceptr p, size_t n)
{
    for (CUdeviceptr at = p; at - p < n;) {
        CUdeviceptr base;
        size_t size = 0;
        CUresult r = driver_table.cuMemGetAddressRange_v2(&base, &size, at);
        if (r != CUDA_SUCCESS || !size) {
            session_give_up_all(
                "the driver does not say what memory is shared with other processes");
            return;
        }
        regions_share(base, size);
        at = base + size;
    }
}

NOTED(cuMulticastBindAddr,
      (CUmemGenericAllocationHandle multicast, size_t at, CUdeviceptr p, size_t n,
       unsigned long long flags),
      (multicast, at, p, n, flags), share_around(p, n))
NOTED(cuIpcGetMemHandle, (CUipcMemHandle * handle, CUdeviceptr p), (handle, p), share_around(p, 1))
NOTED(cuIpcOpenMemHandle, (CUdeviceptr * p, CUipcMemHandle handle, unsigned flags),
      (p, handle, flags), share_around(*p, 1))
NOTED(cuIpcOpenMemHandle_v2, (CUdeviceptr * p, CUipcMemHandle handle, unsigned flags),
      (p, handle, flags), share_around(*p, 1))
NOTED(cuMemPoolExportPointer, (CUmemPoolPtrExportData * data, CUdeviceptr p), (data, p),
      share_around(p, 1))
NOTED(cuMemPoolImportPointer, (CUdeviceptr * p, CUmemoryPool pool, CUmemPoolPtrExportData *data),
      (p, pool, data), share_around(*p, 1))
