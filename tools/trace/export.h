/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-trace export. A program of one thread. */
#pragma once

#include "tools/trace/export_file.h"

/**
 * trace_export() - the runs of @paths as one file that Perfetto reads
 * @file: must not be there. Return: an exit status.
 */
int trace_export(char **paths, const char *file, const struct export_asked *asked);

/* One run as a file in Chrome's format, as PyTorch's profiler writes it, which Holistic Trace Analysis and TensorBoard read. Likewise. */
int trace_export_chrome(char **paths, const char *file, const struct export_asked *asked);
