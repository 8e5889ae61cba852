/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel.c - launches, and what is known of a kernel
 */
#include "runtime.h"

#include <assert.h>
#include <string.h>

static_assert(sizeof(cudaLaunchAttribute) == sizeof(CUlaunchAttribute), "the same struct");
static_assert((int)cudaLaunchAttributeCooperative == (int)CU_LAUNCH_ATTRIBUTE_COOPERATIVE &&
                  (int)cudaLaunchAttributeProgrammaticStreamSerialization ==
                      (int)CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
              "the same numbers");

/* What stands between <<<>>> and the stub function that it calls. */
struct configuration {
    dim3 grid, block;
    size_t shared;
    void *stream;
};

enum { MAX_PUSHED = 16 };
static __thread struct configuration pushed[MAX_PUSHED];
static __thread unsigned n_pushed;

EXPORT unsigned __cudaPushCallConfiguration(dim3 gridDim, dim3 blockDim, size_t sharedMem,
                                            struct CUstream_st *stream);
EXPORT unsigned __cudaPushCallConfiguration(dim3 gridDim, dim3 blockDim, size_t sharedMem,
                                            struct CUstream_st *stream)
{
    if (n_pushed == MAX_PUSHED)
        return 1;
    pushed[n_pushed++] = (struct configuration){ gridDim, blockDim, sharedMem, stream };
    return 0;
}

EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *gridDim, dim3 *blockDim, size_t *sharedMem,
                                              void *stream);
EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *gridDim, dim3 *blockDim, size_t *sharedMem,
                                              void *stream)
{
    const struct configuration *top;

    if (!n_pushed)
        return runtime_leave(cudaErrorMissingConfiguration);
    top = &pushed[--n_pushed];
    *gridDim = top->grid;
    *blockDim = top->block;
    *sharedMem = top->shared;
    *(void **)stream = top->stream;
    return cudaSuccess;
}

/* A kernel as what launches take. */
static cudaError_t function_of(const void *func, CUfunction *function)
{
    CUkernel kernel = NULL;
    cudaError_t res = symbol_kernel(symbol_of(func), &kernel);

    *function = (CUfunction)(void *)kernel;
    return res;
}

cudaError_t rt_cudaLaunchKernel(const void *func, dim3 gridDim, dim3 blockDim, void **args,
                                size_t sharedMem, cudaStream_t stream)
{
    CUfunction function;
    cudaError_t res = function_of(func, &function);

    if (res != cudaSuccess)
        return res;
    return DRIVER(cuLaunchKernel, function, gridDim.x, gridDim.y, gridDim.z, blockDim.x, blockDim.y,
                  blockDim.z, (unsigned)sharedMem, stream, args, NULL);
}

static cudaError_t launch(enum driver_table table, cudaKernel_t kernel, dim3 gridDim, dim3 blockDim,
                          void **args, size_t sharedMem, cudaStream_t stream)
{
    cudaError_t res = runtime_enter(table, BEFORE_CONTEXT);

    if (res == cudaSuccess)
        res = rt_cudaLaunchKernel((const void *)kernel, gridDim, blockDim, args, sharedMem, stream);
    return runtime_leave(res);
}

EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 gridDim, dim3 blockDim, void **args,
                                      size_t sharedMem, cudaStream_t stream);
EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 gridDim, dim3 blockDim, void **args,
                                      size_t sharedMem, cudaStream_t stream)
{
    return launch(DRIVER_LEGACY, kernel, gridDim, blockDim, args, sharedMem, stream);
}

EXPORT cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 gridDim, dim3 blockDim,
                                           void **args, size_t sharedMem, cudaStream_t stream);
EXPORT cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 gridDim, dim3 blockDim,
                                           void **args, size_t sharedMem, cudaStream_t stream)
{
    return launch(DRIVER_PER_THREAD, kernel, gridDim, blockDim, args, sharedMem, stream);
}

cudaError_t rt_cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *func, void **args)
{
    CUfunction function;
    CUlaunchConfig same;
    cudaError_t res;

    if (!config)
        return cudaErrorInvalidValue;
    res = function_of(func, &function);
    if (res != cudaSuccess)
        return res;
    same = (CUlaunchConfig){
        .gridDimX = config->gridDim.x,
        .gridDimY = config->gridDim.y,
        .gridDimZ = config->gridDim.z,
        .blockDimX = config->blockDim.x,
        .blockDimY = config->blockDim.y,
        .blockDimZ = config->blockDim.z,
        .sharedMemBytes = (unsigned)config->dynamicSmemBytes,
        .hStream = config->stream,
        .attrs = (CUlaunchAttribute *)config->attrs,
        .numAttrs = config->numAttrs,
    };
    return DRIVER(cuLaunchKernelEx, &same, function, args, NULL);
}

