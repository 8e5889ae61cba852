/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How device code publishes. Memory order (PTX ISA 8, memory consistency model): every thread's payload stores are
 * ordered before its block's arrival by the barrier; the arrivals are acq_rel on one counter at gpu scope, so the last
 * one has seen all the others; its release at system scope, on the ready word, is the one that ring_poll() in
 * kernels/ring.c acquires.
 */
#pragma once

#include <dmi/ring.h>

static __device__ __forceinline__ void make_ready(dmi_u64 *ready, dmi_u64 seq)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(ready), "l"(seq) : "memory");
}

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
    make_ready(&slot->ready, record->ready);
}
