/* SPDX-License-Identifier: Apache-2.0 */
/* Where a run's files are, and their bytes. A run may have more segments than descriptors are allowed. */
#include "core/cleanup.h"
#include "core/grow.h"
#include "core/sorted.h"
#include "core/whole.h"
#include "storage/names.h"
#include "storage/reader/reader_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_OPEN 16 /* descriptors of segments at a time */

/* O_NONBLOCK: the open of a FIFO would wait for a writer. */
#define OPEN_FLAGS (O_RDONLY | O_CLOEXEC | O_NONBLOCK)

/* ------------------------------------------------------------------------- finding the run */

bool reader_is_segment(const char *name, uint32_t *number)
{
    char again[32];
    unsigned n;
    if (sscanf(name, "seg-%6u.dmi", &n) != 1 || n >= DMI_MAX_SEGMENTS)
        return false;
    snprintf(again, sizeof again, DMI_SEGMENT_NAME, n);
    *number = n;
    return !strcmp(again, name);
}

static void closedirp(DIR **dir)
{
    if (*dir)
        closedir(*dir);
}

static bool is_run(int parent, const char *name)
{
    _cleanup_(closedirp) DIR *dir = NULL;
    int fd = openat(parent, name, OPEN_FLAGS | O_DIRECTORY);
    if (fd < 0 || !(dir = fdopendir(fd))) {
        closep(&fd);
        return false;
    }
    const struct dirent *e;
    uint32_t number;
    while ((e = readdir(dir)))
        if (!strcmp(e->d_name, "manifest.json") || reader_is_segment(e->d_name, &number))
            return true;
    return false;
}

/* The link to one of the runs is no run of its own. */
static bool is_latest(int parent, const char *name)
{
    struct stat st;
    return !strcmp(name, RUN_LATEST) && !fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) &&
           S_ISLNK(st.st_mode);
}

void reader_free_paths(char **paths, size_t n)
{
    for (size_t i = 0; paths && i < n; i++)
        free(paths[i]);
    free(paths);
}

int reader_list_runs(struct err *err, const char *path, char ***out, size_t *n_out)
{
    _cleanup_(closedirp) DIR *dir = opendir(path);
    char **paths = NULL;
    size_t n = 0, room = 0;
    int res = 0;
    if (!dir)
        return err_set_errno(err, errno, "cannot open %s", path);
    for (const struct dirent *e; !res && (e = readdir(dir));) {
        char *one = NULL;
        if (e->d_name[0] == '.' || is_latest(dirfd(dir), e->d_name) ||
            !is_run(dirfd(dir), e->d_name))
            continue;
        if (GROW(paths, n, room) || asprintf(&one, "%s/%s", path, e->d_name) < 0)
            res = err_set_errno(err, ENOMEM, "cannot open %s", path);
        else
            paths[n++] = one;
    }
    if (res) {
        reader_free_paths(paths, n);
        return res;
    }
    SORT(paths, n, order_texts);
    *out = paths;
    *n_out = n;
    return 0;
}

bool reader_is_run(const char *path)
{
    return is_run(AT_FDCWD, path);
}

/* ------------------------------------------------------------------------- segments */

static int open_file(int dir, const char *name, int flags, struct stat *st)
{
    _cleanup_(closep) int fd = openat(dir, name, OPEN_FLAGS | flags);
    if (fd < 0 || fstat(fd, st))
        return -errno;
    return S_ISREG(st->st_mode) ? steal_fd(&fd) : -EINVAL;
}

static const char *why_not(int res)
{
    return res == -ELOOP ? "a symbolic link" : res == -EINVAL ? "no regular file" : strerror(-res);
}

int reader_find_segment(struct reader *r, int dir, const char *name, uint32_t number,
                        struct reader_segment *out)
{
    struct stat st;
    bool lone = dir == AT_FDCWD;
    _cleanup_(closep) int fd = open_file(dir, name, lone ? 0 : O_NOFOLLOW, &st);
    if (fd == -ENOENT && !lone && reader_note_vanished(&r->notes))
        return fd;
    if (fd < 0) {
        reader_note(&r->notes, true, name, -1, 0, "cannot be read: %s", why_not(fd));
        return fd;
    }
    *out = (struct reader_segment){ .number = number,
                                    .fd = lone ? steal_fd(&fd) : -1,
                                    .keep_fd = lone,
                                    .dev = st.st_dev,
                                    .ino = st.st_ino,
                                    .n_bytes = (uint64_t)st.st_size };
    snprintf(out->name, sizeof out->name, "%s", name);
    return 0;
}

