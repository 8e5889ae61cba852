/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/analyze/stats_rows.h"

#include "core/unnamed.h"
#include "core/whole.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

int stats_rows_init(struct err *err, struct stats_rows *rows, struct dmi_read *run)
{
    struct dmi_read_run about = { .size = sizeof about };
    struct dmi_read_tensor t = { .size = sizeof t };
    uint64_t n = 0;
    dmi_read_run(run, &about);
    *rows = (struct stats_rows){ .fd = unnamed_open() };
    if (rows->fd < 0)
        return err_set_errno(err, -rows->fd, "cannot keep what rows hold in TMPDIR");
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
    return whole_write(rows->fd, all, n * sizeof *all, offset_of(rows, tensor, first));
}

int stats_rows_read(struct err *err, const struct stats_rows *rows, uint64_t tensor, uint64_t first,
                    struct dmi_stats_row *out, uint64_t n)
{
    int r = whole_read(rows->fd, out, n * sizeof *out, offset_of(rows, tensor, first));
    return r ? err_set_errno(err, -r, "cannot read what rows hold") : 0;
}
