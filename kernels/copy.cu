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

/* In a counter of blocks that are done: one of them met a slot that there is not. */
#define WILD_SLOT 0x80000000u

static __device__ __forceinline__ dmi_u32 retire_block(dmi_u32 *counter)
{
    dmi_u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(counter)
                 : "memory");
    return before;
}

static __device__ __forceinline__ void publish(struct dmi_desc *slot, const struct dmi_desc *record,
                                               dmi_u32 flags)
{
    slot->payload = record->payload;
    slot->n_bytes = record->n_bytes;
    slot->site = record->site;
    slot->n_rows = record->n_rows;
    slot->occurrence = record->occurrence;
    slot->flags = flags;
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

/* What to take of the tensor: its first @n_rows rows, or those that @list names. */
struct choice {
    const dmi_u32 *list; /* NULL: none */
    dmi_u32 n_rows;
};

/* The @i-th of the chosen rows. */
static __device__ __forceinline__ dmi_u32 row_of(const struct choice *c, dmi_u32 i)
{
    return c->list ? c->list[i] : i;
}

/* What no row lies at. */
#define NOWHERE ((dmi_i64)(1ull << 63))

/* The slot of a paged cache that row @row is in. Return: false where it is none that may be read. */
static __device__ __forceinline__ bool slot_of(const struct dmi_gather *g, dmi_u32 *row,
                                               dmi_u32 *retired)
{
    dmi_i64 slot =
        g->slot_bytes == 4 ? ((const int *)g->slots)[*row] : ((const dmi_i64 *)g->slots)[*row];
    *row = (dmi_u32)slot;
    if ((dmi_u64)slot < g->n_slots)
        return true;
    if (slot >= 0)
        atomicOr(retired, WILD_SLOT);
    return false;
}

/* Where the @i-th of the chosen rows lies, in bytes from the first, or NOWHERE. */
static __device__ __forceinline__ dmi_i64 row_at(const struct dmi_gather *g, const struct choice *c,
                                                 dmi_u32 i, dmi_u32 *retired)
{
    dmi_u32 row = row_of(c, i);
    if (g->slot_bytes && !slot_of(g, &row, retired))
        return NOWHERE;
    if (!g->rows_inner)
        return (dmi_i64)row * g->stride[0];
    dmi_u32 outer = row / g->rows_inner;
    return (dmi_i64)outer * g->stride_outer + (dmi_i64)(row - outer * g->rows_inner) * g->stride[0];
}

/* One packed run: what is read lies as it is stored. */
template <typename unit>
static __device__ __forceinline__ void gather_packed(const unit *src, unit *dst, dmi_u32 n_bytes)
{
    dmi_u32 step = gridDim.x * blockDim.x, n_units = n_bytes / (dmi_u32)sizeof(unit);

    for (dmi_u32 i = first_unit(); i < n_units; i += step)
        dst[i] = src[i];
}

/*
 * Each row is one run, as those of a wider buffer. A thread keeps its place within the row and carries over into the
 * next one: divisions say where it begins and how far it steps, the loop has none.
 */
template <typename unit>
static __device__ __forceinline__ void gather_rows(const struct dmi_gather *g,
                                                   const struct choice *c, unit *dst)
{
    dmi_u32 units_a_row = g->run_bytes / (dmi_u32)sizeof(unit);
    dmi_u32 n_units = units_a_row * c->n_rows;
    dmi_u32 step = gridDim.x * blockDim.x, i = first_unit();
    if (i >= n_units)
        return;
    dmi_u32 rows_a_step = step / units_a_row, units_a_step = step - rows_a_step * units_a_row;
    dmi_u32 row = i / units_a_row, at = i - row * units_a_row;

    for (; i < n_units; i += step) {
        dst[i] =
            ((const unit *)((const char *)g->src + (dmi_i64)row_of(c, row) * g->stride[0]))[at];
        row += rows_a_step;
        at += units_a_step;
        if (at >= units_a_row) {
            at -= units_a_row;
            row++;
        }
    }
}

template <typename unit>
static __device__ __forceinline__ void gather_strided(const struct dmi_gather *g,
                                                      const struct choice *c, unit *dst,
                                                      dmi_u32 *retired)
{
    dmi_u32 units_a_run = g->run_bytes / (dmi_u32)sizeof(unit);
    dmi_u32 n_units = units_a_run * c->n_rows * g->count[1] * g->count[2] * g->count[3];
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
        dmi_i64 row = row_at(g, c, run / g->count[1], retired);
        dst[i] = row == NOWHERE ? unit{} : *(const unit *)(src + row + at);
    }
}

