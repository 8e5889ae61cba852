/* SPDX-License-Identifier: Apache-2.0 */
/* All edits of a text, as they are in force when it was just added. For tests. */
#ifndef TESTS_UNIT_EDIT_USES_H
#define TESTS_UNIT_EDIT_USES_H

#include "policy/edit.h"

/* The array is one: the next call overwrites it. */
static inline const struct edit_use *uses_of(const struct edits *edits)
{
    static struct edit_use uses[EDITS_MAX];
    for (uint32_t i = 0; i < edits->n; i++)
        uses[i] = (struct edit_use){ .of = edits, .edit = &edits->list[i], .uid = i + 1 };
    return uses;
}

/* Of the section that is asked for: @arg is the struct edits. */
static inline uint32_t whole_section(void *arg, const struct dmi_span *span,
                                     struct edit_section out[EDIT_MAX_SECTIONS])
{
    const struct edits *edits = arg;
    (void)span;
    out[0] = (struct edit_section){ .uses = uses_of(edits),
                                    .n = edits->n,
                                    .table = 7,
                                    .owner = edits,
                                    .live = true,
                                    .settled = true };
    return 1;
}

static inline bool never_cached(void *arg, const struct edit_use *use, const struct dmi_span *span)
{
    (void)arg, (void)use, (void)span;
    return false;
}

#endif
