/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What threads of the host did, on Perfetto's time line: a track for each thread, tracks for requests, and flows from the range that launches a step to the
 * step on its device. A program of one thread.
 */
#pragma once

#include "tools/trace/perfetto.h"
#include "tools/trace/runs.h"

/* Ranges of one run, by thread and begin. */
struct export_ranges {
    struct named_range *all;
    size_t n, room;
    uint64_t begin_ns, end_ns; /* what they must meet */
    size_t *parents;           /* of each, as export_ranges.c has them */
    struct launch *launches;
    size_t n_launches, launches_room;
    bool failed; /* no memory */
};

/* Those from the first of @times to the last one, or @all. export_ranges_deinit() in any case. Return: 0; REPORT_IMPOSSIBLE, which is said. */
int export_ranges_read(struct export_ranges *r, const struct trace_run *run,
                       const struct runs_times *times, bool all);

/* Accepts being zeroed. */
void export_ranges_deinit(struct export_ranges *r);

/* Notes that the flow @flow begins in the innermost range that was open at a step's first launch, in the thread that began the step. Return: is there one? */
bool export_ranges_launch(struct export_ranges *r, const struct dmi_step_times *at, uint64_t flow);

/* Writes them all, once; their order is another afterwards. */
void export_ranges_put(struct perfetto *p, struct export_ranges *r, uint64_t process, int32_t pid);

/* Text as Perfetto takes it: UTF-8 without controls, whatever a file holds. The caller frees it. NULL: no memory. */
char *export_text(const char *text, size_t n);
