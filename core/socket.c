/* SPDX-License-Identifier: Apache-2.0 */
#include "core/socket.h"

#include "core/cleanup.h"
#include "core/clock.h"
#include "core/err.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define MAX_TEMPORARY 48

/* A name that no other thread or process takes. */
static void temporary_name(char out[MAX_TEMPORARY])
{
    snprintf(out, MAX_TEMPORARY, ".dmi-%d-%" PRIx64, (int)getpid(), clock_mono_ns());
}

/* The folder's descriptor stands for its path. */
static int bind_in(int fd, int folder, const char *name)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    snprintf(at.sun_path, sizeof at.sun_path, "/proc/self/fd/%d/%s", folder, name);
    return bind(fd, (struct sockaddr *)&at, sizeof at) ? -errno : 0;
}

/* Nothing is replaced, but on file systems that cannot promise it. */
static int rename_in(int folder, const char *from, const char *to)
{
    if (!renameat2(folder, from, folder, to, RENAME_NOREPLACE))
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -errno;
    return renameat(folder, from, folder, to) ? -errno : 0;
}

int socket_listen_at(int folder, const char *name, int backlog)
{
    char temporary[MAX_TEMPORARY];
    temporary_name(temporary);
    _cleanup_(closep) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    TRY(bind_in(fd, folder, temporary));
    int r = fchmodat(folder, temporary, 0600, 0) || listen(fd, backlog) ? -errno : 0;
    if (!r)
        r = rename_in(folder, temporary, name);
    if (r)
        unlinkat(folder, temporary, 0);
    return r ? r : steal_fd(&fd);
}
