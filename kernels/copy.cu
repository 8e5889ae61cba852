/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy kernel: gathers a tensor into the payload ring and publishes its descriptor. It never
 * waits and cannot overflow: the host reserved slot and bytes before the launch (DESIGN rule 2).
 *
 * Memory order (PTX ISA 8, memory consistency model): every thread's payload stores are ordered
 * before its block's arrival by the barrier; the arrivals are acq_rel on one counter at gpu scope,
 * so the last one has seen all the others; its release at system scope, on the ready word, is the
 * one that ring_poll() in kernels/ring.c acquires.
 */
#include <dmi/ring.h>

static __device__ __forceinline__ dmi_u32 retire_block(dmi_u32 *counter)
{
    dmi_u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(counter)
                 : "memory");
    return before;
}

static __device__ __forceinline__ void publish(struct dmi_desc *slot, const struct dmi_desc *record)
{
    slot->payload = record->payload;
    slot->n_bytes = record->n_bytes;
    slot->site = record->site;
    slot->n_rows = record->n_rows;
    slot->occurrence = record->occurrence;
    slot->flags = record->flags;
    slot->src = record->src;
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(&slot->ready), "l"(record->ready)
                 : "memory");
}

struct bytes16 {
    dmi_u64 low, high;
} __attribute__((aligned(16)));

/* Accesses are dealt out to all threads of the grid in turn. */
static __device__ __forceinline__ dmi_u32 first_unit(void)
{
    return blockIdx.x * blockDim.x + threadIdx.x;
}

/* One packed run: what is read lies as it is stored. */
template <typename unit>
static __device__ __forceinline__ void gather_packed(const unit *src, unit *dst, dmi_u32 n_units)
{
    dmi_u32 step = gridDim.x * blockDim.x;

    for (dmi_u32 i = first_unit(); i < n_units; i += step)
        dst[i] = src[i];
}

/*
 * Runs along one dimension, as the rows of a wider buffer. A thread keeps its place within the run and carries over
 * into the next one: divisions say where it begins and how far it steps, the loop has none.
 */
template <typename unit>
static __device__ __forceinline__ void gather_rows(const struct dmi_gather *g, unit *dst)
{
    dmi_u32 units_a_run = g->run_bytes / (dmi_u32)sizeof(unit);
    dmi_u32 n_units = units_a_run * g->count[3];
    dmi_u32 step = gridDim.x * blockDim.x, i = first_unit();
    if (i >= n_units)
        return;
    dmi_u32 runs_a_step = step / units_a_run, units_a_step = step - runs_a_step * units_a_run;
    dmi_u32 run = i / units_a_run, at = i - run * units_a_run;
    dmi_i64 stride = g->stride[3], unit_bytes = sizeof(unit);
    const char *src = (const char *)g->src + run * stride + at * unit_bytes;
    dmi_i64 ahead = runs_a_step * stride + units_a_step * unit_bytes;
    dmi_i64 carry = stride - units_a_run * unit_bytes;

    for (; i < n_units; i += step) {
        dst[i] = *(const unit *)src;
        src += ahead;
        at += units_a_step;
        if (at >= units_a_run) {
            at -= units_a_run;
            src += carry;
        }
    }
}

template <typename unit>
static __device__ __forceinline__ void gather_strided(const struct dmi_gather *g, unit *dst)
{
    dmi_u32 units_a_run = g->run_bytes / (dmi_u32)sizeof(unit);
    dmi_u32 n_units = units_a_run * g->count[0] * g->count[1] * g->count[2] * g->count[3];
    dmi_u32 step = gridDim.x * blockDim.x;
    const char *src = (const char *)g->src;

    for (dmi_u32 i = first_unit(); i < n_units; i += step) {
        dmi_u32 run = i / units_a_run;
        dmi_i64 at = (dmi_i64)(i - run * units_a_run) * (dmi_i64)sizeof(unit);
        at += run % g->count[3] * g->stride[3];
        run /= g->count[3];
        at += run % g->count[2] * g->stride[2];
        run /= g->count[2];
        at += run % g->count[1] * g->stride[1];
        at += run / g->count[1] * g->stride[0];
        dst[i] = *(const unit *)(src + at);
    }
}

