/* SPDX-License-Identifier: Apache-2.0 */
/* slow_fsync.c - another preloaded library: a disk that takes 200 ms to write what it has. */
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static int later(const char *name, int fd)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    struct timespec pause = { .tv_nsec = 200000000 };
    nanosleep(&pause, NULL);
    return real(fd);
}

EXPORT int fsync(int fd)
{
    return later("fsync", fd);
}

EXPORT int fdatasync(int fd)
{
    return later("fdatasync", fd);
}
