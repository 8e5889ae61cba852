/* SPDX-License-Identifier: Apache-2.0 */
/* Which layers of vectors the edits take, and which layers of the edits' sites these are. Pure functions. */
#pragma once

#include "policy/edit.h"

#include <stdbool.h>
#include <stdint.h>

/* Does an edit take the vector in this layer of its site? EDIT_ANY_LAYER: in any. */
bool layers_wanted(const struct edits *edits, uint32_t vector, int32_t layer);

/**
 * layers_shift() - what is to be added to a vector's layers to have those of the site of all edits that take it
 * Layer L of resid_pre is layer L - 1 of resid_post: what enters a layer is what the one before it returned.
 * Return: false: edits of sites that number these layers differently take it.
 */
bool layers_shift(const struct edits *edits, uint32_t vector, int32_t *shift);
