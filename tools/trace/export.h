/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-trace export. A program of one thread. */
#pragma once

#include "tools/trace/runs.h"

/**
 * trace_export() - the runs of @paths as one file that Perfetto reads
 * @file: must not be there; @steps: NULL: those that were kept. Return: an exit status.
 */
int trace_export(char **paths, const char *file, const struct runs_steps *steps);
