/* SPDX-License-Identifier: Apache-2.0 */
/* The part of admission.h that is about actions that publish no record: they need no slot of the ring. */
#include "core/atomic.h"
#include "preload/capture/admission_private.h"

static bool wants_no_slot(const struct admission *item)
{
    return item->state == ADMISSION_EXPECTED && !item->has_record;
}

/* Which of them there are. */
struct step_wants {
    bool any, lists; /* some have lists of rows */
};

static struct step_wants find_wanted(const struct admission_launch *l)
{
    struct step_wants w = { 0 };
    for (uint32_t i = 0; i < l->n; i++)
        if (wants_no_slot(&l->items[i])) {
            w.any = true;
            w.lists = w.lists || l->items[i].pick.rows;
        }
    return w;
}

/* Where its list of rows comes from: the step or, without one, the version of the edits. Another version is another number. */
static uint64_t source_of(const struct admission_launch *l)
{
    return l->step ? l->step->sequence : ~l->edits->number;
}

/* Its rows, as kernels read them. Under the lock. Return: DROP_NONE or why not. */
static int place(struct admission_launch *l, struct admission *item)
{
    struct unslotted *all = &l->context->unslotted;
    const struct select_pick *p = &item->pick;
    if (p->rows &&
        (l->unslotted == UNSLOTTED_NONE || row_lists_place(&all->lists, all->tail, source_of(l),
                                                           p->rows, p->n_list, &item->rows_list)))
        return DMI_DROP_NO_MEMORY;
    if (p->rows)
        row_lists_use(&all->lists, item->rows_list, l->unslotted);
    return l->together ? admission_choose(l, item) : DROP_NONE;
}

static void reserve(struct admission_launch *l, bool lists)
{
    struct context *c = l->context;
    pthread_mutex_lock(&c->lock);
    if (lists)
        l->unslotted = unslotted_begin(&c->unslotted);
    for (uint32_t i = 0; i < l->n; i++) {
        struct admission *item = &l->items[i];
        if (!wants_no_slot(item))
            continue;
        item->reason = place(l, item);
        if (item->reason == DROP_NONE)
            item->state = ADMISSION_RESERVED;
    }
    row_lists_settle(&c->unslotted.lists);
    l->n_unslotted_choices = l->n_choices;
    pthread_mutex_unlock(&c->lock);
}

/* No kernel can learn its rows: it does nothing. */
static void miss(struct admission_launch *l, struct admission *item)
{
    if (item->reason == DMI_DROP_NO_MEMORY)
        session_problem(item->site, PROBLEM_COPY_FAILED,
                        "occurrence %u: too many launches in flight have lists of rows: its action "
                        "did nothing there",
                        item->occurrence);
    admission_drop(l, item, (enum dmi_drop)item->reason);
}

void admission_reserve_unslotted(struct admission_launch *l)
{
    struct step_wants w = find_wanted(l);
    if (!w.any)
        return;
    if (w.lists)
        unslotted_settle(&l->context->unslotted, &l->context->lock);
    l->number = atomic_add_relaxed(&session.next_launch, 1);
    reserve(l, w.lists);
    for (uint32_t i = 0; i < l->n; i++)
        if (wants_no_slot(&l->items[i]))
            miss(l, &l->items[i]);
}

void admission_settle(struct admission_launch *l, struct stream stream)
{
    bool ran = false;
    if (l->unslotted == UNSLOTTED_NONE)
        return;
    for (uint32_t i = 0; i < l->n; i++)
        ran = ran || (l->items[i].state == ADMISSION_LAUNCHED && !l->items[i].has_record);
    ran = ran && !context_is_host(l->context); /* there it is over */
    unslotted_launched(&l->context->unslotted, &l->context->lock, l->unslotted, stream, ran);
    l->unslotted = UNSLOTTED_NONE;
}
