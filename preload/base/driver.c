/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/base/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>

#ifdef __x86_64__
#define OLDEST_GLIBC "GLIBC_2.2.5"
#else
#define OLDEST_GLIBC "GLIBC_2.17"
#endif

struct driver driver_table;
struct driver driver_after;
static int resolved; /* released by driver_resolve() once both are filled */

/* Every entry point that we know, with the place of its pointer in driver_table. */
static const struct entry_point {
    const char *name;
    size_t place;
} entry_points[] = {
#define HOOK(name) { #name, offsetof(struct driver, name) },
#define USE(name)  { #name, offsetof(struct driver, name) },
#include "preload/hooks.def"
#undef HOOK
#undef USE
};

/*
 * What the library calls without a look at whether it is there: these are as old as the oldest driver that is served. Of two forms one is
 * enough; those for the per-thread default stream matter where it can be launched in.
 */
static const struct needed_call {
    const char *name;
    size_t place, other, where;
} needs[] = {
#define PLACE(name) offsetof(struct driver, name)
#define NEEDS(name)                                                                                \
    {                                                                                              \
#name, PLACE(name), PLACE(name), PLACE(cuLaunchKernel)                                     \
    }
#define NEEDS_EITHER(a, b)                                                                         \
    {                                                                                              \
#a, PLACE(a), PLACE(b), PLACE(cuLaunchKernel)                                              \
    }
#define PER_THREAD(a, b)                                                                           \
    {                                                                                              \
#a, PLACE(a), PLACE(b), PLACE(cuLaunchKernel_ptsz)                                         \
    }
    NEEDS(cuCtxGetCurrent),
    NEEDS(cuCtxGetDevice),
    NEEDS(cuCtxPopCurrent_v2),
    NEEDS(cuCtxPushCurrent_v2),
    NEEDS(cuCtxSetCurrent),
    NEEDS(cuDeviceGetAttribute),
    NEEDS(cuDevicePrimaryCtxGetState),
    NEEDS(cuDevicePrimaryCtxRelease_v2),
    NEEDS(cuDevicePrimaryCtxRetain),
    NEEDS(cuEventCreate),
    NEEDS(cuEventDestroy_v2),
    NEEDS(cuEventQuery),
    NEEDS(cuEventRecord),
    NEEDS(cuGraphChildGraphNodeGetGraph),
    NEEDS(cuGraphClone),
    NEEDS(cuGraphCreate),
    NEEDS(cuGraphDestroy),
    NEEDS(cuGraphDestroyNode),
    NEEDS(cuGraphExecDestroy),
    NEEDS(cuGraphGetNodes),
    NEEDS(cuGraphGetRootNodes),
    NEEDS(cuGraphNodeFindInClone),
    NEEDS(cuGraphNodeGetType),
    NEEDS(cuLaunchKernel),
    NEEDS(cuMemAlloc_v2),
    NEEDS(cuMemFreeHost),
    NEEDS(cuMemFree_v2),
    NEEDS(cuMemGetAddressRange_v2),
    NEEDS(cuMemGetInfo_v2),
    NEEDS(cuMemHostRegister_v2),
    NEEDS(cuMemHostUnregister),
    NEEDS(cuMemcpyDtoHAsync_v2),
    NEEDS(cuMemsetD8Async),
    NEEDS(cuMemHostGetDevicePointer_v2),
    NEEDS(cuModuleGetFunction),
    NEEDS(cuModuleLoadData),
    NEEDS(cuModuleUnload),
    NEEDS(cuStreamCreate),
    NEEDS(cuStreamDestroy_v2),
    NEEDS(cuStreamIsCapturing),
    NEEDS(cuStreamSynchronize),
    NEEDS(cuThreadExchangeStreamCaptureMode),
    NEEDS_EITHER(cuFuncGetAttribute, cuFuncLoad),
    NEEDS_EITHER(cuGraphAddDependencies_v2, cuGraphAddDependencies),
    NEEDS_EITHER(cuGraphAddKernelNode_v2, cuGraphAddKernelNode),
    NEEDS_EITHER(cuGraphExecKernelNodeSetParams_v2, cuGraphExecKernelNodeSetParams),
    NEEDS_EITHER(cuGraphKernelNodeGetParams_v2, cuGraphKernelNodeGetParams),
    NEEDS_EITHER(cuGraphNodeGetDependencies_v2, cuGraphNodeGetDependencies),
    NEEDS_EITHER(cuGraphNodeGetDependentNodes_v2, cuGraphNodeGetDependentNodes),
    NEEDS_EITHER(cuGraphRemoveDependencies_v2, cuGraphRemoveDependencies),
    NEEDS_EITHER(cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v2),
    PER_THREAD(cuEventRecord_ptsz, cuEventRecord_ptsz),
    PER_THREAD(cuStreamIsCapturing_ptsz, cuStreamIsCapturing_ptsz),
    PER_THREAD(cuStreamGetCaptureInfo_v3_ptsz, cuStreamGetCaptureInfo_v2_ptsz),
#undef PLACE
#undef NEEDS
#undef NEEDS_EITHER
#undef PER_THREAD
};

