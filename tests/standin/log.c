/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.c - the call log: one JSON object a line, one write(2) a record, so that kill -9 tears nothing
 *
 * Any thread. standin_log.py reads it.
 */
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int log_fd = -1;
static atomic_ullong n_launches;

static int open_private(const char *path)
{
    char name[4096];
    const char *mark = strstr(path, "%p");
    int fd;

    if (mark)
        snprintf(name, sizeof(name), "%.*s%d%s", (int)(mark - path), path, (int)getpid(), mark + 2);
    else
        snprintf(name, sizeof(name), "%s", path);
    fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0 && fd < 3) {
        /* The application owns descriptors 0, 1 and 2 even when it has closed them. */
        int high = fcntl(fd, F_DUPFD_CLOEXEC, 3);

        close(fd);
        fd = high;
    }
    return fd;
}

void log_open(const char *path)
{
    log_fd = open_private(path);
}

bool log_enabled(void)
{
    return log_fd >= 0;
}

static void write_all(int fd, const char *text, size_t n)
{
    int saved = errno;
    ssize_t done;

    do
        done = write(fd, text, n);
    while (done < 0 && errno == EINTR);
    errno = saved;
}

void log_detail(const char *fmt, ...)
{
    va_list args;
    int n;

    if (log_fd < 0)
        return;
    for (;;) {
        size_t room = tls.cap_detail - tls.n_detail;
        char *grown;

        va_start(args, fmt);
        n = vsnprintf(room > 2 ? tls.detail + tls.n_detail + 1 : NULL, room > 2 ? room - 1 : 0, fmt,
                      args);
        va_end(args);
        if (n < 0)
            return;
        if (room > 2 && (size_t)n < room - 1)
            break;
        grown = realloc(tls.detail, tls.cap_detail + (size_t)n + 256);
        if (!grown)
            return;
        tls.detail = grown;
        tls.cap_detail += (size_t)n + 256;
    }
    tls.detail[tls.n_detail] = ',';
    tls.n_detail += (size_t)n + 1;
}

void log_call(const char *symbol, CUresult res, uint64_t start_ns)
{
    char small[1024];
    char *text = small;
    size_t room = sizeof(small);
    int n;

    if (tls.n_detail + 256 > room) {
        room = tls.n_detail + 256;
        text = malloc(room);
        if (!text)
            return;
    }
    n = snprintf(text, room,
                 "{\"ev\":\"call\",\"pid\":%d,\"tid\":%ld,\"t\":%llu,\"ns\":%llu,\"name\":\"%s\","
                 "\"result\":%d%.*s}\n",
                 (int)getpid(), syscall(SYS_gettid), (unsigned long long)start_ns,
                 (unsigned long long)(clock_ns() - start_ns), symbol, (int)res, (int)tls.n_detail,
                 tls.detail ? tls.detail : "");
    if (n > 0 && (size_t)n < room)
        write_all(log_fd, text, (size_t)n);
    tls.n_detail = 0;
    if (text != small)
        free(text);
}

void log_fault(const char *symbol, const void *handle, const char *wanted, const char *state,
               const char *what)
{
    char text[512];
    int n;

    if (log_fd < 0)
        return;
    n = snprintf(text, sizeof(text),
                 "{\"ev\":\"fault\",\"pid\":%d,\"tid\":%ld,\"name\":\"%s\",\"handle\":%llu,"
                 "\"wanted\":\"%s\",\"is\":\"%s%s\"}\n",
                 (int)getpid(), syscall(SYS_gettid), symbol, (unsigned long long)(uintptr_t)handle,
                 wanted, state, what);
    if (n > 0 && (size_t)n < sizeof(text))
        write_all(log_fd, text, (size_t)n);
}

/* No part of the Driver API: doubles of other libraries look it up by name, and say so what they lack. */
__attribute__((visibility("default"))) void standin_lacks(const char *what, const char *name);
void standin_lacks(const char *what, const char *name)
{
    size_t room = strlen(what) + strlen(name) + 128;
    char *text = log_fd < 0 ? NULL : malloc(room);
    int n;

    if (!text)
        return;
    n = snprintf(text, room,
                 "{\"ev\":\"lacks\",\"pid\":%d,\"tid\":%ld,\"what\":\"%s\",\"name\":\"%s\"}\n",
                 (int)getpid(), syscall(SYS_gettid), what, name);
    write_all(log_fd, text, (size_t)n);
    free(text);
}

/**
 * launch_log() - give a launch its sequence number, and a record in the log
 * @exec: id of the graph exec that it is a node of, 0 for a launch of its own; @node: index in it
 */
uint64_t launch_log(struct kernel_work *kernel, struct stream *stream, uint64_t exec, int node)
{
    static const char digits[] = "0123456789abcdef";
    uint64_t seq = atomic_fetch_add(&n_launches, 1) + 1;
    size_t room = 640 + strlen(kernel->function->name) + 2 * kernel->n_params_bytes;
    char small[2048];
    char *text = small;
    int n;

    if (log_fd < 0)
        return seq;
    if (room > sizeof(small)) {
        text = malloc(room);
        if (!text)
            return seq;
    } else {
        room = sizeof(small);
    }
    n = snprintf(
        text, room,
        "{\"ev\":\"launch\",\"pid\":%d,\"tid\":%ld,\"t\":%llu,\"seq\":%llu,\"kernel\":\"%s\","
        "\"ctx\":%llu,"
        "\"stream\":%llu,\"grid\":[%u,%u,%u],\"block\":[%u,%u,%u],\"shared\":%u,\"exec\":%llu,"
        "\"node\":%d,\"params\":\"",
        (int)getpid(), syscall(SYS_gettid), (unsigned long long)clock_ns(), (unsigned long long)seq,
        kernel->function->name, stream->ctx->id, stream->id, kernel->grid[0], kernel->grid[1],
        kernel->grid[2], kernel->block[0], kernel->block[1], kernel->block[2], kernel->shared_bytes,
        (unsigned long long)exec, node);
    for (size_t i = 0; i < kernel->n_params_bytes; i++) {
        text[n++] = digits[kernel->params[i] >> 4];
        text[n++] = digits[kernel->params[i] & 15];
    }
    memcpy(text + n, "\"}\n", 3);
    write_all(log_fd, text, (size_t)n + 3);
    if (text != small)
        free(text);
    return seq;
}
