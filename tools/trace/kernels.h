/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-trace kernels. A program of one thread. */
#pragma once

#include "core/hashed.h"
#include "storage/ran.h"
#include "tools/common/report.h"
#include "tools/trace/runs.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All that ran under one name; copies and fills have one each. */
struct kernels_line {
    uint32_t kind; /* enum dmi_ran_kind, but for DMI_RAN_BUSY */
    char *name;    /* a zero byte ends it, and may be within it: */
    size_t n_name;
    uint64_t n, sum_ns, most_ns, bytes;
    uint32_t registers, shared; /* the most */
    uint64_t site;              /* as struct ran_place */
    uint64_t first, last;       /* layers of it, likewise; 0: none is known */
};

/* How a table is printed. */
struct kernels_form {
    bool json;
    bool full_names; /* in text: as the driver has them, or demangled; else names_short() */
};

/* Accepts being zeroed, but for @steps: those that are asked for, borrowed. */
struct kernels_sums {
    const struct runs_steps *steps;
    const struct reader *sites; /* names them: a line for each site of a name. NULL: one for all */
    struct kernels_line *all;
    size_t n, room;
    struct hashed by_hash; /* of lines, before @all is sorted */
    uint64_t n_records, n_unknown, sum_ns;
    struct ran_sum busy; /* of all steps asked for; no records: not said */
    bool failed;         /* no memory */
};

/* Adds what ran in the run, by sums where it has some: they are of records that are stored, too. Return: 0; REPORT_IMPOSSIBLE, which is said. kernels_forget() follows. */
int kernels_sum(struct kernels_sums *sums, const struct trace_run *run);
void kernels_forget(struct kernels_sums *sums);

/* Compares two of struct kernels_line, for qsort(): by kind, by name. */
int kernels_by_name(const void *a, const void *b);

/* What a copy or a fill is, in a few words. */
const char *kernels_word(const struct dmi_trace_shape *shape);

/* The name of the site, as the run has it; NULL: there is none. */
const char *kernels_site(const struct reader *reader, struct ran_place place);

/* enum dmi_ran_kind in a word. */
const char *kernels_kind(uint32_t kind);

/* When something ran in a step. */
struct kernels_busy {
    uint64_t records;          /* 0: sums say nothing of the step */
    uint64_t busy_ns, span_ns; /* in which something ran; from the first begin to the last end */
    uint64_t longest_ns;       /* the longest time between in which nothing ran */
};

/* In which chunk sums of which steps are: from step @first to @last. */
struct kernels_extent {
    uint64_t chunk, first, last;
};

/* What ran in the steps of a run, as sums say it. Accepts being zeroed. */
struct kernels_costs {
    struct kernels_busy all;        /* all steps together */
    uint64_t sum_ns, own_ns;        /* of kernels; of those of DMI's */
    struct kernels_extent *extents; /* in the order of the file */
    size_t n_extents, extents_room;
    bool failed; /* no memory */
};

/* Return: 0; REPORT_IMPOSSIBLE, which is said. kernels_costs_forget() follows. */
int kernels_costs(const struct trace_run *run, struct kernels_costs *costs);
void kernels_costs_forget(struct kernels_costs *costs);

/* The same of each of @n steps, in the order of their numbers, into @each, zeroed. It reads the chunks that may hold some alone. Return: as above. */
int kernels_busy(const struct trace_run *run, const struct kernels_costs *costs,
                 const struct dmi_step_times *steps, size_t n, struct kernels_busy *each);

/* What ran in step @number of the run, by name, as a part of @report: by its records or, where there are none, by sums; no table as text where nothing did. Return: 0; REPORT_IMPOSSIBLE, which is said. */
int kernels_of_step(struct report *report, const struct trace_run *run, uint64_t number,
                    bool full_names);

/* What ran on the device, by name, for each run of @paths; of these steps alone, unless they are all. Return: an exit status. */
int trace_kernels(char **paths, struct kernels_form form, const struct runs_steps *steps);
