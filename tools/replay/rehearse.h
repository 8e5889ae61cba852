/* SPDX-License-Identifier: Apache-2.0 */
/* A run, laid out for a rehearsal of a policy (policy/rehearsal.h). A program of one thread. */
#pragma once

#include "core/err.h"
#include "policy/rehearsal.h"
#include "storage/reader/reader.h"

/**
 * rehearse_run() - try the spec's policy on all that is selected of a run
 * Return: 0, or -errno with a sentence in @err: -ENOENT, the spec has none of the run's sites; -ENOMEM.
 */
int rehearse_run(struct err *err, const struct reader *reader, const struct rehearsal_terms *terms,
                 struct rehearsal *out);
