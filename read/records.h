/* SPDX-License-Identifier: Apache-2.0 */
/* Decoded records in bounded memory, for who asks for them in no order. Not locked: the owner's thread. */
#pragma once

#include "storage/reader/reader.h"

#define RECORDS_SLOTS 1024u
#define RECORDS_BYTES (8u << 20) /* kept, and the one that was asked for last */

struct records {
    struct reader *reader; /* set by the owner; the rest is zeroed at first */
    struct records_slot {
        uint8_t *raw; /* NULL: none */
        size_t index;
    } slots[RECORDS_SLOTS];
    size_t n_bytes;
};

/**
 * records_get() - a record's rows, decoded
 * @out: borrowed until the next call
 * Return: 0; -ENOMEM; what reader_decode() returns of a record that is damaged, with a sentence in @err.
 */
int records_get(struct err *err, struct records *records, size_t index, const uint8_t **out);

/* Accepts a struct whose reader is NULL. */
void records_deinit(struct records *records);
