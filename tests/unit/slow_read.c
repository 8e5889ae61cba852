/* SPDX-License-Identifier: Apache-2.0 */
/* slow_read.c - preloaded: a disk that takes 30 ms to read anything. */
#include <dlfcn.h>
#include <sys/types.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT ssize_t pread64(int fd, void *to, size_t n,
                       off_t offset); /* pread(), as off_t has 64 bits */

EXPORT ssize_t pread64(int fd, void *to, size_t n, off_t offset)
{
    ssize_t (*next)(int, void *, size_t, off_t) =
        (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread64");
    nanosleep(&(struct timespec){ .tv_nsec = 30000000 }, NULL);
    return next(fd, to, n, offset);
}
