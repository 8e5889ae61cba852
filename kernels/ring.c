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
    *ring = (struct ring){ .desc = desc, .slots = slots, .n_slots = n_slots, .n_bytes = n_bytes };
    return 0;
}

/* Where @n_bytes would begin, as a running count; a record never wraps around the ring's end. */
static uint64_t place(const struct ring *ring, uint64_t n_bytes)
{
    uint64_t at = ring->head_byte % ring->n_bytes;
    return at + n_bytes <= ring->n_bytes ? ring->head_byte : ring->head_byte + ring->n_bytes - at;
}

/*
 * Where @n_bytes may begin, as a running count, if there is room for them and for @n_slots.
 * Return: 0, RING_E_FULL, RING_E_TOO_LARGE.
 */
static int find_room(struct ring *ring, uint32_t n_slots, uint64_t n_bytes, uint64_t *begin)
{
    if (n_bytes > ring->n_bytes || n_slots > ring->n_slots)
        return RING_E_TOO_LARGE;
    /* acquires ring_release(): the drain has read the payload that was in this space */
    uint64_t tail_slot = atomic_load_acquire(&ring->tail_slot);
    uint64_t tail_byte = atomic_load_acquire(&ring->tail_byte);
    uint64_t head_slot = ring->head_slot; /* only launching threads write it, one at a time */
    if (tail_slot == head_slot) {
        /*
         * Nothing in flight: begin at the front, so that a record as large as the ring fits. The
         * drain leaves tail_byte alone until head_slot moves.
         */
        tail_byte = (tail_byte + ring->n_bytes - 1) / ring->n_bytes * ring->n_bytes;
        ring->head_byte = tail_byte;
        atomic_store_relaxed(&ring->tail_byte, tail_byte);
    }
    *begin = place(ring, n_bytes);
    if (head_slot - tail_slot + n_slots > ring->n_slots ||
        *begin + n_bytes - tail_byte > ring->n_bytes)
        return RING_E_FULL;
    return 0;
}

int ring_room(struct ring *ring, uint32_t n_slots, uint64_t n_bytes)
{
    uint64_t begin;
    return find_room(ring, n_slots, n_bytes, &begin);
}

/* Writes the host half of slot @index; the drain sees it once head_slot has passed it. */
static void fill_slot(struct ring *ring, uint64_t index, struct ring_slot slot)
{
    struct ring_slot *to = ring_slot(ring, index);
    to->site = slot.site;
    to->seq = slot.seq;
    to->payload = slot.payload;
    to->n_bytes = slot.n_bytes;
    to->end = slot.end;
    to->n_records = slot.n_records;
    atomic_store_relaxed(&to->state, (uint32_t)RING_RESERVED);
}

int ring_reserve(struct ring *ring, uint64_t seq, uint32_t site, uint64_t n_bytes, uint64_t *index,
                 uint64_t *payload)
{
    uint64_t begin;
    if (n_bytes > ring->n_bytes)
        return RING_E_TOO_LARGE; /* before padding could wrap */
    int r = find_room(ring, 1, ring_padded(n_bytes), &begin);
    if (r)
        return r;
    *index = ring->head_slot;
    *payload = begin % ring->n_bytes;
    ring->head_byte = begin + ring_padded(n_bytes);
    fill_slot(ring, *index,
              (struct ring_slot){ .site = site,
                                  .seq = seq,
                                  .payload = *payload,
                                  .n_bytes = n_bytes,
                                  .end = ring->head_byte });
    /* acquired by ring_poll() */
    atomic_store_release(&ring->head_slot, *index + 1);
    return 0;
}

int ring_reserve_launch(struct ring *ring, uint64_t seq, uint32_t n_records, uint64_t n_bytes,
                        uint64_t *index, uint64_t *payload)
{
    uint32_t n_slots = ring_launch_slots(n_records);
    uint64_t begin;
    int r = find_room(ring, n_slots, n_bytes, &begin);
    if (r)
        return r;
    *index = ring->head_slot;
    *payload = begin % ring->n_bytes;
    struct ring_slot slot = { .site = DMI_SITE_CLOSE, .seq = seq, .payload = *payload };
    for (uint32_t i = 0; i < n_slots; i++) {
        bool last = i + 1 == n_slots;
        slot.n_records = last ? n_records - i * DMI_CLOSE_RECORDS : DMI_CLOSE_RECORDS;
        slot.n_bytes = last ? n_bytes : 0;
        slot.end = begin + slot.n_bytes;
        fill_slot(ring, *index + i, slot);
    }
    ring->head_byte = slot.end;
    /* acquired by ring_poll() */
    atomic_store_release(&ring->head_slot, *index + n_slots);
    return 0;
}

