/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments that somebody has taken elsewhere are given up. Of a run that is still written its process does it, by the file
 * `consumed`; of another one the caller does. Thread: the reader's. Source: docs/format.md 9.
 */
#pragma once

#include "storage/reader/reader.h"

/**
 * release_read() - all closed segments that @reader knows may go; the reader itself is as before, until it is refreshed
 * Nothing goes of a run in which something is damaged: somebody may want to look at it.
 * Return: 0; -EINVAL (a lone segment, or joined runs), -EBADMSG (damage), -errno; with a sentence in @err.
 */
int release_read(struct err *err, const struct reader *reader);
