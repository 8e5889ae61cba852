/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What dmi-top shows of a capture context (<dmi/live.h>): each thread stores the numbers that it has anyway, with relaxed
 * stores and no lock. Where the run has no file `live`, nothing is stored. Tails are stored before the ring is released,
 * so that nobody reads more in flight than there was room for.
 */
#pragma once

#include "core/atomic.h"
#include "preload/context/context.h"
#include "preload/context/staging.h"

#include <dmi/live.h>

/* The context has its ring and the threads that empty it. Thread: the one that creates or resumes it. */
static inline void gauge_start(const struct context *c)
{
    struct dmi_live_ring *to = c->live;
    if (!to)
        return;
    atomic_store_relaxed(&to->n_slots, c->ring.n_slots);
    atomic_store_relaxed(&to->device, (uint32_t)c->device);
    atomic_store_relaxed(&to->n_encoders, c->n_encoders);
    atomic_store_release(&to->n_bytes, c->ring.n_bytes); /* the entry is in use: to dmi-top */
}

/* *@most is at least @now. Thread: the one that stores it. */
static inline void gauge_raise(uint64_t *most, uint64_t now)
{
    if (now > atomic_load_relaxed(most))
        atomic_store_relaxed(most, now);
}

/* A launch has reserved. Thread: launching, with the lock of the ring. */
static inline void gauge_reserved(const struct context *c)
{
    struct dmi_live_ring *to = c->live;
    const struct ring *ring = &c->ring;
    if (!to)
        return;
    uint64_t tail = atomic_load_relaxed(&ring->tail_byte);
    gauge_raise(&to->most_bytes, ring->head_byte - tail);
    gauge_raise(&to->most_slots,
                atomic_load_relaxed(&ring->head_slot) - atomic_load_relaxed(&ring->tail_slot));
    atomic_store_relaxed(&to->floor_bytes, tail);
    atomic_store_relaxed(&to->head_bytes, ring->head_byte);
    atomic_store_relaxed(&to->head_slots, atomic_load_relaxed(&ring->head_slot));
}

/* All slots before @end_slot, which there are, are about to be released. Thread: drain. */
static inline void gauge_releases(const struct context *c, uint64_t end_slot)
{
    struct dmi_live_ring *to = c->live;
    if (!to)
        return;
    atomic_store_relaxed(&to->drained_bytes, atomic_load_relaxed(&c->drained_bytes));
    atomic_store_relaxed(&to->tail_bytes, ring_slot(&c->ring, end_slot - 1)->end);
    atomic_store_relaxed(&to->tail_slots, end_slot);
}

/* A batch was given to the encoders. Thread: drain. */
static inline void gauge_given(const struct context *c)
{
    if (c->live)
        atomic_add_relaxed(&c->live->given, 1);
}

/* A batch was appended, or given up. Thread: an encoder, in turn. */
static inline void gauge_ended(const struct context *c, const struct batch *b)
{
    struct dmi_live_ring *to = c->live;
    if (!to)
        return;
    atomic_add_relaxed(&to->ended, 1);
    atomic_add_relaxed(&to->encode_ns, b->encode_ns);
    atomic_store_relaxed(&to->rung, (uint32_t)b->rung);
}
