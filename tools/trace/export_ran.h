/* SPDX-License-Identifier: Apache-2.0 */
/* What ran on the device, on Perfetto's time line. A program of one thread. */
#pragma once

#include "tools/trace/perfetto.h"
#include "tools/trace/runs.h"

/*
 * A track for each stream of the device: its kernels, copies and fills, at the times that CUPTI said. Those of one stream that overlap, as branches of a
 * graph do, go to further tracks of it. Return: 0; REPORT_IMPOSSIBLE, which is said.
 */
int export_ran(struct perfetto *out, const struct trace_run *run, uint64_t process,
               const struct runs_steps *steps);
