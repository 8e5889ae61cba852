/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Versions of edits. The edits of a version stand in a block: a table in the region of device memory that every capture context has
 * (context/edit_region.h). Versions that differ in coefficients and switches alone share one. A block goes when no version has it and no
 * kernel in flight reads it. Thread: any, but where it says more.
 */
#pragma once

#include "core/atomic.h"
#include "core/err.h"
#include "policy/edit.h"

#include <stdbool.h>
#include <stdint.h>

struct edit_block;

/* Immutable once it is in force. */
struct edit_version {
    uint32_t refs;         /* atomic */
    uint64_t number;       /* from 1 */
    struct edit_use *uses; /* what they are of is held */
    uint32_t n;
    struct edit_block *block;
    struct edit_rows every; /* what it does where the engine says no steps */
};

/* One user more. Thread: one that holds it, or the lock of whoever does. */
static inline void version_use(struct edit_version *version)
{
    atomic_add_relaxed(&version->refs, 1);
}

/* One user less; NULL is fine. */
void version_release(struct edit_version *version);

/**
 * version_new() - a version with the edits of another, but for some
 * @before: NULL: none; its edits but number @without (UINT32_MAX: all) come first
 * @more: of which all edits are added, taken over; NULL: none
 * Its uses may be changed until it is in force; @every is not filled in. Thread: one at a time. Return: NULL, and @err says why.
 */
struct edit_version *version_new(struct err *err, const struct edit_version *before,
                                 uint32_t without, struct edits *more);

/* All of its edits, as edit_rows_build() takes them. */
struct edit_section version_section(struct edit_version *version);

/* Its table. */
const struct edit_table *version_table(const struct edit_version *version);

/* Has it an edit at the site's place that is on, and of the site's action? */
bool version_acts(const struct edit_version *version, uint32_t site);

/* After fork, in the child. */
void versions_reset(void);
