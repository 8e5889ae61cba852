/* SPDX-License-Identifier: Apache-2.0 */
/* Where a row of a tensor lies. Both sides compile it. */
#pragma once

#include <dmi/ring.h>

/* In bytes from the first; of a tensor in the slots of a paged cache, @row is the slot. */
DMI_SHARED dmi_i64 gather_row(const struct dmi_gather *g, dmi_u32 row)
{
    if (!g->rows_inner)
        return (dmi_i64)row * g->stride[0];
    dmi_u32 outer = row / g->rows_inner;
    return (dmi_i64)outer * g->stride_outer + (dmi_i64)(row - outer * g->rows_inner) * g->stride[0];
}
