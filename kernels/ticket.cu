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
    }
}

/* Last in its graph: what this launch has not published by now, it never will. Grid: one thread. */
extern "C" __global__ void dmi_close(const __grid_constant__ struct dmi_close close)
{
    struct dmi_ticket *state = (struct dmi_ticket *)close.state;
    if (!state->n_actions)
        return;
    struct dmi_desc record = {};
    record.ready = state->seq;
    record.site = DMI_SITE_CLOSE;
    /* a ticket is used once: where open is switched off, no action does anything */
    for (dmi_u32 i = 0; i < close.n_tickets; i++)
        state[i].n_actions = 0;
    if (state->close_slot != DMI_NO_CLOSE)
        publish((struct dmi_desc *)close.desc + state->close_slot, &record, 0);
}