cudaError_t rt_cudaLaunchCooperativeKernel(const void *func, dim3 gridDim, dim3 blockDim,
                                           void **args, size_t sharedMem, cudaStream_t stream)
{
    CUfunction function;
    cudaError_t res = function_of(func, &function);

    if (res != cudaSuccess)
        return res;
    return DRIVER(cuLaunchCooperativeKernel, function, gridDim.x, gridDim.y, gridDim.z, blockDim.x,
                  blockDim.y, blockDim.z, (unsigned)sharedMem, stream, args);
}

/* ---- attributes ---- */

static const struct {
    size_t offset;
    bool is_size; /* a size_t, else an int */
    CUfunction_attribute attribute;
} fields[] = {
#define FIELD(name, is_size, attribute)                                                            \
    {                                                                                              \
        offsetof(struct cudaFuncAttributes, name), is_size, CU_FUNC_ATTRIBUTE_##attribute          \
    }
    FIELD(sharedSizeBytes, true, SHARED_SIZE_BYTES),
    FIELD(constSizeBytes, true, CONST_SIZE_BYTES),
    FIELD(localSizeBytes, true, LOCAL_SIZE_BYTES),
    FIELD(maxThreadsPerBlock, false, MAX_THREADS_PER_BLOCK),
    FIELD(numRegs, false, NUM_REGS),
    FIELD(ptxVersion, false, PTX_VERSION),
    FIELD(binaryVersion, false, BINARY_VERSION),
    FIELD(cacheModeCA, false, CACHE_MODE_CA),
    FIELD(maxDynamicSharedSizeBytes, false, MAX_DYNAMIC_SHARED_SIZE_BYTES),
    FIELD(preferredShmemCarveout, false, PREFERRED_SHARED_MEMORY_CARVEOUT),
    FIELD(clusterDimMustBeSet, false, CLUSTER_SIZE_MUST_BE_SET),
    FIELD(requiredClusterWidth, false, REQUIRED_CLUSTER_WIDTH),
    FIELD(requiredClusterHeight, false, REQUIRED_CLUSTER_HEIGHT),
    FIELD(requiredClusterDepth, false, REQUIRED_CLUSTER_DEPTH),
    FIELD(clusterSchedulingPolicyPreference, false, CLUSTER_SCHEDULING_POLICY_PREFERENCE),
    FIELD(nonPortableClusterSizeAllowed, false, NON_PORTABLE_CLUSTER_SIZE_ALLOWED),
#undef FIELD
};

/* The kernel, and the device that is asked about it. */
static cudaError_t kernel_and_device(const void *func, CUkernel *kernel, CUdevice *device)
{
    cudaError_t res = symbol_kernel(symbol_of(func), kernel);

    return res == cudaSuccess ? device_current(device) : res;
}

cudaError_t rt_cudaFuncGetAttributes(struct cudaFuncAttributes *attr, const void *func)
{
    CUkernel kernel;
    CUdevice device;
    cudaError_t res;

    if (!attr)
        return cudaErrorInvalidValue;
    memset(attr, 0, sizeof(*attr));
    res = kernel_and_device(func, &kernel, &device);
    for (size_t i = 0; res == cudaSuccess && i < sizeof(fields) / sizeof(fields[0]); i++) {
        int value = 0;

        res = DRIVER(cuKernelGetAttribute, &value, fields[i].attribute, kernel, device);
        if (fields[i].is_size)
            *(size_t *)((char *)attr + fields[i].offset) = (size_t)value;
        else
            *(int *)((char *)attr + fields[i].offset) = value;
    }
    return res;
}

cudaError_t rt_cudaFuncSetAttribute(const void *func, enum cudaFuncAttribute attr, int value)
{
    CUkernel kernel;
    CUdevice device;
    cudaError_t res = kernel_and_device(func, &kernel, &device);

    return res == cudaSuccess
               ? DRIVER(cuKernelSetAttribute, (CUfunction_attribute)attr, value, kernel, device)
               : res;
}

cudaError_t rt_cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, const void *func,
                                                             int blockSize, size_t dynamicSMemSize)
{
    CUfunction function;
    cudaError_t res = function_of(func, &function);

    return res == cudaSuccess ? DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessor, numBlocks,
                                       function, blockSize, dynamicSMemSize)
                              : res;
}

cudaError_t rt_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *numBlocks, const void *func, int blockSize, size_t dynamicSMemSize, unsigned int flags)
{
    CUfunction function;
    cudaError_t res = function_of(func, &function);

    return res == cudaSuccess ? DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
                                       numBlocks, function, blockSize, dynamicSMemSize, flags)
                              : res;
}
