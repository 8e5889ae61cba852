/* SPDX-License-Identifier: Apache-2.0 */
/* plugin.c - linked against the driver: what its own scope gives it for a function, for a program that loads it so or so. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT void *plugin_entry(const char *symbol);

EXPORT void *plugin_entry(const char *symbol)
{
    if (!strcmp(symbol, "cuLaunchKernel"))
        return (void *)(uintptr_t)cuLaunchKernel;
    if (!strcmp(symbol, "cuModuleGetFunction"))
        return (void *)(uintptr_t)cuModuleGetFunction;
    return strcmp(symbol, "cuInit") ? NULL : (void *)(uintptr_t)cuInit;
}
