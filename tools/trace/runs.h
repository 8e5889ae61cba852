/* SPDX-License-Identifier: Apache-2.0 */
/* The trace of one run, in memory; and each run that a path names, one after the other. A program of one thread. */
#ifndef TOOLS_TRACE_RUNS_H
#define TOOLS_TRACE_RUNS_H

#include "storage/reader/reader.h"
#include "tools/common/report.h"

#include <stdbool.h>
#include <stddef.h>

struct trace_kept;

/* Which steps, by number: @first to before @end; of these, where @n_kept is not 0, those that one of @kept has. */
struct runs_steps {
    uint64_t first, end;
    const struct trace_kept *kept;
    size_t n_kept;
};

/* Steps of which each record was stored on demand. */
struct trace_kept {
    struct runs_steps steps;
    uint64_t gone; /* steps before them, which were asked for, too */
};

/* Why records are in no chunk. */
struct trace_lost {
    char why[64];
    uint64_t n;
};

#define TRACE_LOSSES 8u /* reasons, each by itself; further ones come under the last one */

/* Accepts being zeroed. */
struct trace_run {
    struct reader *reader;        /* of it alone; borrowed */
    const struct reader_run *run; /* likewise */
    struct dmi_step_times *steps; /* in the order of the files, which is that of their numbers */
    size_t n_steps, room;
    uint64_t n_lost;      /* that marks say */
    uint64_t n_ended;     /* likewise; with @has_ended */
    bool has_ended;       /* the trace ended cleanly */
    bool traced;          /* it has something of a trace */
    int64_t clock_set_ns; /* the sum of what marks say */
    unsigned n_clock_sets;
    /* of what ran on the device */
    bool has_ran;                         /* the tracer ended cleanly: its records are */
    uint64_t n_ran;                       /* so many, */
    uint64_t n_ran_summed;                /* of which these are in sums alone, */
    uint64_t n_ran_lost;                  /* and these in no chunk; */
    uint64_t n_ran_dropped;               /* CUPTI delivered none of these */
    struct trace_lost lost[TRACE_LOSSES]; /* @n_ran_lost by reason; n 0: no more of them */
    struct trace_kept *kept;
    size_t n_kept, kept_room;
    bool has_ring;          /* the last steps were in memory when the trace ended: */
    struct runs_steps ring; /* these; */
    uint64_t n_ring_gone;   /* of those before, so many records had gone unasked */
    char alone
        [160]; /* why steps alone were traced; "": they were not, or nothing else was asked for */
    uint64_t n_lent, lent_ns; /* how often another user had CUPTI, and for how long */
    uint64_t lent_since_ns;   /* 0: it is back */
    size_t n_damage;          /* findings of the reader */
    bool failed;              /* no memory */
};

/**
 * runs_each() - read the trace of each run of @path, and call @fn
 * @path: a run's folder, a folder that holds one run or those of one command's ranks, or one segment file
 * What is damaged is said on stderr. Return: 0; what @fn returned where that was not 0; REPORT_IMPOSSIBLE, where nothing can be read: said.
 */
int runs_each(const char *path, int (*fn)(const struct trace_run *run, void *ctx), void *ctx);

/* Reads "A:B"; what is left out is the first or the last one. Return: false: it is none, or names no step. */
bool runs_read_steps(const char *text, struct runs_steps *out);

/* Those that were kept in the run, which stays: none, where none was. */
struct runs_steps runs_kept(const struct trace_run *run);

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

#endif
