/* SPDX-License-Identifier: Apache-2.0 */
#include "facts.h"

#include <dlfcn.h>
#include <string.h>

struct driver driver = { .last_call = "dlopen" };

CUresult driver_missing(void)
{
    driver.missing = driver.last_call;
    return CUDA_ERROR_NOT_FOUND;
}

static void load(void)
{
#define USE(name) driver.name = (__typeof__(name) *)(uintptr_t)dlsym(driver.library, #name);
#include "driver.def"
#undef USE
}

const char *driver_open(void)
{
    int n = 0;
    char name[64] = "";

    driver.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver.library)
        return "no libcuda.so.1";
    load();
    if (CU(cuInit, 0) != CUDA_SUCCESS)
        return "cuInit fails";
    if (CU(cuDeviceGetCount, &n) != CUDA_SUCCESS || n < 1)
        return "no device";
    if (CU(cuDeviceGet, &driver.device, 0) != CUDA_SUCCESS ||
        CU(cuDeviceGetName, name, sizeof name, driver.device) != CUDA_SUCCESS)
        return "the device does not answer";
    driver.standin = !strncmp(name, "DMI stand-in", 12);
    return NULL;
}

CUresult driver_setup(void)
{
    int major = 0, minor = 0;

    PASS(CU(cuDeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            driver.device));
    PASS(CU(cuDeviceGetAttribute, &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            driver.device));
    driver.capability = major * 10 + minor;
    PASS(CU(cuDevicePrimaryCtxRetain, &driver.context, driver.device));
    return CU(cuCtxSetCurrent, driver.context);
}
