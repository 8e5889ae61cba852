/* SPDX-License-Identifier: Apache-2.0 */
/* The file that an export writes: under a temporary name until all of it is there, and never in a run. A program of one thread. */
#pragma once

#include "tools/common/outfile.h"
#include "tools/trace/runs.h"

#include <stdio.h>

/**
 * export_file_open() - check the file against each run of @paths, and open it
 * @option: that names it, as "--perfetto". outfile_deinit() in any case. Return: NULL: it cannot be, which is said.
 */
FILE *export_file_open(struct outfile *place, char **paths, const char *file, const char *option);

/* Closes it, and gives it its name unless @r, or @error, an errno, is not 0. Return: 0; REPORT_IMPOSSIBLE, which is said. */
int export_file_close(FILE *to, int error, struct outfile *place, int r);

/* Which steps of each run an export is of. */
struct export_asked {
    const struct runs_steps *steps; /* NULL: those that were kept */
    uint64_t last_ns; /* not 0: those of so much time at its end, in place of @steps */
};

/* The steps of one run. runs_kept_deinit() in any case. Return: 0; REPORT_IMPOSSIBLE, which is said. */
int export_steps_of(const struct export_asked *asked, const struct trace_run *run,
                    struct runs_steps *out);

/* Says of a path that is in no part of the file why. */
void export_say_none(const struct export_asked *asked, const char *path);
