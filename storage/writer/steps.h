/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Step metadata as entries of a STEPS chunk: whose tokens the rows of a step are. Pure; any thread, the
 * caller locks what it passes. Source: docs/format.md 6.
 */
#pragma once

#include "storage/text.h"

#include <dmi/dmi.h>

#include <stdbool.h>

#define STEPS_MOST_WITH_IDS (32u << 20)

/* What keeps the request id of a span from being stored, in words; NULL: nothing. Padding needs none. */
const char *steps_wrong_id(const struct dmi_span *span);

/**
 * steps_add() - append @step to @entries as number @sequence
 * @step: its span_size is the distance between its spans; shorter spans than ours are filled up with zeros
 * @with_ids: also the ids of cached tokens, as long as @entries stays below STEPS_MOST_WITH_IDS bytes
 * Return: 0; with *@why a sentence: -EINVAL (docs/format.md 6 or <dmi/dmi.h> does not allow it), -ENOMEM. On failure
 * @entries is as it was.
 */
int steps_add(struct text *entries, uint64_t sequence, const struct dmi_step *step, bool with_ids,
              const char **why);
