/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs that a tool reads. Of a folder with runs of several commands those of the last one are taken, and a line on stderr says so. A program of
 * one thread.
 */
#pragma once

#include "storage/reader/reader.h"

#include <dmi/read.h>

/* Opens the structure of a run, as reader_open_index() does, and prints that line. */
int opened_index(struct err *err, const char *path, struct reader **out);

/* Opens a run, as dmi_read_open() does, and prints that line. */
int opened_run(const char *path, struct dmi_read **out, char *why, size_t n_why);
