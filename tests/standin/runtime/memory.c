/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - allocations, and what a pointer is
 */
#include "runtime.h"

#include <stdint.h>
#include <string.h>

#define ADDRESS(p) ((CUdeviceptr)(uintptr_t)(p))

cudaError_t rt_cudaMalloc(void **devPtr, size_t size)
{
    if (!devPtr)
        return cudaErrorInvalidValue;
    *devPtr = NULL;
    return size ? DRIVER(cuMemAlloc, (CUdeviceptr *)devPtr, size) : cudaSuccess;
}

cudaError_t rt_cudaFree(void *devPtr)
{
    return devPtr ? DRIVER(cuMemFree, ADDRESS(devPtr)) : cudaSuccess;
}

cudaError_t rt_cudaFreeAsync(void *devPtr, cudaStream_t stream)
{
    return devPtr ? DRIVER(cuMemFreeAsync, ADDRESS(devPtr), stream) : cudaSuccess;
}

cudaError_t rt_cudaHostAlloc(void **pHost, size_t size, unsigned int flags)
{
    if (!pHost)
        return cudaErrorInvalidValue;
    *pHost = NULL;
    return size ? DRIVER(cuMemHostAlloc, pHost, size, flags) : cudaSuccess;
}

cudaError_t rt_cudaMallocHost(void **ptr, size_t size)
{
    return rt_cudaHostAlloc(ptr, size, cudaHostAllocDefault);
}

cudaError_t rt_cudaFreeHost(void *ptr)
{
    return ptr ? DRIVER(cuMemFreeHost, ptr) : cudaSuccess;
}

cudaError_t rt_cudaHostGetFlags(unsigned int *pFlags, void *pHost)
{
    return DRIVER(cuMemHostGetFlags, pFlags, pHost);
}

static enum cudaMemoryType type_of(unsigned int type, bool managed)
{
    return managed                        ? cudaMemoryTypeManaged
           : type == CU_MEMORYTYPE_HOST   ? cudaMemoryTypeHost
           : type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
                                          : cudaMemoryTypeUnregistered;
}

cudaError_t rt_cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr)
{
    CUpointer_attribute asked[] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                    CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                    CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                    CU_POINTER_ATTRIBUTE_HOST_POINTER };
    unsigned int type = 0;
    int device = cudaInvalidDeviceId;
    unsigned int managed = 0; /* a driver may write a byte of it, or all */
    void *of_device = NULL, *of_host = NULL;
    void *answers[] = { &type, &device, &managed, &of_device, &of_host };
    cudaError_t res;

    if (!attributes)
        return cudaErrorInvalidValue;
    memset(attributes, 0, sizeof(*attributes));
    res = DRIVER(cuPointerGetAttributes, sizeof(asked) / sizeof(asked[0]), asked, answers,
                 ADDRESS(ptr));
    if (res != cudaSuccess)
        return res;
    attributes->type = type_of(type, managed);
    attributes->device =
        attributes->type == cudaMemoryTypeUnregistered ? cudaInvalidDeviceId : device;
    attributes->devicePointer = of_device;
    attributes->hostPointer =
        attributes->type == cudaMemoryTypeUnregistered ? (void *)(uintptr_t)ptr : of_host;
    return cudaSuccess;
}

/* ---- between processes ---- */

cudaError_t rt_cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *devPtr)
{
    return DRIVER(cuIpcGetMemHandle, (CUipcMemHandle *)handle, ADDRESS(devPtr));
}

cudaError_t rt_cudaIpcOpenMemHandle(void **devPtr, cudaIpcMemHandle_t handle, unsigned int flags)
{
    CUipcMemHandle same;

    memcpy(&same, &handle, sizeof(same));
    return DRIVER(cuIpcOpenMemHandle, (CUdeviceptr *)devPtr, same, flags);
}

cudaError_t rt_cudaIpcCloseMemHandle(void *devPtr)
{
    return DRIVER(cuIpcCloseMemHandle, ADDRESS(devPtr));
}

cudaError_t rt_cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle)
{
    CUipcEventHandle same;

    memcpy(&same, &handle, sizeof(same));
    return DRIVER(cuIpcOpenEventHandle, event, same);
}

/* ---- the shorter forms of streams and events ---- */

cudaError_t rt_cudaStreamCreate(cudaStream_t *pStream)
{
    return DRIVER(cuStreamCreate, pStream, CU_STREAM_DEFAULT);
}

cudaError_t rt_cudaEventCreate(cudaEvent_t *event)
{
    return DRIVER(cuEventCreate, event, CU_EVENT_DEFAULT);
}
