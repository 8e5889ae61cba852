/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/capture/undecided.h"

#include "core/atomic.h"
#include "preload/capture/forward.h"
#include "preload/context/held.h"
#include "preload/context/lifetime.h"

#include <pthread.h>

/* Return: false where the drain has decided before. Its slot may be somebody else's by then. */
static bool decide(struct admission *item, enum record_fate fate)
{
    struct context *c = item->context;
    uint32_t undecided = RECORD_UNDECIDED;
    if (!context_use(c))
        return false; /* counted with its end */
    /* under the lock nobody reserves: a slot that is not released yet is still the item's */
    pthread_mutex_lock(&c->lock);
    bool first = item->slot >= atomic_load_acquire(&c->ring.tail_slot); /* of ring_release() */
    if (first) {
        struct record_note *note = ring_user(&c->ring, item->slot);
        first = atomic_cas_acq_rel(&note->fate, &undecided, (uint32_t)fate); /* drain.c settle() */
    }
    first = first || held_decide(c, item->slot, fate);
    pthread_mutex_unlock(&c->lock);
    context_unuse(c);
    return first;
}

void undecided_withdraw(const struct undecided *record)
{
    const struct admission *item = &record->item;
    if (item->state == ADMISSION_NONE || !context_use(item->context))
        return;
    pthread_mutex_lock(&item->context->lock);
    forward_take_back(item->context, item->site);
    pthread_mutex_unlock(&item->context->lock);
    context_unuse(item->context);
    atomic_sub_relaxed(&session_counters(item->site)->launches, 1);
}

void undecided_restore(const struct undecided *record)
{
    const struct admission *item = &record->item;
    uint32_t occurrence;
    if (item->state == ADMISSION_NONE || !context_use(item->context))
        return;
    pthread_mutex_lock(&item->context->lock);
    forward_occurrence(item->context, item->site, &occurrence);
    pthread_mutex_unlock(&item->context->lock);
    context_unuse(item->context);
    atomic_add_relaxed(&session_counters(item->site)->launches, 1);
}

void undecided_discard(struct undecided *record)
{
    struct admission *item = &record->item;
    if (item->state == ADMISSION_DROPPED || (item->state == ADMISSION_LAUNCHED &&
                                             (!item->has_record || decide(item, RECORD_DISCARDED))))
        admission_uncount(item);
    item->state = ADMISSION_NONE;
}

void undecided_keep(struct undecided *record)
{
    struct admission *item = &record->item;
    if (item->state == ADMISSION_LAUNCHED && item->has_record)
        decide(item, RECORD_WANTED);
    if (item->state != ADMISSION_NONE)
        session_report_deferred(&record->problem);
    item->state = ADMISSION_NONE;
}
