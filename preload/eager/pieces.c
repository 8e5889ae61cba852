/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/eager/pieces.h"

#include "core/atomic.h"
#include "core/clock.h"
#include "preload/context/assembly.h"
#include "preload/context/gauge.h"

#define SHARE 4 /* of the ring, for a piece: one may be copied while others are drained */

/* A row is the least that is copied at once. A piece begins at a row by its stride alone, or at its place in the list of slots. */
static bool is_divisible(const struct tensor_view *g)
{
    return !g->gather.rows_inner || g->gather.slot_bytes;
}

/* Does the ring have room for its pieces, one at a time? */
static bool fits(const struct context *c, const struct admission *item)
{
    const struct tensor_view *g = &item->operand->view;
    return (is_divisible(g) ? g->row_bytes : item->n_bytes) <= c->ring.n_bytes;
}

bool pieces_set_aside(struct admission_launch *l)
{
    const struct context *c = l->context;
    bool any = false;
    if (l->overload->mode != OVERLOAD_COMPLETE || context_refusal(c) != DROP_NONE ||
        admission_fits(l))
        return false;
    /* all that publish: a piece waits for the drain, which waits for slots that are reserved and not launched yet */
    for (uint32_t i = 0; i < l->n; i++)
        if (l->items[i].state == ADMISSION_EXPECTED && l->items[i].has_record &&
            fits(c, &l->items[i])) {
            l->items[i].state = ADMISSION_PIECES;
            any = true;
        }
    return any;
}

/* Rows [at, at + n) of those that the record keeps. */
struct piece_rows {
    struct assembly *assembly;
    uint32_t at, n;
};

static uint32_t rows_a_piece(const struct context *c, const struct admission *item)
{
    uint64_t rows = c->ring.n_bytes / SHARE / item->operand->view.row_bytes;
    if (!is_divisible(&item->operand->view))
        return item->pick.n;
    return rows ? (uint32_t)rows : 1;
}

/* A slot for the piece, with the whole record's note. Under the lock. Return: DROP_NONE or why not. */
static int reserve(struct admission_launch *l, struct admission *item, const struct piece_rows *s)
{
    struct context *c = l->context;
    uint64_t n_bytes = (uint64_t)s->n * item->operand->view.row_bytes;
    int reason = context_refusal(c);
    if (reason == DROP_NONE)
        reason = admission_place_lists(l, item);
    if (reason != DROP_NONE)
        return reason;
    /* numbers rise in the order of slots */
    l->number = atomic_add_relaxed(&session.next_launch, 1);
    l->time_ns = clock_real_ns();
    reason = admission_reserve_slot(l, item, n_bytes);
    if (reason != DROP_NONE)
        return reason;
    struct record_note *note = ring_user(&c->ring, item->slot);
    note->assembly = s->assembly;
    note->offset = (uint64_t)s->at * item->operand->view.row_bytes;
    assembly_hold(s->assembly);
    return DROP_NONE;
}

/* The same, after a wait if need be. */
static int reserve_in_time(struct admission_launch *l, struct admission *item,
                           const struct piece_rows *s)
{
    uint64_t end_ns = 0;
    int reason;
    do {
        pthread_mutex_lock(&l->context->lock);
        reason = reserve(l, item, s);
        row_lists_settle(&l->context->row_lists);
        gauge_reserved(l->context);
        pthread_mutex_unlock(&l->context->lock);
    } while (reason == DMI_DROP_RING_FULL && admission_wait(&end_ns));
    return reason;
}

/* Return: DROP_NONE or why the piece cannot be copied. */
static int copy_piece(const struct eager_launch *launch, struct admission_launch *l,
                      struct admission *item, const struct piece_rows *s)
{
    int reason = reserve_in_time(l, item, s);
    if (reason != DROP_NONE)
        return reason;
    if (eager_launch_rows(launch, l, item, s->at, s->n))
        return DROP_NONE;
    if (ring_cancel(&l->context->ring, item->slot))
        assembly_release(s->assembly);
    return DMI_DROP_COPY_FAILED;
}

void pieces_copy(const struct eager_launch *launch, struct admission_launch *l,
                 struct admission *item)
{
    uint32_t rows = rows_a_piece(l->context, item);
    struct piece_rows s = { .assembly = assembly_new(item->n_bytes) };
    int reason = s.assembly ? DROP_NONE : DMI_DROP_NO_MEMORY;
    for (; reason == DROP_NONE && s.at < item->pick.n; s.at += s.n) {
        s.n = item->pick.n - s.at < rows ? item->pick.n - s.at : rows;
        reason = copy_piece(launch, l, item, &s);
    }
    item->state = reason == DROP_NONE ? ADMISSION_LAUNCHED : ADMISSION_GIVEN_UP;
    if (reason != DROP_NONE && (!s.assembly || assembly_settle(s.assembly))) {
        item->state = ADMISSION_EXPECTED;
        admission_drop(l, item, (enum dmi_drop)reason);
    }
    if (s.assembly)
        assembly_release(s.assembly);
}
