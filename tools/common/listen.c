/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/listen.h"

#include "core/cleanup.h"
#include "core/err.h"
#include "core/socket.h"
#include "tools/common/say.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define KIND (SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK)

/* ------------------------------------------------------------------------- Unix */

/* Removes a socket that a program left. Return: 0 or -errno. */
static int remove_stale(const struct sockaddr_un *at)
{
    struct stat st;
    if (lstat(at->sun_path, &st))
        return 0;
    if (!S_ISSOCK(st.st_mode))
        return -EEXIST;
    _cleanup_(closep) int fd = socket(AF_UNIX, KIND, 0);
    if (fd < 0)
        return -errno;
    if (!connect(fd, (const struct sockaddr *)at, sizeof *at) || errno != ECONNREFUSED)
        return -EADDRINUSE;
    return unlink(at->sun_path) ? -errno : 0;
}

/* Return: the descriptor, or -errno. */
static int listen_at(const struct sockaddr_un *at, int backlog)
{
    char folder_of[sizeof at->sun_path], name_of[sizeof at->sun_path];
    TRY(remove_stale(at));
    memcpy(folder_of, at->sun_path, sizeof folder_of);
    memcpy(name_of, at->sun_path, sizeof name_of);
    _cleanup_(closep) int folder = open(dirname(folder_of), O_PATH | O_DIRECTORY | O_CLOEXEC);
    return folder < 0 ? -errno : socket_listen_at(folder, basename(name_of), backlog);
}

int listen_unix(struct err *err, const char *path, int backlog, char **owned)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    if (strlen(path) >= sizeof at.sun_path)
        return err_set(err, -ENAMETOOLONG, "%s: the name of a Unix socket has at most %zu bytes",
                       path, sizeof at.sun_path - 1);
    memcpy(at.sun_path, path, strlen(path));
    _cleanup_(closep) int fd = listen_at(&at, backlog);
    if (fd >= 0 && !(*owned = strdup(path)))
        return err_set_errno(err, errno, "cannot listen on %s", path);
    return fd < 0 ? err_set_errno(err, -fd, "cannot listen on %s", path) : steal_fd(&fd);
}

/* ------------------------------------------------------------------------- TCP */

/* "host:port" or "[host]:port" in two. Return: false: it is neither. */
static bool split(char *where, char **host, char **port)
{
    char *colon = strrchr(where, ':');
    if (!colon || colon == where || !colon[1])
        return false;
    *colon = 0;
    *port = colon + 1;
    *host = where;
    size_t n = strlen(where);
    if (where[0] == '[' && where[n - 1] == ']') {
        where[n - 1] = 0;
        *host = where + 1;
    }
    return strspn(*port, "0123456789") == strlen(*port);
}

static int bind_to(const struct addrinfo *at)
{
    const int on = 1;
    _cleanup_(closep) int fd = socket(at->ai_family, KIND, 0);
    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, at->ai_addr, at->ai_addrlen) || listen(fd, LISTEN_BACKLOG))
        return -errno;
    return steal_fd(&fd);
}

static void say_where(int fd)
{
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    char host[64], port[16];
    if (getsockname(fd, (struct sockaddr *)&at, &n) ||
        getnameinfo((struct sockaddr *)&at, n, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV))
        return;
    complain("listening on %s, port %s", host, port);
}

int listen_tcp(struct err *err, const char *where)
{
    const struct addrinfo hints = { .ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM };
    _cleanup_(freep) char *own = strdup(where);
    struct addrinfo *found = NULL;
    char *host, *port;
    if (!own || !split(own, &host, &port))
        return err_set(err, -EINVAL, "--to tcp:%s: write tcp:HOST:PORT, as tcp:127.0.0.1:7000",
                       where);
    int r = getaddrinfo(host, port, &hints, &found);
    if (r)
        return err_set(err, -EADDRNOTAVAIL, "cannot listen on %s: %s", where, gai_strerror(r));
    int fd = bind_to(found);
    freeaddrinfo(found);
    if (fd < 0)
        return err_set_errno(err, -fd, "cannot listen on %s", where);
    say_where(fd);
    return fd;
}
