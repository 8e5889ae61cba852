/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/ids.h"

#include "storage/elements.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#define ROWS_AT_ONCE 256

static bool is_whole(const struct dmi_read_tensor *t)
{
    return t->width == 1 && !t->mixed &&
           (t->dtype == DMI_DTYPE_I32 || t->dtype == DMI_DTYPE_I64 || t->dtype == DMI_DTYPE_U32);
}

static int64_t take_rows(struct err *err, struct dmi_read *run, uint64_t tensor,
                         const struct dmi_read_tensor *t, int64_t n_positions, int64_t *out)
{
    struct dmi_read_row rows[ROWS_AT_ONCE];
    uint8_t raw[ROWS_AT_ONCE * 8];
    double values[ROWS_AT_ONCE];
    int64_t known = 0;
    for (uint64_t at = 0, n; at < t->n_rows; at += n) {
        n = t->n_rows - at < ROWS_AT_ONCE ? t->n_rows - at : ROWS_AT_ONCE;
        int r = dmi_read_rows(run, tensor, at, n, raw, n * t->row_bytes, rows, sizeof *rows);
        if (r && r != -EBADMSG)
            return err_set(err, r, "%s: %s", t->key, dmi_read_error(run));
        elements_to_double(t->dtype, raw, n, values);
        for (uint64_t i = 0; i < n; i++) {
            if (rows[i].flags & DMI_READ_ROW_DAMAGED || rows[i].position < 0 ||
                rows[i].position >= n_positions)
                continue;
            out[rows[i].position] = (int64_t)values[i];
            known++;
        }
    }
    return known;
}

int64_t ids_read(struct err *err, struct dmi_read *run, const char *request, uint64_t n_request,
                 const char *site, int64_t n_positions, int64_t *out)
{
    uint64_t tensor;
    struct dmi_read_tensor t = { .size = sizeof t };
    const struct dmi_read_name name = { site ? site : "token_ids",
                                        strlen(site ? site : "token_ids") };
    const struct dmi_read_selection which = { .size = sizeof which,
                                              .request = request,
                                              .request_bytes = n_request,
                                              .sites = &name,
                                              .n_sites = 1 };
    for (int64_t i = 0; i < n_positions; i++)
        out[i] = IDS_NONE;
    int64_t n = dmi_read_match(run, &which, &tensor, 1);
    if (n < 0 && n != -ENOENT)
        return err_set(err, (int)n, "%s", dmi_read_error(run));
    if (n != 1 || dmi_read_tensor(run, tensor, &t))
        return 0;
    if (!is_whole(&t))
        return err_set(err, -EINVAL, "%s holds no token ids: a row is to be one whole number",
                       t.key);
    return take_rows(err, run, tensor, &t, n_positions, out);
}
