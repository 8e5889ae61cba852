/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rows hold, kept in a file without a name: they come in the order of records and are wanted in that of tensors, and memory must not
 * grow with tokens. A program of one thread.
 */
#pragma once

#include "core/err.h"

#include <dmi/analyze_stats.h>

struct stats_rows {
    int fd;
    uint64_t *first; /* by tensor: which row of the file its first one is */
};

/* Return: 0 or -errno with a sentence in @err; stats_rows_deinit() in any case. */
int stats_rows_init(struct err *err, struct stats_rows *rows, struct dmi_read *run);
void stats_rows_deinit(struct stats_rows *rows);

/* Keeps rows: a dmi_stats_take, @arg a struct stats_rows. */
int stats_rows_take(void *arg, uint64_t tensor, uint64_t first, const struct dmi_stats_row *rows,
                    uint64_t n);

/* Gives back rows of a tensor. Return: 0 or -errno with a sentence in @err. */
int stats_rows_read(struct err *err, const struct stats_rows *rows, uint64_t tensor, uint64_t first,
                    struct dmi_stats_row *out, uint64_t n);
