/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-trace export. A program of one thread. */
#ifndef TOOLS_TRACE_EXPORT_H
#define TOOLS_TRACE_EXPORT_H

#include <stdint.h>

/* Which steps, by number: @first to before @end. */
struct export_steps {
    uint64_t first, end;
};

/**
 * trace_export() - the runs of @paths as one file that Perfetto reads
 * @file: must not be there. Return: an exit status.
 */
int trace_export(char **paths, const char *file, const struct export_steps *steps);

#endif
