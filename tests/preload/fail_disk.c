/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fail_disk.c - preloaded in front of libdmi_preload.so: a disk that fails the library's calls as a file says
 *
 * FAIL_DISK names the file, which may change while the program runs (`disk` in driver_calls.c). Its rules, one a line:
 *
 *     CALL ERROR          every call of the library's fails: pwritev ENOSPC
 *     CALL ERROR N        the Nth one since the rules last changed
 *     pwritev short N     at most N bytes a call
 *     CALL EINTR again    every other call is interrupted, so that whoever asks again is served
 *
 * CALL: pwritev, fdatasync, ftruncate, open (for writing), rename, unlink, or `change`: all of them. Calls from elsewhere
 * than the library go through. Names are those of the library's build: off_t has 64 bits in both. Each call reads the rules anew;
 * several threads that write at a time would be counted wrongly.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT     __attribute__((visibility("default")))
#define REAL(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))

static const struct {
    const char *name;
    int number;
} errors[] = { { "ENOSPC", ENOSPC },
               { "EDQUOT", EDQUOT },
               { "EROFS", EROFS },
               { "EIO", EIO },
               { "EINTR", EINTR } };

struct rule {
    int error;      /* 0: the call goes through */
    size_t n_bytes; /* of a write, SIZE_MAX: all */
};

static bool from_library(void *caller)
{
    Dl_info info;
    return dladdr(caller, &info) && strstr(info.dli_fname, "libdmi_preload");
}

/* Which call this is since the rules last changed: counted by name. */
static unsigned long count(const char *call, const char *rules)
{
    static char before[1024];
    static struct {
        char name[16];
        unsigned long n;
    } counts[8];
    if (strcmp(before, rules)) {
        snprintf(before, sizeof before, "%s", rules);
        memset(counts, 0, sizeof counts);
    }
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        if (!counts[i].name[0])
            snprintf(counts[i].name, sizeof counts[i].name, "%s", call);
        if (!strcmp(counts[i].name, call))
            return ++counts[i].n;
    }
    return 0;
}

static int error_of(const char *name)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (!strcmp(errors[i].name, name))
            return errors[i].number;
    fprintf(stderr, "fail_disk: what is %s?\n", name);
    _exit(2);
}

static void apply(const char *line, const char *call, unsigned long n, struct rule *rule)
{
    char name[16], what[16], which[24] = "";
    if (sscanf(line, "%15s %15s %23s", name, what, which) < 2 ||
        (strcmp(name, call) && strcmp(name, "change")))
        return;
    if (!strcmp(what, "short"))
        rule->n_bytes = strtoul(which, NULL, 10);
    else if (!strcmp(which, "again") ? n % 2 : !which[0] || strtoul(which, NULL, 10) == n)
        rule->error = error_of(what);
}

static struct rule rule_of(const char *call, void *caller)
{
    struct rule rule = { 0, SIZE_MAX };
    const char *path = getenv("FAIL_DISK");
    char rules[1024] = "";
    FILE *file = path && from_library(caller) ? fopen(path, "re") : NULL;
    if (!file)
        return rule;
    rules[fread(rules, 1, sizeof rules - 1, file)] = 0;
    fclose(file);
    unsigned long n = count(call, rules);
    char *save = NULL;
    for (char *line = strtok_r(rules, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        apply(line, call, n, &rule);
    errno = rule.error ? rule.error : errno;
    return rule;
}

/* Return: whether the call fails, with errno as the rules say. */
#define FAILS(call) (rule_of(call, __builtin_return_address(0)).error != 0)

EXPORT ssize_t pwritev(int fd, const struct iovec *pieces, int n, off_t offset)
{
    struct rule rule = rule_of("pwritev", __builtin_return_address(0));
    if (rule.error)
        return -1;
    if (n && pieces->iov_len > rule.n_bytes) { /* the rest is for the next call */
        struct iovec part = { pieces->iov_base, rule.n_bytes };
        return REAL(pwritev)(fd, &part, 1, offset);
    }
    return REAL(pwritev)(fd, pieces, rule.n_bytes == SIZE_MAX ? n : 1, offset);
}

EXPORT int ftruncate(int fd, off_t n_bytes)
{
    return FAILS("ftruncate") ? -1 : REAL(ftruncate)(fd, n_bytes);
}

EXPORT int open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    bool changes = (flags & O_ACCMODE) != O_RDONLY && !(flags & O_APPEND); /* not our log */
    return changes && FAILS("open") ? -1 : REAL(open)(path, flags, mode);
}

EXPORT int fdatasync(int fd)
{
    return FAILS("fdatasync") ? -1 : REAL(fdatasync)(fd);
}

EXPORT int rename(const char *from, const char *to)
{
    return FAILS("rename") ? -1 : REAL(rename)(from, to);
}

EXPORT int unlink(const char *path)
{
    return FAILS("unlink") ? -1 : REAL(unlink)(path);
}