typedef void *dlsym_fn(void *, const char *);

/* For preload/hook/dlsym.S, which jumps through it; driver_real_dlsym() fills it. */
__attribute__((visibility("hidden"))) dlsym_fn *dlsym_real;

void *driver_real_dlsym(void *handle, const char *name)
{
    dlsym_fn *real = atomic_load_relaxed(&dlsym_real);
    if (!real) {
        /* glibc 2.34 moved it from libdl to libc under a new version */
        real = (dlsym_fn *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
        if (!real)
            real = (dlsym_fn *)dlvsym(RTLD_NEXT, "dlsym", OLDEST_GLIBC);
        atomic_store_relaxed(&dlsym_real, real);
    }
    return name && real ? real(handle, name) : NULL;
}

static void **place_in(struct driver *table, const struct entry_point *entry)
{
    return (void **)((char *)table + entry->place);
}

/*
 * Programs reach such hooks by the global scope, and these the driver by RTLD_NEXT: only where the driver is in that
 * scope itself. One that was opened by dlopen() alone is called past them, with us as without.
 */
static void find_after(void *lib)
{
    const char *unhooked = "cuGetErrorName";
    void *global = driver_real_dlsym(RTLD_DEFAULT, unhooked);
    if (!global || global != driver_real_dlsym(lib, unhooked))
        return;
    for (size_t i = 0; i < sizeof entry_points / sizeof entry_points[0]; i++) {
        void *next = driver_real_dlsym(RTLD_NEXT, entry_points[i].name);
        if (next != *place_in(&driver_table, &entry_points[i]))
            atomic_store_relaxed(place_in(&driver_after, &entry_points[i]), next);
    }
}

bool driver_resolve(void)
{
    /* acquires the release below */
    if (atomic_load_acquire(&resolved))
        return true;
    int saved = errno;
    driver_real_dlsym(NULL, NULL);
    /*
     * NOLOAD: a driver is never brought into a process that did not ask for one. The reference
     * that it takes stays: pointers into the driver must not dangle.
     */
    void *lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    for (size_t i = 0; lib && i < sizeof entry_points / sizeof entry_points[0]; i++)
        atomic_store_relaxed(place_in(&driver_table, &entry_points[i]),
                             driver_real_dlsym(lib, entry_points[i].name));
    if (lib) { /* two threads may both come here and write the same pointers */
        find_after(lib);
        atomic_store_release(&resolved, 1);
    }
    /* a dlopen that found nothing, or a name that an old driver lacks, is no error of the application's */
    dlerror();
    errno = saved;
    return lib != NULL;
}

static bool has(size_t place)
{
    return atomic_load_relaxed((void **)((char *)&driver_table + place));
}

const char *driver_lacks(void)
{
    if (!has(offsetof(struct driver, cuLaunchKernel)))
        return "cuLaunchKernel";
    for (size_t i = 0; i < sizeof needs / sizeof needs[0]; i++)
        if (has(needs[i].where) && !has(needs[i].place) && !has(needs[i].other))
            return needs[i].name;
    return NULL;
}
