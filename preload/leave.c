/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ways out of a process that skip atexit handlers, and with them the last flush: _exit(), and another program in its place. (quick_exit() has
 * handlers of its own: lifecycle.c.) A child of fork() or vfork() may call them, too, with our memory and its own pid: it flushes nothing.
 */
#include "core/atomic.h"
#include "core/log.h"
#include "preload/base/driver.h"
#include "preload/lifecycle.h"
#include "preload/session/session.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORT     __attribute__((visibility("default")))
#define REAL(name) ((__typeof__(&(name)))driver_real_dlsym(RTLD_NEXT, #name))

/* ------------------------------------------------------------------------- the end */

typedef void exit_fn(int);

static _Noreturn void leave(const char *name, int status)
{
    lifecycle_finish();
    exit_fn *real = (exit_fn *)driver_real_dlsym(RTLD_NEXT, name);
    for (;;) {
        if (real)
            real(status);
    }
}

EXPORT _Noreturn void _exit(int status)
{
    leave("_exit", status);
}

EXPORT _Noreturn void _Exit(int status)
{
    leave("_Exit", status);
}

/* ------------------------------------------------------------------------- another program in its place */

static bool writes_a_run(void)
{
    return session.pid && getpid() == session.pid && atomic_load_acquire(&session.run);
}

/* A file that the kernel executes, by all that can be known before: programs look for one by trying each folder. */
static bool is_program(int folder, const char *path)
{
    struct stat st;
    return !fstatat(folder, path, &st, 0) && S_ISREG(st.st_mode) &&
           !faccessat(folder, path, X_OK, AT_EACCESS);
}

/* The same of a name that PATH finds. */
static bool is_on_path(const char *name)
{
    const char *at = getenv("PATH");
    if (!name || strchr(name, '/'))
        return name && is_program(AT_FDCWD, name);
    for (at = at ? at : "/bin:/usr/bin"; *name && at;
         at = strchr(at, ':') ? strchr(at, ':') + 1 : NULL) {
        char path[PATH_MAX];
        int n = (int)strcspn(at, ":");
        if (snprintf(path, sizeof path, "%.*s%s%s", n, at, n ? "/" : "", name) < (int)sizeof path &&
            is_program(AT_FDCWD, path))
            return true;
    }
    return false;
}

/* Return: whether the run was closed. */
static bool flush_before(bool program)
{
    if (!program)
        return false;
    lifecycle_finish();
    return true;
}

/* It returned: the process goes on as it was. @r: what it returned. */
static int say_failed(bool flushed, const char *name, int r)
{
    int saved = errno;
    if (flushed)
        log_line(
            "%s() failed (%s) after the run was closed for it: nothing more of this process is "
            "captured or traced",
            name, strerror(saved));
    errno = saved;
    return r;
}

/* @find: whether there is such a program; ...: what the real function gets. */
#define REPLACE(name, find, ...)                                                                   \
    do {                                                                                           \
        int saved = errno;                                                                         \
        bool flushed = flush_before(writes_a_run() && (find));                                     \
        errno = saved;                                                                             \
        __typeof__(&(name)) real = REAL(name);                                                     \
        if (real)                                                                                  \
            return say_failed(flushed, #name, real(__VA_ARGS__));                                  \
        errno = ENOSYS;                                                                            \
        return -1;                                                                                 \
    } while (0)

EXPORT int execve(const char *path, char *const argv[], char *const envp[])
{
    REPLACE(execve, is_program(AT_FDCWD, path), path, argv, envp);
}

EXPORT int execv(const char *path, char *const argv[])
{
    REPLACE(execv, is_program(AT_FDCWD, path), path, argv);
}

EXPORT int execvp(const char *file, char *const argv[])
{
    REPLACE(execvp, is_on_path(file), file, argv);
}

EXPORT int execvpe(const char *file, char *const argv[], char *const envp[])
{
    REPLACE(execvpe, is_on_path(file), file, argv, envp);
}

EXPORT int fexecve(int fd, char *const argv[], char *const envp[])
{
    REPLACE(fexecve, true, fd, argv, envp);
}

EXPORT int execveat(int folder, const char *path, char *const argv[], char *const envp[], int flags)
{
    REPLACE(execveat, flags & AT_EMPTY_PATH || is_program(folder, path), folder, path, argv, envp,
            flags);
}

/* Arguments up to the NULL, and that. */
static size_t count(const char *first, va_list args)
{
    size_t n = 1;
    for (const char *arg = first; arg; n++)
        arg = va_arg(args, const char *);
    return n;
}

/* Those of @first and @args, in the caller's memory: a child of vfork() allocates none. */
#define TAKE_ARGUMENTS(argv, first, args)                                                          \
    va_list args;                                                                                  \
    va_start(args, first);                                                                         \
    size_t n_##argv = count(first, args);                                                          \
    va_end(args);                                                                                  \
    char **argv = __builtin_alloca(n_##argv * sizeof *argv);                                       \
    va_start(args, first);                                                                         \
    argv[0] = (char *)(uintptr_t)(first);                                                          \
    for (size_t i_ = 1; i_ < n_##argv; i_++)                                                       \
        argv[i_] = va_arg(args, char *);

EXPORT int execl(const char *path, const char *first, ...)
{
    TAKE_ARGUMENTS(argv, first, args)
    va_end(args);
    return execv(path, argv);
}

EXPORT int execlp(const char *file, const char *first, ...)
{
    TAKE_ARGUMENTS(argv, first, args)
    va_end(args);
    return execvp(file, argv);
}

EXPORT int execle(const char *path, const char *first, ...)
{
    TAKE_ARGUMENTS(argv, first, args)
    char *const *envp = va_arg(args, char *const *);
    va_end(args);
    return execve(path, argv, envp);
}
