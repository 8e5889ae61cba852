/* SPDX-License-Identifier: Apache-2.0 */
/* --to - and --to file:PATH: a stream of bytes into stdout, a file or a FIFO. */
#include "tools/replay/sink.h"

#include "core/cleanup.h"
#include "core/err.h"
#include "storage/codec/hash.h"
#include "tools/replay/bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct file_sink {
    struct sink sink;
    struct sink_options options;
    const char *name; /* for what is said */
    int fd, names;    /* @names: -1: none */
    int own;          /* the same file for reading; -1: it is no file with a cursor */
    bool may_block;
    uint64_t n_bytes;
    struct coded coded, line;
};

static int new_sink(struct err *err, const struct sink_kind *kind,
                    const struct sink_options *options, int fd, struct file_sink **out)
{
    struct file_sink *s = calloc(1, sizeof *s);
    if (!s)
        return err_set_errno(err, ENOMEM, "cannot replay");
    *s = (struct file_sink){ .sink = { .kind = kind },
                             .options = *options,
                             .name = options->where,
                             .fd = fd,
                             .names = -1,
                             .own = -1,
                             .may_block = bytes_may_block(fd) };
    *out = s;
    if (!options->names)
        return 0;
    s->names = open(options->names, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    return s->names < 0 ? err_set_errno(err, errno, "cannot write %s", options->names) : 0;
}

static int file_close(struct err *err, struct sink *sink)
{
    struct file_sink *s = (struct file_sink *)sink;
    int r = 0;
    if (s->fd > STDERR_FILENO && close(s->fd))
        r = err_set_errno(err, errno, "cannot write %s", s->name);
    closep(&s->names);
    closep(&s->own);
    text_deinit(&s->coded.text);
    text_deinit(&s->line.text);
    json_decref(s->sink.failed);
    free(s);
    return r;
}

static int stdout_open(struct err *err, const struct sink_options *options, struct sink **out)
{
    struct file_sink *s = NULL;
    int r = new_sink(err, &sink_stdout, options, STDOUT_FILENO, &s);
    if (s)
        s->name = "standard output";
    if (r && s)
        file_close(NULL, &s->sink);
    else
        *out = (struct sink *)s;
    return r;
}

/* ------------------------------------------------------------------------- a file by its name */

static bool is_file(int fd)
{
    struct stat st;
    return !fstat(fd, &st) && S_ISREG(st.st_mode);
}

/* Hash of the bytes right before @at. Return: 0 or -errno. */
static int hash_tail(int fd, uint64_t at, uint64_t *out)
{
    size_t n = at < SINK_TAIL ? (size_t)at : SINK_TAIL, done = 0;
    _cleanup_(freep) char *data = malloc(n + 1);
    while (data && done < n) {
        ssize_t more = pread(fd, data + done, n - done, (off_t)(at - n + done));
        if (more < 0 && errno != EINTR)
            return -errno;
        if (!more)
            return -ENODATA;
        done += more > 0 ? (size_t)more : 0;
    }
    if (data)
        *out = hash_bytes(data, n);
    return data ? 0 : -ENOMEM;
}

/* Is the file what the cursor was written with, as far as that says? */
static int file_check(struct err *err, const struct sink_options *o)
{
    struct stat st;
    uint64_t tail;
    if (!o->mark.n_bytes)
        return 0;
    if (stat(o->where, &st))
        return err_set_errno(err, errno, "cannot read %s, which the cursor is of", o->where);
    if (!S_ISREG(st.st_mode))
        return 0;
    if ((uint64_t)st.st_size < o->mark.n_bytes)
        return err_set(err, -EINVAL,
                       "%s is shorter than its cursor says: remove both to begin again", o->where);
    _cleanup_(closep) int fd = open(o->where, O_RDONLY | O_CLOEXEC);
    int r = fd < 0 ? -errno : hash_tail(fd, o->mark.n_bytes, &tail);
    if (r)
        return err_set_errno(err, -r, "cannot read %s, which the cursor is of", o->where);
    if (tail != o->mark.tail)
        return err_set(err, -EINVAL,
                       "%s is not what its cursor was written with: name the cursor of this file, "
                       "or remove both to begin again",
                       o->where);
    return 0;
}

/* A file that is there already is written on where a cursor says how far it is good, and else left alone. */
static int continue_at(struct err *err, const struct sink_options *o, int fd)
{
    struct stat st;
    if (fstat(fd, &st))
        return err_set_errno(err, errno, "cannot write %s", o->where);
    if (!S_ISREG(st.st_mode))
        return 0;
    if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) /* until it is closed */
        return err_set(err, -EBUSY, "%s is written by another dmi-replay: let that one end",
                       o->where);
    if (!o->has_cursor && st.st_size)
        return err_set(err, -EEXIST,
                       "%s is there already, and not empty: remove it, or name the cursor that it "
                       "was written with (--cursor)",
                       o->where);
    if (ftruncate(fd, (off_t)o->mark.n_bytes) || lseek(fd, (off_t)o->mark.n_bytes, SEEK_SET) < 0)
        return err_set_errno(err, errno, "cannot write %s", o->where);
    return 0;
}