bool ring_cancel(struct ring *ring, uint64_t index)
{
    uint32_t reserved = RING_RESERVED;
    /* acquires ring_release(): a slot that the drain gave up on may be reserved again by now */
    if (index < atomic_load_acquire(&ring->tail_slot))
        return false;
    /* acquired by ring_poll(), and by ring_give_up() */
    return atomic_cas_acq_rel(&ring_slot(ring, index)->state, &reserved, RING_CANCELLED);
}

bool ring_give_up(struct ring *ring, uint64_t index)
{
    uint32_t reserved = RING_RESERVED;
    /* acquired by ring_cancel() */
    return atomic_cas_acq_rel(&ring_slot(ring, index)->state, &reserved, RING_GIVEN_UP);
}

static const struct dmi_close_desc *close_desc(const struct ring *ring, uint64_t index)
{
    return (const struct dmi_close_desc *)ring_desc(ring, index);
}

static bool bit(const uint32_t *words, uint32_t i)
{
    return words[i / 32] >> i % 32 & 1;
}

enum ring_event ring_record(const struct ring *ring, uint64_t index, uint32_t i)
{
    const struct dmi_close_desc *desc = close_desc(ring, index);
    if (!bit(desc->ran, i))
        return RING_NOT_RUN;
    return bit(desc->wild, i) ? RING_WILD : RING_READY;
}

uint32_t ring_launch_sum(const struct ring *ring, uint64_t index)
{
    return close_desc(ring, index)->sum;
}

enum ring_event ring_poll(const struct ring *ring, uint64_t index)
{
    /* acquires ring_reserve(): the host half of the slot is written */
    if (index == atomic_load_acquire(&ring->head_slot))
        return RING_EMPTY;
    const struct ring_slot *slot = ring_slot(ring, index);
    const struct dmi_desc *desc = ring_desc(ring, index);
    /* acquires ring_cancel() */
    if (atomic_load_acquire(&slot->state) == RING_CANCELLED)
        return RING_VOID;
    /* acquires publish() in publish.cuh, make_ready() of dmi_close, or ring_publish() */
    uint64_t ready = atomic_load_acquire(&desc->ready);
    if (ready != slot->seq)
        /* a lower number is that of the slot's last record, or 0 */
        return ready > slot->seq ? RING_MISMATCH : RING_PENDING;
    if (ring_is_launch(slot))
        return close_desc(ring, index)->site == DMI_SITE_CLOSE ? RING_READY : RING_MISMATCH;
    if (desc->site != slot->site || desc->n_bytes != slot->n_bytes ||
        desc->payload != slot->payload)
        return RING_MISMATCH;
    if (desc->flags & DMI_DESC_WILD_SLOT)
        return RING_WILD;
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

uint64_t ring_bytes_in_flight(const struct ring *ring)
{
    uint64_t head = atomic_load_acquire(&ring->head_slot); /* of ring_reserve() */
    if (head == ring->tail_slot)
        return 0;
    /* only the drain, our caller, releases the newest slot, so it is not reused now */
    return ring_slot(ring, head - 1)->end - ring->tail_byte;
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

void ring_publish_close(struct dmi_desc *slot, const struct dmi_close_desc *record)
{
    struct dmi_close_desc *to = (struct dmi_close_desc *)slot;
    to->site = record->site;
    to->sum = record->sum;
    for (uint32_t i = 0; i < DMI_CLOSE_WORDS; i++) {
        to->ran[i] = record->ran[i];
        to->wild[i] = record->wild[i];
    }
    /* acquired by ring_poll() */
    atomic_store_release(&to->ready, record->ready);
}