void reader_close_segment(struct reader *r, struct reader_segment *s)
{
    if (s->fd < 0)
        return;
    close(s->fd);
    s->fd = -1;
    r->place.n_open--;
}

/* ------------------------------------------------------------------------- bytes */

static void close_oldest(struct reader *r)
{
    struct reader_segment *oldest = NULL;
    for (size_t i = 0; i < r->index.n_segments; i++) {
        struct reader_segment *s = &r->index.segments[i];
        if (s->fd >= 0 && !s->keep_fd && (!oldest || s->fd_used < oldest->fd_used))
            oldest = s;
    }
    if (oldest)
        reader_close_segment(r, oldest);
}

static int ensure_open(struct reader *r, struct reader_segment *s)
{
    s->fd_used = ++r->place.clock;
    if (s->fd >= 0)
        return 0;
    if (r->place.n_open >= MAX_OPEN)
        close_oldest(r);
    struct stat st;
    int fd = open_file(r->place.dir, s->name, O_NOFOLLOW, &st);
    if (fd == -ENOENT)
        reader_note_vanished(&r->notes);
    if (fd < 0)
        return fd;
    if (st.st_dev != s->dev || st.st_ino != s->ino) {
        close(fd);
        return -ESTALE;
    }
    s->fd = fd;
    r->place.n_open++;
    return 0;
}

int reader_read(struct reader *r, struct reader_segment *s, void *out, size_t n, uint64_t offset)
{
    int res = ensure_open(r, s);
    if (!res && !(res = whole_read(s->fd, out, n, offset)))
        r->run.n_read += n;
    return res;
}

uint64_t reader_skip_hole(struct reader *r, struct reader_segment *s, uint64_t offset)
{
    if (ensure_open(r, s))
        return UINT64_MAX;
    off_t data = lseek(s->fd, (off_t)offset, SEEK_DATA);
    if (data < 0)
        return errno == ENXIO ? UINT64_MAX : offset; /* no holes on this file system */
    return (uint64_t)data;
}

uint64_t reader_hole_bytes(struct reader *r, struct reader_segment *s, uint64_t offset, uint64_t n)
{
    uint64_t end = offset + n, n_holes = 0;
    while (offset < end) {
        uint64_t data = reader_skip_hole(r, s, offset);
        if (data >= end)
            return n_holes + (end - offset);
        n_holes += data - offset;
        off_t hole = lseek(s->fd, (off_t)data, SEEK_HOLE);
        if (hole <= (off_t)data)
            break; /* no holes on this file system */
        offset = (uint64_t)hole;
    }
    return n_holes;
}

int reader_measure(struct reader *r, struct reader_segment *s)
{
    struct stat st;
    int res = ensure_open(r, s);
    if (!res && fstat(s->fd, &st))
        res = -errno;
    if (!res)
        s->n_bytes = (uint64_t)st.st_size;
    return res;
}

int reader_load(struct reader *r, const char *name, size_t most, uint8_t **out, size_t *n)
{
    struct stat st;
    _cleanup_(closep) int fd = open_file(r->place.dir, name, O_NOFOLLOW, &st);
    if (fd < 0)
        return fd;
    if ((uint64_t)st.st_size > most)
        return -EFBIG;
    *n = (size_t)st.st_size;
    if (!(*out = malloc(*n + 1)))
        return -ENOMEM;
    int res = whole_read(fd, *out, *n, 0);
    r->run.n_read += *n;
    if (res) {
        free(*out);
        *out = NULL;
    }
    return res;
}

void reader_close_files(struct reader *r)
{
    for (size_t i = 0; i < r->index.n_segments; i++)
        closep(&r->index.segments[i].fd);
    closep(&r->place.dir);
}