static int file_open(struct err *err, const struct sink_options *options, struct sink **out)
{
    TRY(options->has_cursor ? file_check(err, options) : 0);
    _cleanup_(closep) int fd = open(options->where, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    struct file_sink *s = NULL;
    if (fd < 0 && errno == EINTR) /* a FIFO without a reader */
        return -EINTR;
    if (fd < 0)
        return err_set_errno(err, errno, "cannot write %s", options->where);
    int r = continue_at(err, options, fd);
    if (!r)
        r = new_sink(err, &sink_file, options, fd, &s);
    if (s)
        steal_fd(&fd);
    if (!r && options->keeps_cursor && is_file(s->fd) &&
        (s->own = open(options->where, O_RDONLY | O_CLOEXEC)) < 0)
        r = err_set_errno(err, errno, "cannot read %s", options->where);
    if (r && s)
        file_close(NULL, &s->sink);
    if (r)
        return r;
    s->n_bytes = options->mark.n_bytes;
    *out = &s->sink;
    return 0;
}

/* ------------------------------------------------------------------------- what both do */

static int write_failed(struct err *err, const struct file_sink *s, int r)
{
    if (r == -EINTR)
        return r;
    if (r == -EPIPE)
        return err_set(err, r, "the reader of %s went away", s->name);
    return err_set_errno(err, -r, "cannot write %s", s->name);
}

static int file_take(struct err *err, struct sink *sink, const struct item *item)
{
    struct file_sink *s = (struct file_sink *)sink;
    int r = format_encode(s->options.format, item, s->options.values, &s->coded);
    if (!r)
        r = bytes_put(s->fd, s->may_block, &s->coded);
    if (r)
        return write_failed(err, s, r);
    s->n_bytes += s->coded.text.n + s->coded.n_payload;
    if (s->names < 0)
        return 0;
    r = format_encode(&format_jsonl, item, false, &s->line);
    if (!r)
        r = bytes_put(s->names, bytes_may_block(s->names), &s->line);
    return r == -EINTR ? r : r ? err_set_errno(err, -r, "cannot write %s", s->options.names) : 0;
}

static int stdout_settle(struct err *err, struct sink *sink, struct sink_mark *mark)
{
    struct file_sink *s = (struct file_sink *)sink;
    mark->n_bytes = s->n_bytes;
    if (s->may_block || !fdatasync(s->fd) || errno == EINVAL || errno == EROFS)
        return 0;
    return err_set_errno(err, errno, "cannot write %s", s->name);
}

static int file_settle(struct err *err, struct sink *sink, struct sink_mark *mark)
{
    struct file_sink *s = (struct file_sink *)sink;
    int r = stdout_settle(err, sink, mark);
    if (r || s->own < 0)
        return r;
    r = hash_tail(s->own, s->n_bytes, &mark->tail);
    return r ? err_set_errno(err, -r, "cannot read %s", s->name) : 0;
}

const struct sink_kind sink_stdout = {
    .prefix = "-",
    .where = "",
    .what = "standard output",
    .has_bytes = true,
    .open = stdout_open,
    .take = file_take,
    .settle = stdout_settle,
    .close = file_close,
};

const struct sink_kind sink_file = {
    .prefix = "file:",
    .where = "PATH",
    .what = "a file, or a FIFO that is there",
    .has_bytes = true,
    .open = file_open,
    .take = file_take,
    .settle = file_settle,
    .check = file_check,
    .close = file_close,
};
