/* SPDX-License-Identifier: Apache-2.0 */
#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct {
    char path[512]; /* "": stderr */
    int off;
} log_to;

void log_init(const char *destination)
{
    log_to.off = 0;
    log_to.path[0] = 0;
    if (!destination || !*destination || !strcmp(destination, "stderr"))
        return;
    if (!strcmp(destination, "none"))
        log_to.off = 1;
    else
        snprintf(log_to.path, sizeof log_to.path, "%s", destination);
}

void log_line(const char *fmt, ...)
{
    if (log_to.off)
        return;
    int saved = errno;
    char line[1024] = "dmi: ";
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line + 5, 996, fmt, ap);
    va_end(ap);
    size_t len = 5 + (n < 0 ? 0 : n > 995 ? 995 : (size_t)n);
    line[len++] = '\n';
    /*
     * The file is opened for each line: lines are few, and the application could close or reuse a
     * descriptor that we kept open.
     */
    int fd = STDERR_FILENO;
    if (log_to.path[0])
        fd = open(log_to.path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0 && write(fd, line, len) < 0) {
        /* the log is the last place to report an error */
    }
    if (log_to.path[0] && fd >= 0)
        close(fd);
    errno = saved;
}
