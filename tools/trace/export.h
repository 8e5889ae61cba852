/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-trace export. A program of one thread. */
#pragma once

#include "tools/trace/runs.h"

/**
 * trace_export() - the runs of @paths as one file that Perfetto reads
 * @file: must not be there; @steps: NULL: those that were kept; @last_ns: 0, or of each run those of so much time at its end, in place of @steps.
 * Return: an exit status.
 */
int trace_export(char **paths, const char *file, const struct runs_steps *steps, uint64_t last_ns);
