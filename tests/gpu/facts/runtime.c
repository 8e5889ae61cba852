/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the CUDA runtime of the process does where its header leaves it open: what the double in tests/standin/runtime assumes.
 * It is found by its name, as a program's would be; its functions by theirs.
 */
#include "facts.h"

#include <dlfcn.h>

/* struct cudaPointerAttributes of 11 and later */
struct pointer_attributes {
    int type, device;
    void *on_device, *on_host;
    long reserved[8];
};

static struct {
    int (*cudaGetDeviceCount)(int *n);
    int (*cudaGetDevice)(int *device);
    int (*cudaSetDevice)(int device);
    int (*cudaDeviceSynchronize)(void);
    int (*cudaGetLastError)(void);
    int (*cudaPeekAtLastError)(void);
    const char *(*cudaGetErrorName)(int error);
    int (*cudaMalloc)(void **p, size_t n);
    int (*cudaFree)(void *p);
    int (*cudaFreeAsync)(void *p, void *stream);
    int (*cudaHostAlloc)(void **p, size_t n, unsigned flags);
    int (*cudaPointerGetAttributes)(struct pointer_attributes *attributes, const void *p);
} runtime;

static bool open_runtime(void)
{
    static const char *const names[] = { "libcudart.so.13", "libcudart.so.12",
                                         "/usr/local/cuda/lib64/libcudart.so" };
    void *library = NULL;

    for (unsigned i = 0; i < LENGTH(names) && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        skipped("there is no libcudart.so.13 or .12 here");
        return false;
    }
#define FIND(name)                                                                                 \
    if (!(runtime.name = (__typeof__(runtime.name))dlsym(library, #name))) {                       \
        skipped("the CUDA runtime has no " #name);                                                 \
        return false;                                                                              \
    }
    FIND(cudaGetDeviceCount)
    FIND(cudaGetDevice)
    FIND(cudaSetDevice)
    FIND(cudaDeviceSynchronize)
    FIND(cudaGetLastError)
    FIND(cudaPeekAtLastError)
    FIND(cudaGetErrorName)
    FIND(cudaMalloc)
    FIND(cudaFree)
    FIND(cudaFreeAsync)
    FIND(cudaHostAlloc)
    FIND(cudaPointerGetAttributes)
#undef FIND
    return true;
}

static void tell(const char *what, int error)
{
    says(what, "%s (%d)", runtime.cudaGetErrorName(error), error);
}

void ask_runtime_errors(void)
{
    CUdeviceptr nowhere = 64;
    uint32_t value = 1;
    void *params[] = { &nowhere, &value };
    CUfunction poke;
    int n;

    if (!open_runtime())
        return;
    tell("cudaSetDevice(9999)", runtime.cudaSetDevice(9999));
    tell("cudaGetDeviceCount then", runtime.cudaGetDeviceCount(&n));
    tell("cudaPeekAtLastError then", runtime.cudaPeekAtLastError());
    tell("cudaGetLastError then", runtime.cudaGetLastError());
    tell("cudaGetLastError again", runtime.cudaGetLastError());
    tell("cudaFree(NULL)", runtime.cudaFree(NULL));
    TRY(kernel(&poke, "poke"));
    TRY(launch(poke, 1, 1, NULL, params));
    tell("cudaDeviceSynchronize after a kernel that faults", runtime.cudaDeviceSynchronize());
    tell("cudaGetLastError after it", runtime.cudaGetLastError());
    tell("cudaGetLastError after it, again", runtime.cudaGetLastError());
}

static const char *which(void)
{
    CUcontext context = NULL;

    return CU(cuCtxGetCurrent, &context) != CUDA_SUCCESS ? "the driver does not say"
           : !context                                    ? "none"
           : context == driver.context                   ? "another"
                                                         : "one";
}

void ask_runtime_context(void)
{
    int n = 0, device = -1;

    if (!open_runtime())
        return;
    tell("cudaGetDeviceCount", runtime.cudaGetDeviceCount(&n));
    says("the current context after it", "%s", which());
    tell("cudaGetDevice", runtime.cudaGetDevice(&device));
    says("the device that it gives", "%d", device);
    says("the current context after it, too", "%s", which());
    tell("cudaSetDevice(0)", runtime.cudaSetDevice(0));
    says("the current context after that", "%s", which());
    TRY(CU(cuCtxCreate_v2, &driver.context, 0, driver.device));
    tell("cudaSetDevice(0) where another context is current", runtime.cudaSetDevice(0));
    says("the current context then", "%s", which());
    TRY(CU(cuCtxSetCurrent, driver.context));
    tell("cudaFree(NULL) where another context is current", runtime.cudaFree(NULL));
    says("the current context after cudaFree", "%s", which());
}

void ask_runtime_memory(void)
{
    struct pointer_attributes attributes = { .device = -100 };
    void *p = &p;

    if (!open_runtime())
        return;
    tell("cudaMalloc of no bytes", runtime.cudaMalloc(&p, 0));
    says("the address that it gives", "%s", p == &p ? "untouched" : p ? "one" : "NULL");
    p = &p;
    tell("cudaHostAlloc of no bytes", runtime.cudaHostAlloc(&p, 0, 0));
    says("the address that cudaHostAlloc gives", "%s", p == &p ? "untouched" : p ? "one" : "NULL");
    tell("cudaFreeAsync(NULL)", runtime.cudaFreeAsync(NULL, NULL));
    tell("cudaPointerGetAttributes of the stack",
         runtime.cudaPointerGetAttributes(&attributes, &attributes));
    says("type and device", "%d, %d", attributes.type, attributes.device);
}
