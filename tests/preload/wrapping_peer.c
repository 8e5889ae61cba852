/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wrapping_peer.c - another preloaded library with a hook of its own on cuLaunchKernel
 *
 * PEER_FORWARDS says how it finds what comes after it: `next` (RTLD_NEXT), `handle` (dlsym on the driver), or `unseen` (glibc's
 * own dlsym on the driver, past every other preload). At exit it says on stdout how many launches it saw.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef __typeof__(cuLaunchKernel) launch_fn;
typedef void *dlsym_fn(void *, const char *);

static unsigned launches;

static launch_fn *find(void)
{
    const char *how = getenv("PEER_FORWARDS");
    if (!how || !strcmp(how, "next")) {
        void *volatile next = dlsym(RTLD_NEXT, "cuLaunchKernel");
        return (launch_fn *)next;
    }
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    dlsym_fn *unseen = (dlsym_fn *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!strcmp(how, "unseen") && unseen)
        return (launch_fn *)unseen(driver, "cuLaunchKernel");
    return (launch_fn *)dlsym(driver, "cuLaunchKernel");
}

EXPORT launch_fn cuLaunchKernel;

EXPORT CUresult CUDAAPI cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz,
                                       unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                       CUstream stream, void **params, void **extra)
{
    static launch_fn *real;
    if (!real)
        real = find();
    __atomic_fetch_add(&launches, 1, __ATOMIC_RELAXED);
    return real(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}

__attribute__((destructor)) static void say(void)
{
    printf("the peer saw %u launches\n", launches);
}