/* The branches are the same for all threads of the grid. */
template <typename unit>
static __device__ __forceinline__ void gather(const struct dmi_gather *g, const struct choice *c,
                                              char *dst, dmi_u32 *retired)
{
    if (g->count[1] == 1 && g->count[2] == 1 && g->count[3] == 1 && !g->rows_inner &&
        !g->slot_bytes)
        gather_rows(g, c, (unit *)dst);
    else
        gather_strided(g, c, (unit *)dst, retired);
}

/* Do the chosen rows lie one after the other, without gaps? */
static __device__ __forceinline__ bool is_packed(const struct dmi_gather *g, const struct choice *c)
{
    return g->count[1] == 1 && g->count[2] == 1 && g->count[3] == 1 && !c->list && !g->rows_inner &&
           !g->slot_bytes && (c->n_rows == 1 || g->stride[0] == g->run_bytes);
}

/* The widest access that divides address and size; the destination lies at a multiple of 16. */
static __device__ __forceinline__ dmi_u32 packed_access(dmi_u64 src, dmi_u32 n_bytes)
{
    dmi_u64 bits = src | n_bytes | 16;
    return (dmi_u32)(bits & -bits);
}

static __device__ __forceinline__ void gather_any(const struct dmi_gather *g,
                                                  const struct choice *c, char *dst,
                                                  dmi_u32 *retired)
{
    bool packed = is_packed(g, c);
    dmi_u32 n_bytes = g->run_bytes * c->n_rows; /* where it is packed */

#define GATHER(unit)                                                                               \
    if (packed)                                                                                    \
        gather_packed((const unit *)g->src, (unit *)dst, n_bytes);                                 \
    else                                                                                           \
        gather<unit>(g, c, dst, retired)
    switch (packed ? packed_access(g->src, n_bytes) : g->access) {
    case 16: GATHER(struct bytes16); break;
    case 8: GATHER(dmi_u64); break;
    case 4: GATHER(dmi_u32); break;
    case 2: GATHER(unsigned short); break;
    default: GATHER(unsigned char); break;
    }
#undef GATHER
}

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
        state->rows_of[i] = open.ticket.rows_of[i];
    }
    if (threadIdx.x < DMI_TICKET_ROWS)
        state->rows[threadIdx.x] = open.ticket.rows[threadIdx.x];
    if (threadIdx.x == 0) {
        state->seq = open.ticket.seq;
        state->n_copies = open.ticket.n_copies;
        state->close_slot = open.ticket.close_slot;
    }
}

/* The rows that the ticket says for this copy. */
static __device__ __forceinline__ struct choice choice_of(const struct dmi_graph_copy *copy,
                                                          const struct dmi_ticket *ticket)
{
    struct choice all = { nullptr, copy->n_rows };
    dmi_u32 which = ticket->rows_of[copy->number];
    if (which == DMI_ROWS_ALL)
        return all;
    const struct dmi_rows *rows = &ticket->rows[which];
    struct choice some = { rows->at == DMI_ROWS_FIRST ? nullptr
                                                      : (const dmi_u32 *)copy->lists + rows->at,
                           rows->n_rows };
    return some;
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
    struct choice choice = choice_of(&copy, state);
    record.n_bytes = (dmi_u64)choice.n_rows * copy.row_bytes;
    record.site = copy.site;
    record.n_rows = choice.n_rows;
    record.src = copy.gather.src;
    dmi_u32 *retired = (dmi_u32 *)copy.retired + slot;
    gather_any(&copy.gather, &choice, (char *)copy.payload + record.payload, retired);
    finish(retired, (struct dmi_desc *)copy.desc + slot, &record);
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
    publish((struct dmi_desc *)close.desc + state->close_slot, &record, 0);
}
