/* SPDX-License-Identifier: Apache-2.0 */
#include "core/unnamed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int unnamed_open(void)
{
    const char *folder = getenv("TMPDIR");
    int fd = open(folder && *folder ? folder : "/tmp", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    return fd < 0 ? -errno : fd;
}

int unnamed_write(int fd, const void *data, size_t n, uint64_t at)
{
    const char *from = data;
    while (n) {
        ssize_t done = pwrite(fd, from, n, (off_t)at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done ? -errno : -ENOSPC;
        from += done;
        at += (uint64_t)done;
        n -= (size_t)done;
    }
    return 0;
}

int unnamed_read(int fd, void *data, size_t n, uint64_t at)
{
    char *to = data;
    while (n) {
        ssize_t got = pread(fd, to, n, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got ? -errno : -EIO;
        to += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return 0;
}
