/* SPDX-License-Identifier: Apache-2.0 */
/* An action that publishes no record: it adds 1 to each u32 of its rows. */
#include "kernels/gather.cuh"
#include "kernels/ticket.cuh"
#include "tests/preload/probe/probe.h"

/* The rows are one run each, and lie along one dimension. */
static __device__ void add_one(const struct dmi_gather *g, const struct choice *c)
{
    dmi_u32 words = g->run_bytes / 4, n = words * c->n_rows;
    for (dmi_u32 i = first_unit(); i < n; i += gridDim.x * blockDim.x) {
        dmi_i64 at = (dmi_i64)row_of(c, i / words) * g->stride[0];
        ((dmi_u32 *)((char *)g->src + at))[i % words] += 1;
    }
}

extern "C" __global__ void probe_eager(const __grid_constant__ struct probe p)
{
    struct choice choice = { (const dmi_u32 *)p.rows, p.n_rows };
    add_one(&p.gather, &choice);
}

extern "C" __global__ void probe_node(const __grid_constant__ struct probe p)
{
    const struct dmi_ticket *state = (const struct dmi_ticket *)p.state;
    if (!is_wanted(state, p.number))
        return;
    struct choice choice = choice_of(state, p.number, p.lists, p.n_rows);
    add_one(&p.gather, &choice);
}
