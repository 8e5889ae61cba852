/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host side of the ring: reservation before a launch, and consumption in order after it.
 *
 *   launching threads (one at a time: the caller's lock)        the drain (one thread)
 *   ring_reserve() -> slot, payload bytes                       ring_poll() -> what became of the
 *   launch the copy; ring_cancel() if it was refused                          oldest slot
 *                                                               ring_release() -> space is free
 *
 * The producer of payload and descriptors is the device (kernels/copy.cu; for the launch of a graph dmi_close in kernels/ticket.cu) or, where
 * tensors lie in host memory, the launching thread (kernels/copy_host.c). No function here blocks, allocates
 * memory or makes a system call.
 */
#pragma once

#include <dmi/ring.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RING_ALIGN      16u /* payload offsets, so that the copy may use 16-byte accesses */
#define RING_MIN_SLOTS  2u
#define RING_NO_SLOT    UINT64_MAX
#define RING_MIN_BYTES  64u
#define RING_USER_BYTES 80u /* of a slot's user data */

enum {
    RING_E_FULL = 1,      /* no slot or no bytes now: the drain will free some */
    RING_E_TOO_LARGE = 2, /* more than the ring can ever hold in one piece */
};

enum ring_state {
    RING_FREE = 0,
    RING_RESERVED = 1,  /* the device will publish it */
    RING_CANCELLED = 2, /* the driver refused the launch: nothing will publish it */
    RING_GIVEN_UP = 3,  /* the drain no longer waits for it */
};

/*
 * The host half of a slot: what the reservation promised, and what the caller remembers of it. The device never sees
 * it.
 */
struct ring_slot {
    uint32_t state; /* enum ring_state; who changes it from RESERVED decides the slot's fate */
    uint32_t site;
    uint64_t seq;       /* launch sequence; several slots of one launch share it */
    uint64_t payload;   /* offset in the payload ring */
    uint64_t n_bytes;   /* the last of a launch's slots has those of the launch */
    uint64_t end;       /* running byte count up to which release of this slot frees the ring */
    uint32_t n_records; /* of a launch, that its descriptor tells of; 0: it is a record itself */
    uint64_t user[RING_USER_BYTES / sizeof(uint64_t)]; /* opaque; ring_user() */
};

struct ring {
    struct dmi_desc *desc;   /* n_slots, zeroed, pinned; the caller's */
    struct ring_slot *slots; /* n_slots, zeroed; the caller's */
    uint32_t n_slots;        /* a power of two */
    uint64_t n_bytes;        /* of the payload ring; a multiple of RING_ALIGN */
    /* running counts; position = count modulo size */
    uint64_t head_slot; /* released by ring_reserve(), acquired by ring_poll() */
    uint64_t head_byte; /* launching threads only */
    uint64_t tail_slot; /* released by ring_release(), acquired by ring_reserve() */
    uint64_t tail_byte; /* the same */
};

/* Bytes that a record takes in the ring. */
static inline uint64_t ring_padded(uint64_t n_bytes)
{
    return (n_bytes + RING_ALIGN - 1) & ~(uint64_t)(RING_ALIGN - 1);
}

/**
 * ring_init() - a ring over the caller's memory
 * @n_slots: a power of two, at least RING_MIN_SLOTS
 * @n_bytes: at least RING_MIN_BYTES, a multiple of RING_ALIGN
 * Return: 0 or -EINVAL.
 */
int ring_init(struct ring *ring, struct dmi_desc *desc, struct ring_slot *slots, uint32_t n_slots,
              uint64_t n_bytes);

/**
 * ring_reserve() - one slot and @n_bytes of contiguous payload
 * @index: the slot's running number; desc[index & (n_slots - 1)] is its descriptor
 * @payload: offset of the bytes
 *
 * Thread: launching, one at a time. Return: 0, RING_E_FULL or RING_E_TOO_LARGE (nothing changed).
 */
int ring_reserve(struct ring *ring, uint64_t seq, uint32_t site, uint64_t n_bytes, uint64_t *index,
                 uint64_t *payload);

/* Slots that a launch of a graph with @n records takes: dmi_close publishes in each which of up to DMI_CLOSE_RECORDS records ran. */
static inline uint32_t ring_launch_slots(uint32_t n)
{
    return (n + DMI_CLOSE_RECORDS - 1) / DMI_CLOSE_RECORDS;
}

/**
 * ring_reserve_launch() - ring_launch_slots(@n_records) slots and contiguous payload for one launch of a graph
 * @n_records: at least 1; slot number i tells of DMI_CLOSE_RECORDS of them, from number i * DMI_CLOSE_RECORDS on
 * @n_bytes: of all records, each rounded up to RING_ALIGN
 * @index: running number of the first slot; the others follow
 * @payload: offset of the bytes, which are the caller's to deal out. They are free once the last slot is released
 *
 * Thread: launching, one at a time. Return: 0, RING_E_FULL or RING_E_TOO_LARGE (nothing changed).
 */
int ring_reserve_launch(struct ring *ring, uint64_t seq, uint32_t n_records, uint64_t n_bytes,
                        uint64_t *index, uint64_t *payload);

/**
 * ring_room() - would there be room for @n_slots and @n_bytes in one piece?
 * @n_bytes: of all records, each rounded up to RING_ALIGN
 * Thread: launching, one at a time. Return: 0, RING_E_FULL or RING_E_TOO_LARGE.
 */
int ring_room(struct ring *ring, uint32_t n_slots, uint64_t n_bytes);

/**
 * ring_cancel() - the copy of this slot was never handed to the device
 * Thread: any; once, before any publish. Return: false if the drain has given up on the slot before:
 * its record is counted as dropped, and the slot may hold another record by now.
 */
bool ring_cancel(struct ring *ring, uint64_t index);

/* The drain stops waiting for this slot. Thread: drain. Return: false if it was cancelled. */
bool ring_give_up(struct ring *ring, uint64_t index);

enum ring_event {
    RING_EMPTY = 0,    /* nothing is reserved */
    RING_PENDING = 1,  /* the oldest slot is not published yet */
    RING_READY = 2,    /* published: payload may be read */
    RING_VOID = 3,     /* cancelled: nothing to take */
    RING_MISMATCH = 4, /* published, but the descriptor differs from the reservation */
    RING_NOT_RUN = 5,  /* its launch ended without it */
    RING_WILD = 6,     /* published, but one of its rows lay in a slot that there is not */
};

/**
 * ring_poll() - what has become of slot number @index
 * @index: tail_slot or a later one, up to head_slot
 * Acquires what the device released: payload and descriptor are complete on RING_READY. A launch's slot is then ready as a whole.
 * Thread: drain.
 */
enum ring_event ring_poll(const struct ring *ring, uint64_t index);

/* Of record number @i, from 0, that the ready launch slot @index tells of. Return: RING_READY, RING_NOT_RUN, RING_WILD. Thread: drain. */
enum ring_event ring_record(const struct ring *ring, uint64_t index, uint32_t i);

/* ring_launch_sum() - the sum of dmi_copy_sum() over the slot's records that ran, as the device has it. Thread: drain. */
uint32_t ring_launch_sum(const struct ring *ring, uint64_t index);

/* Does the slot stand for a launch? Thread: as ring_slot(). */
static inline bool ring_is_launch(const struct ring_slot *slot)
{
    return slot->n_records;
}

/* The host half of a slot. Thread: drain, for slots in [tail_slot, head_slot). */
static inline struct ring_slot *ring_slot(const struct ring *ring, uint64_t index)
{
    return &ring->slots[index & (ring->n_slots - 1)];
}

/*
 * The slot's user data: RING_USER_BYTES that the ring never looks at. Thread: whoever reserved the slot, until its copy
 * is launched; from then on the drain, until it releases the slot.
 */
static inline void *ring_user(const struct ring *ring, uint64_t index)
{
    return ring_slot(ring, index)->user;
}

/* The device half of a slot, its descriptor. Thread: as ring_slot(). */
static inline struct dmi_desc *ring_desc(const struct ring *ring, uint64_t index)
{
    return &ring->desc[index & (ring->n_slots - 1)];
}

/* Frees all slots before @index, and their bytes. Thread: drain. */
void ring_release(struct ring *ring, uint64_t index);

/* Slots reserved and not released. Thread: any; exact only while nobody reserves or releases. */
uint64_t ring_in_flight(const struct ring *ring);

/* Payload bytes reserved and not released, padding included. Thread: drain. */
uint64_t ring_bytes_in_flight(const struct ring *ring);

/* What publish() in publish.cuh does, for producers on the host. Thread: the one that has filled the payload. */
void ring_publish(struct dmi_desc *slot, const struct dmi_desc *record);

/* What publish_close() in ticket.cu does. Thread: one that knows that all copies of the launch are done. */
void ring_publish_close(struct dmi_desc *slot, const struct dmi_close_desc *record);
