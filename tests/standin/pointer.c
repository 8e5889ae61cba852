/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pointer.c - what the driver says of an address
 */
#include "memory.h"
#include "impl.h"

#include <string.h>

/* What of a reservation can be asked whether or not memory is mapped there. */
static CUresult reserved_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    uint64_t first;
    size_t size;

    if (!vmm_reserved(ptr, &first, &size))
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)data = first; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = size; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned *)data = 0; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

/* Those that say where the memory lies. */
static CUresult range_attribute(void *data, CUpointer_attribute attribute,
                                const struct alloc *alloc)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        if (alloc->kind == ALLOC_MAPPED)
            return reserved_attribute(data, attribute, alloc->address);
        *(CUdeviceptr *)data = alloc->address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        if (alloc->kind == ALLOC_MAPPED)
            return reserved_attribute(data, attribute, alloc->address);
        *(size_t *)data = alloc->size;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned *)data = alloc->kind != ALLOC_GRAPH || alloc->live;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)data = alloc->address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: *(size_t *)data = alloc->size; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

/* Those that say who may use it, and who it came from. */
static CUresult sharing_attribute(void *data, CUpointer_attribute attribute,
                                  const struct alloc *alloc)
{
    struct context *ctx;

    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned *)data = alloc->kind == ALLOC_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)data =
            vmm_exportable(alloc) || (alloc->pool && pool_exportable(alloc->pool))
                ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                : 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = (CUmemoryPool)alloc->pool;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        if (context_current(&ctx) != CUDA_SUCCESS)
            return CUDA_ERROR_INVALID_VALUE;
        *(unsigned long long *)data = alloc->kind == ALLOC_MAPPED
                                          ? alloc->access[ctx->device]
                                          : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: *(bool *)data = false; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(unsigned long long *)data = vmm_block_id(alloc);
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult pointer_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct alloc *alloc = memory_find(ptr);
    bool device = alloc && memory_is_device(ptr);

    if (!alloc || alloc->freed)
        return reserved_attribute(data, attribute, ptr);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data =
            (CUcontext)alloc->ctx; /* memory of pools, graphs and pieces has none */
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data =
            device || alloc->kind == ALLOC_MANAGED ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)data = ptr; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (device)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)(uintptr_t)ptr;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(unsigned *)data = 0; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)data = alloc->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)data = alloc->kind == ALLOC_MANAGED;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = alloc->device; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return range_attribute(data, attribute, alloc);
    default: return sharing_attribute(data, attribute, alloc);
    }
}

/* Drivers answer in a thread without a context too; one that is broken still says so. */
static CUresult may_ask(void)
{
    struct context *ctx;
    CUresult res = context_current(&ctx);

    return res == CUDA_ERROR_INVALID_CONTEXT ? CUDA_SUCCESS : res;
}

CUresult impl_cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    CUresult res;
    DRIVER_LOCKED;

    if (!data)
        return CUDA_ERROR_INVALID_VALUE;
    res = may_ask();
    return res != CUDA_SUCCESS ? res : pointer_attribute(data, attribute, ptr);
}

/* Bytes that an attribute's value takes, for the answers about unknown pointers. */
static size_t attribute_size(CUpointer_attribute attribute)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED: return 4;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: return sizeof(bool);
    default: return 8;
    }
}

/* Unknown pointers are not an error here: their attributes read 0 (device ordinal -2). */
CUresult impl_cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes,
                                     void **data, CUdeviceptr ptr)
{
    CUresult res;
    DRIVER_LOCKED;

    if (!numAttributes || !attributes || !data)
        return CUDA_ERROR_INVALID_VALUE;
    res = may_ask();
    if (res != CUDA_SUCCESS)
        return res;
    for (unsigned i = 0; i < numAttributes; i++) {
        if (pointer_attribute(data[i], attributes[i], ptr) == CUDA_SUCCESS)
            continue;
        memset(data[i], 0, attribute_size(attributes[i]));
        if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            *(int *)data[i] = -2;
    }
    return CUDA_SUCCESS;
}

CUresult impl_cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                    CUdeviceptr ptr)
{
    DRIVER_LOCKED;

    if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !memory_find(ptr))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult impl_cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device)
{
    bool pinned;
    DRIVER_LOCKED;

    (void)advice;
    (void)device;
    return memory_check(devPtr, count, &pinned);
}

CUresult impl_cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice,
                                 CUstream hStream)
{
    struct stream *stream;
    CUresult res;
    bool pinned;
    DRIVER_LOCKED;

    (void)dstDevice;
    res = stream_resolve(hStream, &stream);
    return res != CUDA_SUCCESS ? res : memory_check(devPtr, count, &pinned);
}
