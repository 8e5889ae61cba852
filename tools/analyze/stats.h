/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-analyze stats: what tensors hold, by site and layer, token, or channel. A program of one thread. */
#pragma once

#include "tools/analyze/options.h"
#include "tools/analyze/stats_rows.h"
#include "tools/common/report.h"

#include <dmi/analyze_stats.h>

#define STATS_FORMULA "1" /* of docs/analysis.md */

/* An answer, with what is needed to print it. */
struct stats_answer {
    struct dmi_read *run;
    struct dmi_stats *stats;
    struct stats_rows rows; /* fd -1: they are not wanted */
    int64_t skip_first;
};

/* Return: an exit status. */
int analyze_stats(const struct analyze_options *options);

/* Whether a tensor's layer has numbers. */
bool stats_has(const struct stats_answer *answer, uint64_t tensor);

/* One layer as JSON; one outlier. NULL: no memory. */
json_t *stats_layer_row(const struct stats_answer *answer, uint64_t index);
json_t *stats_outlier_row(const struct dmi_stats_outlier *outlier);

/* A table of rows, or of channels. Return: 0 or -errno with a sentence in @err. */
int stats_by_token(struct err *err, struct report *report, const struct stats_answer *answer);
int stats_by_channel(struct err *err, struct report *report, const struct stats_answer *answer);

/* All of it as a file. Return: as above. */
int stats_write(struct err *err, const struct stats_answer *answer, const char *path, bool force);
