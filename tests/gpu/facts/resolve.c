/* SPDX-License-Identifier: Apache-2.0 */
/* What the device is, and how the driver hands out its functions. */
#include "facts.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* What cudaTypedefs.h says of names and versions (tests/standin/gen_oracle.py). */
static const struct row {
    const char *name;
    int version;
    int per_thread;
    int nth; /* among the versions of its kind, from 1 */
} oracle[] = {
#include "oracle.inc"
};

void ask_device(void)
{
    static const struct {
        const char *what;
        CUdevice_attribute attribute;
    } attributes[] = {
        { "multiprocessors", CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT },
        { "copy engines", CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT },
        { "registered memory has its host address on the device (1: yes)",
          CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM },
        { "atomics on host memory are native (1: yes)",
          CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED },
        { "kernels reach pageable memory (1: yes)", CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS },
    };
    char name[128] = "";
    int version = 0;
    size_t bytes = 0;

    TRY(CU(cuDeviceGetName, name, sizeof name, driver.device));
    says("name", "%s", name);
    TRY(CU(cuDriverGetVersion, &version));
    says("driver's CUDA version", "%d.%d", version / 1000, version % 1000 / 10);
    says("compute capability", "%d.%d", driver.capability / 10, driver.capability % 10);
    TRY(CU(cuDeviceTotalMem_v2, &bytes, driver.device));
    figure("memory", (double)bytes / (1 << 30), "GiB");
    for (size_t i = 0; i < LENGTH(attributes); i++) {
        int value = 0;
        CUresult r = CU(cuDeviceGetAttribute, &value, attributes[i].attribute, driver.device);
        if (r == CUDA_SUCCESS)
            figure(attributes[i].what, value, "");
        else
            result(attributes[i].what, r);
    }
}

/* ------------------------------------------------------------------ the resolver */

static void *exported(const char *name, int nth, const char *suffix)
{
    char symbol[128];

    if (nth > 1)
        snprintf(symbol, sizeof symbol, "%s_v%d%s", name, nth, suffix);
    else
        snprintf(symbol, sizeof symbol, "%s%s", name, suffix);
    return dlsym(driver.library, symbol);
}

/* Per-thread symbols carry the number of their legacy form, which may be any. */
static bool is_export_of(const char *name, int per_thread, const void *pfn)
{
    for (int nth = 1; nth < 6; nth++)
        if (per_thread ? pfn == exported(name, nth, "_ptsz") || pfn == exported(name, nth, "_ptds")
                       : pfn == exported(name, nth, ""))
            return true;
    return false;
}

static void *ask_for(const char *name, int version, cuuint64_t flags)
{
    void *pfn = NULL;
    return CU(cuGetProcAddress_v2, name, &pfn, version, flags, NULL) == CUDA_SUCCESS ? pfn : NULL;
}

static void check_typedefs(int driver_version)
{
    unsigned n = 0, exports = 0, same = 0, told = 0;

    for (size_t i = 0; i < LENGTH(oracle); i++) {
        const struct row *row = &oracle[i];
        void *pfn = row->version <= driver_version
                        ? ask_for(row->name, row->version, row->per_thread ? 2 : 0)
                        : NULL;
        if (row->version > driver_version)
            continue;
        bool is_export = pfn && is_export_of(row->name, row->per_thread, pfn);
        bool is_same = is_export && (row->per_thread || pfn == exported(row->name, row->nth, ""));
        n++;
        exports += is_export;
        same += is_same;
        if (!is_same && told++ < 8)
            says("unlike cudaTypedefs.h", "%s at %d%s: %s", row->name, row->version,
                 row->per_thread ? " per thread" : "",
                 !pfn        ? "not found"
                 : is_export ? "another variant"
                             : "no exported symbol of that name");
    }
    figure("names and versions of cudaTypedefs.h that this driver may know", n, "");
    figure("of those, found", exports, "exports");
    figure("of those, the variant that cudaTypedefs.h has", same, "");
    holds("every answer is an exported symbol of that name", exports == n);
}

void ask_resolver(void)
{
    int version = 0;

    TRY(CU(cuDriverGetVersion, &version));
    check_typedefs(version);
    holds("cuGetProcAddress at 12000 is cuGetProcAddress_v2",
          ask_for("cuGetProcAddress", 12000, 0) == dlsym(driver.library, "cuGetProcAddress_v2"));
    holds("cuGetProcAddress at 11030 is the older one",
          ask_for("cuGetProcAddress", 11030, 0) == dlsym(driver.library, "cuGetProcAddress"));
    for (int at = 11000; at <= version; at += 1000) {
        char what[64];
        snprintf(what, sizeof what, "cuGraphInstantiate at %d is the 5-argument _v2", at);
        holds(what, ask_for("cuGraphInstantiate", at, 0) ==
                        dlsym(driver.library, "cuGraphInstantiate_v2"));
    }
    holds("flags 0 and 1 give the legacy default stream's variant",
          ask_for("cuLaunchKernel", version, 0) == dlsym(driver.library, "cuLaunchKernel") &&
              ask_for("cuLaunchKernel", version, 1) == dlsym(driver.library, "cuLaunchKernel"));
    holds("flags 2 and 3 give the per-thread one's",
          ask_for("cuLaunchKernel", version, 2) == dlsym(driver.library, "cuLaunchKernel_ptsz") &&
              ask_for("cuLaunchKernel", version, 3) ==
                  dlsym(driver.library, "cuLaunchKernel_ptsz"));
    void *v2 = ask_for("cuLaunchKernel", version, 0), *v1 = NULL;
    TRY(CU(cuGetProcAddress, "cuLaunchKernel", &v1, version, 0));
    holds("the older resolver gives the same address", v1 && v1 == v2);
}

/* ------------------------------------------------------------------ what is not found */

static void ask_v2_for(const char *what, const char *name, int version, bool relied_on)
{
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    void *pfn = &status;
    char text[96];
    CUresult r = CU(cuGetProcAddress_v2, name, &pfn, version, 0, &status);

    snprintf(text, sizeof text, "%s: result %d, status %d, address %s", what, (int)r, (int)status,
             !pfn             ? "NULL"
             : pfn == &status ? "left alone"
                              : "found");
    if (relied_on)
        holds(text, r == CUDA_SUCCESS && !pfn && status != CU_GET_PROC_ADDRESS_SUCCESS);
    else
        says(text, "as it is");
}

void ask_resolver_misses(void)
{
    void *pfn = &pfn;

    ask_v2_for("v2, an unknown name", "cuNothingOfThatName", 13000, true);
    ask_v2_for("v2, cuLaunchKernelEx at 11000 (it came in 11060)", "cuLaunchKernelEx", 11000, true);
    ask_v2_for("v2, cuMemAlloc_v2 (suffixed)", "cuMemAlloc_v2", 13000, true);
    ask_v2_for("v2, cuLaunchKernel_ptsz (suffixed)", "cuLaunchKernel_ptsz", 13000, true);
    ask_v2_for("v2, cuLaunchKernel at 99000 (a version to come)", "cuLaunchKernel", 99000, false);
    TRY(CU(cuGetProcAddress_v2, "cuInit", &pfn, 12000, 0, NULL));
    holds("v2 takes NULL for the status", pfn == dlsym(driver.library, "cuInit"));
    pfn = &pfn;
    result("v1, an unknown name", CU(cuGetProcAddress, "cuNothingOfThatName", &pfn, 13000, 0));
    says("v1, the address of an unknown name", pfn == &pfn ? "left alone"
                                               : pfn       ? "changed"
                                                           : "NULL");
}
