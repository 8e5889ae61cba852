/* SPDX-License-Identifier: Apache-2.0 */
/* The edit kernel. A block has a row at a time: edit_rows.h. */
#include "kernels/edit_rows.h"
#include "kernels/ticket.cuh"

/* Grid: any number of blocks of DMI_EDIT_THREADS. */
extern "C" __global__ void dmi_edit_eager(const __grid_constant__ struct dmi_edit e)
{
    edit_rows(&e, e.at, false, (const dmi_u32 *)e.rows, e.n_rows);
}

extern "C" __global__ void dmi_save_eager(const __grid_constant__ struct dmi_edit e)
{
    edit_rows(&e, e.at, true, (const dmi_u32 *)e.rows, e.n_rows);
}

/* The same in a graph, as the ticket says. */
static __device__ __forceinline__ void edit_by_ticket(const struct dmi_edit *e, bool saves)
{
    const struct dmi_ticket *state = (const struct dmi_ticket *)e->state;
    if (!is_wanted(state, e->number))
        return;
    struct choice choice = choice_of(state, e->number, e->lists, e->n_rows);
    edit_rows(e, state->slot[e->number], saves, choice.list, choice.n_rows);
}

extern "C" __global__ void dmi_edit_graph(const __grid_constant__ struct dmi_edit e)
{
    edit_by_ticket(&e, false);
}

extern "C" __global__ void dmi_save_graph(const __grid_constant__ struct dmi_edit e)
{
    edit_by_ticket(&e, true);
}

/* Forgets rows of donors that nobody takes any more. Any grid. */
extern "C" __global__ void dmi_bank_drop(const __grid_constant__ struct dmi_bank_drop d)
{
    for (dmi_u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < d.n_cells;
         i += gridDim.x * blockDim.x)
        drop_cell(&d, i);
}
