/* SPDX-License-Identifier: Apache-2.0 */
#include "core/regular.h"

#include "core/cleanup.h"
#include "core/whole.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define FLAGS (O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)

static const char *what_of(mode_t mode)
{
    return S_ISDIR(mode)                    ? "a folder"
           : S_ISFIFO(mode)                 ? "a pipe"
           : S_ISCHR(mode) || S_ISBLK(mode) ? "a device"
                                            : "a socket";
}

/* @fd is closed where it is refused. */
static int judge(struct err *err, int fd, const char *path, uint64_t most, uint64_t *n)
{
    struct stat st;
    if (fd < 0 || fstat(fd, &st)) {
        err_set_errno(err, errno, "cannot open %s", path);
        closep(&fd);
        return err->code;
    }
    *n = (uint64_t)st.st_size;
    int r = !S_ISREG(st.st_mode) ? err_set(err, -EINVAL, "%s is %s: a regular file is expected",
                                           path, what_of(st.st_mode))
            : !*n                ? err_set(err, -EINVAL, "%s is empty", path)
            : *n > most ? err_set(err, -EFBIG, "%s has more than %" PRIu64 " bytes", path, most)
                        : 0;
    if (r)
        closep(&fd);
    return r ? r : fd;
}

int regular_open(struct err *err, const char *path, uint64_t most, uint64_t *n)
{
    return judge(err, open(path, FLAGS), path, most, n);
}

/* Takes @fd over, unless it is below 0: then a sentence is there. */
static char *read_all(struct err *err, int fd, const char *path, uint64_t n)
{
    _cleanup_(closep) int own = fd;
    char *data = fd < 0 ? NULL : malloc(n + 1);
    int r = fd < 0 ? 0 : !data ? -ENOMEM : whole_read(fd, data, n, 0);
    if (r) {
        err_set_errno(err, -r, "cannot read %s", path);
        free(data);
        return NULL;
    }
    if (data)
        data[n] = 0;
    return data;
}

char *regular_read(struct err *err, const char *path, uint64_t most, uint64_t *n)
{
    int fd = regular_open(err, path, most, n);
    return read_all(err, fd, path, *n);
}

char *regular_read_at(struct err *err, int folder, const char *path, const char *name,
                      uint64_t most, uint64_t *n)
{
    _cleanup_(freep) char *whole = NULL;
    if (asprintf(&whole, "%s/%s", path, name) < 0) {
        err_set_errno(err, ENOMEM, "cannot open %s", path);
        return NULL;
    }
    int fd = judge(err, openat(folder, name, FLAGS | O_NOFOLLOW), whole, most, n);
    return read_all(err, fd, whole, *n);
}

void *regular_map(struct err *err, const char *path, uint64_t *n)
{
    _cleanup_(closep) int fd = regular_open(err, path, INT64_MAX, n);
    void *map = fd < 0 ? MAP_FAILED : mmap(NULL, *n, PROT_READ, MAP_PRIVATE, fd, 0);
    if (fd >= 0 && map == MAP_FAILED)
        err_set_errno(err, errno, "cannot map %s", path);
    return map == MAP_FAILED ? NULL : map;
}
