/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of admission.h share; no other file includes it. Thread: as admission.h. */
#pragma once

#include "preload/capture/admission.h"

/* The launch's step has fewer requests now: the rows of an EXPECTED item are chosen anew, and what is left out is counted. */
void admission_pick_again(const struct admission_launch *launch, struct admission *item);

/* The same of all that have a record, and of the slot that ends the launch. */
void admission_cancel_records(struct admission_launch *launch);

/* Where its list of rows stands. */
const struct row_lists *admission_lists(const struct context *context,
                                        const struct admission *item);

/* Under the lock. Return: DROP_NONE, or why the launch of a graph cannot tell the item's rows beside those of the others. */
int admission_choose(struct admission_launch *launch, struct admission *item);

/* Is it EXPECTED, and does its action publish? */
static inline bool admission_wants_slot(const struct admission *item)
{
    return item->state == ADMISSION_EXPECTED && item->has_record;
}

/*
 * In admission_edit.c, of places for edits: what is due, and, with a drop reason, missed; what was due is missed after all; and the
 * driver refused the launch. The layer is known.
 */
void admission_expect_edit(const struct admission_launch *launch, struct admission *item, int drop);
void admission_miss_edit(const struct admission_launch *launch, struct admission *item, int drop);
void admission_take_back_edit(const struct admission_launch *launch, struct admission *item);

/* In admission_unslotted.c: EXPECTED items whose actions publish nothing get all that they need, or are DROPPED. */
void admission_reserve_unslotted(struct admission_launch *launch);
