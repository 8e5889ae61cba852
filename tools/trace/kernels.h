/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-trace kernels. A program of one thread. */
#ifndef TOOLS_TRACE_KERNELS_H
#define TOOLS_TRACE_KERNELS_H

#include "storage/ran.h"
#include "tools/common/report.h"
#include "tools/trace/runs.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All that ran under one name; copies and fills have one each. */
struct kernels_line {
    uint32_t kind; /* enum dmi_ran_kind */
    char *name;
    uint64_t n, sum_ns, most_ns, bytes;
    uint32_t registers, shared; /* the most */
};

/* Accepts being zeroed, but for @steps: those that are asked for, borrowed. */
struct kernels_sums {
    const struct runs_steps *steps;
    struct kernels_line *all;
    size_t n, room;
    uint64_t n_records, n_unknown, sum_ns;
    size_t last; /* place of the record before */
    bool failed; /* no memory */
};

/* Adds what ran in the run. Return: 0; REPORT_IMPOSSIBLE, which is said. kernels_forget() follows. */
int kernels_sum(struct kernels_sums *sums, const struct trace_run *run);
void kernels_forget(struct kernels_sums *sums);

/* What a copy or a fill is, in a few words. */
const char *kernels_word(const struct ran *ran);

/* enum dmi_ran_kind in a word. */
const char *kernels_kind(uint32_t kind);

/* What ran in step @number of the run, by name, as a part of @report; no table as text where nothing did. Return: 0; REPORT_IMPOSSIBLE, which is said. */
int kernels_of_step(struct report *report, const struct trace_run *run, uint64_t number);

/* What ran on the device, by name, for each run of @paths; of these steps alone, unless they are all. Return: an exit status. */
int trace_kernels(char **paths, bool json, const struct runs_steps *steps);

#endif
