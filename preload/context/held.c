/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/held.h"

#include <stdlib.h>

bool held_has_room(const struct context *c, uint64_t n_bytes)
{
    return c->n_held < HELD_MAX && n_bytes <= HELD_BYTES - c->held_bytes;
}

void held_add(struct context *c, struct held_record *record)
{
    record->next = c->held;
    c->held = record;
    c->n_held++;
    c->held_bytes += record->record.n_bytes;
}

bool held_decide(struct context *c, uint64_t index, enum record_fate fate)
{
    struct held_record *r = c->held;
    while (r && r->index != index)
        r = r->next;
    if (r)
        r->fate = fate;
    return r;
}

struct held_record *held_take(struct context *c, bool any)
{
    struct held_record **at = &c->held;
    while (*at && !any && (*at)->fate == RECORD_UNDECIDED)
        at = &(*at)->next;
    struct held_record *r = *at;
    if (!r)
        return NULL;
    *at = r->next;
    c->n_held--;
    c->held_bytes -= r->record.n_bytes;
    return r;
}

void held_free(struct held_record *r)
{
    if (r) {
        free(r->data);
        free(r->kept);
    }
    free(r);
}
