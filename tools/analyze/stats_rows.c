/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/analyze/stats_rows.h"

#include "core/cleanup.h"
#include "tools/common/place.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static int open_unnamed(void)
{
    const char *folder = getenv("TMPDIR");
    return open(folder && *folder ? folder : "/tmp", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
}

int stats_rows_init(struct err *err, struct stats_rows *rows, struct dmi_read *run)
{
    struct dmi_read_run about = { .size = sizeof about };
    struct dmi_read_tensor t = { .size = sizeof t };
    uint64_t n = 0;
    dmi_read_run(run, &about);
    *rows = (struct stats_rows){ .fd = open_unnamed() };
    if (rows->fd < 0)
        return err_set_errno(err, errno, "cannot keep what rows hold in TMPDIR");
    rows->first = calloc(about.n_tensors + 1, sizeof *rows->first);
    if (!rows->first)
        return err_set_errno(err, ENOMEM, "cannot keep what rows hold");
    for (uint64_t i = 0; i < about.n_tensors; i++) {
        dmi_read_tensor(run, i, &t);
        rows->first[i] = n;
        n += t.n_rows;
    }
    return 0;
}

void stats_rows_deinit(struct stats_rows *rows)
{
    if (rows->fd >= 0)
        close(rows->fd);
    free(rows->first);
    *rows = (struct stats_rows){ .fd = -1 };
}

static uint64_t offset_of(const struct stats_rows *rows, uint64_t tensor, uint64_t first)
{
    return (rows->first[tensor] + first) * sizeof(struct dmi_stats_row);
}

int stats_rows_take(void *arg, uint64_t tensor, uint64_t first, const struct dmi_stats_row *all,
                    uint64_t n)
{
    const struct stats_rows *rows = arg;
    return place_write(rows->fd, all, n * sizeof *all, offset_of(rows, tensor, first));
}

int stats_rows_read(struct err *err, const struct stats_rows *rows, uint64_t tensor, uint64_t first,
                    struct dmi_stats_row *out, uint64_t n)
{
    uint64_t at = offset_of(rows, tensor, first);
    size_t left = n * sizeof *out;
    char *to = (char *)out;
    while (left) {
        ssize_t got = pread(rows->fd, to, left, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return err_set_errno(err, got ? errno : EIO, "cannot read what rows hold");
        to += got;
        at += (uint64_t)got;
        left -= (size_t)got;
    }
    return 0;
}
