/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows of a tensor an action takes, where each of them lies, and how a thread block reads them. Device code. */
#pragma once

#include "kernels/gather.h"

/* In a counter of blocks that are done: one of them met a slot that there is not. */
#define WILD_SLOT 0x80000000u

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

/* The slot of a paged cache that row @row is in. @retired: NULL: nobody asks. Return: false where it is none that may be read. */
static __device__ __forceinline__ bool slot_of(const struct dmi_gather *g, dmi_u32 *row,
                                               dmi_u32 *retired)
{
    dmi_i64 slot =
        g->slot_bytes == 4 ? ((const int *)g->slots)[*row] : ((const dmi_i64 *)g->slots)[*row];
    *row = (dmi_u32)slot;
    if ((dmi_u64)slot < g->n_slots)
        return true;
    if (slot >= 0 && retired)
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
    return gather_row(g, row);
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
