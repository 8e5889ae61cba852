/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/queries.h"

#include <stddef.h>

#define ROWS 64 /* that are asked for at a time */

static void note_rows(struct dmi_read *run, uint64_t tensor, uint64_t n_rows, bool *wanted,
                      int64_t n_keys)
{
    struct dmi_read_row rows[ROWS];
    for (uint64_t at = 0, n; at < n_rows; at += n) {
        n = n_rows - at < ROWS ? n_rows - at : ROWS;
        if (dmi_read_rows(run, tensor, at, n, NULL, 0, rows, sizeof *rows))
            return;
        for (uint64_t i = 0; i < n; i++)
            if (rows[i].position >= 0 && rows[i].position < n_keys)
                wanted[rows[i].position] = true;
    }
}

void queries_note(struct dmi_read *run, int32_t layer, bool *wanted, int64_t n_keys)
{
    struct dmi_read_tensor t = { .size = sizeof t };
    struct dmi_read_run about = { .size = sizeof about };
    dmi_read_run(run, &about);
    for (uint64_t i = 0; i < about.n_tensors; i++)
        if (!dmi_read_tensor(run, i, &t) && t.layer == layer)
            note_rows(run, i, t.n_rows, wanted, n_keys);
}
