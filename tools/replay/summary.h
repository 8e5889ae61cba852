/* SPDX-License-Identifier: Apache-2.0 */
/* What a replay has to say at its end. A program of one thread. */
#pragma once

#include "tools/replay/replay.h"

/* Is the request that is wanted in none of the runs? Says so. */
bool summary_is_missing(const struct replay *replay);

/**
 * summary() - a line on stderr, or JSON
 * @result: 0; 1: all was replayed before; -errno, with a sentence in @err
 * Return: an exit status.
 */
int summary(const struct replay *replay, const struct err *err, int result);
