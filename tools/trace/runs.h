/* SPDX-License-Identifier: Apache-2.0 */
/* The trace of one run, in memory; and each run that a path names, one after the other. A program of one thread. */
#pragma once

#include "storage/reader/reader.h"
#include "storage/reader/trace_account.h"
#include "tools/common/report.h"

#include <stdbool.h>
#include <stddef.h>

/* Which steps, by number: @first to before @end; of these, where @kept is not NULL, those that one of its @n_kept windows has. */
struct runs_steps {
    uint64_t first, end;
    struct trace_window *kept; /* in order, none meets another */
    size_t n_kept;
};

/* Accepts being zeroed. */
struct trace_run {
    struct reader *reader;        /* of it alone; borrowed */
    const struct reader_run *run; /* likewise */
    struct trace_marks marks;
    uint64_t n_steps; /* with times, those in damaged chunks included */
    bool traced;      /* it has something of a trace */
};

/* Times of steps in memory. Accepts being zeroed. */
struct runs_times {
    struct dmi_step_times *all; /* in the order of the files, which is that of their numbers */
    size_t n, room;
    bool failed; /* no memory */
};

/**
 * runs_each() - read the trace of each run of @path, and call @fn
 * @path: a run's folder, a folder of runs (of the latest command: opened.h), or one segment file
 * What is damaged is said on stderr, after @fn has returned. Return: 0; what @fn returned where that was not 0; REPORT_IMPOSSIBLE, where nothing can
 * be read: said.
 */
int runs_each(const char *path, int (*fn)(const struct trace_run *run, void *ctx), void *ctx);

/* Findings of the run's reader that are damage, so far. */
size_t runs_damage(const struct trace_run *run);

/* Reads the times of the steps of @run that are asked for. runs_times_deinit() in any case. Return: 0; REPORT_IMPOSSIBLE, which is said. */
int runs_times(const struct trace_run *run, const struct runs_steps *steps, struct runs_times *out);
void runs_times_deinit(struct runs_times *times);

/* Reads "A:B"; what is left out is the first or the last one. Return: false: it is none, or names no step. */
bool runs_read_steps(const char *text, struct runs_steps *out);

/* How many steps of @run are asked for. Return: as above. */
int runs_count(const struct trace_run *run, const struct runs_steps *steps, uint64_t *n);

/* Those that ended in the last @ns of the run, which end with its last step. Return: as above. */
int runs_last(const struct trace_run *run, uint64_t ns, struct runs_steps *out);

/* Says that no run of @path has a step of --steps. Return: true. */
bool runs_say_none(const char *path);

/* Those that were kept in the run: none, where none was. runs_kept_deinit() in any case. Return: false: no memory. */
bool runs_kept(const struct trace_run *run, struct runs_steps *out);
void runs_kept_deinit(struct runs_steps *steps);

/* A line, where another user had CUPTI for a while: what is missing is what ran then. Text only. */
void runs_say_lent(struct report *report, const struct trace_run *run);

/* Are all steps asked for? */
bool runs_all_asked(const struct runs_steps *steps);

/* Is the step with this number asked for? */
bool runs_step_asked(const struct runs_steps *steps, uint64_t number);

/* Is a record of what ran among the steps that are asked for? @step: as a record has it. */
bool runs_asked(const struct runs_steps *steps, uint64_t step);

/* Why a step has no device time, in a few words; NULL: it has one. */
const char *runs_reason(const struct dmi_step_times *at);

/* Compares structs that begin with a struct dmi_range_entry, for qsort(): by thread, by begin; the outer one first where two begin at once. */
int runs_range_order(const void *a, const void *b);

/* What begins steps, in a word. */
const char *runs_source(uint32_t source);
