/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/file.h"

#include "core/cleanup.h"
#include "core/err.h"
#include "core/quiet.h"
#include "storage/direct.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The application's signals interrupt us too; network file systems let them. */
#define AGAIN(call)                                                                                \
    ({                                                                                             \
        __typeof__(call) _done;                                                                    \
        do                                                                                         \
            _done = (call);                                                                        \
        while (_done < 0 && errno == EINTR);                                                       \
        _done;                                                                                     \
    })

static int note_identity(struct file *file)
{
    struct stat st;
    if (fstat(file->fd, &st))
        return -errno;
    file->dev = st.st_dev;
    file->ino = st.st_ino;
    file->has_links = st.st_nlink > 0;
    return 0;
}

int file_create(struct file *file, const char *path)
{
    *file = (struct file){ .fd = -1 };
    char *copy = strdup(path);
    if (!copy)
        return -ENOMEM;
    int fd = AGAIN(open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (fd < 0) {
        int r = -errno;
        free(copy);
        return r;
    }
    *file = (struct file){ .fd = fd, .path = copy };
    int r = note_identity(file);
    if (r) {
        unlink(path);
        file_deinit(file);
    }
    return r;
}

static int is_ours(const struct file *file, int fd, struct stat *st)
{
    return fd >= 0 && !fstat(fd, st) && st->st_dev == file->dev && st->st_ino == file->ino;
}

/*
 * The application may have closed our descriptor, and its number may now be a file of the application's. And the file may
 * have been deleted: what is written to it then nobody finds, though the system takes it.
 */
static int ensure_open(struct file *file)
{
    struct stat st;
    if (is_ours(file, file->fd, &st))
        return st.st_nlink || !file->has_links ? 0 : -ENOENT;
    file->fd = -1; /* not closed: it is not ours any more */
    if (!file->path)
        return -EBADF;
    int fd = AGAIN(open(file->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (fd < 0)
        return -errno;
    if (!is_ours(file, fd, &st)) {
        close(fd);
        return -ESTALE;
    }
    file->fd = fd;
    return 0;
}

/* What of a write is still to be done. */
struct write_rest {
    struct iovec *buffers;
    int n_buffers;
    uint64_t offset;
};

static void advance(struct write_rest *rest, size_t done)
{
    rest->offset += done;
    while (rest->n_buffers && done >= rest->buffers->iov_len) {
        done -= rest->buffers->iov_len;
        rest->buffers++;
        rest->n_buffers--;
    }
    if (done) {
        rest->buffers->iov_base = (char *)rest->buffers->iov_base + done;
        rest->buffers->iov_len -= done;
    }
}

static int write_rest(int fd, struct write_rest *rest)
{
    advance(rest, 0); /* past empty ones */
    while (rest->n_buffers) {
        ssize_t n =
            AGAIN(pwritev(fd, rest->buffers, rest->n_buffers < IOV_MAX ? rest->n_buffers : IOV_MAX,
                          (off_t)rest->offset));
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        advance(rest, (size_t)n);
    }
    return 0;
}

/* ------------------------------------------------------------------------- past the page cache */

/* Copies the next @n bytes; they stay to be done. An empty buffer may lie nowhere. */
static void gather(const struct write_rest *rest, char *to, size_t n)
{
    for (int i = 0; n; i++) {
        size_t part = rest->buffers[i].iov_len < n ? rest->buffers[i].iov_len : n;
        if (part)
            memcpy(to, rest->buffers[i].iov_base, part);
        to += part;
        n -= part;
    }
}

static bool set_direct(int fd, bool on)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && !fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT);
}

/* The next @n bytes through the buffer. Return: how many, -errno. */
static ssize_t write_buffered(int fd, const struct write_rest *rest, char *buffer, size_t n)
{
    struct iovec one = { buffer, n };
    gather(rest, buffer, n);
    ssize_t done = AGAIN(pwritev(fd, &one, 1, (off_t)rest->offset));
    return done < 0 ? -errno : done ? done : -EIO;
}

/* Whole blocks, as many as there are. What is left, where the file system takes no more of them, goes the other way. */
static int write_blocks(int fd, struct write_rest *rest, uint64_t end, struct direct *direct)
{
    while (!direct->off && end - rest->offset >= DIRECT_ALIGN && rest->offset % DIRECT_ALIGN == 0) {
        uint64_t n = (end - rest->offset) / DIRECT_ALIGN * DIRECT_ALIGN;
        ssize_t done =
            write_buffered(fd, rest, direct->buffer, n < DIRECT_BUFFER ? n : DIRECT_BUFFER);
        if (done == -EINVAL) /* not on this one, or not so */
            direct->off = true;
        else if (done < 0)
            return (int)done;
        else
            advance(rest, (size_t)done);
    }
    return 0;
}

/* The blocks that are wholly of this write; what lies before and after them goes through the page cache. */
static int write_direct(struct file *file, struct write_rest *rest, uint64_t end)
{
    size_t before = -rest->offset % DIRECT_ALIGN;
    char *buffer = direct_buffer(file->direct);
    advance(rest, 0);
    while (buffer && before) {
        ssize_t done = write_buffered(file->fd, rest, buffer, before);
        if (done < 0)
            return (int)done;
        advance(rest, (size_t)done);
        before -= (size_t)done;
    }
    int r = 0;
    if (buffer && set_direct(file->fd, true))
        r = write_blocks(file->fd, rest, end, file->direct);
    else
        file->direct->off = true;
    set_direct(file->fd, false);
    return r ? r : write_rest(file->fd, rest);
}

static int write_large(struct file *file, struct write_rest *rest, uint64_t end)
{
    bool is_direct = direct_is_next(file->direct);
    uint64_t n = end - rest->offset;
    struct direct_time begin = direct_begin();
    int r = is_direct ? write_direct(file, rest, end) : write_rest(file->fd, rest);
    if (!r)
        direct_note(file->direct, is_direct, n, &begin);
    return r;
}

int file_write_at(struct file *file, struct iovec *buffers, int n_buffers, uint64_t offset)
{
    TRY(ensure_open(file));
    uint64_t end = offset;
    for (int i = 0; i < n_buffers; i++)
        end += buffers[i].iov_len;
    struct write_rest rest = { buffers, n_buffers, offset };
    struct quiet quiet;
    quiet_begin(&quiet);
    int r = file->direct && end - offset >= DIRECT_LEAST ? write_large(file, &rest, end)
                                                         : write_rest(file->fd, &rest);
    quiet_end(&quiet);
    return r;
}

int file_create_mapped(const char *path, const void *data, size_t n, void **map)
{
    struct file file = { .fd = -1 };
    struct iovec buffer = { (void *)(uintptr_t)data, n };
    TRY(file_create(&file, path));
    /* written, not only sized: a store to a hole on a full disk would be a SIGBUS in the application */
    int r = file_write_at(&file, &buffer, 1, 0);
    void *at = r ? MAP_FAILED : mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
    if (!r && at == MAP_FAILED)
        r = -errno;
    file_deinit(&file);
    if (r)
        unlink(path);
    else
        *map = at;
    return r;
}

int file_cut(struct file *file, uint64_t n_bytes)
{
    TRY(ensure_open(file));
    return AGAIN(ftruncate(file->fd, (off_t)n_bytes)) ? -errno : 0;
}

int file_sync(struct file *file)
{
    TRY(ensure_open(file));
    return AGAIN(fdatasync(file->fd)) ? -errno : 0;
}

int file_dup(struct file *file)
{
    TRY(ensure_open(file));
    int fd = fcntl(file->fd, F_DUPFD_CLOEXEC, 0);
    return fd < 0 ? -errno : fd;
}

void file_deinit(struct file *file)
{
    struct stat st;
    if (is_ours(file, file->fd, &st))
        close(file->fd);
    free(file->path);
    *file = (struct file){ .fd = -1 };
}

int file_replace(const char *path, const void *data, size_t n_bytes, int sync)
{
    char tmp[PATH_MAX];
    if ((size_t)snprintf(tmp, sizeof tmp, "%s.tmp", path) >= sizeof tmp)
        return -ENAMETOOLONG;
    if (AGAIN(unlink(tmp)) && errno != ENOENT)
        return -errno;
    _cleanup_(file_deinit) struct file file = { .fd = -1 };
    TRY(file_create(&file, tmp));
    struct iovec buffer = { .iov_base = (void *)(uintptr_t)data, .iov_len = n_bytes };
    int r = file_write_at(&file, &buffer, 1, 0);
    if (!r && sync)
        r = file_sync(&file);
    if (!r && AGAIN(rename(tmp, path)))
        r = -errno;
    if (r)
        unlink(tmp);
    return r;
}
