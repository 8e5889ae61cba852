/* SPDX-License-Identifier: Apache-2.0 */
/* From an entry's sightings to what a HookSpec says of it: pointer, offset, counts, strides, occurrences. One thread. */
#pragma once

#include "tools/sites/entry.h"

/**
 * entry_solve() - fill in all that the entry's members say; entry->why where a HookSpec cannot say it
 * @more: entries that it falls apart into where its occurrences have gaps are added
 * Return: 0 or -ENOMEM.
 */
int entry_solve(const struct scene *scene, struct entry *entry, struct entries *more);
