/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-trace kernels. A program of one thread. */
#ifndef TOOLS_TRACE_KERNELS_H
#define TOOLS_TRACE_KERNELS_H

#include "tools/trace/export.h"

#include <stdbool.h>

/* What ran on the device, by name, for each run of @paths; of these steps alone, unless they are all. Return: an exit status. */
int trace_kernels(char **paths, bool json, const struct export_steps *steps);

#endif
