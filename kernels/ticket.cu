/* SPDX-License-Identifier: Apache-2.0 */
/* The first and the last kernel of ours in a graph: dmi_open brings the ticket of a launch, dmi_close says that the launch is over. */
#include "kernels/publish.cuh"

/*
 * First in its graph: leaves the launch's ticket where the actions find it. Grid: one block. A ticket is used once: where
 * the host could not set the next one, the state stays as dmi_close left it, empty.
 */
extern "C" __global__ void dmi_open(const __grid_constant__ struct dmi_open open)
{
    struct dmi_ticket *state = (struct dmi_ticket *)open.state;
    bool used = open.ticket.n_actions && open.ticket.seq == state->seq;

    __syncthreads(); /* before thread 0 writes it */
    if (used)
        return;
    for (dmi_u32 i = threadIdx.x; i < open.ticket.n_actions; i += blockDim.x) {
        state->offset16[i] = open.ticket.offset16[i];
        state->slot[i] = open.ticket.slot[i];
        state->rows_of[i] = open.ticket.rows_of[i];
    }
    if (threadIdx.x < DMI_TICKET_ROWS)
        state->rows[threadIdx.x] = open.ticket.rows[threadIdx.x];
    if (threadIdx.x == 0) {
        state->seq = open.ticket.seq;
        state->n_actions = open.ticket.n_actions;
        state->close_slot = open.ticket.close_slot;
        state->n_records = open.ticket.n_records;
        state->payload = open.ticket.payload;
    }
}

/* In the place of dmi_open, for a launch that does what the last one did. Grid: one thread. */
extern "C" __global__ void dmi_reopen(const __grid_constant__ struct dmi_reopen again)
{
    struct dmi_ticket *state = (struct dmi_ticket *)again.state;
    if (again.seq == state->seq)
        return; /* used */
    state->seq = again.seq;
    state->n_actions = again.n_actions;
    state->close_slot = again.close_slot;
    state->payload = again.payload;
}

/* What one closing descriptor tells, as the block gathers it. */
struct tally {
    dmi_u32 ran[DMI_CLOSE_WORDS], wild[DMI_CLOSE_WORDS], sum;
};

/* The marks of one ticket's records from number @first on. */
static __device__ __forceinline__ void add_marks(struct tally *all, const struct dmi_ticket *t,
                                                 const struct dmi_copy_mark *marks, dmi_u32 first)
{
    for (dmi_u32 i = threadIdx.x; i < t->n_actions; i += blockDim.x) {
        dmi_u32 at = t->slot[i] - first;
        if (t->offset16[i] >= DMI_NO_PAYLOAD || at >= DMI_CLOSE_RECORDS || marks[i].seq != t->seq)
            continue;
        atomicOr(&all->ran[at / 32], 1u << at % 32);
        if (marks[i].wild == (dmi_u32)t->seq)
            atomicOr(&all->wild[at / 32], 1u << at % 32);
        atomicAdd(&all->sum, marks[i].sum);
    }
}

static __device__ __forceinline__ void publish_close(struct dmi_close_desc *slot,
                                                     const struct tally *all, dmi_u64 seq)
{
    slot->site = DMI_SITE_CLOSE;
    slot->sum = all->sum;
    for (dmi_u32 i = 0; i < DMI_CLOSE_WORDS; i++) {
        slot->ran[i] = all->ran[i];
        slot->wild[i] = all->wild[i];
    }
    make_ready(&slot->ready, seq);
}

/* A ticket is used once: where open is switched off, no action does anything. */
static __device__ __forceinline__ void empty(struct dmi_ticket *tickets, dmi_u32 n)
{
    for (dmi_u32 i = threadIdx.x; i < n; i += blockDim.x)
        tickets[i].n_actions = 0;
}

/*
 * Last in its graph: publishes which copies of the launch ran. What has left no mark by now never will. Grid: one block of
 * DMI_CLOSE_THREADS.
 */
extern "C" __global__ void dmi_close(const __grid_constant__ struct dmi_close close)
{
    __shared__ struct tally all;
    struct dmi_ticket *tickets = (struct dmi_ticket *)close.state;
    const struct dmi_copy_mark *marks = (const struct dmi_copy_mark *)close.marks;
    dmi_u64 seq = tickets->seq;
    dmi_u32 slot = tickets->close_slot;
    dmi_u32 n_records = tickets->n_actions && slot != DMI_NO_CLOSE ? tickets->n_records : 0;

    for (dmi_u32 first = 0; first < n_records; first += DMI_CLOSE_RECORDS, slot++) {
        for (dmi_u32 i = threadIdx.x; i < sizeof all / sizeof(dmi_u32); i += blockDim.x)
            ((dmi_u32 *)&all)[i] = 0;
        __syncthreads();
        for (dmi_u32 i = 0; i < close.n_tickets; i++)
            add_marks(&all, &tickets[i], marks + i * DMI_TICKET_ACTIONS, first);
        __syncthreads();
        if (first + DMI_CLOSE_RECORDS >= n_records)
            empty(
                tickets,
                close
                    .n_tickets); /* the state may be another exec's once the last one is published */
        __syncthreads();
        if (!threadIdx.x)
            publish_close((struct dmi_close_desc *)close.desc + (slot & (close.n_slots - 1)), &all,
                          seq);
        __syncthreads();
    }
    if (!n_records)
        empty(tickets, close.n_tickets);
}
