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
    to->close = slot.close;
    to->place = slot.place;
    to->sums = RING_SUMS_UNASKED;
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
                                  .end = ring->head_byte,
                                  .close = RING_NO_CLOSE });
    /* acquired by ring_poll() */
    atomic_store_release(&ring->head_slot, *index + 1);
    return 0;
}

int ring_reserve_launch(struct ring *ring, uint64_t seq, const uint32_t *sites,
                        const uint64_t *sizes, uint32_t n, uint64_t *index, uint64_t *payloads)
{
    uint64_t total = 0, begin;
    for (uint32_t i = 0; i < n; i++) {
        if (sizes[i] > ring->n_bytes - total)
            return RING_E_TOO_LARGE;
        total += ring_padded(sizes[i]);
        if (total > ring->n_bytes)
            return RING_E_TOO_LARGE;
    }
    int r = find_room(ring, n + ring_close_slots(n), total, &begin);
    if (r)
        return r;
    *index = ring->head_slot;
    struct ring_slot slot = { .seq = seq, .end = begin };
    for (uint32_t i = 0; i < n; i++) {
        slot.close = *index + n + i / DMI_CLOSE_RECORDS;
        slot.place = i % DMI_CLOSE_RECORDS;
        slot.site = sites[i];
        slot.n_bytes = sizes[i];
        slot.payload = payloads[i] = slot.end % ring->n_bytes;
        slot.end += ring_padded(sizes[i]);
        fill_slot(ring, *index + i, slot);
    }
    slot.site = DMI_SITE_CLOSE;
    slot.n_bytes = slot.payload = 0;
    slot.close = RING_NO_CLOSE;
    for (uint32_t i = 0; i < ring_close_slots(n); i++) {
        uint32_t rest = n - i * DMI_CLOSE_RECORDS;
        slot.place = rest < DMI_CLOSE_RECORDS ? rest : DMI_CLOSE_RECORDS;
        fill_slot(ring, *index + n + i, slot);
    }
    ring->head_byte = slot.end;
    /* acquired by ring_poll() */
    atomic_store_release(&ring->head_slot, *index + n + ring_close_slots(n));
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

/* The records of the closing slot @slot begin in slot @first. */
static bool sums_agree(const struct ring *ring, uint64_t first, struct ring_slot *slot,
                       const struct dmi_close_desc *desc)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < slot->place && slot->sums == RING_SUMS_UNASKED; i++) {
        const struct ring_slot *record = ring_slot(ring, first + i);
        if (bit(desc->ran, i))
            sum += dmi_copy_sum(record->site, record->n_bytes);
    }
    if (slot->sums == RING_SUMS_UNASKED)
        slot->sums = sum == desc->sum ? RING_SUMS_AGREE : RING_SUMS_DIFFER;
    return slot->sums == RING_SUMS_AGREE;
}

/* What the launch's closing slot tells of record @index in @slot. */
static enum ring_event poll_closed(const struct ring *ring, uint64_t index,
                                   const struct ring_slot *slot)
{
    const struct dmi_close_desc *desc = close_desc(ring, slot->close);
    /* acquires make_ready() of dmi_close, or ring_publish_close(): all that its launch wrote is visible */
    uint64_t ready = atomic_load_acquire(&desc->ready);
    if (ready < slot->seq) /* of the closing slot's last record, or 0 */
        return RING_PENDING;
    if (ready > slot->seq || desc->site != DMI_SITE_CLOSE ||
        !sums_agree(ring, index - slot->place, ring_slot(ring, slot->close), desc))
        return RING_MISMATCH;
    if (!bit(desc->ran, slot->place))
        return RING_NOT_RUN;
    return bit(desc->wild, slot->place) ? RING_WILD : RING_READY;
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
    if (slot->close != RING_NO_CLOSE)
        return poll_closed(ring, index, slot);
    /* acquires publish() in publish.cuh, make_ready() of dmi_close, or ring_publish() */
    uint64_t ready = atomic_load_acquire(&desc->ready);
    if (ready != slot->seq)
        /* a lower number is that of the slot's last record, or 0 */
        return ready > slot->seq ? RING_MISMATCH : RING_PENDING;
    if (slot->site == DMI_SITE_CLOSE)
        return RING_VOID;
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
