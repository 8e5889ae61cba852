/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dmi-dump export --format npy: a folder with a file a tensor, and index.json, which maps keys to files.
 * Source: numpy.lib.format, version 1.0.
 */
#include "tools/dump/export.h"

#include "core/cleanup.h"
#include "core/whole.h"
#include "tools/common/npy.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define INDEX "index.json"

static int begin_file(struct exporter *x, struct target *target)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    npy_header(&t, target->tensor->dtype,
               (const uint64_t[]){ target->tensor->n_rows, target->tensor->width }, 2);
    target->file = export_file_name(target->tensor->key, strlen(target->tensor->key), ".npy");
    if (t.failed || !target->file)
        return -ENOMEM;
    target->offset = t.n;
    _cleanup_(closep) int fd =
        openat(x->fd, target->file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    int r = whole_write(fd, t.data, t.n, 0);
    if (!r && ftruncate(fd, (off_t)(t.n + target->n_bytes)))
        r = -errno;
    return r;
}

static int begin(struct err *err, struct exporter *x)
{
    for (size_t i = 0; i < x->n_targets; i++) {
        int r = begin_file(x, &x->targets[i]);
        if (r)
            return err_set_errno(err, -r, "cannot write %s/%s", x->output,
                                 x->targets[i].file ? x->targets[i].file : "?");
    }
    export_complain_of_bits(x);
    return 0;
}

static int write_rows(struct exporter *x, const struct target *t, const void *data, size_t n,
                      uint64_t at)
{
    _cleanup_(closep) int fd = openat(x->fd, t->file, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -errno : whole_write(fd, data, n, t->offset + at);
}

static int finish(struct err *err, struct exporter *x)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    export_index(&t, x);
    if (t.failed)
        return err_set_errno(err, ENOMEM, "cannot write %s/" INDEX, x->output);
    _cleanup_(closep) int fd =
        openat(x->fd, INDEX, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    int r = fd < 0 ? -errno : whole_write(fd, t.data, t.n, 0);
    return r ? err_set_errno(err, -r, "cannot write %s/" INDEX, x->output) : 0;
}

const struct format format_npy = {
    .name = "npy",
    .what = "a folder with a file a tensor, and index.json",
    .suffix = "-npy",
    .is_folder = true,
    .begin = begin,
    .write = write_rows,
    .finish = finish,
};
