/* SPDX-License-Identifier: Apache-2.0 */
#include "read/records.h"

#include <errno.h>
#include <stdlib.h>

static size_t n_bytes_of(const struct records *c, size_t index)
{
    return reader_record(c->reader, index)->at.n_bytes;
}

static void drop(struct records *c, struct records_slot *slot)
{
    if (slot->raw)
        c->n_bytes -= n_bytes_of(c, slot->index);
    free(slot->raw);
    *slot = (struct records_slot){ 0 };
}

static void drop_all(struct records *c)
{
    for (size_t i = 0; i < RECORDS_SLOTS; i++)
        drop(c, &c->slots[i]);
}

static int load(struct err *err, struct records *c, struct records_slot *slot, size_t index)
{
    size_t n = n_bytes_of(c, index);
    drop(c, slot);
    if (c->n_bytes + n > RECORDS_BYTES)
        drop_all(c);
    slot->raw = malloc(n + 1);
    if (!slot->raw)
        return -ENOMEM;
    slot->index = index;
    c->n_bytes += n;
    int r = reader_decode(err, c->reader, reader_record(c->reader, index), slot->raw);
    if (r)
        drop(c, slot);
    return r;
}

int records_get(struct err *err, struct records *c, size_t index, const uint8_t **out)
{
    struct records_slot *slot = &c->slots[index % RECORDS_SLOTS];
    int r = slot->raw && slot->index == index ? 0 : load(err, c, slot, index);
    *out = slot->raw;
    return r;
}

void records_deinit(struct records *c)
{
    if (c->reader)
        drop_all(c);
}
