/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches that hold no slot of the ring, as none of their actions publishes a record, and whose actions read lists of rows.
 * An event tells when such a launch is over; its lists stay until then. First in, first out. Thread: launching, entered.
 */
#pragma once

#include "preload/base/cuda_abi.h"
#include "preload/base/stream.h"
#include "preload/context/row_lists.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define UNSLOTTED_MAX        4096u /* launches in flight: more than drivers queue on a few streams */
#define UNSLOTTED_BYTES      (256u << 10)
#define UNSLOTTED_EDIT_BYTES (4u << 20) /* where edits write: their lists hold coefficients, too */
#define UNSLOTTED_NONE       UINT64_MAX

/* Under the capture context's lock, @lock below; an event is its launch's own until it is said to be recorded. */
struct unslotted {
    struct row_lists lists;
    uint64_t head, tail; /* running numbers of launches; position = number modulo UNSLOTTED_MAX */
    struct unslotted_launch *launches; /* UNSLOTTED_MAX; NULL: no site has such an action */
};

struct unslotted_launch {
    CUevent event; /* kept for the next launch at this position */
    bool recorded; /* the launch is on its way; the event tells when it is over */
    bool over;     /* or it never came */
};

/* Over @map, as row_lists_init(); @n_bytes 0: no site needs it. Return: 0 or -ENOMEM. */
int unslotted_init(struct unslotted *all, void *map, uint32_t at, uint32_t n_bytes);

/* Accepts what was zeroed, and zeroes it. */
void unslotted_deinit(struct unslotted *all);

/* Forgets the launches that are over. Calls the driver: no lock. */
void unslotted_settle(struct unslotted *all, pthread_mutex_t *lock);

/* A launch begins. Under the lock. Return: its running number, UNSLOTTED_NONE: too many are in flight. */
uint64_t unslotted_begin(struct unslotted *all);

/* The launch is on its way on @stream, or (@ran false) nothing of it reads a list. Calls the driver: no lock. */
void unslotted_launched(struct unslotted *all, pthread_mutex_t *lock, uint64_t launch,
                        struct stream stream, bool ran);

/* Gives the events back to the driver. Thread: of device_give_back(). */
void unslotted_give_back(struct unslotted *all);
