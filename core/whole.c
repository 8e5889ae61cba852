/* SPDX-License-Identifier: Apache-2.0 */
#include "core/whole.h"

#include <errno.h>
#include <unistd.h>

int whole_write(int fd, const void *data, size_t n, uint64_t at)
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

int whole_read(int fd, void *data, size_t n, uint64_t at)
{
    char *to = data;
    while (n) {
        ssize_t got = pread(fd, to, n, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got ? -errno : -ENODATA;
        to += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return 0;
}
