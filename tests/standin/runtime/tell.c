/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tell.c - what the double lacks, by name, once a process
 */
#include "runtime.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct told {
    struct told *next;
    char name[];
};

static struct told *told;
static pthread_mutex_t told_lock = PTHREAD_MUTEX_INITIALIZER;

/* Was @name not told before? */
static bool is_new(const char *name)
{
    struct told *t;
    size_t n = strlen(name) + 1;

    pthread_mutex_lock(&told_lock);
    for (t = told; t && strcmp(t->name, name); t = t->next)
        ;
    if (!t) {
        struct told *added = malloc(sizeof(*added) + n);

        if (added) {
            memcpy(added->name, name, n);
            added->next = told;
            told = added;
        }
    }
    pthread_mutex_unlock(&told_lock);
    return !t;
}

/* The stand-in driver's log has it, too. */
static void note(const char *what, const char *name)
{
    void (*standin_lacks)(const char *, const char *) =
        (void (*)(const char *, const char *))dlsym(RTLD_DEFAULT, "standin_lacks");
    void *driver = standin_lacks ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

    if (driver) {
        standin_lacks = (void (*)(const char *, const char *))dlsym(driver, "standin_lacks");
        dlclose(driver);
    }
    if (standin_lacks)
        standin_lacks(what, name);
}

cudaError_t runtime_lacks(const char *function)
{
    if (is_new(function)) {
        fprintf(stderr, "DMI's double of the CUDA runtime has no %s: cudaErrorNotSupported\n",
                function);
        note("runtime", function);
    }
    return cudaErrorNotSupported;
}

static void list(const char *path, const char *name)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

    if (fd < 0 || dprintf(fd, "%s\n", name) < 0)
        fprintf(stderr, "DMI's double of the CUDA runtime cannot write %s (DMI_STANDIN_MISSING)\n",
                path);
    if (fd >= 0)
        close(fd);
}

cudaError_t runtime_lacks_kernel(const char *mangled)
{
    const char *path = getenv("DMI_STANDIN_MISSING");

    if (is_new(mangled)) {
        fprintf(stderr,
                "DMI's double of the CUDA runtime has no kernel in the place of %s, which is "
                "machine code alone: "
                "cudaErrorNoKernelImageForDevice\n",
                mangled);
        note("kernel", mangled);
        if (path && *path)
            list(path, mangled);
    }
    return cudaErrorNoKernelImageForDevice;
}
