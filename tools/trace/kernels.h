/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-trace kernels. A program of one thread. */
#ifndef TOOLS_TRACE_KERNELS_H
#define TOOLS_TRACE_KERNELS_H

#include "storage/ran.h"
#include "tools/common/report.h"
#include "tools/trace/runs.h"

#include <stdbool.h>

/* What a copy or a fill is, in a few words. */
const char *kernels_word(const struct ran *ran);

/* What ran in step @number of the run, by name, as a part of @report; no table as text where nothing did. Return: 0; REPORT_IMPOSSIBLE, which is said. */
int kernels_of_step(struct report *report, const struct trace_run *run, uint64_t number);

/* What ran on the device, by name, for each run of @paths; of these steps alone, unless they are all. Return: an exit status. */
int trace_kernels(char **paths, bool json, const struct runs_steps *steps);

#endif
