/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy kernels: each gathers a tensor into the payload ring. An eager one publishes its descriptor, one in a graph leaves its mark.
 * They never wait and cannot overflow: the host reserved slot and bytes before the launch (docs/architecture.md).
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
    char *dst = (char *)copy.payload + copy.record.payload;
    if (gather_is_runs(&copy.gather))
        gather_any_rows(&copy.gather, &choice, dst);
    else
        gather_any_strided(&copy.gather, &choice, dst, { retired, WILD_SLOT, true });
    finish(retired, (struct dmi_desc *)copy.desc, &copy.record);
}

/*
 * After its site in a graph, which is of the kernel's shape; the state was written by dmi_open, on which everything there depends. The mark needs no
 * order: dmi_close depends on all copies, so it sees what they wrote.
 */
#define COPY_IN_GRAPH(gathers)                                                                     \
    const struct dmi_ticket *state = (const struct dmi_ticket *)copy.state;                        \
    if (!is_wanted(state, copy.number))                                                            \
        return;                                                                                    \
    struct dmi_copy_mark *mark = (struct dmi_copy_mark *)copy.mark;                                \
    struct choice choice = choice_of(state, copy.number, copy.lists, copy.n_rows);                 \
    char *dst = payload_of(state, copy.number);                                                    \
    gathers;                                                                                       \
    if (first_unit())                                                                              \
        return;                                                                                    \
    mark->seq = state->seq;                                                                        \
    mark->sum = dmi_copy_sum(copy.site, (dmi_u64)choice.n_rows * copy.row_bytes);

/* A node that copies one tensor. */
#define GRAPH_COPY(shape, gathers)                                                                 \
    extern "C" __global__ void __launch_bounds__(DMI_COPY_THREADS)                                 \
        dmi_copy_graph_##shape(const __grid_constant__ struct dmi_graph_copy copy)                 \
    {                                                                                              \
        COPY_IN_GRAPH(gathers)                                                                     \
    }

/* A node that copies several tensors at one place; the grid's y is their number. */
#define GRAPH_COPIES(shape, gathers)                                                               \
    extern "C" __global__ void __launch_bounds__(DMI_COPY_THREADS)                                 \
        dmi_copies_graph_##shape(const __grid_constant__ struct dmi_graph_copies all)              \
    {                                                                                              \
        const struct dmi_graph_copy &copy = all.each[blockIdx.y];                                  \
        COPY_IN_GRAPH(gathers)                                                                     \
    }

/* Each row is one run, which lies at a multiple of 16 and is moved 16 bytes at a time: hidden states. Small code, as a GPU has to fetch it for such a node. */
#define PACKED                                                                                     \
    gather_rows(&copy.gather, &choice, (struct bytes16 *)dst,                                      \
                inverted{ copy.gather.run_bytes / 16, copy.inverse })
/* Each row is one run. */
#define ROWS gather_any_rows(&copy.gather, &choice, dst)
/* Whatever else, and these too. */
#define STRIDED                                                                                    \
    gather_any_strided(&copy.gather, &choice, dst, { &mark->wild, (dmi_u32)state->seq, false })

GRAPH_COPY(packed, PACKED)
GRAPH_COPY(rows, ROWS)
GRAPH_COPIES(packed, PACKED)
GRAPH_COPIES(any, STRIDED)
