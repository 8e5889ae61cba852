/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.c - how the double comes to the driver's functions, and the frame of every call
 *
 * As NVIDIA's runtime 13.0 does: dlopen("libcuda.so.1"), dlsym() of cuGetProcAddress_v2, of it cuGetProcAddress at 12000, and all
 * others by that one. Seen: FACTS of the project, "Boot of libcudart 13"; tests/preload/test_runtimes.py sees NVIDIA's do it.
 */
#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>

static struct {
    pthread_once_t once;
    PFN_cuGetProcAddress_v12000 resolve;
    struct driver_calls calls[2];
    cudaError_t result;
} boot = { .once = PTHREAD_ONCE_INIT };

static __thread enum driver_table table_now;
static __thread cudaError_t last;

const struct driver_calls *driver(void)
{
    return &boot.calls[table_now];
}

bool driver_per_thread(void)
{
    return table_now == DRIVER_PER_THREAD;
}

CUresult driver_symbol(const char *name, void **function, int version, cuuint64_t flags,
                       CUdriverProcAddressQueryResult *status)
{
    return boot.resolve ? boot.resolve(name, function, version, flags, status)
                        : CUDA_ERROR_NOT_INITIALIZED;
}

/* Variants for per-thread default streams came with 7.0: an older version finds the legacy one. */
static void find_all(struct driver_calls *calls, cuuint64_t flags)
{
    int oldest = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ? 7000 : 0;

#define FIND(name, version)                                                                        \
    boot.resolve(#name, (void **)&calls->name, version > oldest ? version : oldest, flags, NULL);
    DRIVER_CALLS(FIND)
#undef FIND
}

static void open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    PFN_cuGetProcAddress_v12000 first =
        library ? (PFN_cuGetProcAddress_v12000)dlsym(library, "cuGetProcAddress_v2") : NULL;
    PFN_cuInit_v2000 init = NULL;

    boot.result = cudaErrorInsufficientDriver;
    if (!first)
        return;
    first("cuGetProcAddress", (void **)&boot.resolve, 12000, CU_GET_PROC_ADDRESS_LEGACY_STREAM,
          NULL);
    if (!boot.resolve)
        return;
    find_all(&boot.calls[DRIVER_LEGACY], CU_GET_PROC_ADDRESS_LEGACY_STREAM);
    find_all(&boot.calls[DRIVER_PER_THREAD], CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    boot.resolve("cuInit", (void **)&init, 2000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, NULL);
    boot.result = init ? (cudaError_t)init(0) : cudaErrorInsufficientDriver;
}

cudaError_t driver_boot(void)
{
    pthread_once(&boot.once, open_driver);
    return boot.result;
}

cudaError_t runtime_enter(enum driver_table table, enum before before)
{
    cudaError_t res;

    table_now = table;
    if (before == BEFORE_NOTHING)
        return cudaSuccess;
    res = driver_boot();
    if (res == cudaSuccess && before == BEFORE_CONTEXT)
        res = device_enter();
    return res;
}

cudaError_t runtime_leave(cudaError_t res)
{
    if (res != cudaSuccess)
        last = res;
    return res;
}

/* After these the context is of no use any more, and every call says so: comments of enum cudaError. */
static bool ends_context(cudaError_t error)
{
    switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure: return true;
    default: return false;
    }
}

cudaError_t rt_cudaPeekAtLastError(void)
{
    return last;
}

cudaError_t rt_cudaGetLastError(void)
{
    cudaError_t res = last;

    if (!ends_context(last))
        last = cudaSuccess;
    return res;
}

cudaError_t rt_cudaDriverGetVersion(int *version)
{
    if (!version)
        return cudaErrorInvalidValue;
    *version = 0;
    driver_boot();
    return driver()->cuDriverGetVersion ? DRIVER(cuDriverGetVersion, version) : cudaSuccess;
}

cudaError_t rt_cudaRuntimeGetVersion(int *version)
{
    if (!version)
        return cudaErrorInvalidValue;
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t rt_cudaGetDriverEntryPointByVersion(const char *symbol, void **function,
                                                unsigned int version, unsigned long long flags,
                                                enum cudaDriverEntryPointQueryResult *status)
{
    if (flags == cudaEnableDefault)
        flags = driver_per_thread() ? cudaEnablePerThreadDefaultStream : cudaEnableLegacyStream;
    return (cudaError_t)driver_symbol(symbol, function, (int)version, flags,
                                      (CUdriverProcAddressQueryResult *)status);
}
