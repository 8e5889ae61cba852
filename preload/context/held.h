/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Undecided records that the drain has taken out of the ring, so that those after them need not wait: their bytes lie in host
 * memory until their launching thread decides. Thread: all under the capture context's lock.
 */
#ifndef PRELOAD_CONTEXT_HELD_H
#define PRELOAD_CONTEXT_HELD_H

#include "preload/context/context.h"
#include "storage/writer/run.h"

#include <stdbool.h>
#include <stdint.h>

#define HELD_MAX   256u
#define HELD_BYTES (64u << 20) /* of all records together */

struct held_record {
    struct held_record *next;
    uint64_t index; /* of the slot that it had */
    enum record_fate fate;
    struct run_record record; /* its data and list of kept rows are the two below */
    unsigned char *data;
    uint32_t *kept;
};

/* Is there room for one more record? */
bool held_has_room(const struct context *context, uint64_t n_bytes);

/* @record is UNDECIDED, or decided by now. Takes it over. */
void held_add(struct context *context, struct held_record *record);

/* Return: false where none is held of this slot. */
bool held_decide(struct context *context, uint64_t index, enum record_fate fate);

/* One that is decided or, with @any, any; the caller's from here on. Return: NULL: there is none. */
struct held_record *held_take(struct context *context, bool any);

/* With its data. Any thread; NULL is fine. */
void held_free(struct held_record *record);

#endif
