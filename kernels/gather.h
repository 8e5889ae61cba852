/* SPDX-License-Identifier: Apache-2.0 */
/* How the rows of a tensor lie. Both sides compile it. */
#pragma once

#include <dmi/ring.h>

/* Is a row one run, found by the row's number alone? */
DMI_SHARED int gather_is_runs(const struct dmi_gather *g)
{
    return g->count[1] == 1 && g->count[2] == 1 && g->count[3] == 1 && !g->rows_inner &&
           !g->slot_bytes;
}

/* Where row @row lies, in bytes from the first; of a tensor in the slots of a paged cache, @row is the slot. */
DMI_SHARED dmi_i64 gather_row(const struct dmi_gather *g, dmi_u32 row)
{
    if (!g->rows_inner)
        return (dmi_i64)row * g->stride[0];
    dmi_u32 outer = row / g->rows_inner;
    return (dmi_i64)outer * g->stride_outer + (dmi_i64)(row - outer * g->rows_inner) * g->stride[0];
}
