/* SPDX-License-Identifier: Apache-2.0 */
/* What an action within a graph finds in the ticket of its launch. Device code. */
#pragma once

#include "kernels/gather.cuh"

/* Is action number @number of this launch to do anything? */
static __device__ __forceinline__ bool is_wanted(const struct dmi_ticket *ticket, dmi_u32 number)
{
    return number < ticket->n_actions && ticket->offset16[number] != DMI_NOT_WANTED;
}

/* Where its bytes belong. */
static __device__ __forceinline__ char *payload_of(const struct dmi_ticket *ticket, dmi_u32 number)
{
    return (char *)ticket->payload + (dmi_u64)ticket->offset16[number] * 16;
}

/* Rows that a launch keeps. @lists: address of the context's row lists. */
static __device__ __forceinline__ struct choice listed(const struct dmi_rows *rows, dmi_u64 lists)
{
    struct choice some = { rows->at == DMI_ROWS_FIRST ? nullptr : (const dmi_u32 *)lists + rows->at,
                           rows->n_rows };
    return some;
}

/* The rows that the ticket says for it. @lists: address of the context's row lists; @n_rows: of all of the tensor. */
static __device__ __forceinline__ struct choice choice_of(const struct dmi_ticket *ticket,
                                                          dmi_u32 number, dmi_u64 lists,
                                                          dmi_u32 n_rows)
{
    struct choice all = { nullptr, n_rows };
    dmi_u32 which = ticket->rows_of[number];
    return which == DMI_ROWS_ALL ? all : listed(&ticket->rows[which], lists);
}
