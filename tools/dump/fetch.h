/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run from the tables of a ClickHouse server (docs/clickhouse.md), written as a run again, into a folder of its own: then
 * every command reads it as any other. What the tables have not, it has not: tags, padding, sizes of ranks, counters.
 * A program of one thread.
 */
#pragma once

#include "core/err.h"

#include <stdint.h>

/**
 * fetch() - the run that the address names
 * @address: clickhouse://..., with ?run=UUID where the table has several
 * @n_left_out: of what the tables have, how much the run has not: parts of rows, and steps that no writer takes; each was said on stderr
 * @folder: set to the temporary folder that the run is in, to be given to fetch_remove(); NULL after a failure
 * Return: 0 or -errno with a sentence in @err.
 */
int fetch(struct err *err, const char *address, char **folder, uint64_t *n_left_out);

/* Deletes it, and frees its name. Accepts NULL. */
void fetch_remove(char *folder);
