/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of rows that actions take, in host memory that kernels read: those of a step are written once, by the first launch
 * that needs them, and stay until the last user is done with them. First in, first out. Users are running numbers: slots of
 * the ring, with which the drain is done in their order, or launches that have none (unslotted.h). Thread: launching, under
 * the capture context's lock; the drain reads lists of slots that it has not released.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define ROW_LISTS_BYTES (1u << 20)
#define ROW_LISTS_MAX   4096u
#define ROW_LISTS_NONE  UINT32_MAX

struct row_list {
    uint64_t step;        /* where it comes from: the step, ... */
    const uint32_t *from; /* ... and the array, which lives as long as the step; only compared */
    uint32_t n;
    uint32_t at;         /* index in the map */
    uint64_t begin, end; /* as running counts of entries of the map */
    uint64_t until;      /* users before this one may use it */
    uint64_t held_by;    /* the reservation that placed or found it */
};

struct row_lists {
    uint32_t *map; /* of n_map entries; the owner's */
    uint32_t n_map;
    uint32_t first; /* index of the first of them in what kernels see */
    /* running numbers of lists; position = number modulo ROW_LISTS_MAX */
    uint64_t head, tail;
    uint64_t reservation; /* counts them: the one under way may use what it placed */
    bool pressed;
    struct row_list *lists; /* ROW_LISTS_MAX */
};

/* Over the owner's @map: @n_bytes of it from byte @at on. Return: 0 or -ENOMEM. */
int row_lists_init(struct row_lists *all, void *map, uint32_t at, uint32_t n_bytes);

/* Accepts what was zeroed. */
void row_lists_deinit(struct row_lists *all);

/**
 * row_lists_place() - the list is there for kernels to read, held until row_lists_settle()
 * @tail: all users before this one are done
 * @list: its running number; row_list_at() says where it lies
 * Return: 0, RING_E_FULL, RING_E_TOO_LARGE (of kernels/ring.h; also where it finds no room beside lists of the same
 * reservation).
 */
int row_lists_place(struct row_lists *all, uint64_t tail, uint64_t step, const uint32_t *rows,
                    uint32_t n, uint64_t *list);

/* User number @user uses the list. */
void row_lists_use(struct row_lists *all, uint64_t list, uint64_t user);

/* No list is held any more. */
void row_lists_settle(struct row_lists *all);

/* Was half of the room taken at last? Then the drain does not wait for more records. Thread: any. */
bool row_lists_are_pressed(const struct row_lists *all);

/* Index of the list's first entry in what kernels see. Thread: as row_lists_place(). */
static inline uint32_t row_list_at(const struct row_lists *all, uint64_t list)
{
    return all->first + all->lists[list % ROW_LISTS_MAX].at;
}
