/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ring.h"

#include "core/atomic.h"

#include <errno.h>

int ring_init(struct ring *ring, struct dmi_desc *desc, struct ring_slot *slots, uint32_t n_slots,
              uint64_t n_bytes)
{
    if (n_slots < RING_MIN_SLOTS || (n_slots & (n_slots - 1)) || n_bytes < RING_MIN_BYTES ||
        n_bytes % RING_ALIGN)
        return -EINVAL;
    *ring = (struct ring){.desc = desc, .slots = slots, .n_slots = n_slots, .n_bytes = n_bytes};
    return 0;
}

/* Where @n_bytes would begin as a running count: they never wrap around the ring's end. */
static uint64_t place(const struct ring *ring, uint64_t n_bytes)
{
    uint64_t at = ring->head_byte % ring->n_bytes;
    return at + n_bytes <= ring->n_bytes ? ring->head_byte : ring->head_byte + ring->n_bytes - at;
}

int ring_reserve(struct ring *ring, uint64_t seq, uint32_t site, uint64_t n_bytes, uint64_t *index,
                 uint64_t *payload)
{
    if (n_bytes > ring->n_bytes)
        return RING_E_TOO_LARGE;
    uint64_t padded = (n_bytes + RING_ALIGN - 1) & ~(uint64_t)(RING_ALIGN - 1);

    /* acquires ring_release(): the drain has read what stood in the space that we take */
    uint64_t tail_slot = atomic_load_acquire(&ring->tail_slot);
    uint64_t tail_byte = atomic_load_acquire(&ring->tail_byte);
    uint64_t head_slot = ring->head_slot; /* ours: launching threads take turns */
    if (tail_slot == head_slot) {
        /*
         * Nothing in flight: begin at the front, or a record as large as the ring never fits. The
         * drain leaves tail_byte alone until head_slot moves.
         */
        tail_byte = (tail_byte + ring->n_bytes - 1) / ring->n_bytes * ring->n_bytes;
        ring->head_byte = tail_byte;
        atomic_store_relaxed(&ring->tail_byte, tail_byte);
    }
    uint64_t begin = place(ring, padded);
    if (head_slot - tail_slot >= ring->n_slots)
        return RING_E_FULL;
    if (begin + padded - tail_byte > ring->n_bytes)
        return RING_E_FULL;

    struct ring_slot *slot = ring_slot(ring, head_slot);
    slot->site = site;
    slot->seq = seq;
    slot->payload = begin % ring->n_bytes;
    slot->n_bytes = n_bytes;
    slot->end = begin + padded;
    atomic_store_relaxed(&slot->state, RING_RESERVED);
    ring->head_byte = begin + padded;
    *index = head_slot;
    *payload = slot->payload;
    /* acquired by ring_poll() */
    atomic_store_release(&ring->head_slot, head_slot + 1);
    return 0;
}

void ring_cancel(struct ring *ring, uint64_t index)
{
    /* acquired by ring_poll() */
    atomic_store_release(&ring_slot(ring, index)->state, RING_CANCELLED);
}

enum ring_event ring_poll(const struct ring *ring, uint64_t index)
{
    /* acquires ring_reserve(): the slot's host half is written */
    if (index == atomic_load_acquire(&ring->head_slot))
        return RING_EMPTY;
    const struct ring_slot *slot = ring_slot(ring, index);
    const struct dmi_desc *desc = ring_desc(ring, index);
    /* acquires ring_cancel() */
    if (atomic_load_acquire(&slot->state) == RING_CANCELLED)
        return RING_VOID;
    /* acquires publish() in copy.cu, or ring_publish() */
    uint64_t ready = atomic_load_acquire(&desc->ready);
    if (ready != slot->seq)
        /* what stands there is older (a slot's last record), or nobody's */
        return ready < slot->seq ? RING_PENDING : RING_MISMATCH;
    if (desc->site != slot->site || desc->n_bytes != slot->n_bytes || desc->payload != slot->payload)
        return RING_MISMATCH;
    return RING_READY;
}

void ring_release(struct ring *ring, uint64_t index)
{
    if (index == ring->tail_slot)
        return;
    uint64_t end = ring_slot(ring, index - 1)->end;
    /* both acquired by ring_reserve(); bytes first, so that a free slot means free bytes */
    atomic_store_release(&ring->tail_byte, end);
    atomic_store_release(&ring->tail_slot, index);
}

uint64_t ring_in_flight(const struct ring *ring)
{
    uint64_t tail = atomic_load_acquire(&ring->tail_slot);
    return atomic_load_acquire(&ring->head_slot) - tail;
}

void ring_publish(struct dmi_desc *slot, const struct dmi_desc *record)
{
    slot->payload = record->payload;
    slot->n_bytes = record->n_bytes;
    slot->site = record->site;
    slot->n_rows = record->n_rows;
    slot->occurrence = record->occurrence;
    slot->flags = record->flags;
    slot->src = record->src;
    /* acquired by ring_poll() */
    atomic_store_release(&slot->ready, record->ready);
}
