/* SPDX-License-Identifier: Apache-2.0 */
#include "core/log.h"

#include "core/atomic.h"
#include "core/quiet.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_LINE 1024 /* below PIPE_BUF: a pipe takes a line as one piece, or not at all */
_Static_assert(MAX_LINE <= PIPE_BUF, "a pipe takes a line as one piece");

static struct {
    char path[PATH_MAX];   /* "": stderr */
    char folder[PATH_MAX]; /* of the process as it started, with a slash behind; "": not needed */
    int off;
    bool has_stderr;
    struct stat at_start; /* what stderr is, if there is one */
    uint32_t n_lost;      /* lines since the last one that was written; atomic */
} log_to;

/* A daemon changes its folder before it starts CUDA: a file is seen from where it began. */
static void note_folder(void)
{
    const char *to = getenv("DMI_LOG");
    if (to && *to && *to != '/' && getcwd(log_to.folder, sizeof log_to.folder - 1))
        strcat(log_to.folder, "/");
}

__attribute__((constructor(101))) void log_note_start(void)
{
    log_to.has_stderr = !fstat(STDERR_FILENO, &log_to.at_start);
    note_folder();
}

void log_init(const char *destination)
{
    log_to.off = 0;
    log_to.path[0] = 0;
    if (!destination || !*destination || !strcmp(destination, "stderr"))
        return;
    if (!strcmp(destination, "none"))
        log_to.off = 1;
    else if (snprintf(log_to.path, sizeof log_to.path, "%s%s",
                      *destination == '/' ? "" : log_to.folder,
                      destination) >= (int)sizeof log_to.path)
        log_to.path[0] = 0; /* no file has such a name */
}

/* Is descriptor 2 still the file that it was? A daemon closes it, and the next file that it opens gets the number. */
static bool is_stderr(void)
{
    struct stat now;
    return log_to.has_stderr && !fstat(STDERR_FILENO, &now) &&
           now.st_dev == log_to.at_start.st_dev && now.st_ino == log_to.at_start.st_ino &&
           now.st_rdev == log_to.at_start.st_rdev &&
           (now.st_mode & S_IFMT) == (log_to.at_start.st_mode & S_IFMT);
}

/*
 * A descriptor for one line, -1: none. The application shares what it has open, so O_NONBLOCK is set on a description of our own:
 * of a file that DMI_LOG names (which may be a FIFO), or of the pipe or terminal that stderr is. A regular file is written where
 * the others who have it open write. The descriptor is closed after the line, as the application could close or reuse it.
 */
static int open_line(void)
{
    const int flags = O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    if (log_to.path[0])
        return open(log_to.path, flags | O_CREAT, 0600);
    if (!is_stderr())
        return -1;
    mode_t mode = log_to.at_start.st_mode;
    int fd = S_ISFIFO(mode) || S_ISCHR(mode) ? open("/proc/self/fd/2", flags) : STDERR_FILENO;
    return fd >= 0 || errno == ENXIO ? fd : STDERR_FILENO; /* ENXIO: a pipe without a reader */
}

/* Does it take a line now? Where one has waited in vain, the next ones do not wait. */
static bool takes_line(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    return poll(&p, 1, atomic_load_relaxed(&log_to.n_lost) ? 0 : LOG_WAIT_MS) > 0 &&
           p.revents & POLLOUT;
}

static bool put(int fd, const char *line, size_t n)
{
    ssize_t done = send(fd, line, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (done < 0 && errno == ENOTSOCK)
        done = write(fd, line, n);
    return done >= 0;
}

/* In front of the first line that is written after others were not. */
static void put_lost(int fd)
{
    uint32_t n = atomic_load_relaxed(&log_to.n_lost);
    char line[64];
    if (n) {
        atomic_sub_relaxed(&log_to.n_lost, n);
        int len = snprintf(line, sizeof line, "dmi: (%u lines are lost here)\n", n);
        put(fd, line, (size_t)len);
    }
}

void log_line(const char *fmt, ...)
{
    if (log_to.off)
        return;
    int saved = errno;
    char line[MAX_LINE] = "dmi: ";
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line + 5, 996, fmt, ap);
    va_end(ap);
    size_t len = 5 + (n < 0 ? 0 : n > 995 ? 995 : (size_t)n);
    line[len++] = '\n';
    struct quiet quiet;
    quiet_begin(&quiet);
    int fd = open_line();
    bool takes = fd >= 0 && takes_line(fd);
    if (takes)
        put_lost(fd);
    if (!takes || !put(fd, line, len))
        atomic_add_relaxed(&log_to.n_lost, 1u);
    if (fd >= 0 && fd != STDERR_FILENO)
        close(fd);
    quiet_end(&quiet);
    errno = saved;
}
