/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy kernel: gathers a tensor into the payload ring and publishes its descriptor. It never waits and cannot overflow:
 * the host reserved slot and bytes before the launch (docs/architecture.md).
 */
#include "kernels/gather.cuh"
#include "kernels/publish.cuh"
#include "kernels/ticket.cuh"

/* The last block to come here publishes. */
static __device__ __forceinline__ void finish(dmi_u32 *retired, struct dmi_desc *slot,
                                              const struct dmi_desc *record)
{
    __syncthreads();
    if (threadIdx.x)
        return;
    dmi_u32 before = retire_block(retired);
    if ((before & ~WILD_SLOT) == gridDim.x - 1) {
        *retired = 0; /* for the slot's next record, whose launch is ordered after the publish */
        publish(slot, record, record->flags | (before & WILD_SLOT ? DMI_DESC_WILD_SLOT : 0));
    }
}

/* Grid: any number of blocks along x. n_units < 2^31, so that i + step cannot wrap: the host sees to it. */
extern "C" __global__ void dmi_copy_eager(const __grid_constant__ struct dmi_copy copy)
{
    struct choice choice = { (const dmi_u32 *)copy.rows, copy.record.n_rows };
    dmi_u32 *retired = (dmi_u32 *)copy.retired;
    gather_any(&copy.gather, &choice, (char *)copy.payload + copy.record.payload, retired);
    finish(retired, (struct dmi_desc *)copy.desc, &copy.record);
}

/* After its site in a graph; the state was written by dmi_open, on which everything there depends. */
extern "C" __global__ void dmi_copy_graph(const __grid_constant__ struct dmi_graph_copy copy)
{
    const struct dmi_ticket *state = (const struct dmi_ticket *)copy.state;
    if (!is_wanted(state, copy.number))
        return;
    dmi_u32 slot = state->slot[copy.number];
    struct dmi_desc record = {};
    record.ready = state->seq;
    record.payload = (dmi_u64)state->offset16[copy.number] * 16;
    struct choice choice = choice_of(state, copy.number, copy.lists, copy.n_rows);
    record.n_bytes = (dmi_u64)choice.n_rows * copy.row_bytes;
    record.site = copy.site;
    record.n_rows = choice.n_rows;
    record.src = copy.gather.src;
    dmi_u32 *retired = (dmi_u32 *)copy.retired + slot;
    gather_any(&copy.gather, &choice, (char *)copy.payload + record.payload, retired);
    finish(retired, (struct dmi_desc *)copy.desc + slot, &record);
}
