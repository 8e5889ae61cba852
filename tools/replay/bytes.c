/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/bytes.h"

#include "tools/common/stop.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

bool bytes_may_block(int fd)
{
    struct stat st;
    return !fstat(fd, &st) && !S_ISREG(st.st_mode);
}

/* A pipe that says so has room for PIPE_BUF bytes: such a write does not block. */
static int wait_for_room(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    int r = poll(&p, 1, stop_asked() ? STOP_GRACE_MS : -1);
    if (r > 0)
        return 0;
    if (!r)
        return -EINTR;
    return errno == EINTR ? 1 : -errno;
}

/**
 * bytes_write() - write all of @data, waiting for room
 * @may_block: a pipe or a terminal, whose reader may take its time
 * Return: 0 or -errno; -EINTR: the user wants to stop, and nobody reads.
 */
static int bytes_write(int fd, bool may_block, const void *data, size_t n)
{
    const char *from = data;
    while (n) {
        int r = may_block ? wait_for_room(fd) : 0;
        if (r < 0)
            return r;
        if (r > 0)
            continue;
        ssize_t done = write(fd, from, may_block && n > PIPE_BUF ? PIPE_BUF : n);
        if (done < 0 && errno != EINTR && errno != EAGAIN)
            return -errno;
        if (done > 0) {
            from += done;
            n -= (size_t)done;
        }
    }
    return 0;
}

int bytes_put(int fd, bool may_block, const struct coded *coded)
{
    int r = bytes_write(fd, may_block, coded->text.data, coded->text.n);
    return r ? r : bytes_write(fd, may_block, coded->payload, coded->n_payload);
}
