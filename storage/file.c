/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/file.h"

#include "core/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
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

int file_write_at(struct file *file, struct iovec *pieces, int n_pieces, uint64_t offset)
{
    int r = ensure_open(file);
    if (r)
        return r;
    uint64_t end = offset;
    for (int i = 0; i < n_pieces; i++)
        end += pieces[i].iov_len;
    struct rlimit limit;
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY && end > limit.rlim_cur)
        return -EFBIG;
    while (n_pieces) {
        if (!pieces->iov_len) {
            pieces++;
            n_pieces--;
            continue;
        }
        ssize_t n = AGAIN(
            pwritev(file->fd, pieces, n_pieces < IOV_MAX ? n_pieces : IOV_MAX, (off_t)offset));
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        offset += (uint64_t)n;
        size_t done = (size_t)n;
        while (n_pieces && done >= pieces->iov_len) {
            done -= pieces->iov_len;
            pieces++;
            n_pieces--;
        }
        if (done) {
            pieces->iov_base = (char *)pieces->iov_base + done;
            pieces->iov_len -= done;
        }
    }
    return 0;
}

int file_cut(struct file *file, uint64_t n_bytes)
{
    int r = ensure_open(file);
    if (r)
        return r;
    return AGAIN(ftruncate(file->fd, (off_t)n_bytes)) ? -errno : 0;
}

int file_sync(struct file *file)
{
    int r = ensure_open(file);
    if (r)
        return r;
    return AGAIN(fdatasync(file->fd)) ? -errno : 0;
}

int file_dup(struct file *file)
{
    int r = ensure_open(file);
    if (r)
        return r;
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

static void file_deinit_p(struct file *file)
{
    file_deinit(file);
}

int file_replace(const char *path, const void *data, size_t n_bytes, int sync)
{
    char tmp[PATH_MAX];
    if ((size_t)snprintf(tmp, sizeof tmp, "%s.tmp", path) >= sizeof tmp)
        return -ENAMETOOLONG;
    if (AGAIN(unlink(tmp)) && errno != ENOENT)
        return -errno;
    _cleanup_(file_deinit_p) struct file file = { .fd = -1 };
    int r = file_create(&file, tmp);
    if (r)
        return r;
    struct iovec piece = { .iov_base = (void *)(uintptr_t)data, .iov_len = n_bytes };
    r = file_write_at(&file, &piece, 1, 0);
    if (!r && sync)
        r = file_sync(&file);
    if (!r && AGAIN(rename(tmp, path)))
        r = -errno;
    if (r)
        unlink(tmp);
    return r;
}
