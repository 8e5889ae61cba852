/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resolve.c - what every way to find an entry point answers
 *
 * resolve MODE QUERIES: MODE says how the driver is there (none, local, global: dlopen's flags; linked:
 * this program, built against it). QUERIES holds lines WAY NAME [VERSION FLAGS]; each is answered by the
 * object and symbol that the pointer lies in, the call's result, errno and dlerror's text.
 */
#include "preload/base/cuda_abi.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LINKED
/* The linker leaves out a library to which there are weak references alone: an entry that preload/hooks.def lacks. */
void *resolve_needs = (void *)(uintptr_t)cuDeviceGetName;
/* NULL where the driver is too old for one */
#define HOOK(name) extern __typeof__(name) name __attribute__((weak));
#define USE(name)  extern __typeof__(name) name __attribute__((weak));
#include "preload/hooks.def"
#undef HOOK
#undef USE
#endif

static const struct {
    const char *name;
    void *address;
} linked[] = {
#ifdef LINKED
#define HOOK(name) { #name, (void *)(uintptr_t)name },
#define USE(name)  { #name, (void *)(uintptr_t)name },
#include "preload/hooks.def"
#endif
    { NULL, NULL },
};

static int untouched;
static void *lib;

static void *ask_linked(const char *name)
{
    for (int i = 0; linked[i].name; i++)
        if (!strcmp(linked[i].name, name))
            return linked[i].address;
    return NULL;
}

static void *ask_peer(const char *which, const char *name)
{
    void *(*peer)(const char *) = (void *(*)(const char *))dlsym(RTLD_DEFAULT, which);
    if (!peer)
        exit(3);
    return peer(name);
}

/* The resolver that @way names: the exported one, or the one that it returns when asked for itself. */
static void *resolver(const char *way)
{
    int v1 = way[4] == '1';
    void *r = lib ? dlsym(lib, v1 ? "cuGetProcAddress" : "cuGetProcAddress_v2") : NULL;
    if (!r)
        r = ask_linked(v1 ? "cuGetProcAddress" : "cuGetProcAddress_v2");
    void *again = NULL;
    if (!strcmp(way, "proc1chain")) {
        ((__typeof__(cuGetProcAddress) *)r)("cuGetProcAddress", &again, 11030, 0);
        return again;
    }
    if (!strcmp(way, "proc2chain")) {
        CUdriverProcAddressQueryResult status;
        ((__typeof__(cuGetProcAddress_v2) *)r)("cuGetProcAddress", &again, 12000, 0, &status);
        return again;
    }
    return r;
}

static void answer(const char *line, void *found, int result, int status, int error)
{
    Dl_info info;
    const char *object = "nothing", *symbol = "";
    if (found == &untouched)
        object = "untouched";
    else if (found && dladdr(found, &info) && info.dli_fname) {
        object = strrchr(info.dli_fname, '/') ? strrchr(info.dli_fname, '/') + 1 : info.dli_fname;
        symbol = info.dli_sname ? info.dli_sname : "";
    }
    const char *text = dlerror();
    printf("%s\t%s\t%s\t%d\t%d\t%d\t%s\n", line, object, symbol, result, status, error,
           text ? text : "");
}

int main(int argc, char **argv)
{
    char line[256];
    FILE *f = argc > 2 ? fopen(argv[2], "r") : NULL;
    if (!f)
        return 2;
    if (!strcmp(argv[1], "local") || !strcmp(argv[1], "global")) {
        lib = dlopen("libcuda.so.1", RTLD_NOW | (argv[1][0] == 'g' ? RTLD_GLOBAL : RTLD_LOCAL));
        if (!lib)
            return 77;
    }
    void *self = dlopen(NULL, RTLD_NOW);
    while (fgets(line, sizeof line, f)) {
        char way[32], name[128];
        int version = 0, result = 0, status = -1;
        unsigned long long flags = 0;
        void *found = &untouched;
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%31s %127s %d %llu", way, name, &version, &flags) < 2)
            continue;
        dlerror();
        errno = 4242;
        if (!strcmp(way, "dlsym"))
            found = dlsym(lib, name);
        else if (!strcmp(way, "default"))
            found = dlsym(RTLD_DEFAULT, name);
        else if (!strcmp(way, "self"))
            found = dlsym(self, name);
        else if (!strcmp(way, "next"))
            found = dlsym(RTLD_NEXT, name);
        else if (!strcmp(way, "link"))
            found = ask_linked(name);
        else if (!strncmp(way, "peer_", 5))
            found = ask_peer(way, name);
        else if (!strncmp(way, "proc1", 5))
            result = ((__typeof__(cuGetProcAddress) *)resolver(way))(name, &found, version, flags);
        else if (!strcmp(way, "proc2quiet"))
            result = ((__typeof__(cuGetProcAddress_v2) *)resolver("proc2"))(name, &found, version,
                                                                            flags, NULL);
        else
            result = ((__typeof__(cuGetProcAddress_v2) *)resolver(way))(name, &found, version,
                                                                        flags, (void *)&status);
        answer(line, found, result, status, errno);
    }
    return 0;
}
