/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A record that is larger than the ring and comes in pieces, put together in host memory. The launching thread and each
 * slot in flight hold it; the drain fills it, piece by piece in any order.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct assembly {
    uint32_t refs;
    bool settled;        /* atomic: its record is captured, or a counted drop */
    uint64_t n_bytes;    /* of the record */
    uint64_t n_filled;   /* the drain's */
    unsigned char *data; /* n_bytes; heap */
};

/* Held once, by the caller. Return: NULL without memory. Thread: any. */
struct assembly *assembly_new(uint64_t n_bytes);

/* One more holds it. Thread: one that holds it. */
void assembly_hold(struct assembly *assembly);

/* The last one frees it, with the data if that is still there. Thread: any. */
void assembly_release(struct assembly *assembly);

/* Return: true for the one who decides what becomes of the record: all others leave it alone. Thread: any. */
bool assembly_settle(struct assembly *assembly);
