/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.c - devices and their primary contexts
 */
#include "runtime.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DEVICES = 64 };

static CUcontext primary[MAX_DEVICES];
static pthread_mutex_t primary_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int device_set; /* by cudaSetDevice(); 0 before */

cudaError_t device_context(int device, CUcontext *context)
{
    cudaError_t res = cudaSuccess;
    CUdevice handle;
    int n = 0;

    res = DRIVER(cuDeviceGetCount, &n);
    if (res != cudaSuccess)
        return res;
    if (n == 0)
        return cudaErrorNoDevice;
    if (device < 0 || device >= n || device >= MAX_DEVICES)
        return cudaErrorInvalidDevice;
    pthread_mutex_lock(&primary_lock);
    if (!primary[device]) {
        res = DRIVER(cuDeviceGet, &handle, device);
        if (res == cudaSuccess)
            res = DRIVER(cuDevicePrimaryCtxRetain, &primary[device], handle);
    }
    *context = primary[device];
    pthread_mutex_unlock(&primary_lock);
    return res;
}

static cudaError_t enter(int device)
{
    CUcontext context;
    cudaError_t res = device_context(device, &context);

    return res == cudaSuccess ? DRIVER(cuCtxSetCurrent, context) : res;
}

cudaError_t device_enter(void)
{
    CUcontext context = NULL;
    cudaError_t res = DRIVER(cuCtxGetCurrent, &context);

    return res == cudaSuccess && !context ? enter(device_set) : res;
}

cudaError_t device_current(CUdevice *device)
{
    return DRIVER(cuCtxGetDevice, device);
}

cudaError_t rt_cudaGetDeviceCount(int *count)
{
    cudaError_t res;

    if (!count)
        return cudaErrorInvalidValue;
    res = DRIVER(cuDeviceGetCount, count);
    return res == cudaSuccess && *count == 0 ? cudaErrorNoDevice : res;
}

cudaError_t rt_cudaGetDevice(int *device)
{
    CUcontext context = NULL;
    cudaError_t res;

    if (!device)
        return cudaErrorInvalidValue;
    res = DRIVER(cuCtxGetCurrent, &context);
    if (res != cudaSuccess)
        return res;
    *device = device_set;
    return context ? device_current(device) : cudaSuccess;
}

cudaError_t rt_cudaSetDevice(int device)
{
    cudaError_t res = enter(device);

    if (res == cudaSuccess)
        device_set = device;
    return res;
}

cudaError_t rt_cudaInitDevice(int device, unsigned int deviceFlags, unsigned int flags)
{
    CUcontext context;

    if (deviceFlags || flags)
        return runtime_lacks("flags of cudaInitDevice");
    return device_context(device, &context);
}

cudaError_t rt_cudaDeviceSetLimit(enum cudaLimit limit, size_t value)
{
    return DRIVER(cuCtxSetLimit, (CUlimit)limit, value);
}

cudaError_t rt_cudaDeviceSynchronize(void)
{
    return driver()->cuCtxSynchronize ? (cudaError_t)driver()->cuCtxSynchronize()
                                      : cudaErrorCallRequiresNewerDriver;
}

cudaError_t rt_cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
    CUcontext context;
    cudaError_t res = device_context(peer, &context);

    return res == cudaSuccess ? DRIVER(cuCtxEnablePeerAccess, context, flags) : res;
}

cudaError_t rt_cudaDeviceDisablePeerAccess(int peer)
{
    CUcontext context;
    cudaError_t res = device_context(peer, &context);

    return res == cudaSuccess ? DRIVER(cuCtxDisablePeerAccess, context) : res;
}

/* ---- properties ---- */

