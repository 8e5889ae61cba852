/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/copy_host.h"

#include "kernels/gather.h"
#include "kernels/ring.h"

#include <string.h>

static const char *at(dmi_u64 address)
{
    return (const char *)(uintptr_t)address;
}

/* Do the rows lie one after the other, without gaps? */
static int is_packed(const struct dmi_copy *copy)
{
    const struct dmi_gather *g = &copy->gather;
    return gather_is_runs(g) && !copy->rows &&
           (copy->record.n_rows == 1 || g->stride[0] == g->run_bytes);
}

/* Runs of one element, as those of a transposed tensor, are copied without a call for each. */
static char *append_runs(char *to, const char *from, dmi_u32 n, dmi_i64 stride, dmi_u32 run_bytes)
{
#define RUNS(bytes)                                                                                \
    for (dmi_u32 i = 0; i < n; i++, from += stride, to += (bytes))                                 \
    memcpy(to, from, bytes)
    switch (run_bytes) {
    case 2: RUNS(2); break;
    case 4: RUNS(4); break;
    case 8: RUNS(8); break;
    default: RUNS(run_bytes); break;
    }
#undef RUNS
    return to;
}

static char *append_row(char *to, const struct dmi_gather *g, const char *row)
{
    for (dmi_u32 i = 0; i < g->count[1]; i++)
        for (dmi_u32 k = 0; k < g->count[2]; k++)
            to = append_runs(to, row + (dmi_i64)i * g->stride[1] + (dmi_i64)k * g->stride[2],
                             g->count[3], g->stride[3], g->run_bytes);
    return to;
}

static void gather(const struct dmi_copy *copy, char *to)
{
    const struct dmi_gather *g = &copy->gather;
    const dmi_u32 *list = (const dmi_u32 *)(uintptr_t)copy->rows;
    if (is_packed(copy)) {
        memcpy(to, at(g->src), copy->record.n_bytes);
        return;
    }
    for (dmi_u32 i = 0; i < copy->record.n_rows; i++)
        to = append_row(to, g, at(g->src) + gather_row(g, list ? list[i] : i));
}

void copy_host(const struct dmi_copy *copy)
{
    gather(copy, (char *)(uintptr_t)(copy->payload + copy->record.payload));
    ring_publish((struct dmi_desc *)(uintptr_t)copy->desc, &copy->record);
}
