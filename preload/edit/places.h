/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What launches and graphs have shown of the places for edits: how wide their tensors are in each layer, and in how many graphs nothing can be
 * written there. A change that asks for what cannot be is refused by it. Thread: any.
 */
#pragma once

#include "core/err.h"
#include "preload/edit/version.h"

#include <stdbool.h>
#include <stdint.h>

/* A launch writes, or could, at the place of the site, in a layer (-1: none), in such rows. @pass: DMI_EDIT_PASS() of the layer, 0: not known. Waits for nobody. */
void places_saw(uint32_t site, int32_t layer, struct dmi_edit_shape row, uint32_t pass);

/* A graph exec is there that has the place of the site. @writable: edits can write there wherever it has it. */
void places_in_graph(uint32_t site, bool writable);

/*
 * Do the edits of @version from number @first on suit what was shown? Return: 0, or -EINVAL and @err says which does not, and what to do. What
 * was not shown yet suits. @ranks: which of them this is; NULL: not known
 */
int places_check(struct err *err, const struct edit_version *version, uint32_t first,
                 const struct edit_ranks *ranks);

/* Did the forwards that were lack a layer that the edit, or a vector of its, names, or the edit's pass of it? Then @err has a sentence. */
bool places_lack(struct err *err, const struct edit_use *use);

/* Did any launch, or tap, come to the edit's site? */
bool places_seen(const struct edit_use *use);

/* After fork, in the child. */
void places_reset(void);
