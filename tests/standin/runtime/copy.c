/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.c - copies and fills
 */
#include "runtime.h"

#include <stdint.h>

#define ADDRESS(p) ((CUdeviceptr)(uintptr_t)(p))

cudaError_t rt_cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind)
{
    if (!count)
        return cudaSuccess;
    switch (kind) {
    case cudaMemcpyHostToDevice: return DRIVER(cuMemcpyHtoD, ADDRESS(dst), src, count);
    case cudaMemcpyDeviceToHost: return DRIVER(cuMemcpyDtoH, dst, ADDRESS(src), count);
    case cudaMemcpyDeviceToDevice: return DRIVER(cuMemcpyDtoD, ADDRESS(dst), ADDRESS(src), count);
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault: return DRIVER(cuMemcpy, ADDRESS(dst), ADDRESS(src), count);
    default: return cudaErrorInvalidMemcpyDirection;
    }
}

cudaError_t rt_cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind,
                               cudaStream_t stream)
{
    if (!count)
        return cudaSuccess;
    switch (kind) {
    case cudaMemcpyHostToDevice: return DRIVER(cuMemcpyHtoDAsync, ADDRESS(dst), src, count, stream);
    case cudaMemcpyDeviceToHost: return DRIVER(cuMemcpyDtoHAsync, dst, ADDRESS(src), count, stream);
    case cudaMemcpyDeviceToDevice:
        return DRIVER(cuMemcpyDtoDAsync, ADDRESS(dst), ADDRESS(src), count, stream);
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault: return DRIVER(cuMemcpyAsync, ADDRESS(dst), ADDRESS(src), count, stream);
    default: return cudaErrorInvalidMemcpyDirection;
    }
}

static CUDA_MEMCPY2D described(void *dst, size_t dpitch, const void *src, size_t spitch,
                               size_t width, size_t height)
{
    return (CUDA_MEMCPY2D){
        .srcMemoryType = CU_MEMORYTYPE_UNIFIED,
        .srcDevice = ADDRESS(src),
        .srcPitch = spitch,
        .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
        .dstDevice = ADDRESS(dst),
        .dstPitch = dpitch,
        .WidthInBytes = width,
        .Height = height,
    };
}

cudaError_t rt_cudaMemcpy2D(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                            size_t height, enum cudaMemcpyKind kind)
{
    CUDA_MEMCPY2D copy = described(dst, dpitch, src, spitch, width, height);

    if ((unsigned)kind > cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
    return width && height ? DRIVER(cuMemcpy2DUnaligned, &copy) : cudaSuccess;
}

cudaError_t rt_cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch,
                                 size_t width, size_t height, enum cudaMemcpyKind kind,
                                 cudaStream_t stream)
{
    CUDA_MEMCPY2D copy = described(dst, dpitch, src, spitch, width, height);

    if ((unsigned)kind > cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
    return width && height ? DRIVER(cuMemcpy2DAsync, &copy, stream) : cudaSuccess;
}

static cudaError_t both_contexts(int dstDevice, int srcDevice, CUcontext *dst, CUcontext *src)
{
    cudaError_t res = device_context(dstDevice, dst);

    return res == cudaSuccess ? device_context(srcDevice, src) : res;
}

cudaError_t rt_cudaMemcpyPeer(void *dst, int dstDevice, const void *src, int srcDevice,
                              size_t count)
{
    CUcontext to, from;
    cudaError_t res = both_contexts(dstDevice, srcDevice, &to, &from);

    if (res != cudaSuccess || !count)
        return res;
    return DRIVER(cuMemcpyPeer, ADDRESS(dst), to, ADDRESS(src), from, count);
}

cudaError_t rt_cudaMemcpyPeerAsync(void *dst, int dstDevice, const void *src, int srcDevice,
                                   size_t count, cudaStream_t stream)
{
    CUcontext to, from;
    cudaError_t res = both_contexts(dstDevice, srcDevice, &to, &from);

    if (res != cudaSuccess || !count)
        return res;
    return DRIVER(cuMemcpyPeerAsync, ADDRESS(dst), to, ADDRESS(src), from, count, stream);
}

/* A part of a variable, if it is one. */
static cudaError_t part(const void *symbol, size_t offset, size_t count, CUdeviceptr *address)
{
    size_t size = 0;
    cudaError_t res = symbol_variable(symbol_of(symbol), address, &size);

    if (res != cudaSuccess)
        return res;
    if (offset > size || count > size - offset)
        return cudaErrorInvalidValue;
    *address += offset;
    return cudaSuccess;
}

cudaError_t rt_cudaMemcpyToSymbol(const void *symbol, const void *src, size_t count, size_t offset,
                                  enum cudaMemcpyKind kind)
{
    CUdeviceptr address;
    cudaError_t res = part(symbol, offset, count, &address);

    return res == cudaSuccess ? rt_cudaMemcpy((void *)(uintptr_t)address, src, count, kind) : res;
}

cudaError_t rt_cudaMemcpyFromSymbol(void *dst, const void *symbol, size_t count, size_t offset,
                                    enum cudaMemcpyKind kind)
{
    CUdeviceptr address;
    cudaError_t res = part(symbol, offset, count, &address);

    return res == cudaSuccess ? rt_cudaMemcpy(dst, (void *)(uintptr_t)address, count, kind) : res;
}

cudaError_t rt_cudaGetSymbolAddress(void **devPtr, const void *symbol)
{
    size_t size;

    return symbol_variable(symbol_of(symbol), (CUdeviceptr *)devPtr, &size);
}

cudaError_t rt_cudaGetSymbolSize(size_t *size, const void *symbol)
{
    CUdeviceptr address;

    return symbol_variable(symbol_of(symbol), &address, size);
}

cudaError_t rt_cudaMemset(void *devPtr, int value, size_t count)
{
    return count ? DRIVER(cuMemsetD8, ADDRESS(devPtr), (unsigned char)value, count) : cudaSuccess;
}

cudaError_t rt_cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream)
{
    return count ? DRIVER(cuMemsetD8Async, ADDRESS(devPtr), (unsigned char)value, count, stream)
                 : cudaSuccess;
}