/* Fields of cudaDeviceProp that are an attribute of the driver's: PROPERTY(field, attribute). */
#define PROPERTIES(X)                                                                              \
    X(sharedMemPerBlock, MAX_SHARED_MEMORY_PER_BLOCK)                                              \
    X(regsPerBlock, MAX_REGISTERS_PER_BLOCK)                                                       \
    X(warpSize, WARP_SIZE)                                                                         \
    X(memPitch, MAX_PITCH)                                                                         \
    X(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK)                                                   \
    X(maxThreadsDim[0], MAX_BLOCK_DIM_X)                                                           \
    X(maxThreadsDim[1], MAX_BLOCK_DIM_Y)                                                           \
    X(maxThreadsDim[2], MAX_BLOCK_DIM_Z)                                                           \
    X(maxGridSize[0], MAX_GRID_DIM_X)                                                              \
    X(maxGridSize[1], MAX_GRID_DIM_Y)                                                              \
    X(maxGridSize[2], MAX_GRID_DIM_Z)                                                              \
    X(totalConstMem, TOTAL_CONSTANT_MEMORY)                                                        \
    X(major, COMPUTE_CAPABILITY_MAJOR)                                                             \
    X(minor, COMPUTE_CAPABILITY_MINOR)                                                             \
    X(textureAlignment, TEXTURE_ALIGNMENT)                                                         \
    X(texturePitchAlignment, TEXTURE_PITCH_ALIGNMENT)                                              \
    X(multiProcessorCount, MULTIPROCESSOR_COUNT)                                                   \
    X(integrated, INTEGRATED)                                                                      \
    X(canMapHostMemory, CAN_MAP_HOST_MEMORY)                                                       \
    X(maxTexture1D, MAXIMUM_TEXTURE1D_WIDTH)                                                       \
    X(maxTexture2D[0], MAXIMUM_TEXTURE2D_WIDTH)                                                    \
    X(maxTexture2D[1], MAXIMUM_TEXTURE2D_HEIGHT)                                                   \
    X(maxTexture3D[0], MAXIMUM_TEXTURE3D_WIDTH)                                                    \
    X(maxTexture3D[1], MAXIMUM_TEXTURE3D_HEIGHT)                                                   \
    X(maxTexture3D[2], MAXIMUM_TEXTURE3D_DEPTH)                                                    \
    X(surfaceAlignment, SURFACE_ALIGNMENT)                                                         \
    X(concurrentKernels, CONCURRENT_KERNELS)                                                       \
    X(ECCEnabled, ECC_ENABLED)                                                                     \
    X(pciBusID, PCI_BUS_ID)                                                                        \
    X(pciDeviceID, PCI_DEVICE_ID)                                                                  \
    X(pciDomainID, PCI_DOMAIN_ID)                                                                  \
    X(asyncEngineCount, ASYNC_ENGINE_COUNT)                                                        \
    X(unifiedAddressing, UNIFIED_ADDRESSING)                                                       \
    X(memoryBusWidth, GLOBAL_MEMORY_BUS_WIDTH)                                                     \
    X(l2CacheSize, L2_CACHE_SIZE)                                                                  \
    X(persistingL2CacheMaxSize, MAX_PERSISTING_L2_CACHE_SIZE)                                      \
    X(maxThreadsPerMultiProcessor, MAX_THREADS_PER_MULTIPROCESSOR)                                 \
    X(streamPrioritiesSupported, STREAM_PRIORITIES_SUPPORTED)                                      \
    X(globalL1CacheSupported, GLOBAL_L1_CACHE_SUPPORTED)                                           \
    X(localL1CacheSupported, LOCAL_L1_CACHE_SUPPORTED)                                             \
    X(sharedMemPerMultiprocessor, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)                            \
    X(regsPerMultiprocessor, MAX_REGISTERS_PER_MULTIPROCESSOR)                                     \
    X(managedMemory, MANAGED_MEMORY)                                                               \
    X(isMultiGpuBoard, MULTI_GPU_BOARD)                                                            \
    X(multiGpuBoardGroupID, MULTI_GPU_BOARD_GROUP_ID)                                              \
    X(hostNativeAtomicSupported, HOST_NATIVE_ATOMIC_SUPPORTED)                                     \
    X(pageableMemoryAccess, PAGEABLE_MEMORY_ACCESS)                                                \
    X(concurrentManagedAccess, CONCURRENT_MANAGED_ACCESS)                                          \
    X(computePreemptionSupported, COMPUTE_PREEMPTION_SUPPORTED)                                    \
    X(canUseHostPointerForRegisteredMem, CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM)                  \
    X(cooperativeLaunch, COOPERATIVE_LAUNCH)                                                       \
    X(sharedMemPerBlockOptin, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)                                   \
    X(maxBlocksPerMultiProcessor, MAX_BLOCKS_PER_MULTIPROCESSOR)                                   \
    X(accessPolicyMaxWindowSize, MAX_ACCESS_POLICY_WINDOW_SIZE)                                    \
    X(reservedSharedMemPerBlock, RESERVED_SHARED_MEMORY_PER_BLOCK)                                 \
    X(hostRegisterSupported, HOST_REGISTER_SUPPORTED)                                              \
    X(memoryPoolsSupported, MEMORY_POOLS_SUPPORTED)                                                \
    X(memoryPoolSupportedHandleTypes, MEMPOOL_SUPPORTED_HANDLE_TYPES)                              \
    X(ipcEventSupported, IPC_EVENT_SUPPORTED)                                                      \
    X(clusterLaunch, CLUSTER_LAUNCH)                                                               \
    X(hostNumaId, HOST_NUMA_ID)

static cudaError_t ask_attributes(struct cudaDeviceProp *prop, int device)
{
    int value;
    cudaError_t res;

#define ASK(field, attribute)                                                                      \
    res = DRIVER(cuDeviceGetAttribute, &value, CU_DEVICE_ATTRIBUTE_##attribute, device);           \
    if (res != cudaSuccess)                                                                        \
        return res;                                                                                \
    prop->field = (__typeof__(prop->field))value;
    PROPERTIES(ASK)
#undef ASK
    return cudaSuccess;
}

cudaError_t rt_cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    char name[sizeof(prop->name)] = "";
    cudaError_t res;

    if (!prop)
        return cudaErrorInvalidValue;
    memset(prop, 0, sizeof(*prop));
    res = DRIVER(cuDeviceGetName, name, sizeof(name), device);
    snprintf(prop->name, sizeof(prop->name), "DMI runtime double on %.200s", name);
    if (res == cudaSuccess)
        res = DRIVER(cuDeviceTotalMem, &prop->totalGlobalMem, device);
    if (res == cudaSuccess)
        res = DRIVER(cuDeviceGetUuid, &prop->uuid, device);
    return res == cudaSuccess ? ask_attributes(prop, device) : res;
}