/* The branches are the same for all threads of the grid. */
template <typename unit>
static __device__ __forceinline__ void gather(const struct dmi_gather *g, char *dst)
{
    bool one_dimension = g->count[0] == 1 && g->count[1] == 1 && g->count[2] == 1;

    if (one_dimension && g->count[3] == 1)
        gather_packed((const unit *)g->src, (unit *)dst, g->run_bytes / (dmi_u32)sizeof(unit));
    else if (one_dimension)
        gather_rows(g, (unit *)dst);
    else
        gather_strided(g, (unit *)dst);
}

static __device__ __forceinline__ void gather_any(const struct dmi_gather *g, char *dst)
{
    switch (g->access) {
    case 16: gather<struct bytes16>(g, dst); break;
    case 8: gather<dmi_u64>(g, dst); break;
    case 4: gather<dmi_u32>(g, dst); break;
    case 2: gather<unsigned short>(g, dst); break;
    default: gather<unsigned char>(g, dst); break;
    }
}

/* The last block to come here publishes. */
static __device__ __forceinline__ void finish(dmi_u32 *retired, struct dmi_desc *slot,
                                              const struct dmi_desc *record)
{
    __syncthreads();
    if (threadIdx.x == 0 && retire_block(retired) == gridDim.x - 1) {
        *retired = 0; /* for the slot's next record, whose launch is ordered after the publish */
        publish(slot, record);
    }
}

/* Grid: any number of blocks along x. n_units < 2^31, so that i + step cannot wrap: the host sees to it. */
extern "C" __global__ void dmi_copy_eager(const __grid_constant__ struct dmi_copy copy)
{
    gather_any(&copy.gather, (char *)copy.payload + copy.record.payload);
    finish((dmi_u32 *)copy.retired, (struct dmi_desc *)copy.desc, &copy.record);
}

/*
 * First in its graph: leaves the launch's ticket where the copies find it. Grid: one block. A ticket is used once: where
 * the host could not set the next one, the state stays as dmi_close left it, empty.
 */
extern "C" __global__ void dmi_open(const __grid_constant__ struct dmi_open open)
{
    struct dmi_ticket *state = (struct dmi_ticket *)open.state;
    bool used = open.ticket.n_copies && open.ticket.seq == state->seq;

    __syncthreads(); /* before thread 0 writes it */
    if (used)
        return;
    for (dmi_u32 i = threadIdx.x; i < open.ticket.n_copies; i += blockDim.x) {
        state->offset16[i] = open.ticket.offset16[i];
        state->slot[i] = open.ticket.slot[i];
    }
    if (threadIdx.x == 0) {
        state->seq = open.ticket.seq;
        state->n_copies = open.ticket.n_copies;
        state->close_slot = open.ticket.close_slot;
    }
}

/* After its site in a graph; the state was written by dmi_open, on which everything there depends. */
extern "C" __global__ void dmi_copy_graph(const __grid_constant__ struct dmi_graph_copy copy)
{
    const struct dmi_ticket *state = (const struct dmi_ticket *)copy.state;
    if (copy.number >= state->n_copies || state->offset16[copy.number] == DMI_NOT_WANTED)
        return;
    dmi_u32 slot = state->slot[copy.number];
    struct dmi_desc record = {};
    record.ready = state->seq;
    record.payload = (dmi_u64)state->offset16[copy.number] * 16;
    record.n_bytes = copy.n_bytes;
    record.site = copy.site;
    record.n_rows = copy.n_rows;
    record.src = copy.gather.src;
    gather_any(&copy.gather, (char *)copy.payload + record.payload);
    finish((dmi_u32 *)copy.retired + slot, (struct dmi_desc *)copy.desc + slot, &record);
}

/* Last in its graph: what this launch has not published by now, it never will. Grid: one thread. */
extern "C" __global__ void dmi_close(const __grid_constant__ struct dmi_close close)
{
    struct dmi_ticket *state = (struct dmi_ticket *)close.state;
    if (!state->n_copies)
        return;
    struct dmi_desc record = {};
    record.ready = state->seq;
    record.site = DMI_SITE_CLOSE;
    /* a ticket is used once: where open is switched off, nothing is copied */
    for (dmi_u32 i = 0; i < close.n_tickets; i++)
        state[i].n_copies = 0;
    publish((struct dmi_desc *)close.desc + state->close_slot, &record);
}
