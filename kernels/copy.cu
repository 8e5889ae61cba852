/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy kernels: each gathers a tensor into the payload ring. An eager one publishes its descriptor, one in a graph leaves its mark, and one that
 * is alone in its graph publishes for the launch.
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
    dmi_u64 seq = state->seq;                                                                      \
    struct choice choice = choice_of(state, copy.number, copy.lists, copy.n_rows);                 \
    char *dst = payload_of(state, copy.number);                                                    \
    gathers;                                                                                       \
    if (first_unit())                                                                              \
        return;                                                                                    \
    mark->seq = seq;                                                                               \
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

/*
 * The last block of copies that are alone, which has seen what all others did. The next launch may take the state, and another exec too, once the
 * descriptor is there.
 */
static __device__ __forceinline__ void finish_alone(const struct dmi_copies_alone *all)
{
    const struct dmi_alone *launch = &all->launch;
    struct dmi_close_desc *slot = (struct dmi_close_desc *)launch->desc;
    dmi_u32 ran = 0, wild = 0, sum = 0;

#pragma unroll 1
    for (dmi_u32 i = 0; i < gridDim.y; i++) {
        const struct dmi_graph_copy *copy = &all->copies.each[i];
        if (launch->offset16[i] >= DMI_NO_PAYLOAD)
            continue;
        ran |= 1u << launch->record[i];
        if (((const struct dmi_copy_mark *)copy->mark)->wild == (dmi_u32)launch->seq)
            wild |= 1u << launch->record[i];
        sum += dmi_copy_sum(copy->site, (dmi_u64)launch->rows[i].n_rows * copy->row_bytes);
    }
    *(dmi_u32 *)all->retired = 0;
    *(dmi_u64 *)all->used = launch->seq;
    slot->site = DMI_SITE_CLOSE;
    slot->sum = sum;
    slot->ran[0] = ran;
    slot->wild[0] = wild;
    for (dmi_u32 i = 1; i < DMI_CLOSE_WORDS; i++)
        slot->ran[i] = slot->wild[i] = 0;
    make_ready(&slot->ready, launch->seq);
}

/* Where the host could not set the next launch's parameter, the last one's is used. */
static __device__ __forceinline__ bool does_nothing(const struct dmi_copies_alone *all, dmi_u64 seq)
{
    return !seq || seq == *(const dmi_u64 *)all->used;
}

/* The same in a graph that has no other node of ours. */
#define GRAPH_ALONE(shape, gathers)                                                                \
    extern "C" __global__ void __launch_bounds__(DMI_COPY_THREADS)                                 \
        dmi_copies_alone_##shape(const __grid_constant__ struct dmi_copies_alone all)              \
    {                                                                                              \
        dmi_u64 seq = all.launch.seq;                                                              \
        if (does_nothing(&all, seq))                                                               \
            return;                                                                                \
        if (all.launch.offset16[blockIdx.y] < DMI_NO_PAYLOAD) {                                    \
            const struct dmi_graph_copy &copy = all.copies.each[blockIdx.y];                       \
            struct choice choice = listed(&all.launch.rows[blockIdx.y], copy.lists);               \
            char *dst =                                                                            \
                (char *)all.launch.payload + (dmi_u64)all.launch.offset16[blockIdx.y] * 16;        \
            gathers;                                                                               \
        }                                                                                          \
        __syncthreads();                                                                           \
        if (!threadIdx.x && retire_block((dmi_u32 *)all.retired) == gridDim.x * gridDim.y - 1)     \
            finish_alone(&all);                                                                    \
    }

/* Each row is one run, which lies at a multiple of 16 and is moved 16 bytes at a time: hidden states. Small code, as a GPU has to fetch it for such a node. */
#define PACKED                                                                                     \
    gather_rows(&copy.gather, &choice, (struct bytes16 *)dst,                                      \
                inverted{ copy.gather.run_bytes / 16, copy.inverse })
/* Each row is one run. */
#define ROWS gather_any_rows(&copy.gather, &choice, dst)
/* Whatever else, and these too. */
#define STRIDED                                                                                    \
    gather_any_strided(&copy.gather, &choice, dst,                                                 \
                       { &((struct dmi_copy_mark *)copy.mark)->wild, (dmi_u32)seq, false })

GRAPH_COPY(packed, PACKED)
GRAPH_COPY(rows, ROWS)
GRAPH_COPIES(packed, PACKED)
GRAPH_COPIES(any, STRIDED)
GRAPH_ALONE(packed, PACKED)
GRAPH_ALONE(any, STRIDED)
