/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows of a tensor an action takes, where each of them lies, and how a thread block reads them. Device code. */
#pragma once

#include "kernels/gather.h"

/* In a counter of blocks that are done: one of them met a slot that there is not. */
#define WILD_SLOT 0x80000000u

/* Where it is noted that a slot is none that may be read. */
struct wild_note {
    dmi_u32 *word; /* NULL: nowhere */
    dmi_u32 value;
    bool joins; /* the word has other bits, which stay */
};

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

static __device__ __forceinline__ void note_wild(struct wild_note note)
{
    if (note.joins)
        atomicOr(note.word, note.value);
    else if (note.word)
        *note.word = note.value; /* the same from each thread */
}

/* The slot of a paged cache that row @row is in. Return: false where it is none that may be read. */
static __device__ __forceinline__ bool slot_of(const struct dmi_gather *g, dmi_u32 *row,
                                               struct wild_note note)
{
    dmi_i64 slot =
        g->slot_bytes == 4 ? ((const int *)g->slots)[*row] : ((const dmi_i64 *)g->slots)[*row];
    *row = (dmi_u32)slot;
    if ((dmi_u64)slot < g->n_slots)
        return true;
    if (slot >= 0)
        note_wild(note);
    return false;
}

/* Where the @i-th of the chosen rows lies, in bytes from the first, or NOWHERE. */
static __device__ __forceinline__ dmi_i64 row_at(const struct dmi_gather *g, const struct choice *c,
                                                 dmi_u32 i, struct wild_note note)
{
    dmi_u32 row = row_of(c, i);
    if (g->slot_bytes && !slot_of(g, &row, note))
        return NOWHERE;
    return gather_row(g, row);
}

/* One packed run: what is read lies as it is stored. */
template <typename unit>
static __device__ __forceinline__ void gather_packed(const unit *src, unit *dst, dmi_u32 n_bytes)
{
    dmi_u32 step = gridDim.x * blockDim.x, n_units = n_bytes / (dmi_u32)sizeof(unit);

#pragma unroll 1 /* the grid has a thread for each access, up to 4 MiB */
    for (dmi_u32 i = first_unit(); i < n_units; i += step)
        dst[i] = src[i];
}

/* A number to divide by. */
struct divided {
    dmi_u32 n;
    __device__ dmi_u32 quotient(dmi_u32 i) const
    {
        return i / n;
    }
};

/* The same with its DMI_INVERSE(): a division is 30 instructions. */
struct inverted {
    dmi_u32 n, inverse;
    __device__ dmi_u32 quotient(dmi_u32 i) const
    {
        return __umulhi(i, inverse);
    }
};

/*
 * Each row is one run, as those of a wider buffer. A thread keeps its place within the row and carries over into the
 * next one: divisions by the units a row say where it begins and how far it steps, the loop has none.
 */
template <typename unit, typename units>
static __device__ __forceinline__ void gather_rows(const struct dmi_gather *g,
                                                   const struct choice *c, unit *dst, units a_row)
{
    dmi_u32 units_a_row = a_row.n;
    dmi_u32 n_units = units_a_row * c->n_rows;
    dmi_u32 step = gridDim.x * blockDim.x, i = first_unit();
    if (i >= n_units)
        return;
    dmi_u32 rows_a_step = a_row.quotient(step), units_a_step = step - rows_a_step * units_a_row;
    dmi_u32 row = a_row.quotient(i), at = i - row * units_a_row;

#pragma unroll 1
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
                                                      struct wild_note note)
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
        dmi_i64 row = row_at(g, c, run / g->count[1], note);
        dst[i] = row == NOWHERE ? unit{} : *(const unit *)(src + row + at);
    }
}

/* Do the chosen rows lie one after the other, without gaps? */
static __device__ __forceinline__ bool is_packed(const struct dmi_gather *g, const struct choice *c)
{
    return gather_is_runs(g) && !c->list && (c->n_rows == 1 || g->stride[0] == g->run_bytes);
}

/* The widest access that divides address and size; the destination lies at a multiple of 16. */
static __device__ __forceinline__ dmi_u32 packed_access(dmi_u64 src, dmi_u32 n_bytes)
{
    dmi_u64 bits = src | n_bytes | 16;
    return (dmi_u32)(bits & -bits);
}

/* @do(unit), for the unit of @access bytes; the branches are the same for all threads of the grid. */
#define BY_ACCESS(access, do)                                                                      \
    switch (access) {                                                                              \
    case 16:                                                                                       \
        do                                                                                         \
            (struct bytes16);                                                                      \
        break;                                                                                     \
    case 8:                                                                                        \
        do                                                                                         \
            (dmi_u64);                                                                             \
        break;                                                                                     \
    case 4:                                                                                        \
        do                                                                                         \
            (dmi_u32);                                                                             \
        break;                                                                                     \
    case 2:                                                                                        \
        do                                                                                         \
            (unsigned short);                                                                      \
        break;                                                                                     \
    default:                                                                                       \
        do                                                                                         \
            (unsigned char);                                                                       \
        break;                                                                                     \
    }

/* Of runs alone. */
static __device__ __forceinline__ void gather_any_rows(const struct dmi_gather *g,
                                                       const struct choice *c, char *dst)
{
    dmi_u32 n_bytes = g->run_bytes * c->n_rows;

#define PACKED(unit) gather_packed((const unit *)g->src, (unit *)dst, n_bytes)
#define ROWS(unit)   gather_rows(g, c, (unit *)dst, divided{ g->run_bytes / (dmi_u32)sizeof(unit) })
    if (is_packed(g, c))
        BY_ACCESS(packed_access(g->src, n_bytes), PACKED)
    else
        BY_ACCESS(g->access, ROWS)
#undef PACKED
#undef ROWS
}

static __device__ __forceinline__ void gather_any_strided(const struct dmi_gather *g,
                                                          const struct choice *c, char *dst,
                                                          struct wild_note note)
{
#define STRIDED(unit) gather_strided(g, c, (unit *)dst, note)
    BY_ACCESS(g->access, STRIDED)
#undef STRIDED
}
