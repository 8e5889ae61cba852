/* SPDX-License-Identifier: Apache-2.0 */
/*
 * witness.c - preloaded in front of all others: writes down every pointer that a program is given for a function of the
 * driver
 *
 * One line a question in the file that WITNESS_LOG names: how it was asked, name, version, flags, result, object and
 * symbol of the answer. The answer itself is passed on, but for the resolvers: a program gets one of ours in their
 * place, which asks them, so that all that follows is seen. For programs of one thread.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef cuGetProcAddress
#define EXPORT __attribute__((visibility("default")))

typedef void *dlsym_fn(void *, const char *);
typedef CUresult resolver_v1(const char *, void **, int, cuuint64_t);
typedef CUresult resolver_v2(const char *, void **, int, cuuint64_t,
                             CUdriverProcAddressQueryResult *);

static resolver_v1 *real_v1;
static resolver_v2 *real_v2;

EXPORT dlsym_fn dlsym;

/* glibc's own, and the one that comes after us: another preload's, or again glibc's. */
static dlsym_fn *next_dlsym(void)
{
    static dlsym_fn *next;
    if (!next) {
        dlsym_fn *real = (dlsym_fn *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
        if (!real)
            real = (dlsym_fn *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
        if (!real)
            real = (dlsym_fn *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
        void *volatile after_us = real(RTLD_NEXT, "dlsym"); /* no tail call: glibc asks who calls */
        next = (dlsym_fn *)after_us;
    }
    return next;
}

static void note(const char *how, const char *name, int version, cuuint64_t flags, int result,
                 void *found)
{
    Dl_info info;
    const char *path = getenv("WITNESS_LOG"), *object = "nothing", *symbol = "";
    FILE *f = path ? fopen(path, "a") : NULL;
    if (!f)
        return;
    if (found && dladdr(found, &info) && info.dli_fname) {
        object = strrchr(info.dli_fname, '/') ? strrchr(info.dli_fname, '/') + 1 : info.dli_fname;
        symbol = info.dli_sname ? info.dli_sname : "";
    }
    fprintf(f, "%s\t%s\t%d\t%llu\t%d\t%s\t%s\n", how, name, version, (unsigned long long)flags,
            result, object, symbol);
    fclose(f);
}

static void *in_its_place(const char *name, void *found, int version);

static CUresult ask_v1(const char *name, void **pfn, int version, cuuint64_t flags)
{
    CUresult r = real_v1(name, pfn, version, flags);
    note("proc1", name, version, flags, (int)r, r == CUDA_SUCCESS ? *pfn : NULL);
    if (r == CUDA_SUCCESS)
        *pfn = in_its_place(name, *pfn, version);
    return r;
}

static CUresult ask_v2(const char *name, void **pfn, int version, cuuint64_t flags,
                       CUdriverProcAddressQueryResult *status)
{
    CUresult r = real_v2(name, pfn, version, flags, status);
    note("proc2", name, version, flags, (int)r, r == CUDA_SUCCESS ? *pfn : NULL);
    if (r == CUDA_SUCCESS)
        *pfn = in_its_place(name, *pfn, version);
    return r;
}

/* What the program gets for @name; @version: the one that it asked the resolver for, 0: by dlsym. */
static void *in_its_place(const char *name, void *found, int version)
{
    if (found && !strcmp(name, version >= 12000 ? "cuGetProcAddress" : "cuGetProcAddress_v2")) {
        real_v2 = (resolver_v2 *)found;
        return (void *)(uintptr_t)ask_v2;
    }
    if (found && version < 12000 && !strcmp(name, "cuGetProcAddress")) {
        real_v1 = (resolver_v1 *)found;
        return (void *)(uintptr_t)ask_v1;
    }
    return found;
}

EXPORT void *dlsym(void *handle, const char *name)
{
    void *found = next_dlsym()(handle, name);
    if (handle == RTLD_DEFAULT || handle == RTLD_NEXT || strncmp(name, "cu", 2) != 0 ||
        !strncmp(name, "cuda", 4))
        return found;
    note("dlsym", name, 0, 0, 0, found);
    return in_its_place(name, found, 0);
}
